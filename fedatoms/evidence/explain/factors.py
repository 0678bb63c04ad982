"""The clients of a round as deviations of coefficients and atoms from their weighted means, layer by layer."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedatoms.core.trees import Params
from fedatoms.evidence.explain.replayed_round import Replay
from fedatoms.nn.atoms import AtomConv


class Layer(NamedTuple):
    """A decomposed layer: the names of its factors, and of its filter once the network is plain."""

    name: str
    coefficients: str
    atoms: str
    weight: str


class Factors(NamedTuple):
    """Clients around their mean, in float64: client k has coefficients a + eps_k and atoms d + delta_k.

    N = O * I filters of K entries made of M atoms: a (N, M), d (M, K), eps (C, N, M), delta (C, M, K), p (C,).
    """

    a: Tensor
    d: Tensor
    eps: Tensor
    delta: Tensor
    p: Tensor

    @property
    def shift(self) -> Tensor:
        """Sum over k of p_k eps_k delta_k (N, K): the mean of the clients' filters minus the product of the means."""
        return torch.einsum("c,cnm,cmk->nk", self.p, self.eps, self.delta)


def layers_of(model: nn.Module) -> list[Layer]:
    """Returns the decomposed layers of a network; layers that share both factors count as one.

    >>> from fedatoms.nn.atoms import decompose
    >>> layers_of(decompose(nn.Sequential(nn.Conv2d(3, 8, 3))))
    [Layer(name='0', coefficients='0.coefficients', atoms='0.atoms', weight='0.weight')]
    """
    names = {parameter: name for name, parameter in model.named_parameters()}  # of tied ones the first
    found: dict[tuple[str, str], Layer] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, AtomConv):
            factors = names[layer.coefficients], names[layer.atoms]
            found.setdefault(factors, Layer(name, *factors, weight=f"{name}.weight" if name else "weight"))
    return list(found.values())


def factors_of(layer: Layer, replay: Replay) -> Factors:
    """Returns a layer's factors in the clients' models.

    Means are computed from moves relative to the server's model, so clients that did not move deviate by exactly 0.
    """
    start, p = replay.before.server.params, replay.weights.to(replay.before.server.params[layer.atoms].device)
    a, eps = _around_mean(_precise(start, layer.coefficients, 2), _stacked(replay.models, layer.coefficients, 2), p)
    d, delta = _around_mean(_precise(start, layer.atoms, 1), _stacked(replay.models, layer.atoms, 1), p)
    return Factors(a, d, eps, delta, p)


def filters(params: Params, layer: Layer) -> Tensor:
    """Returns the filters of a layer, coefficients times atoms, as (N, K) in float64.

    >>> layer = Layer("0", "0.coefficients", "0.atoms", "0.weight")
    >>> filters({"0.coefficients": torch.ones(2, 3, 4), "0.atoms": torch.ones(4, 5, 5)}, layer).shape
    torch.Size([6, 25])
    """
    return _precise(params, layer.coefficients, 2) @ _precise(params, layer.atoms, 1)


def _precise(params: Params, name: str, lead: int) -> Tensor:
    """Returns coefficients (lead 2) or atoms (lead 1) as a matrix."""
    leaf = params[name].double()
    return leaf.flatten(0, 1) if lead == 2 else leaf.flatten(1)


def _stacked(models: Sequence[Params], name: str, lead: int) -> Tensor:
    return torch.stack([_precise(model, name, lead) for model in models])


def _around_mean(start: Tensor, each: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    moves = each - start
    mean = torch.tensordot(p, moves, dims=1)
    return start + mean, moves - mean
