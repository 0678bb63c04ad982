"""Initial atoms and coefficients of a layer: random, on a fixed basis, or from the singular vectors of its weights."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedatoms.core.options import Init
from fedatoms.nn import bases

BLOCK = 4096  # rows of a matrix that are brought into a triangle at once
Start = Callable[[Tensor, int, torch.Generator], tuple[Tensor, Tensor]]  # weight, M -> atoms (M, N), coefficients


def initial_factors(
    weight: Tensor, atoms: int, init: Init, generator: torch.Generator
) -> tuple[nn.Parameter, nn.Parameter]:
    """Returns atoms and coefficients, made in float64 on the CPU, so that every dtype and device gets the same ones.

    >>> D, A = initial_factors(torch.zeros(8, 3, 5, 5), 9, "dct", torch.Generator())
    >>> D.shape, A.shape
    (torch.Size([9, 5, 5]), torch.Size([8, 3, 9]))
    """
    D, A = STARTS[init](weight, atoms, generator)
    D, A = D.reshape(atoms, *weight.shape[2:]).to(weight), A.to(weight)
    return nn.Parameter(D, weight.requires_grad), nn.Parameter(A, weight.requires_grad)


def orthonormal(weight: Tensor, M: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Stacks as many orthonormal sets as M atoms need.

    Every atom has norm 1, so the squares of all atoms sum to M, whether M is below or above the N entries of a kernel.
    An entry of the filter has variance var(A) * M / N on average over the kernel, and var(A) = 1 / (3 I M) makes that
    1 / (3 I N) = 1 / (3 fan_in), torch's default.
    """
    N = math.prod(weight.shape[2:])
    sets = torch.linalg.qr(_normal(generator, math.ceil(M / N), N, min(M, N))).Q
    return sets.mT.reshape(-1, N)[:M], _coefficients(weight, M, generator)


def on_basis(basis: Callable[[Sequence[int], int], Tensor]) -> Start:
    """Puts the coefficients of ``orthonormal`` on the first atoms of a basis; their squares sum to M there too."""
    return lambda weight, M, generator: (basis(weight.shape[2:], M), _coefficients(weight, M, generator))


def kaiming(weight: Tensor, M: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws both factors as CLA does (models/Conv_DCFE.py): the variance of the filter is 4 / M over fan_in."""
    O, I, N = weight.flatten(2).shape  # noqa: E741
    return _normal(generator, M, N) * (2 / (M * N)) ** 0.5, _normal(generator, O, I, M) * (2 / (I * M)) ** 0.5


def svd(weight: Tensor, M: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Takes the M first right singular vectors as atoms; beyond the rank, random unit atoms that nothing uses yet."""
    O, I, N = weight.flatten(2).shape  # noqa: E741
    rows = in_float64(weight).reshape(O * I, N)
    Vh = torch.linalg.svd(_triangle(rows), full_matrices=False).Vh
    unused = max(0, M - len(Vh))
    spare = functional.normalize(_normal(generator, unused, N), dim=1)
    return torch.cat([Vh[:M], spare]), functional.pad(rows @ Vh[:M].mH, (0, unused)).reshape(O, I, M)


STARTS: dict[Init, Start] = {
    "orthonormal": orthonormal,
    "dct": on_basis(bases.dct),
    "fourier-bessel": on_basis(bases.fourier_bessel),
    "kaiming": kaiming,
    "svd": svd,
}


def in_float64(tensor: Tensor) -> Tensor:
    """Returns a copy on the CPU in at least float64.

    >>> in_float64(torch.ones(1)).dtype
    torch.float64
    """
    return tensor.detach().cpu().to(torch.promote_types(tensor.dtype, torch.float64))


def error_of(weight: Tensor, made: Tensor) -> float:
    """Returns how far a filter that is made of factors is from the weight, relative to that; 0 for a weight of zeros.

    >>> error_of(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0]))
    0.8
    """
    exact = in_float64(weight)
    size = exact.norm().item()
    return (exact - in_float64(made)).norm().item() / size if size else 0.0


def _triangle(rows: Tensor) -> Tensor:
    """Returns R of a QR, N x N at most: it has the right singular vectors of the tall matrix, and is small.

    Block by block, as one tall matrix takes several times longer where LAPACK's threads wait for each other.
    """
    if len(rows) > BLOCK:
        blocks = functional.pad(rows, (0, 0, 0, -len(rows) % BLOCK)).reshape(-1, BLOCK, rows.shape[1])
        rows = torch.linalg.qr(blocks, mode="r").R.flatten(0, 1)
    R: Tensor = torch.linalg.qr(rows, mode="r").R
    return R


def _coefficients(weight: Tensor, M: int, generator: torch.Generator) -> Tensor:
    O, I = weight.shape[:2]  # noqa: E741
    return _normal(generator, O, I, M) * math.pow(3 * I * M, -0.5)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64).cpu()
