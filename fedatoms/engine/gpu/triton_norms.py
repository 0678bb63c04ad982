"""A Triton kernel that sums the squares of all leaves of many clients; only CUDA needs this file."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedatoms.engine.gpu.tiles import CHUNK, chunks_of

_LEAVES = 64  # of one launch: each is an argument


def squares(leaves: Sequence[Tensor]) -> Tensor:
    """Returns the sums of squares of each client's leaves (C, ...) as partial sums (C, P)."""
    counts = [chunks_of(leaf) for leaf in leaves]
    sums = torch.empty(len(leaves[0]), sum(counts), dtype=leaves[0].dtype, device=leaves[0].device)
    first = 0
    for begin in range(0, len(leaves), _LEAVES):
        some = tuple(_dense(leaf) for leaf in leaves[begin : begin + _LEAVES])
        here = counts[begin : begin + _LEAVES]
        sizes, starts = tuple(leaf[0].numel() for leaf in some), tuple(sum(here[:i]) for i in range(len(here)))
        with torch.cuda.device_of(sums):  # Triton launches on the current device
            _squares[(sum(here), len(sums))](some, sizes, starts, sums[:, first:], sums.shape[1], CHUNK)
        first += sum(here)
    return sums


def _dense(leaf: Tensor) -> Tensor:
    """Returns a leaf whose clients lie one after the other, each in one piece: in which order does not matter."""
    dense = leaf.untyped_storage().nbytes() == leaf.nbytes and leaf.stride(0) == leaf[0].numel()
    return leaf if dense or leaf.is_contiguous() else leaf.contiguous()


@triton.jit
def _squares(leaves, sizes, starts, sums, total, CHUNK: tl.constexpr):
    chunk, client = tl.program_id(0), tl.program_id(1).to(tl.int64)
    leaf, size, start = leaves[0], sizes[0], starts[0]
    for i in tl.static_range(1, len(sizes)):  # whose chunk it is
        here = chunk >= starts[i]
        leaf = tl.where(here, leaves[i], leaf)
        size = tl.where(here, sizes[i], size)
        start = tl.where(here, starts[i], start)
    at = (chunk - start) * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(leaf + client * size + at, at < size, 0.0)
    tl.store(sums + client * total + chunk, tl.sum(x * x))
