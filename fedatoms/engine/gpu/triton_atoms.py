"""Triton kernels that compose the filters of many clients, and their gradients; only CUDA needs this file.

Filters are written, and gradients read, in the layout of ``triton_conv``. As there, sums
have a fixed order and tiles a fixed size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedatoms.engine.gpu.launches import launch
from fedatoms.engine.gpu.tiles import parts_of_filters, tile

_FILTERS = 64  # at once, or twice as many
_MANY = 1 << 14  # filters of a client: from here on a program that does more was faster, with ten clients
# Three tf32 products are as exact as one in float32, for which NVIDIA has no matrix units; AMD has.
_PRECISE = "ieee" if torch.version.hip else "tf32x3"


def compose(coefficients: Tensor, atoms: Tensor, kind: torch.dtype) -> Tensor:
    """Multiplies coefficients (C, O, I, M) and atoms (C, M, K, K) to filters (C, O, K, K, I) of a type."""
    coefficients, atoms = coefficients.contiguous(), atoms.contiguous()
    clients, out, channels, _ = coefficients.shape
    filters = coefficients.new_empty(clients, out, *atoms.shape[2:], channels, dtype=kind)
    sizes, tiles = _composition(coefficients, atoms)
    at_once = 2 * _FILTERS if _has_many(coefficients) else _FILTERS
    grid = triton.cdiv(out * channels, at_once), clients
    launch(_compose, grid, coefficients, atoms, filters, *sizes, at_once, *tiles[1:], _precision(kind))
    return filters


def share(coefficients: Tensor, atoms: Tensor, gradients: Tensor, parts: int | None = None) -> tuple[Tensor, Tensor]:
    """Returns the gradients of coefficients and, as partial sums, of atoms, given the filters' (C, O, K, K, I)."""
    coefficients, atoms, gradients = coefficients.contiguous(), atoms.contiguous(), gradients.contiguous()
    to_coefficients, parts = torch.empty_like(coefficients), parts or parts_of_filters(coefficients)
    to_atoms = atoms.new_empty(len(atoms), parts, *atoms.shape[1:])
    sizes, tiles = _composition(coefficients, atoms)
    # loads of the next filters in advance would take registers, and so programs that wait in turns
    launch(
        _share, (parts, len(atoms)),
        coefficients, atoms, gradients, to_coefficients, to_atoms, *sizes, *tiles, _precision(gradients.dtype),
        num_warps=1 if _has_many(coefficients) else 2, num_stages=1,
    )  # fmt: skip
    return to_coefficients, to_atoms


def _has_many(coefficients: Tensor) -> bool:
    return coefficients[0, ..., 0].numel() >= _MANY


def _composition(coefficients: Tensor, atoms: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    _, out, channels, number = coefficients.shape
    entries = atoms[0, 0].numel()
    return (out, channels, number, entries), (min(tile(channels), _FILTERS), tile(number), tile(entries))


def _precision(kind: torch.dtype) -> str:
    """Returns how exact products must be that are rounded to, or made of, numbers of a type."""
    return "tf32" if kind == torch.bfloat16 else _PRECISE


@triton.jit
def _compose(
    coefficients,
    atoms,
    filters,
    out,
    channels,
    number: tl.constexpr,
    entries: tl.constexpr,
    tile_f: tl.constexpr,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
    precision: tl.constexpr,
):
    client = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0) * tile_f + tl.arange(0, tile_f)  # filter i of output o is number o * I + i
    m, n = tl.arange(0, tile_m), tl.arange(0, tile_n)
    coefficients += client * out * channels * number
    atoms += client * number * entries
    inside = (f < out * channels)[:, None]
    left = tl.load(coefficients + f[:, None] * number + m[None, :], inside & (m < number)[None, :], 0.0)
    right = tl.load(atoms + m[:, None] * entries + n[None, :], (m < number)[:, None] & (n < entries)[None, :], 0.0)
    filters += client * out * channels * entries + (f // channels * entries * channels + f % channels)[:, None]
    product = tl.dot(left, right, input_precision=precision).to(filters.dtype.element_ty)
    tl.store(filters + n[None, :] * channels, product, inside & (n < entries)[None, :])


@triton.jit
def _share(
    coefficients,
    atoms,
    gradients,
    to_coefficients,
    to_atoms,
    out,
    channels,
    number: tl.constexpr,
    entries: tl.constexpr,
    tile_i: tl.constexpr,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
    precision: tl.constexpr,
):
    part, parts, client = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    m, n = tl.arange(0, tile_m), tl.arange(0, tile_n)
    coefficients += client * out * channels * number
    to_coefficients += client * out * channels * number
    gradients += client * out * channels * entries
    turned = tl.load(  # atoms, entries first
        atoms + (client * number + m[None, :]) * entries + n[:, None],
        (m < number)[None, :] & (n < entries)[:, None],
        0.0,
    )
    total = tl.zeros((tile_m, tile_n), tl.float32)
    across = tl.cdiv(channels, tile_i)
    for place in range(part, out * across, parts):
        o, i = place // across, place % across * tile_i + tl.arange(0, tile_i)
        inside = (i < channels)[:, None]
        at = gradients + (o * entries + n[None, :]) * channels + i[:, None]
        down = tl.load(at, inside & (n < entries)[None, :], 0.0).to(tl.float32)
        among, at = inside & (m < number)[None, :], (o * channels + i[:, None]) * number + m[None, :]
        tl.store(to_coefficients + at, tl.dot(down, turned, input_precision=precision), among)
        total = tl.dot(tl.trans(tl.load(coefficients + at, among, 0.0)), down, total, input_precision=precision)
    to_atoms += ((client * parts + part) * number + m)[:, None] * entries + n[None, :]
    tl.store(to_atoms, total, (m < number)[:, None] & (n < entries)[None, :])
