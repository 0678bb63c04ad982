"""A step of several batches: each is differentiated by itself, and their gradients are averaged over real samples."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedatoms.core import trees
from fedatoms.core.inputs import Inputs
from fedatoms.core.trees import Params

LOSS = ""  # beside the gradients of a batch
Gradient = tuple[Params, Tensor, Params]  # gradient, loss and new buffers


class Batch(NamedTuple):
    """The data of one step; ``real`` marks the rows that are not padding (None: all)."""

    x: Inputs
    y: Tensor
    real: Tensor | None
    key: Tensor


def accumulated(of_batch: Callable[[Params, Batch], Gradient], params: Params, batch: Batch, size: int) -> Gradient:
    """Differentiates a step batch after batch, ``size`` rows each: memory is that of one, the mean that of all."""
    sums, mutable = dict[str, Tensor](), list[str]()
    for part in batches(batch, size):
        gradient, loss, buffers = of_batch(params, part)
        found, mutable = {**gradient, LOSS: loss}, list(buffers)
        share = _share(part, batch).to(loss.dtype)
        sums = trees.apply(partial(_plus, share), found, sums or trees.zeros_like(found))
        params = {**params, **trees.apply(partial(_unless_padding, share), buffers, params)}
    loss = sums.pop(LOSS)
    return sums, loss, trees.restrict(params, mutable)


def batches(batch: Batch, size: int) -> list[Batch]:
    """Cuts a step into batches of ``size`` rows, each with a key of its own.

    >>> step = Batch(torch.arange(5), torch.arange(5), None, torch.tensor(8))
    >>> [(part.x.tolist(), part.real, int(part.key)) for part in batches(step, 2)]
    [([0, 1], None, 8), ([2, 3], None, 9), ([4], tensor([True]), 10)]
    """
    rows = len(pytree.tree_leaves(batch.x)[0])
    return [_rows(batch, slice(at, min(at + size, rows)), place) for place, at in enumerate(range(0, rows, size))]


def _rows(batch: Batch, rows: slice, place: int) -> Batch:
    x, y = pytree.tree_map(lambda leaf: leaf[rows], (batch.x, batch.y))
    real = None if batch.real is None else batch.real[rows]
    if real is None and rows.stop - rows.start == 1:  # which torch's BatchNorm refuses
        real = torch.ones(1, dtype=torch.bool, device=batch.key.device)
    return Batch(x, y, real, batch.key + place)


def _share(part: Batch, whole: Batch) -> Tensor:
    count, total = (_count(each) for each in (part, whole))
    return count / total.clamp(min=1)


def _count(batch: Batch) -> Tensor:
    if batch.real is None:
        return torch.tensor(len(pytree.tree_leaves(batch.x)[0]), dtype=torch.float64, device=batch.key.device)
    return batch.real.sum().double()


def _plus(share: Tensor, leaf: Tensor, total: Tensor) -> Tensor:
    return total + torch.where(share > 0, share * leaf, 0.0)  # in padding a network may overflow, and 0 * inf is not 0


def _unless_padding(share: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(share > 0, new, old)
