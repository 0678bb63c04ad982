"""What an aggregation rule is: a pure function from the uploads of a round to one, read in blocks, in float64."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params

BLOCK = 2**20  # numbers of each upload that are read at once: with 100 clients 0.8 GB of float64
SENT = ("params", "statistics")  # kinds of an upload that are versions of what was sent; the others are updates


class Points(NamedTuple):
    """One kind of tree in the uploads of a round: each upload is a point, and so is what the clients were sent.

    >>> points = Points([{"w": torch.tensor(w)} for w in ([1.0, 2.0], [3.0, 4.0])], {}, torch.tensor([0.5, 0.5]))
    >>> [(values.tolist(), origin.tolist()) for values, origin in points._replace(block=1).read()]
    [([[1.0], [3.0]], [0.0]), ([[2.0], [4.0]], [0.0])]
    """

    uploads: Sequence[Params]
    origin: Params  # empty for zero, where uploads are updates
    weights: Tensor  # (C,) of the clients in a mean; their sum is 1
    mixing: Tensor | None = None  # (C, C): each point is replaced by so much of every point
    block: int = BLOCK

    def read(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields all points (C, n) and the origin (n,), some numbers at a time."""
        for name, leaf in self.uploads[0].items():
            flat = [each[name].flatten() for each in self.uploads]
            start = self.origin[name].flatten() if name in self.origin else torch.zeros_like(flat[0])
            for at in range(0, leaf.numel(), self.block):
                part = slice(at, at + self.block)
                values = torch.stack([each[part] for each in flat]).double()
                yield values if self.mixing is None else self.mixing.to(values) @ values, start[part].double()


Point = list[Tensor]  # float64, in the blocks in which points are read
Combine = Callable[[Points], Point]


class Rule(NamedTuple):
    """An aggregation rule: what replaces the mean of the uploads, and the fewest of which it can outvote the liars.

    Without ``combine`` it is the weighted mean, which is summed as uploads arrive and keeps none of them. Otherwise
    the uploads of a round are kept, and each kind of tree in them is combined by itself, each number too.
    """

    combine: Combine | None = None
    fewest: int = 1
    liars: int = 1

    @property
    def needs(self) -> str:
        """Says how many uploads it needs, and for what.

        >>> Rule(fewest=21, liars=9).needs, Rule(fewest=3).needs
        ('21 to outvote 9', '3 to outvote one')
        """
        return (
            f"{self.fewest} to outvote {'one' if self.liars == 1 else self.liars}" if self.liars else f"{self.fewest}"
        )


def combined(rule: Rule, uploads: Sequence[Memory], weights: Tensor, server: Params) -> Memory:
    """Combines uploads by a rule, in float64; ``server`` is what the clients were sent.

    >>> two = [{"params": {"w": torch.tensor(w)}, "numbers": {"steps": torch.tensor(w)}} for w in (1.0, 3.0)]
    >>> combined(Rule(lambda points: [values[0] for values, _ in points.read()]), two, torch.ones(2), {})
    {'params': {'w': tensor(1., dtype=torch.float64)}, 'numbers': {'steps': tensor(1., dtype=torch.float64)}}
    """
    share = weights.double() / weights.double().sum()
    return {kind: _of_kind(rule, kind, [each[kind] for each in uploads], share, server) for kind in uploads[0]}


def mixed(points: Points, weights: Tensor, rest: float = 0.0) -> Point:
    """Returns a weighted sum of the points, and so much of the origin.

    >>> mixed(Points([{"w": torch.tensor(3.0)}], {"w": torch.tensor(1.0)}, torch.ones(1)), torch.tensor([0.5]), 0.5)
    [tensor([2.], dtype=torch.float64)]
    """
    return [weights.to(values) @ values + rest * origin for values, origin in points.read()]


def lengths(points: Points, centre: Point | None = None) -> Tensor:
    """Returns how far each point is from a centre, by default the origin.

    >>> lengths(Points([{"w": torch.tensor([3.0, 4.0])}], {}, torch.ones(1)))
    tensor([5.], dtype=torch.float64)
    """
    total = torch.zeros(len(points.uploads), dtype=torch.float64, device="cpu")
    for i, (values, origin) in enumerate(points.read()):
        total += (values - (origin if centre is None else centre[i])).square().sum(1).cpu()
    return total.sqrt()


def squared_distances(points: Points, centre: Point | None = None) -> Tensor:
    """Returns the squared distances of all pairs (C, C), from inner products of the moves from a centre or the origin.

    >>> squared_distances(Points([{"w": torch.tensor(w)} for w in (1.0, 3.0)], {}, torch.ones(2) / 2)).tolist()
    [[0.0, 4.0], [4.0, 0.0]]
    """
    inner = torch.zeros(len(points.uploads), len(points.uploads), dtype=torch.float64, device="cpu")
    for i, (values, origin) in enumerate(points.read()):
        moves = values - (origin if centre is None else centre[i])
        inner += (moves @ moves.T).cpu()
    norms = inner.diagonal()
    return (norms[:, None] + norms[None] - 2 * inner).clamp(min=0).fill_diagonal_(0)


def _of_kind(rule: Rule, kind: str, uploads: list[Params], weights: Tensor, server: Params) -> Params:
    if kind == trees.NUMBERS:  # each is a quantity of its own
        return {name: _tree(rule, [{name: each[name]} for each in uploads], weights, {})[name] for name in uploads[0]}
    return _tree(rule, uploads, weights, server if kind in SENT else {})


def _tree(rule: Rule, uploads: list[Params], weights: Tensor, server: Params) -> Params:
    if not uploads[0]:
        return {}
    assert rule.combine is not None, "a mean is summed as uploads arrive"
    flat = torch.cat(rule.combine(Points(uploads, trees.restrict(server, uploads[0].keys()), weights)))
    parts = flat.split([leaf.numel() for leaf in uploads[0].values()])
    return {name: part.reshape(leaf.shape) for (name, leaf), part in zip(uploads[0].items(), parts, strict=True)}
