"""Triton kernels for many small convolutions at once, each client with its own filters; only CUDA needs this file.

Both are matrix products whose left factor, the patches of the images, is never written down: images lie in memory as
(C, B, H, W, I), so that one row of a patch is one run of ``K * I`` numbers, and a patch is ``K`` such runs. With
``pool``, the pixels of a window of 2 x 2 follow each other, and only the largest of each four leaves the kernel. Sums
have a fixed order (no atomic additions) and tiles a fixed size (no tuning at run time): the same bits each time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 264  # twice the multiprocessors of a large GPU: fewer leave it idle
DEAD = tl.constexpr(4)  # argmax code of a window with no positive value


def convolve(x: Tensor, filters: Tensor) -> Tensor:
    """Convolves images (C, B, H, W, I) with filters (C, O, K, K, I), without padding."""
    x, filters = x.contiguous(), filters.contiguous()
    rows, columns = (size - kernel + 1 for size, kernel in zip(x.shape[2:4], filters.shape[2:4], strict=True))
    y = x.new_empty(*x.shape[:2], rows, columns, filters.shape[1])
    _launch_convolve(x, filters, None, y, None)
    return y


def convolve_pool(x: Tensor, filters: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Convolves, adds a bias (C, O), applies ReLU and takes the maximum of each 2 x 2 window, with its argmax."""
    x, filters, bias = x.contiguous(), filters.contiguous(), bias.contiguous()
    rows, columns = ((size - kernel + 1) // 2 for size, kernel in zip(x.shape[2:4], filters.shape[2:4], strict=True))
    y = x.new_empty(*x.shape[:2], rows, columns, filters.shape[1])
    which = torch.empty_like(y, dtype=torch.uint8)
    _launch_convolve(x, filters, bias, y, which)
    return y, which


def correlate(x: Tensor, dy: Tensor, which: Tensor | None, tall: int, wide: int) -> Tensor:
    """Returns the gradient of the filters, (C, K, K, I, O), given the result's; with ``which``, the pooled result's."""
    x, dy, which = x.contiguous(), dy.contiguous(), None if which is None else which.contiguous()
    clients, _, height, width, channels = x.shape
    rows, columns, out = dy.shape[2:]
    pool = which is not None
    pixels, patch = dy[0, ..., 0].numel() * (4 if pool else 1), tall * wide * channels
    tile_k, tile_o, tile_p, warps, stages = _correlate_tiles(x, out)
    tiles = triton.cdiv(patch, tile_k) * triton.cdiv(out, tile_o)
    parts = max(min(triton.cdiv(2 * _PROGRAMS, tiles * clients), triton.cdiv(pixels, 128)), 1)
    share = triton.cdiv(triton.cdiv(pixels, parts), tile_p) * tile_p
    sums = x.new_empty(parts, clients, patch, out, dtype=torch.float32)
    sizes = (share, pixels, x[0].numel(), rows, columns, height * width * channels, width * channels, channels)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        _correlate[(tiles, parts, clients)](
            x, dy, which, sums, *sizes, out, patch, wide * channels, pool, tile_k, tile_o, tile_p,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return sums.sum(0).to(x.dtype).view(clients, tall, wide, channels, out)


def _launch_convolve(x: Tensor, filters: Tensor, bias: Tensor | None, y: Tensor, which: Tensor | None) -> None:
    clients, _, height, width, channels = x.shape
    out, tall, wide = filters.shape[1:4]
    pool = which is not None
    pixels = y[0, ..., 0].numel() * (4 if pool else 1)
    tile_p, tile_o, tile_k, warps, stages = _convolve_tiles(x, pixels, out)
    grid = (triton.cdiv(pixels, tile_p), triton.cdiv(out, tile_o), clients)
    sizes = (pixels, x[0].numel(), *y.shape[2:4], height * width * channels, width * channels, channels)
    with torch.cuda.device_of(x):
        _convolve[grid](
            x, filters, bias, y, which, *sizes, out, tall * wide * channels, wide * channels, pool,
            tile_p, tile_o, tile_k, num_warps=warps, num_stages=stages,
        )  # fmt: skip


def _convolve_tiles(x: Tensor, pixels: int, out: int) -> tuple[int, int, int, int, int]:
    tile_o = tile(out)
    tile_p = 128 if len(x) * triton.cdiv(pixels, 128) * triton.cdiv(out, tile_o) >= _PROGRAMS else 64
    few = x.shape[-1] % 16 != 0  # then a patch is short, and a long tile would be half empty
    tile_k = 16 if few else 128 // x.element_size()
    return tile_p, tile_o, tile_k, 4, _stages(x, tile_k * (tile_p + tile_o), 3 if few else 4)


def _correlate_tiles(x: Tensor, out: int) -> tuple[int, int, int, int, int]:
    if x.dtype == torch.float32:  # two warps choose the older matrix units, which read float32 in either order
        return 128, min(tile(out), 64), 16, 2, 3
    tile_o, tile_p = tile(out), 64 if x.shape[-1] % 16 == 0 else 32
    return 128, tile_o, tile_p, 4, _stages(x, tile_p * (128 + tile_o), 3)


def _stages(x: Tensor, numbers: int, most: int) -> int:
    """Returns the pipeline depth: as many tiles as a GPU's shared memory holds."""
    if not x.is_cuda:
        return most
    properties = torch.cuda.get_device_properties(x.device)
    room = int(getattr(properties, "shared_memory_per_block_optin", 48 * 1024))  # AMD's have no such field
    return max(min(room // (numbers * x.element_size()), most), 1)


def tile(size: int) -> int:
    """Returns the smallest power of two that holds ``size``, from 16 to 128."""
    return next((power for power in (16, 32, 64) if power >= size), 128)


@triton.jit
def _convolve(
    x,
    filters,
    bias,
    y,
    which,
    pixels,
    images,
    rows: tl.constexpr,
    columns: tl.constexpr,
    image: tl.constexpr,
    line: tl.constexpr,
    channels: tl.constexpr,
    out: tl.constexpr,
    patch: tl.constexpr,
    run: tl.constexpr,
    pool: tl.constexpr,
    tile_p: tl.constexpr,
    tile_o: tl.constexpr,
    tile_k: tl.constexpr,
):
    client = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * tile_p + tl.arange(0, tile_p)
    o = tl.program_id(1) * tile_o + tl.arange(0, tile_o)
    x += client * images
    filters += client * out * patch
    corner = _corner(p, rows, columns, image, line, channels, pool)
    total = tl.zeros((tile_p, tile_o), tl.float32)
    for first in range(0, patch, tile_k):
        k = first + tl.arange(0, tile_k)
        place = _place(k, line, run, channels)
        patches = tl.load(x + corner[:, None] + place[None, :], (p < pixels)[:, None] & (k < patch)[None, :], 0.0)
        weights = tl.load(filters + o[None, :] * patch + k[:, None], (k < patch)[:, None] & (o < out)[None, :], 0.0)
        total = tl.dot(patches, weights, total, input_precision="tf32")
    if pool:
        total += tl.load(bias + client * out + o, o < out, 0.0).to(tl.float32)[None, :]
        windows = tl.reshape(total, (tile_p // 4, 4, tile_o))
        broken = tl.max((windows != windows).to(tl.int32), 1)  # a maximum ignores NaN here, but not in torch
        total, largest = tl.max(windows, 1, return_indices=True)
        largest = tl.where(total > 0, largest, DEAD)
        total = tl.where(broken > 0, float("nan"), tl.maximum(total, 0.0))
        pixels = pixels // 4
        p = tl.program_id(0) * (tile_p // 4) + tl.arange(0, tile_p // 4)
    at = (client * pixels + p)[:, None] * out + o[None, :]
    inside = (p < pixels)[:, None] & (o < out)[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), inside)
    if pool:
        tl.store(which + at, largest.to(tl.uint8), inside)


@triton.jit
def _correlate(
    x,
    dy,
    which,
    sums,
    share,
    pixels,
    images,
    rows: tl.constexpr,
    columns: tl.constexpr,
    image: tl.constexpr,
    line: tl.constexpr,
    channels: tl.constexpr,
    out: tl.constexpr,
    patch: tl.constexpr,
    run: tl.constexpr,
    pool: tl.constexpr,
    tile_k: tl.constexpr,
    tile_o: tl.constexpr,
    tile_p: tl.constexpr,
):
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    across = tl.cdiv(out, tile_o)
    k = tl.program_id(0) // across * tile_k + tl.arange(0, tile_k)
    o = tl.program_id(0) % across * tile_o + tl.arange(0, tile_o)
    x += client * images
    place = _place(k, line, run, channels)
    total = tl.zeros((tile_k, tile_o), tl.float32)
    for first in range(part * share, tl.minimum(part * share + share, pixels), tile_p):
        p = first + tl.arange(0, tile_p)
        corner = _corner(p, rows, columns, image, line, channels, pool)
        patches = tl.load(x + corner[None, :] + place[:, None], (p < pixels)[None, :] & (k < patch)[:, None], 0.0)
        inside = (p < pixels)[:, None] & (o < out)[None, :]
        if pool:
            at = (client * (pixels // 4) + p // 4)[:, None] * out + o[None, :]
            gradients = tl.load(dy + at, inside, 0.0)
            gradients = tl.where(tl.load(which + at, inside, 0) == (p % 4)[:, None], gradients, 0.0)
        else:
            gradients = tl.load(dy + (client * pixels + p)[:, None] * out + o[None, :], inside, 0.0)
        total = tl.dot(patches, gradients, total, input_precision="tf32")
    sums += ((part * tl.num_programs(2) + client) * patch + k)[:, None] * out + o[None, :]
    tl.store(sums, total, (k < patch)[:, None] & (o < out)[None, :])


@triton.jit
def _corner(
    p,
    rows: tl.constexpr,
    columns: tl.constexpr,
    image: tl.constexpr,
    line: tl.constexpr,
    channels: tl.constexpr,
    pool: tl.constexpr,
):
    """Where the patch of output pixel ``p`` begins; rows and columns are those of the (pooled) result."""
    if pool:
        within, p = p % 4, p // 4
        row, column = p // columns % rows * 2 + within // 2, p % columns * 2 + within % 2
    else:
        row, column = p // columns % rows, p % columns
    return p // (rows * columns) * image + row * line + column * channels


@triton.jit
def _place(k, line: tl.constexpr, run: tl.constexpr, channels: tl.constexpr):
    """Where number ``k`` of a patch lies, counted from its corner."""
    place = k // run * line + k % run
    if channels % 16 == 0:  # sixteen consecutive numbers are then contiguous: allow wide loads
        place = tl.max_contiguous(tl.multiple_of(place, 16), 16)
    elif channels % 4 == 0:
        place = tl.max_contiguous(tl.multiple_of(place, 4), 4)
    return place
