"""Fixed bases of a kernel for initial atoms: smooth patterns, the lowest frequencies first."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

Turn = Callable[[Tensor], Tensor]


def dct(kernel: Sequence[int], count: int) -> Tensor:
    """Returns the ``count`` lowest frequencies of a discrete cosine transform (DCT-II) over a kernel, as (count, N).

    The rows are orthonormal; frequencies are ordered by their norm, each axis in cycles per pixel, and if more are
    asked for than the kernel has entries, the lowest ones come again.

    >>> dct((2,), 2)
    tensor([[ 0.7071,  0.7071],
            [ 0.7071, -0.7071]], dtype=torch.float64)
    """
    places = itertools.product(*(range(side) for side in kernel))
    lowest = sorted(places, key=lambda place: sum((k / side) ** 2 for k, side in zip(place, kernel, strict=True)))
    chosen = itertools.islice(itertools.cycle(lowest), count)
    waves = ([_cosine(k, side) for k, side in zip(place, kernel, strict=True)] for place in chosen)
    return torch.stack([reduce(torch.kron, axes) for axes in waves])


def fourier_bessel(kernel: Sequence[int], count: int) -> Tensor:
    """Returns the ``count`` lowest Fourier-Bessel functions of the disc around a 2-d kernel, as (count, N).

    A function is J_n(z r) times cos(n t) or sin(n t), with z a zero of the Bessel function J_n, ordered by z (Qiu et
    al., DCFNet, ICML 2018). On the pixels of a kernel they are only nearly orthogonal; their mean squared norm is 1.

    >>> round(fourier_bessel((5, 5), 9).square().sum().item(), 12)
    9.0
    """
    if len(kernel) != 2:
        raise ValueError(
            f"init='fourier-bessel' is for kernels of two dimensions, not {tuple(kernel)}. Use init='dct', or leave "
            f"that layer out with where=..."
        )
    across, down = (torch.linspace(1 - side, side - 1, side, dtype=torch.float64) / side for side in reversed(kernel))
    y, x = torch.meshgrid(down, across, indexing="ij")
    radius, angle = torch.hypot(x, y).flatten(), torch.atan2(y, x).flatten()
    waves = []
    for order, zero, turn in itertools.islice(itertools.cycle(_modes(math.prod(kernel))), count):
        wave = _bessel(order, zero * radius) / _bessel(order + 1, zero).abs()
        waves.append(torch.where(radius < 1, wave * turn(order * angle) * (2**0.5 if order else 1), 0.0))
    found = torch.stack(waves)
    return found / found.square().sum(1).mean().sqrt()


def _cosine(k: int, side: int) -> Tensor:
    wave = torch.cos(math.pi * k * (torch.arange(side, dtype=torch.float64) + 0.5) / side)
    return wave * math.sqrt((2 if k else 1) / side)


def _modes(count: int) -> list[tuple[int, Tensor, Turn]]:
    """Lists the first Fourier-Bessel functions of a disc: order, zero, and cosine or sine."""
    largest = 2 * count**0.5 + 4  # about z^2 / 4 of them have a zero below z
    zeros = [(zero, order) for order in range(int(largest)) for zero in _zeros(order, largest)]
    turns: dict[bool, tuple[Turn, ...]] = {False: (torch.cos,), True: (torch.cos, torch.sin)}
    return [(order, zero, turn) for zero, order in sorted(zeros) for turn in turns[order > 0]][:count]


def _bessel(order: int, x: Tensor) -> Tensor:
    """Returns J_n(x), the mean of cos(n t - x sin t) over half a turn, exact to rounding: the integrand is periodic."""
    points = 64 + order + math.ceil(x.abs().max()) if x.numel() else 64
    t = math.pi * (torch.arange(points, dtype=torch.float64) + 0.5) / points
    return torch.cos(order * t - x[..., None] * t.sin()).mean(-1)


def _zeros(order: int, largest: float) -> Tensor:
    """Returns the zeros of J_n up to about ``largest``: beyond n + 1, and never within half a unit of each other."""
    ends = torch.arange(order + 1, largest + 1, 0.5, dtype=torch.float64)
    above = _bessel(order, ends) > 0
    changes = above[:-1] != above[1:]
    low, high, above = ends[:-1][changes], ends[1:][changes], above[:-1][changes]
    for _ in range(60):  # halves the half unit down to the last bit
        middle = (low + high) / 2
        still = (_bessel(order, middle) > 0) == above
        low, high = torch.where(still, middle, low), torch.where(still, high, middle)
    return low
