"""A Triton kernel that adds the uploads of many clients in float64; only CUDA needs this file."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedatoms.engine.gpu.launches import launch

_NUMBERS = 1024  # at once


def add_weighted(total: Tensor, weights: Tensor, leaf: Tensor) -> Tensor:
    """Returns ``total`` plus the weighted sum of a leaf over its client axis, without a float64 copy of the leaf."""
    leaf, size = leaf.contiguous(), total.numel()
    new = torch.empty_like(total, memory_format=torch.contiguous_format)
    grid = (triton.cdiv(size, _NUMBERS),)
    launch(_add_weighted, grid, total.contiguous(), weights, leaf, new, size, len(leaf), _NUMBERS)
    return new


@triton.jit
def _add_weighted(total, weights, leaf, new, size, clients, NUMBERS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
    inside = at < size
    sums = tl.load(total + at, inside)
    for client in range(clients):
        sums += tl.load(weights + client) * tl.load(leaf + at, inside).to(tl.float64)
        leaf += size  # of the next client
    tl.store(new + at, sums, inside)
