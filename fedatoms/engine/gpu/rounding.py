"""What batched kernels multiply in tf32, kept in float16: as many significant bits in half the memory."""

from typing import NamedTuple

import torch
from torch import Tensor

_TOP = 14  # the largest number is stored as at most 2**14; smaller ones keep all their bits down to 2**-28 of it
_LEAST, _MOST = 2.0**-48, 2.0**77  # of what is taken for the largest, so that products of units are numbers, too


class Rounded(NamedTuple):
    """One client's tensor, in units of a power of two if it is kept in float16."""

    values: Tensor
    unit: Tensor | None = None


def rounded(x: Tensor) -> Rounded:
    """Rounds float32 on a GPU to the eleven significant bits of tf32, in float16; leaves any other tensor alone.

    >>> rounded(torch.ones(2))
    Rounded(values=tensor([1., 1.]), unit=None)
    """
    return in_half(x) if x.is_cuda and x.dtype == torch.float32 else Rounded(x)


def in_half(x: Tensor) -> Rounded:
    """Scales a tensor by a power of two into the range of float16; what is not finite stays so.

    >>> in_half(torch.tensor([[2.0**18, -2.0]]))
    Rounded(values=tensor([[ 1.6384e+04, -1.2500e-01]], dtype=torch.float16), unit=tensor(16.))
    """
    unit = _unit(x.abs().amax((-2, -1)).amax())  # in two steps: of one, the compiler would make three kernels
    return Rounded((x * (1 / unit)).half(), unit)


def unit_of_products(images: Rounded, filters: Rounded, bias: Tensor) -> Tensor | None:
    """Returns a unit in which the sums of one client's patches x filters, plus its bias, fit into float16, or None.

    It is known before the sums are: no patch has more than this, however its numbers are signed.
    """
    if images.unit is None or filters.unit is None:
        return None
    most = images.unit * filters.unit * (4.0**_TOP * filters.values[0].numel()) + bias.float().abs().amax()
    return _unit(most)


def scale_of(one: Rounded, other: Rounded) -> Tensor | None:
    """Returns by what products of two rounded tensors are multiplied, for the operators: one number, or None."""
    return None if one.unit is None or other.unit is None else one.unit * other.unit


def exact(x: Tensor, scale: Tensor | None) -> Tensor:
    """Returns stored numbers (C, ...) as those that they stand for, for operators in plain torch."""
    return x if scale is None else x.float() * scale.view(-1, *[1] * (x.dim() - 1))


def _unit(largest: Tensor) -> Tensor:
    return torch.exp2(torch.ceil(torch.log2(largest.clamp(_LEAST, _MOST))) - _TOP)
