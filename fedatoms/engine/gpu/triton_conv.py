"""Triton kernels for many small convolutions at once, each client with its own filters; only CUDA needs this file.

All are matrix products whose left factor, the patches of the images, is never written down: images lie in memory as
(C, B, H, W, I), so that one row of a patch is one run of ``K * I`` numbers, and a patch is ``K`` such runs. With
``pool``, the four pixels of a 2 x 2 window have a sum each, and only the largest leaves the kernel. Sums have a fixed
order (no atomic additions) and tiles a fixed size (no tuning at run time): the same bits each time. ``unit`` and
``other``, one number for each client, are the units of numbers that were scaled to fit into float16.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedatoms.engine.gpu import rounding, tiles
from fedatoms.engine.gpu.launches import launch, shared_memory
from fedatoms.engine.gpu.tiles import PATCH, PROGRAMS, out_tile, parts_of, tile

DEAD, TOP, LEAST, MOST = map(tl.constexpr, (tiles.DEAD, rounding.TOP, rounding.LEAST, rounding.MOST))


def convolve(
    x: Tensor,
    filters: Tensor,
    unit: Tensor | None,
    other: Tensor | None,
    above: int,
    left: int,
    stride: int,
    turned: bool,
) -> Tensor:
    """Convolves images (C, B, H, W, I) with filters (C, O, K, K, I), or backwards with (C, I, K, K, O)."""
    x, filters = x.contiguous(), filters.contiguous()
    clients, batch, height, width, channels = x.shape
    out, (tall, wide) = filters.shape[4 if turned else 1], filters.shape[2:4]
    rows, columns = (height + 2 * above - tall) // stride + 1, (width + 2 * left - wide) // stride + 1
    y = x.new_empty(clients, batch, rows, columns, out, dtype=x.dtype if unit is None else torch.float32)
    pixels = y[0, ..., 0].numel()
    tile_p, tile_o, tile_k, warps, stages = _convolve_tiles(x, pixels, out)
    sizes = (batch, pixels, x[0].numel(), rows, columns, height, width, channels, out, tall, wide, above, left, stride)
    launch(
        _convolve, (triton.cdiv(pixels, tile_p), triton.cdiv(out, tile_o), clients),
        x, filters, unit, other, y, *sizes, turned, tile_p, tile_o, tile_k, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y


def convolve_pool(
    x: Tensor, filters: Tensor, bias: Tensor, unit: Tensor | None, other: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Convolves, adds a bias (C, O), applies ReLU and takes the maximum of each 2 x 2 window, with its argmax.

    The third tensor has the same maxima in float16, the fourth their units (C,); without units both are empty.
    """
    x, filters, bias = x.contiguous(), filters.contiguous(), bias.contiguous()
    clients, _, height, width, channels = x.shape
    out, tall, wide = filters.shape[1:4]
    rows, columns = (height - tall + 1) // 2, (width - wide + 1) // 2
    y = x.new_empty(*x.shape[:2], rows, columns, out, dtype=x.dtype if unit is None else torch.float32)
    which, half, new = (
        torch.empty_like(y, dtype=torch.uint8),
        y.new_empty(0 if unit is None else y.shape, dtype=torch.float16),
        y.new_empty(0 if unit is None else clients, dtype=torch.float32),
    )
    pixels = y[0, ..., 0].numel()
    tile_q, tile_o, tile_k, warps, stages = _pool_tiles(x, pixels, out)
    sizes = (pixels, x[0].numel(), rows, columns, height * width * channels, width * channels, channels)
    launch(
        _convolve_pool, (triton.cdiv(pixels, tile_q), triton.cdiv(out, tile_o), clients),
        x, filters, bias, unit, other, y, which, half, new, *sizes, out, tall * wide * channels, wide * channels,
        triton.next_power_of_2(out), tile_q, tile_o, tile_k, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y, which, half, new


def correlate(
    x: Tensor,
    dy: Tensor,
    which: Tensor | None,
    unit: Tensor | None,
    other: Tensor | None,
    tall: int,
    wide: int,
    stride: int,
) -> Tensor:
    """Returns the gradient of the filters, (C, P, O, K, K, I), as sums over P parts of the result's pixels."""
    x, dy, which = x.contiguous(), dy.contiguous(), None if which is None else which.contiguous()
    clients, _, height, width, channels = x.shape
    (rows, columns, out), pool = dy.shape[2:], which is not None
    pixels, patch = dy[0, ..., 0].numel(), tall * wide * channels
    tile_k, tile_o, tile_p, warps, stages = _correlate_tiles(x, out, pool)
    parts = parts_of(x, dy, patch, pool=pool)
    share = triton.cdiv(triton.cdiv(pixels, parts), tile_p) * tile_p
    tiles = triton.cdiv(patch, tile_k) * triton.cdiv(out, tile_o)
    whole = parts == 1 and unit is None  # then it is rounded here
    sums = x.new_empty(clients, parts, out, tall, wide, channels, dtype=x.dtype if whole else torch.float32)
    sizes = (share, pixels, x[0].numel(), rows, columns, height * width * channels, width * channels, channels)
    launch(
        _correlate, (tiles, parts, clients),
        x, dy, which, unit, other, sums, *sizes, out, patch, wide * channels, stride, pool, tile_k, tile_o, tile_p,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return sums


def _convolve_tiles(x: Tensor, pixels: int, out: int) -> tuple[int, int, int, int, int]:
    tile_o = tile(out)
    tile_p = 128 if len(x) * triton.cdiv(pixels, 128) * triton.cdiv(out, tile_o) >= PROGRAMS else 64
    few = x.shape[-1] % 16 != 0  # then a patch is short, and a long tile would be half empty
    tile_k = 16 if few else 128 // x.element_size()
    return tile_p, tile_o, tile_k, 4, _stages(x, tile_k * (tile_p + tile_o), 3 if few else 4)


def _pool_tiles(x: Tensor, pixels: int, out: int) -> tuple[int, int, int, int, int]:
    tile_o = min(tile(out), 64)  # there are four sums of a tile
    programs = len(x) * triton.cdiv(out, tile_o)
    thin, small = x.shape[-1] % 16 != 0, x.element_size() == 2
    least = 32 if small else 16
    fitting = [q for q in (64, 32) if programs * triton.cdiv(pixels, q) >= PROGRAMS]
    hurried = small and not thin and not fitting  # too few for the card: longer steps, so that each has fewer of them
    tile_q, tile_k = max(fitting, default=least), 64 if hurried else 16 if thin == small else 32
    return tile_q, tile_o, tile_k, 4, _stages(x, tile_k * (4 * tile_q + tile_o), 4 if small or not thin else 2)


def _correlate_tiles(x: Tensor, out: int, pool: bool) -> tuple[int, int, int, int, int]:
    if x.dtype == torch.float32:  # two warps choose the older matrix units, which read float32 in either order
        return PATCH, out_tile(x, out), 16, 2, 3
    tile_o, tile_p = out_tile(x, out), 16 if pool else 64 if x.shape[-1] % 16 == 0 else 32
    return PATCH, tile_o, tile_p, 4, _stages(x, tile_p * ((4 if pool else 1) * PATCH + tile_o), 3)


def _stages(x: Tensor, numbers: int, most: int) -> int:
    """Returns the pipeline depth: as many tiles as a GPU's shared memory holds."""
    if x.device.type == "cpu":
        return most
    return max(min(shared_memory(x.device) // (numbers * x.element_size()), most), 1)


@triton.jit
def _convolve(
    x,
    filters,
    unit,
    other,
    y,
    batch,
    pixels,
    images,
    rows: tl.constexpr,
    columns: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    out: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    above: tl.constexpr,
    left: tl.constexpr,
    stride: tl.constexpr,
    turned: tl.constexpr,
    tile_p: tl.constexpr,
    tile_o: tl.constexpr,
    tile_k: tl.constexpr,
):
    """Takes pixels in the order row, image, column: rows of a patch that are padding for a whole tile are left out."""
    patch: tl.constexpr = tall * wide * channels
    run: tl.constexpr = wide * channels
    client, begin = tl.program_id(2).to(tl.int64), tl.program_id(0) * tile_p
    p, o = begin + tl.arange(0, tile_p), tl.program_id(1) * tile_o + tl.arange(0, tile_o)
    x += client * images
    filters += client * out * patch
    row, image, column = p // (batch * columns), p // columns % batch, p % columns
    lowest = tl.minimum((begin + tile_p - 1) // (batch * columns), rows - 1)
    first_row = tl.maximum(above - lowest * stride, 0)
    last_row = tl.minimum(height + above - begin // (batch * columns) * stride, tall)
    row_in, column_in = row * stride - above, column * stride - left
    corner = ((image * height + row_in) * width + column_in) * channels
    total = tl.zeros((tile_p, tile_o), tl.float32)
    for first in range(first_row * run // tile_k * tile_k, last_row * run, tile_k):
        k = first + tl.arange(0, tile_k)
        place = _place(k, width * channels, run, channels)
        inside = (p < pixels)[:, None] & (k < patch)[None, :]
        if above + left > 0:
            i, j = row_in[:, None] + (k // run)[None, :], column_in[:, None] + (k % run // channels)[None, :]
            inside &= (i >= 0) & (i < height) & (j >= 0) & (j < width)
        patches = tl.load(x + corner[:, None] + place[None, :], inside, 0.0)
        if turned:
            number = (k % channels * (tall * wide) + tall * wide - 1 - k // channels)[:, None] * out + o[None, :]
        else:
            number = o[None, :] * patch + k[:, None]
        weights = tl.load(filters + number, (k < patch)[:, None] & (o < out)[None, :], 0.0)
        total = tl.dot(patches, weights, total, input_precision="tf32")
    if unit is not None:
        total *= tl.load(unit + client) * tl.load(other + client)
    at = ((client * batch + image) * rows + row) * columns + column
    tl.store(
        y + at[:, None] * out + o[None, :], total.to(y.dtype.element_ty), (p < pixels)[:, None] & (o < out)[None, :]
    )


@triton.jit
def _convolve_pool(
    x,
    filters,
    bias,
    unit,
    other,
    y,
    which,
    half,
    new,
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
    biases: tl.constexpr,
    tile_q: tl.constexpr,
    tile_o: tl.constexpr,
    tile_k: tl.constexpr,
):
    client = tl.program_id(2).to(tl.int64)
    q, o = tl.program_id(0) * tile_q + tl.arange(0, tile_q), tl.program_id(1) * tile_o + tl.arange(0, tile_o)
    filters += client * out * patch
    windows = x + client * images + _window(q, rows, columns, image, line, channels)[:, None]
    nothing = tl.zeros((tile_q, tile_o), tl.float32)
    a, b, c, d = nothing, nothing, nothing, nothing  # the pixels of a window
    for first in range(0, patch, tile_k):
        k = first + tl.arange(0, tile_k)
        at, inside = windows + _place(k, line, run, channels)[None, :], (q < pixels)[:, None] & (k < patch)[None, :]
        weights = tl.load(filters + o[None, :] * patch + k[:, None], (k < patch)[:, None] & (o < out)[None, :], 0.0)
        a = tl.dot(tl.load(at, inside, 0.0), weights, a, input_precision="tf32")
        b = tl.dot(tl.load(at + channels, inside, 0.0), weights, b, input_precision="tf32")
        c = tl.dot(tl.load(at + line, inside, 0.0), weights, c, input_precision="tf32")
        d = tl.dot(tl.load(at + line + channels, inside, 0.0), weights, d, input_precision="tf32")
    broken = (a != a) | (b != b) | (c != c) | (d != d)  # a maximum ignores NaN here, but not in torch
    total, largest = tl.maximum(a, b), tl.where(b > a, 1, 0)
    total, largest = tl.maximum(total, c), tl.where(c > total, 2, largest)
    total, largest = tl.maximum(total, d), tl.where(d > total, 3, largest)
    if unit is not None:
        total *= tl.load(unit + client) * tl.load(other + client)
    total += tl.load(bias + client * out + o, o < out, 0.0).to(tl.float32)[None, :]
    broken = broken | (total != total)
    largest = tl.where(total > 0, largest, DEAD)
    total = tl.where(broken, float("nan"), tl.maximum(total, 0.0))
    at = (client * pixels + q)[:, None] * out + o[None, :]
    inside = (q < pixels)[:, None] & (o < out)[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), inside)
    tl.store(which + at, largest.to(tl.uint8), inside)
    if unit is not None:
        n = tl.arange(0, biases)
        most = tl.max(tl.abs(tl.load(bias + client * out + n, n < out, 0.0).to(tl.float32)))
        result = _unit(tl.load(unit + client) * tl.load(other + client) * (4.0**TOP * patch) + most)
        tl.store(half + at, (total / result).to(tl.float16), inside)
        tl.store(new + client, result, tl.program_id(0) + tl.program_id(1) == 0)


@triton.jit
def _correlate(
    x,
    dy,
    which,
    unit,
    other,
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
    stride: tl.constexpr,
    pool: tl.constexpr,
    tile_k: tl.constexpr,
    tile_o: tl.constexpr,
    tile_p: tl.constexpr,
):
    client, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    across = tl.cdiv(out, tile_o)
    k = tl.program_id(0) // across * tile_k + tl.arange(0, tile_k)
    o = tl.program_id(0) % across * tile_o + tl.arange(0, tile_o)
    runs = x + client * images + _place(k, line, run, channels)[:, None]
    total = tl.zeros((tile_k, tile_o), tl.float32)
    for first in range(part * share, tl.minimum(part * share + share, pixels), tile_p):
        p = first + tl.arange(0, tile_p)
        inside, known = (p < pixels)[None, :] & (k < patch)[:, None], (p < pixels)[:, None] & (o < out)[None, :]
        here = (client * pixels + p)[:, None] * out + o[None, :]
        gradients = tl.load(dy + here, known, 0.0)
        if pool:
            at, chosen = (
                runs + _window(p, rows, columns, image, line, channels)[None, :],
                tl.load(which + here, known, DEAD),
            )
            for n in tl.static_range(4):  # the pixels of a window
                patches = tl.load(at + (n // 2 * line + n % 2 * channels), inside, 0.0)
                total = tl.dot(patches, tl.where(chosen == n, gradients, 0.0), total, input_precision="tf32")
        else:
            row, column = p // columns % rows * stride, p % columns * stride
            corner = p // (rows * columns) * image + row * line + column * channels
            total = tl.dot(tl.load(runs + corner[None, :], inside, 0.0), gradients, total, input_precision="tf32")
    if unit is not None:
        total *= tl.load(unit + client) * tl.load(other + client)
    sums += (client * tl.num_programs(1) + part) * out * patch + o[None, :] * patch + k[:, None]
    tl.store(sums, total.to(sums.dtype.element_ty), (k < patch)[:, None] & (o < out)[None, :])


@triton.jit
def _unit(largest):
    """As ``rounding.unit_of`` does, of one number: its exponent, rounded up."""
    bits = tl.minimum(tl.maximum(largest, LEAST), MOST).to(tl.int32, bitcast=True)
    return ((bits + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True) * 2.0**-TOP


@triton.jit
def _window(
    q, rows: tl.constexpr, columns: tl.constexpr, image: tl.constexpr, line: tl.constexpr, channels: tl.constexpr
):
    """Where the patch of the first pixel of window ``q`` begins; rows and columns are those of the pooled result."""
    return q // (rows * columns) * image + q // columns % rows * 2 * line + q % columns * 2 * channels


@triton.jit
def _place(k, line: tl.constexpr, run: tl.constexpr, channels: tl.constexpr):
    """Where number ``k`` of a patch lies, counted from its corner."""
    place = k // run * line + k % run
    if channels % 16 == 0:  # sixteen consecutive numbers are then contiguous: allow wide loads
        place = tl.max_contiguous(tl.multiple_of(place, 16), 16)
    elif channels % 4 == 0:
        place = tl.max_contiguous(tl.multiple_of(place, 4), 4)
    return place
