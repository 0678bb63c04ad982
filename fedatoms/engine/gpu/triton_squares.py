"""A Triton kernel that sums the squares of all leaves of many clients; only CUDA needs this file."""

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedatoms.engine.gpu.launches import launch
from fedatoms.engine.gpu.tiles import CHUNK, chunks_of

_LEAVES = 64  # of one launch: each is an argument


def squares(leaves: Sequence[Tensor]) -> Tensor:
    """Returns the sums of squares of each client's leaves (C, ...) as partial sums (C, P), in float32."""
    sums, first = leaves[0].new_empty(len(leaves[0]), sum(map(chunks_of, leaves)), dtype=torch.float32), 0
    for kind in {leaf.dtype: None for leaf in leaves}:  # of one launch
        alike = [leaf if _is_dense(leaf) else leaf.contiguous() for leaf in leaves if leaf.dtype == kind]
        for begin in range(0, len(alike), _LEAVES):
            some = tuple(alike[begin : begin + _LEAVES])
            *starts, count = accumulate(map(chunks_of, some), initial=0)
            sizes = tuple(leaf[0].numel() for leaf in some)
            launch(_squares, (count, len(sums)), sums, some, sizes, tuple(starts), first, sums.shape[1], CHUNK)
            first += count
    return sums


def _is_dense(leaf: Tensor) -> bool:
    """Says whether clients lie one after the other, each in one piece: in which order does not matter."""
    reach = 1
    for stride, size in sorted(zip(leaf.stride()[1:], leaf.shape[1:], strict=True)):
        if size != 1 and stride != reach:
            return False
        reach *= size
    return leaf.stride(0) == reach


@triton.jit
def _squares(sums, leaves, sizes, starts, first, total, CHUNK: tl.constexpr):
    """Sums the squares of a chunk of a client's leaf."""
    chunk, client = tl.program_id(0), tl.program_id(1).to(tl.int64)
    leaf, size, start = leaves[0], sizes[0], starts[0]
    for i in tl.static_range(1, len(sizes)):  # whose chunk it is
        here = chunk >= starts[i]
        leaf = tl.where(here, leaves[i], leaf)
        size = tl.where(here, sizes[i], size)
        start = tl.where(here, starts[i], start)
    at = (chunk - start) * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(leaf + client * size + at, at < size, 0.0).to(tl.float32)
    tl.store(sums + client * total + first + chunk, tl.sum(x * x))
