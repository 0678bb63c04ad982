"""Triton kernels that compose the filters of many clients, and their gradients; only CUDA needs this file.

Filters are written, and gradients read, in the layout of ``triton_conv``. As there, sums
have a fixed order and tiles a fixed size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedatoms.engine.gpu.triton_conv import tile

_FILTERS = 64  # composed at once
_OUT, _IN = 16, 8  # filters whose gradients are taken at once: runs of memory that are wide enough in both orders
# Three tf32 products are as exact as one in float32, for which NVIDIA has no matrix units; AMD has.
_PRECISE = tl.constexpr("ieee" if torch.version.hip else "tf32x3")


def compose(coefficients: Tensor, atoms: Tensor, kind: torch.dtype) -> Tensor:
    """Multiplies coefficients (C, O, I, M) and atoms (C, M, K, K) to filters (C, O, K, K, I) of a type."""
    coefficients, atoms = coefficients.contiguous(), atoms.contiguous()
    clients, out, channels, _ = coefficients.shape
    filters = coefficients.new_empty(clients, out, *atoms.shape[2:], channels, dtype=kind)
    sizes, tiles = _composition(coefficients, atoms)
    with torch.cuda.device_of(atoms):
        _compose[(triton.cdiv(out * channels, _FILTERS), clients)](
            coefficients, atoms, filters, *sizes, _FILTERS, *tiles
        )
    return filters


def share(coefficients: Tensor, atoms: Tensor, gradients: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """Returns the gradients of coefficients and, as partial sums, of atoms, given the filters' (C, K, K, I, O)."""
    coefficients, atoms, gradients = coefficients.contiguous(), atoms.contiguous(), gradients.contiguous()
    to_coefficients = torch.empty_like(coefficients)
    to_atoms = atoms.new_empty(len(atoms), parts, *atoms.shape[1:])
    sizes, tiles = _composition(coefficients, atoms)
    with torch.cuda.device_of(atoms):
        _share[(parts, len(atoms))](
            coefficients, atoms, gradients, to_coefficients, to_atoms, *sizes, _OUT, _IN, *tiles
        )
    return to_coefficients, to_atoms


def _composition(coefficients: Tensor, atoms: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    _, out, channels, number = coefficients.shape
    entries = atoms[0, 0].numel()
    return (out, channels, number, entries), (tile(number), tile(entries))


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
):
    client = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0) * tile_f + tl.arange(0, tile_f)  # filter i of output o is number o * I + i
    m, n = tl.arange(0, tile_m), tl.arange(0, tile_n)
    coefficients += client * out * channels * number
    atoms += client * number * entries
    inside = f < out * channels
    left = tl.load(coefficients + f[:, None] * number + m[None, :], inside[:, None] & (m < number)[None, :], 0.0)
    right = tl.load(atoms + m[:, None] * entries + n[None, :], (m < number)[:, None] & (n < entries)[None, :], 0.0)
    filters += client * out * channels * entries + (f // channels * entries * channels + f % channels)[:, None]
    product = tl.dot(left, right, input_precision=_PRECISE).to(filters.dtype.element_ty)
    tl.store(filters + n[None, :] * channels, product, inside[:, None] & (n < entries)[None, :])


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
    tile_o: tl.constexpr,
    tile_i: tl.constexpr,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
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
    each = tl.arange(0, tile_o * tile_i)
    for place in range(part, tl.cdiv(out, tile_o) * across, parts):
        o = place // across * tile_o + each % tile_o
        i = place % across * tile_i + each // tile_o
        inside = (o < out) & (i < channels)
        down = tl.load(
            gradients + (n[None, :] * channels + i[:, None]) * out + o[:, None],
            inside[:, None] & (n < entries)[None, :],
            0.0,
        ).to(tl.float32)
        at = (o * channels + i)[:, None] * number + m[None, :]
        among = inside[:, None] & (m < number)[None, :]
        tl.store(to_coefficients + at, tl.dot(down, turned, input_precision=_PRECISE), among)
        total = tl.dot(tl.trans(tl.load(coefficients + at, among, 0.0)), down, total, input_precision=_PRECISE)
    to_atoms += ((client * parts + part) * number + m)[:, None] * entries + n[None, :]
    tl.store(to_atoms, total, (m < number)[:, None] & (n < entries)[None, :])
