"""What batched kernels multiply in tf32, kept in float16: as many significant bits in half the memory."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

TOP = 14  # the largest number is stored as at most 2**14; smaller ones keep all their bits down to 2**-28 of it
LEAST, MOST = 2.0**-48, 2.0**77  # of what is taken for the largest, so that products of units are numbers, too


class Rounded(NamedTuple):
    """One client's tensor, in units of a power of two if it is kept in float16."""

    values: Tensor
    unit: Tensor | None = None


def rounded(x: Tensor, largest: float | None = None) -> Rounded:
    """Rounds float32 on a GPU to the eleven significant bits of tf32, in float16; leaves any other tensor alone.

    ``largest`` is a bound that is known: none is searched for.

    >>> rounded(torch.ones(2))
    Rounded(values=tensor([1., 1.]), unit=None)
    """
    return in_half(x, largest) if x.is_cuda and x.dtype == torch.float32 else Rounded(x)


def in_half(x: Tensor, largest: float | None = None) -> Rounded:
    """Scales a tensor by a power of two into the range of float16; what is not finite stays so.

    >>> in_half(torch.tensor([[2.0**18, -2.0]]))
    Rounded(values=tensor([[ 1.6384e+04, -1.2500e-01]], dtype=torch.float16), unit=tensor(16.))
    """
    if largest is None:
        unit = unit_of(x.abs().amax((-2, -1)).amax())  # in two steps: of one, the compiler would make three kernels
    else:
        unit = x.new_full((), unit_of_number(largest))
    return Rounded((x * (1 / unit)).half(), unit)


def unit_of_products(unit: Tensor, other: Tensor, numbers: int, bias: Tensor) -> Tensor:
    """Returns units (C,) in which sums of so many products, plus a bias (C, O), fit into float16, given the factors'.

    They are known before the sums are: no sum has more than this, however its numbers are signed.

    >>> unit_of_products(torch.ones(1), torch.ones(1), 2, torch.zeros(1, 1))
    tensor([32768.])
    """
    return unit_of(unit * other * (4.0**TOP * numbers) + bias.float().abs().amax(1))


def exact(x: Tensor, unit: Tensor | None, other: Tensor | None) -> Tensor:
    """Returns stored numbers (C, ...) in both units (C,), if there are any, for operators in plain torch."""
    return x if unit is None or other is None else x.float() * (unit * other).view(-1, *[1] * (x.dim() - 1))


def unit_of(largest: Tensor) -> Tensor:
    """Returns the power of two by which a tensor's largest number is divided to be at most 2**14, from its exponent.

    >>> [unit_of(torch.tensor(x)).item() for x in (2.0**15, 2.0**15 + 1)]
    [2.0, 4.0]
    """
    mantissa, exponent = torch.frexp(largest.clamp(LEAST, MOST))
    unit = torch.exp2(exponent.to(largest.dtype) - torch.where(mantissa > 0.5, TOP, TOP + 1))
    return torch.where(largest.isnan(), largest, unit)  # which has no exponent that all devices agree on


def unit_of_number(largest: float) -> float:
    """Returns the same of a number that is known before there is a tensor.

    >>> unit_of_number(2.0**15), unit_of_number(2.0**15 + 1)
    (2.0, 4.0)
    """
    mantissa, exponent = math.frexp(min(max(largest, LEAST), MOST))
    return 2.0 ** (exponent - (TOP if mantissa > 0.5 else TOP + 1))
