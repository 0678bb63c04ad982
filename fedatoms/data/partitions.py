"""Splits a data set over clients: evenly, by shards of one class each, or by class mixes from a Dirichlet law."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedatoms.core.options import check_range
from fedatoms.core.randomness import numpy_generator

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


class Split(NamedTuple):
    """The samples of each client: int64 indices into the training and into the test set."""

    train: list[Tensor]
    test: list[Tensor]


def iid(y: Tensor, test_y: Tensor, clients: int, seed: int) -> Split:
    """Deals shuffled samples into ``clients`` parts whose sizes differ by at most one.

    >>> [len(part) for part in iid(torch.zeros(7), torch.zeros(4), clients=2, seed=0).train]
    [4, 3]
    """
    _check_clients(clients, len(y))
    rng = numpy_generator(seed, "partition", "iid")
    train, test = (torch.from_numpy(rng.permutation(n)) for n in (len(y), len(test_y)))
    return Split(list(train.tensor_split(clients)), list(test.tensor_split(clients)))


def shards(
    y: Tensor, test_y: Tensor, clients: int, classes_per_client: int, seed: int, *, distinct: bool = False
) -> Split:
    """Cuts each class into equal shards of its samples in order, and gives each client ``classes_per_client`` shards.

    This is the rule of FedRep (Collins et al., 2021): the labels of all shards are shuffled into a matrix with one row
    per client, and each entry takes a random shard of its class. The test set is cut by the same matrix, so a client
    is tested on the classes that it trains on (on none of its own where a class has fewer test samples than shards).
    A row may hold a class twice; with ``distinct`` it never does.

    >>> y = torch.arange(10).repeat(20)
    >>> split = shards(y, y, clients=20, classes_per_client=2, seed=0, distinct=True)
    >>> {(len(part), len(y[part].unique())) for part in split.train}
    {(10, 2)}
    """
    _check_clients(clients, len(y))
    classes = _count_classes(y, test_y)
    _check_shards(_counts(y, classes), clients, classes_per_client)
    rng = numpy_generator(seed, "partition", "shards")
    labels = np.repeat(np.arange(classes), clients * classes_per_client // classes)
    matrix = rng.permutation(labels).reshape(clients, classes_per_client)
    if distinct:
        matrix = _without_repeats(matrix, classes, rng)
    return Split(_deal(y, matrix, classes, rng), _deal(test_y, matrix, classes, rng))


def dirichlet(y: Tensor, test_y: Tensor, clients: int, alpha: float, seed: int, *, unbalanced: float = 0.0) -> Split:
    """Draws the class mix of each client from a Dirichlet law: the smaller ``alpha``, the fewer classes per client.

    The rule of FedDyn and FedDC: sizes are equal, or lognormal with deviation ``unbalanced``; then, until all samples
    are dealt, a random client that is not full takes a sample of a class drawn from its mix, among the classes that
    are left. Each class of the test set is shared in proportion to the training samples that the clients got of it.

    >>> y = torch.arange(10).repeat(20)
    >>> [len(part) for part in dirichlet(y, y, clients=4, alpha=0.3, seed=0).train]
    [50, 50, 50, 50]
    """
    _check_clients(clients, len(y))
    check_range("dirichlet", alpha, argument="alpha")
    check_range("unbalanced", unbalanced)
    classes = _count_classes(y, test_y)
    rng = numpy_generator(seed, "partition", "dirichlet")
    sizes = _sizes(len(y), clients, unbalanced, rng)
    log_mix = _log_dirichlet(alpha, (clients, classes), rng)
    owners = _draw(sizes, log_mix, _counts(y, classes), rng)
    got = np.stack([np.bincount(owner, minlength=clients) for owner in owners])  # (classes, clients)
    shares = [_apportion(weights, n, rng.random()) for weights, n in zip(got, _counts(test_y, classes), strict=True)]
    test_owners = [rng.permutation(np.repeat(np.arange(clients), share)) for share in shares]
    return Split(_group(y, [rng.permutation(owner) for owner in owners], clients), _group(test_y, test_owners, clients))


def _check_clients(clients: int, samples: int) -> None:
    check_range("clients", clients)
    if clients > samples:
        raise ValueError(
            f"clients={clients} is more than the {samples} training samples: each client needs at least one. "
            f"Use clients={samples} or fewer."
        )


def _count_classes(y: Tensor, test_y: Tensor) -> int:
    if y.dim() != 1 or bool((y != y.round()).any()):
        raise ValueError(
            f"shards and dirichlet split by class, but targets of type {y.dtype} and shape {tuple(y.shape)} are no "
            f"classes. Use iid, or give each client its samples with fedatoms.data.federation."
        )
    labels = np.unique(y.cpu().numpy())
    if not np.array_equal(labels, np.arange(len(labels))):
        raise ValueError(
            f"the training labels {_few(labels)} are not 0..{len(labels) - 1}, each of them in use. "
            "Renumber them, for example with y.unique(return_inverse=True)[1]."
        )
    unseen = np.setdiff1d(test_y.cpu().numpy(), labels)
    if len(unseen):
        raise ValueError(
            f"the test labels {_few(unseen)} are not among the training labels 0..{len(labels) - 1}, so no client "
            "could hold them. Leave these samples out."
        )
    return len(labels)


def _few(values: npt.NDArray[np.generic]) -> str:
    return ", ".join(str(value) for value in values[:5]) + (", ..." if len(values) > 5 else "")


def _check_shards(counts: _Ints, clients: int, classes_per_client: int) -> None:
    classes, smallest = len(counts), int(counts.min())
    if not 1 <= classes_per_client <= classes:
        raise ValueError(
            f"classes_per_client={classes_per_client} is not in 1..{classes}: the data have {classes} classes. "
            f"Use classes_per_client={min(max(classes_per_client, 1), classes)}."
        )
    if clients * classes_per_client % classes:
        step = classes // math.gcd(classes, classes_per_client)
        raise ValueError(
            f"clients={clients} times classes_per_client={classes_per_client} is not a multiple of the {classes} "
            f"classes, so the shards do not divide. Use clients={math.ceil(clients / step) * step}, or another "
            f"multiple of {step}."
        )
    if (per_class := clients * classes_per_client // classes) > smallest:
        raise ValueError(
            f"clients={clients} with classes_per_client={classes_per_client} need {per_class} shards per class, but "
            f"class {counts.argmin()} has only {smallest} samples, and a shard needs one. Use fewer clients or classes."
        )


def _without_repeats(matrix: _Ints, classes: int, rng: np.random.Generator) -> _Ints:
    """Swaps labels between rows until no row holds a class twice.

    Always ends: let row r have the fewest distinct labels, and hold a twice. There are at most as many shards of a as
    rows, so some row q lacks a; it has no fewer distinct labels than r, so it has some label b that r lacks. Swapping
    this a and this b gives r one more distinct label, and q no fewer.
    """
    rows, width = matrix.shape
    count = np.zeros((rows, classes), dtype=np.int64)
    np.add.at(count, (np.arange(rows)[:, None], matrix), 1)
    distinct = (count > 0).sum(1)
    while distinct[r := distinct.argmin()] < width:
        a = count[r].argmax()
        q = rng.choice(np.flatnonzero(count[:, a] == 0))
        b = rng.choice(np.flatnonzero((count[q] > 0) & (count[r] == 0)))
        count[[r, q, r, q], [a, a, b, b]] += [-1, 1, 1, -1]
        distinct[[r, q]] = (count[[r, q]] > 0).sum(1)
    return np.nonzero(count)[1].reshape(rows, width)


def _deal(y: Tensor, matrix: _Ints, classes: int, rng: np.random.Generator) -> list[Tensor]:
    """Cuts each class into as many shards as the matrix has entries of it; each entry's row owns a random one."""
    owners = []
    for label, samples in enumerate(_counts(y, classes)):
        rows = rng.permutation(np.nonzero(matrix == label)[0])
        sizes = samples // len(rows) + (np.arange(len(rows)) < samples % len(rows))
        owners.append(np.repeat(rows, sizes))
    return _group(y, owners, len(matrix))


def _sizes(samples: int, clients: int, deviation: float, rng: np.random.Generator) -> _Ints:
    logarithms = deviation * rng.standard_normal(clients)
    weights = np.exp(logarithms - logarithms.max())
    ideal = weights / weights.sum() * samples
    return 1 + _apportion(np.maximum(ideal - 1, 0), samples - clients, 0.5)


def _draw(sizes: _Ints, log_mix: _Floats, counts: _Ints, rng: np.random.Generator) -> list[_Ints]:
    """Returns for each class the clients that take its samples, by the rule of :func:`dirichlet`."""
    room, left, unfilled = sizes.tolist(), counts.tolist(), list(range(len(sizes)))
    owners: list[list[int]] = [[] for _ in left]
    bounds = _bounds(log_mix, counts)
    for pick, level in rng.random((sum(room), 2)).tolist():
        client = unfilled[place := int(pick * len(unfilled))]
        label = int(bounds[client].searchsorted((1 - level) * bounds[client, -1]))
        owners[label].append(client)
        left[label], room[client] = left[label] - 1, room[client] - 1
        if not left[label] and any(left):
            bounds = _bounds(log_mix, np.array(left))
        if not room[client]:
            unfilled[place] = unfilled[-1]
            unfilled.pop()
    return [np.array(owner) for owner in owners]


def _log_dirichlet(alpha: float, shape: tuple[int, int], rng: np.random.Generator) -> _Floats:
    """Draws logarithms of Dirichlet weights up to a constant per row, by Gamma(a) = Gamma(a + 1) * U ** (1 / a).

    Weights themselves would underflow to zero at small ``alpha``, and leave nothing to draw once a class has run out.
    """
    return np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / max(alpha, 1e-300)


def _bounds(log_mix: _Floats, left: _Ints) -> _Floats:
    """Accumulates each client's mix over the classes that are left."""
    masked = np.where(left > 0, log_mix, -np.inf)
    return np.cumsum(np.exp(masked - masked.max(axis=1, keepdims=True)), axis=1)


def _apportion(weights: npt.NDArray[np.number], total: int, offset: float) -> _Ints:
    """Rounds ``total * weights / sum(weights)`` to whole numbers with the same sum, each by less than one."""
    cumulative = weights.cumsum()
    bounds = np.floor(cumulative / max(cumulative[-1], 1e-300) * total + offset)
    rounded: _Ints = np.minimum(bounds, total).astype(np.int64)
    return np.diff(rounded, prepend=0)


def _counts(y: Tensor, classes: int) -> _Ints:
    return np.bincount(y.cpu().numpy(), minlength=classes)


def _group(y: Tensor, owners: list[_Ints], clients: int) -> list[Tensor]:
    """Lists each client's samples, where ``owners[c][i]`` owns the i-th sample of class c."""
    owner = np.empty(len(y), dtype=np.int64)
    owner[np.argsort(y.cpu().numpy(), kind="stable")] = np.concatenate(owners)
    order = torch.from_numpy(np.argsort(owner, kind="stable"))
    return list(torch.split(order, np.bincount(owner, minlength=clients).tolist()))
