"""Triton kernels for many small convolutions at once, each client with its own filters; only CUDA needs this file.

Both are matrix products whose left factor, the patches of the images, is never written down: images lie in memory as
(C, B, H, W, I), so that one row of a patch is one run of ``K * I`` numbers, and a patch is ``K`` such runs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 264  # twice the multiprocessors of a large GPU: fewer leave it idle


def convolve(x: Tensor, filters: Tensor) -> Tensor:
    """Convolves (C, B, H, W, I) with (C, O, K, K, I), without padding: (C, B, H - K + 1, W - K + 1, O)."""
    clients, batch, height, width, channels = x.shape
    out, tall, wide = filters.shape[1:4]
    rows, columns = height - tall + 1, width - wide + 1
    y = x.new_empty(clients, batch, rows, columns, out)
    pixels, tile_o = batch * rows * columns, _tile(out, 128)
    tile_p = 128 if clients * triton.cdiv(pixels, 128) * triton.cdiv(out, tile_o) >= _PROGRAMS else 64
    grid = (triton.cdiv(pixels, tile_p), triton.cdiv(out, tile_o), clients)
    sizes = (pixels, rows, columns, height, width * channels, channels, out, tall * wide * channels, wide * channels)
    _convolve[grid](x, filters, y, *sizes, tile_p, tile_o, 128 // x.element_size(), num_warps=4, num_stages=4)
    return y


def correlate(x: Tensor, dy: Tensor, tall: int, wide: int) -> Tensor:
    """Returns the gradient of the filters, (C, K, K, I, O), from images and the gradient of the convolution's result."""
    clients, batch, height, width, channels = x.shape
    rows, columns, out = dy.shape[2:]
    pixels, patch = batch * rows * columns, tall * wide * channels
    tile_k, tile_o, tile_p = 128, _tile(out, 128), 128 // x.element_size()
    tiles = triton.cdiv(patch, tile_k) * triton.cdiv(out, tile_o)
    parts = max(min(triton.cdiv(2 * _PROGRAMS, tiles * clients), triton.cdiv(pixels, 4 * tile_p)), 1)
    share = triton.cdiv(triton.cdiv(pixels, parts), tile_p) * tile_p
    sums = x.new_empty(parts, clients, patch, out, dtype=torch.float32)
    grid = (tiles, parts, clients)
    sizes = (share, pixels, rows, columns, height, width * channels, channels, out, patch, wide * channels)
    _correlate[grid](x, dy, sums, *sizes, tile_k, tile_o, tile_p, num_warps=4, num_stages=4)
    return sums.sum(0).to(x.dtype).view(clients, tall, wide, channels, out)  # in a fixed order: no atomic additions


@triton.jit
def _convolve(
    x,
    filters,
    y,
    pixels,
    rows: tl.constexpr,
    columns: tl.constexpr,
    height: tl.constexpr,
    line: tl.constexpr,
    channels: tl.constexpr,
    out: tl.constexpr,
    patch: tl.constexpr,
    run: tl.constexpr,
    tile_p: tl.constexpr,
    tile_o: tl.constexpr,
    tile_k: tl.constexpr,
):
    client = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * tile_p + tl.arange(0, tile_p)
    o = tl.program_id(1) * tile_o + tl.arange(0, tile_o)
    x += client * (pixels // (rows * columns)) * height * line
    filters += client * out * patch
    corner = _corner(p, rows, columns, height, line, channels)
    total = tl.zeros((tile_p, tile_o), tl.float32)
    for first in range(0, patch, tile_k):
        k = first + tl.arange(0, tile_k)
        place = _place(k, line, run, channels)
        images = tl.load(x + corner[:, None] + place[None, :], (p < pixels)[:, None] & (k < patch)[None, :], 0.0)
        weights = tl.load(filters + o[None, :] * patch + k[:, None], (k < patch)[:, None] & (o < out)[None, :], 0.0)
        total = tl.dot(images, weights, total, input_precision="tf32")
    y += (client * pixels + p)[:, None] * out + o[None, :]
    tl.store(y, total.to(y.dtype.element_ty), (p < pixels)[:, None] & (o < out)[None, :])


@triton.jit
def _correlate(
    x,
    dy,
    sums,
    share,
    pixels,
    rows: tl.constexpr,
    columns: tl.constexpr,
    height: tl.constexpr,
    line: tl.constexpr,
    channels: tl.constexpr,
    out: tl.constexpr,
    patch: tl.constexpr,
    run: tl.constexpr,
    tile_k: tl.constexpr,
    tile_o: tl.constexpr,
    tile_p: tl.constexpr,
):
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    across = tl.cdiv(out, tile_o)
    k = tl.program_id(0) // across * tile_k + tl.arange(0, tile_k)
    o = tl.program_id(0) % across * tile_o + tl.arange(0, tile_o)
    x += client * (pixels // (rows * columns)) * height * line
    dy += client * pixels * out
    place = _place(k, line, run, channels)
    total = tl.zeros((tile_k, tile_o), tl.float32)
    for first in range(part * share, tl.minimum(part * share + share, pixels), tile_p):
        p = first + tl.arange(0, tile_p)
        corner = _corner(p, rows, columns, height, line, channels)
        images = tl.load(x + corner[None, :] + place[:, None], (p < pixels)[None, :] & (k < patch)[:, None], 0.0)
        slopes = tl.load(dy + p[:, None] * out + o[None, :], (p < pixels)[:, None] & (o < out)[None, :], 0.0)
        total = tl.dot(images, slopes, total, input_precision="tf32")
    sums += ((part * tl.num_programs(2) + client) * patch + k)[:, None] * out + o[None, :]
    tl.store(sums, total, (k < patch)[:, None] & (o < out)[None, :])


@triton.jit
def _corner(p, rows: tl.constexpr, columns: tl.constexpr, height: tl.constexpr, line: tl.constexpr, step: tl.constexpr):
    """Where the patch of output pixel ``p`` begins."""
    return p // (rows * columns) * (height * line) + p // columns % rows * line + p % columns * step


@triton.jit
def _place(k, line: tl.constexpr, run: tl.constexpr, channels: tl.constexpr):
    """Where number ``k`` of a patch lies, counted from its corner."""
    place = k // run * line + k % run
    if channels % 16 == 0:  # sixteen numbers in a row then lie in a row: let them be read in wide words
        place = tl.max_contiguous(tl.multiple_of(place, 16), 16)
    return place


def _tile(size: int, largest: int) -> int:
    return max(min(triton.next_power_of_2(size), largest), 16)
