"""A Triton kernel for products with short sums; only CUDA needs this file."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TALL, _WIDE = 32, 128  # of a tile: 32 sums for each of 128 threads


def outer(left: Tensor, right: Tensor) -> Tensor:
    """Multiplies matrices (C, M, K) and (C, K, N) of a small K."""
    clients, tall, terms = left.shape
    wide = right.shape[2]
    result = torch.empty(clients, tall, wide, dtype=left.dtype, device=left.device)
    grid = triton.cdiv(wide, _WIDE), triton.cdiv(tall, _TALL), clients
    with torch.cuda.device_of(left):  # Triton launches on the current device
        _outer[grid](left, right, result, *left.stride(), *right.stride(), tall, wide, terms, _TALL, _WIDE)
    return result


@triton.jit
def _outer(
    left,
    right,
    result,
    left_c,
    left_m,
    left_k,
    right_c,
    right_k,
    right_n,
    tall,
    wide,
    terms: tl.constexpr,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
):
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(1) * tile_m + tl.arange(0, tile_m)
    n = tl.program_id(0) * tile_n + tl.arange(0, tile_n)
    left += client * left_c + m * left_m
    right += client * right_c + n * right_n
    sums = tl.zeros((tile_m, tile_n), tl.float32)
    for k in range(terms):
        a = tl.load(left + k * left_k, m < tall, 0.0).to(tl.float32)
        b = tl.load(right + k * right_k, n < wide, 0.0).to(tl.float32)
        sums += a[:, None] * b[None, :]
    at = client * tall * wide + m[:, None] * wide + n[None, :]
    tl.store(result + at, sums, (m < tall)[:, None] & (n < wide)[None, :])
