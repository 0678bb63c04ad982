"""An aggregation rule without latent clients: the mean of filters, written as coefficients and atoms again.

    fedatoms run fedavg-atoms --aggregation fedatoms.evidence.explain.filter_mean:filter_mean

is the control of ``fedatoms run fedavg-atoms``: the same clients and network, whose server averages what they compute.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedatoms.aggregation.base import Point, Points, Rule, mixed
from fedatoms.core.trees import Params

RULE = "fedatoms.evidence.explain.filter_mean:filter_mean"  # what --aggregation calls it
COEFFICIENTS, ATOMS = "coefficients", "atoms"


class Factored(NamedTuple):
    """Filters (N, K) as coefficients (N, M) times atoms (M, K)."""

    coefficients: Tensor
    atoms: Tensor


def averaging_filters() -> Rule:
    """Averages the filters of decomposed layers, and all else number by number.

    >>> averaging_filters().fewest
    1
    """
    return Rule(_combine)


filter_mean = averaging_filters  # what runs that are kept call it: a part of their identity


def factors(params: Params, names: tuple[str, str]) -> Factored:
    """Returns a layer's coefficients and atoms as matrices in float64.

    >>> names = "conv.coefficients", "conv.atoms"
    >>> found = factors({names[0]: torch.ones(2, 3, 4), names[1]: torch.ones(4, 5, 5)}, names)
    >>> found.coefficients.shape, found.atoms.shape
    (torch.Size([6, 4]), torch.Size([4, 25]))
    """
    coefficients, atoms = (params[name].double() for name in names)
    return Factored(coefficients.flatten(0, 1), atoms.flatten(1))


def nearest_factors(filters: Tensor, mean: Factored) -> Factored:
    """Returns the factors nearest to some filters, of as many atoms as ``mean`` has and near to these.

    With as many atoms as a filter has numbers the product is exact, and the atoms are those of ``mean``.

    >>> filters, mean = torch.eye(2).double(), Factored(torch.zeros(2, 3).double(), torch.ones(3, 2).double().tril())
    >>> found = nearest_factors(filters, mean)
    >>> torch.equal(found.atoms, mean.atoms), torch.dist(found.coefficients @ found.atoms, filters) < 1e-12
    (True, tensor(True))
    """
    coefficients, atoms = mean
    if len(atoms) < atoms.shape[1]:
        directions = torch.linalg.eigh(filters.T @ filters).eigenvectors[:, -len(atoms) :]  # singular vectors
        atoms = atoms @ directions @ directions.T
    rest = filters - coefficients @ atoms
    return Factored(coefficients + rest @ torch.linalg.pinv(atoms), atoms)


def _combine(points: Points) -> Point:
    first = points.uploads[0]
    means = torch.cat(mixed(points, points.weights)).split([leaf.numel() for leaf in first.values()])
    found = {name: mean.reshape(first[name].shape) for name, mean in zip(first, means, strict=True)}
    for names in _decomposed(points):
        each = [factors(one, names) for one in points.uploads]
        filters = torch.stack([w * (a @ d) for w, (a, d) in zip(points.weights.tolist(), each, strict=True)]).sum(0)
        found |= zip(names, nearest_factors(filters, factors(found, names)), strict=True)
    return [leaf.flatten() for leaf in found.values()]


def _decomposed(points: Points) -> Iterator[tuple[str, str]]:
    """Yields the names of a layer's coefficients and atoms, where both travel; updates of them are no factors."""
    for name in points.origin:
        atoms = f"{name.removesuffix(COEFFICIENTS)}{ATOMS}"
        if name.endswith(COEFFICIENTS) and atoms in points.origin:
            yield name, atoms
