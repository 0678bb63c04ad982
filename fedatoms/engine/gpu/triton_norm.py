"""Triton kernels for the BatchNorm of many clients, and its gradients; only CUDA needs this file.

Images are (C, B, H, W, I); those of a client are rows of channels. Two kernels each way: the first sums over parts of
the rows, the second adds these sums up and goes through the rows again. Sums have a fixed order, tiles a fixed size.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedatoms.engine.gpu.launches import launch
from fedatoms.engine.gpu.tiles import PROGRAMS, tile

_PARTS = 32  # at most: every program of the second kernel reads their sums
_SUMMED, _WRITTEN = 128, 64  # rows at once
_SUMMED_BACK, _WRITTEN_BACK = 64, 128  # the same on the way back; all were chosen by ResNet-18's shapes


def normalise(
    x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalises images (C, B, H, W, I) that are real (C, B); returns them or their ReLU, mean and variance (C, I)."""
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    real, sizes, parts = real.contiguous().view(torch.uint8), _sizes(x), _parts_of(x, _SUMMED)
    sums = weight.new_empty(len(x), parts, 3, x.shape[-1], dtype=torch.float32)
    mean, variance = (weight.new_empty(weight.shape, dtype=torch.float32) for _ in range(2))
    y, tile_i = torch.empty_like(x), _tile_i(x)
    blocks = triton.cdiv(x.shape[-1], tile_i)
    launch(_moments, (parts, blocks, len(x)), x, real, sums, *sizes, _SUMMED, tile_i)
    launch(
        _normalise, (triton.cdiv(sizes[0], _WRITTEN), blocks, len(x)),
        x, real, sums, weight, bias, y, mean, variance, eps, *sizes, parts, relu, _PARTS, _WRITTEN, tile_i,
    )  # fmt: skip
    return y, mean, variance


def normalise_back(
    x: Tensor,
    real: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    dy: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of images, weight and bias, given that of the normalised images, or of their ReLU."""
    x, weight, bias, dy = x.contiguous(), weight.contiguous(), bias.contiguous(), dy.contiguous()
    real, sizes, parts = real.contiguous().view(torch.uint8), _sizes(x), _parts_of(x, _SUMMED_BACK)
    sums = weight.new_empty(len(x), parts, 2, x.shape[-1], dtype=torch.float32)
    to_x, to_weight, to_bias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
    tile_i = _tile_i(x)
    blocks = triton.cdiv(x.shape[-1], tile_i)
    launch(
        _sums_back, (parts, blocks, len(x)),
        x, real, weight, bias, mean, variance, dy, sums, eps, *sizes, relu, _SUMMED_BACK, tile_i,
    )  # fmt: skip
    launch(
        _back, (triton.cdiv(sizes[0], _WRITTEN_BACK), blocks, len(x)),
        x, real, sums, weight, bias, mean, variance, dy, to_x, to_weight, to_bias, eps, *sizes, parts, relu, _PARTS,
        tile(x.shape[1], most=1024), _WRITTEN_BACK, tile_i,
    )  # fmt: skip
    return to_x, to_weight, to_bias


def _sizes(x: Tensor) -> tuple[int, int, int, int]:
    """Returns a client's rows, images, pixels of an image, and channels."""
    pixels = math.prod(x.shape[2:-1])
    return x.shape[1] * pixels, x.shape[1], pixels, x.shape[-1]


def _tile_i(x: Tensor) -> int:
    return min(tile(x.shape[-1]), 64)


def _parts_of(x: Tensor, at_once: int) -> int:
    """Returns into how many parts a client's rows are split, so that there is work for all of a GPU."""
    tiles = len(x) * -(-x.shape[-1] // _tile_i(x))
    return max(min(-(-2 * PROGRAMS // tiles), -(-_sizes(x)[0] // at_once), _PARTS), 1)


@triton.jit
def _moments(x, real, sums, rows, batch, pixels, channels, tile_r: tl.constexpr, tile_i: tl.constexpr):
    """Writes mean and squared deviations of a part, and of how many rows: those of its tiles, merged one by one."""
    part, parts, client = tl.program_id(0), tl.num_programs(0), tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * tile_i + tl.arange(0, tile_i)
    x += client * rows * channels
    mean, squares, number = tl.zeros((tile_i,), tl.float32), tl.zeros((tile_i,), tl.float32), tl.zeros((), tl.float32)
    for begin in range(part * tile_r, rows, parts * tile_r):
        r = begin + tl.arange(0, tile_r).to(tl.int64)
        counts = (r < rows) & (tl.load(real + client * batch + r // pixels, r < rows, 0) != 0)
        inside = counts[:, None] & (i < channels)[None, :]
        now = tl.load(x + r[:, None] * channels + i[None, :], inside, 0.0).to(tl.float32)
        more = tl.sum(counts.to(tl.float32), 0)
        here = tl.sum(now, 0) / tl.maximum(more, 1.0)
        far = tl.where(inside, now - here[None, :], 0.0)
        apart = here - mean
        share = more / tl.maximum(number + more, 1.0)
        squares += tl.sum(far * far, 0) + (apart * number) * (apart * share)
        mean += apart * share
        number += more
    sums += (client * parts + part) * 3 * channels + i
    tl.store(sums, mean, i < channels)
    tl.store(sums + channels, squares, i < channels)
    tl.store(sums + 2 * channels, tl.zeros((tile_i,), tl.float32) + number, i < channels)


@triton.jit
def _normalise(
    x,
    real,
    sums,
    weight,
    bias,
    y,
    mean,
    variance,
    eps,
    rows,
    batch,
    pixels,
    channels,
    parts,
    relu: tl.constexpr,
    tile_p: tl.constexpr,
    tile_r: tl.constexpr,
    tile_i: tl.constexpr,
):
    client = tl.program_id(2).to(tl.int64)
    r = tl.program_id(0) * tile_r + tl.arange(0, tile_r).to(tl.int64)
    i = tl.program_id(1) * tile_i + tl.arange(0, tile_i)
    among, at = i < channels, client * channels + i
    middle, spread = _merged(sums + client * parts * 3 * channels, i, channels, parts, tile_p)
    if tl.program_id(0) == 0:
        tl.store(mean + at, middle, among)
        tl.store(variance + at, spread, among)
    scale = tl.rsqrt(spread + eps)
    w, b = tl.load(weight + at, among, 0.0).to(tl.float32), tl.load(bias + at, among, 0.0).to(tl.float32)
    now = _filled(x + client * rows * channels, real + client * batch, r, i, rows, pixels, channels)
    out = (now - middle[None, :]) * scale[None, :] * w[None, :] + b[None, :]
    if relu:
        out = tl.where(out <= 0, 0.0, out)  # what is no number stays none
    place, inside = (client * rows + r)[:, None] * channels + i[None, :], (r < rows)[:, None] & among[None, :]
    tl.store(y + place, out.to(y.dtype.element_ty), inside)


@triton.jit
def _sums_back(
    x,
    real,
    weight,
    bias,
    mean,
    variance,
    dy,
    sums,
    eps,
    rows,
    batch,
    pixels,
    channels,
    relu: tl.constexpr,
    tile_r: tl.constexpr,
    tile_i: tl.constexpr,
):
    part, parts, client = tl.program_id(0), tl.num_programs(0), tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * tile_i + tl.arange(0, tile_i)
    at = client * channels + i
    middle = tl.load(mean + at, i < channels, 0.0)[None, :]
    scale = tl.rsqrt(tl.load(variance + at, i < channels, 0.0) + eps)[None, :]
    one, two = tl.zeros((tile_i,), tl.float32), tl.zeros((tile_i,), tl.float32)
    for begin in range(part * tile_r, rows, parts * tile_r):
        r = begin + tl.arange(0, tile_r).to(tl.int64)
        inside = (r < rows)[:, None] & (i < channels)[None, :]
        down = tl.load(dy + (client * rows + r)[:, None] * channels + i[None, :], inside, 0.0).to(tl.float32)
        now = _filled(x + client * rows * channels, real + client * batch, r, i, rows, pixels, channels)
        standard = (now - middle) * scale
        if relu:
            down = _through_relu(down, standard, weight, bias, at, i < channels)
        one += tl.sum(down, 0)
        two += tl.sum(down * standard, 0)
    sums += (client * parts + part) * 2 * channels + i
    tl.store(sums, one, i < channels)
    tl.store(sums + channels, two, i < channels)


@triton.jit
def _back(
    x,
    real,
    sums,
    weight,
    bias,
    mean,
    variance,
    dy,
    to_x,
    to_weight,
    to_bias,
    eps,
    rows,
    batch,
    pixels,
    channels,
    parts,
    relu: tl.constexpr,
    tile_p: tl.constexpr,
    tile_b: tl.constexpr,
    tile_r: tl.constexpr,
    tile_i: tl.constexpr,
):
    client = tl.program_id(2).to(tl.int64)
    r = tl.program_id(0) * tile_r + tl.arange(0, tile_r).to(tl.int64)
    i = tl.program_id(1) * tile_i + tl.arange(0, tile_i)
    among, at = i < channels, client * channels + i
    one, two = _added_up(sums + client * parts * 2 * channels, i, channels, parts, tile_p)
    count = _count(real + client * batch, batch, pixels, tile_b)
    if tl.program_id(0) == 0:
        tl.store(to_bias + at, one.to(to_bias.dtype.element_ty), among)
        tl.store(to_weight + at, two.to(to_weight.dtype.element_ty), among)
    middle = tl.load(mean + at, among, 0.0)[None, :]
    scale = tl.rsqrt(tl.load(variance + at, among, 0.0) + eps)[None, :]
    w = tl.load(weight + at, among, 0.0).to(tl.float32)[None, :]
    counts = (r < rows) & (tl.load(real + client * batch + r // pixels, r < rows, 0) != 0)
    place, inside = (client * rows + r)[:, None] * channels + i[None, :], (r < rows)[:, None] & among[None, :]
    known = counts[:, None] & among[None, :]
    now = tl.load(x + place, known, 0.0).to(tl.float32)
    down = tl.load(dy + place, known, 0.0).to(tl.float32)
    standard = (now - middle) * scale
    if relu:
        down = _through_relu(down, standard, weight, bias, at, among)
    through = (one[None, :] + standard * two[None, :]) / count
    found = tl.where(known, (down - through) * scale * w, 0.0)
    tl.store(to_x + place, found.to(to_x.dtype.element_ty), inside)


@triton.jit
def _through_relu(down, standard, weight, bias, at, among):
    """Returns the gradient of images (R, I) that are normalised, given that of their ReLU."""
    w, b = tl.load(weight + at, among, 0.0).to(tl.float32), tl.load(bias + at, among, 0.0).to(tl.float32)
    return tl.where(standard * w[None, :] + b[None, :] <= 0, 0.0, down)


@triton.jit
def _merged(sums, i, channels, parts, tile_p: tl.constexpr):
    """Returns mean and variance of a client's channels, from those of all parts (Chan, Golub & LeVeque, 1979)."""
    p = tl.arange(0, tile_p)
    at, inside = p[:, None] * 3 * channels + i[None, :], (p < parts)[:, None] & (i < channels)[None, :]
    each = tl.load(sums + at, inside, 0.0)
    number = tl.load(sums + 2 * channels + at, inside, 0.0)
    total = tl.maximum(tl.sum(number, 0), 1.0)
    middle = tl.sum(number * each, 0) / total
    apart = tl.where(number > 0, each - middle[None, :], 0.0)
    return middle, tl.sum(tl.load(sums + channels + at, inside, 0.0) + number * apart * apart, 0) / total


@triton.jit
def _added_up(sums, i, channels, parts, tile_p: tl.constexpr):
    """Returns both sums of a client's channels over all parts."""
    p = tl.arange(0, tile_p)
    at, inside = p[:, None] * 2 * channels + i[None, :], (p < parts)[:, None] & (i < channels)[None, :]
    return tl.sum(tl.load(sums + at, inside, 0.0), 0), tl.sum(tl.load(sums + channels + at, inside, 0.0), 0)


@triton.jit
def _count(real, batch, pixels, tile_b: tl.constexpr):
    """Returns how many numbers of a client's channel are real, at least 1."""
    total = tl.zeros((), tl.float32)
    for begin in range(0, batch, tile_b):
        b = begin + tl.arange(0, tile_b)
        total += tl.sum((tl.load(real + b, b < batch, 0) != 0).to(tl.float32), 0)
    return tl.maximum(total * pixels, 1.0)


@triton.jit
def _filled(x, real, r, i, rows, pixels, channels):
    """Reads rows of a client; of padding, the same pixels of the first image."""
    counts = tl.load(real + r // pixels, r < rows, 0) != 0
    inside = (r < rows)[:, None] & (i < channels)[None, :]
    return tl.load(x + tl.where(counts, r, r % pixels)[:, None] * channels + i[None, :], inside, 0.0).to(tl.float32)
