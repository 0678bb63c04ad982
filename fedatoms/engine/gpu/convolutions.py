"""Convolutions as one client sees them: differentiable, with a rule for vmap, and done by the operators of all."""

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatoms.engine.gpu.conv_ops import (
    channels_first,
    channels_last,
    convolve_one,
    convolve_pool,
    correlate_one,
    kind_of,
    sized,
    unpool,
)
from fedatoms.engine.gpu.first_only import once
from fedatoms.engine.gpu.rounding import Rounded, rounded
from fedatoms.engine.gpu.tiles import DEAD

Pair = tuple[int, int]
_AS_IT_IS = (None, None)


class Context(Protocol):
    """What torch passes from a forward to its backward pass."""

    padding: Pair
    stride: int
    channels: int  # of images, without those that fill them up
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


class _Convolution(torch.autograd.Function):
    """``conv2d(x, weight, None, stride, padding)``, of both in float16 if they are kept so."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        images: Tensor | None,
        unit: Tensor | None,
        filters: Tensor | None,
        other: Tensor | None,
        padding: Pair,
        stride: int,
    ) -> Tensor:
        a, b = _operand(x, images, unit), _operand(weight, filters, other)
        return channels_first(convolve_one(_rows(a), _rows(b), a.unit, b.unit, *padding, stride, False))

    @staticmethod
    def setup_context(
        ctx: Context,
        inputs: tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Pair, int],
        output: Tensor,
    ) -> None:
        x, weight, images, unit, filters, other, ctx.padding, ctx.stride = inputs
        ctx.channels = weight.shape[1]
        ctx.save_for_backward(*_known(x, images, unit), *_known(weight, filters, other))

    @staticmethod
    def backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            (images, filters), gradients, dx = _recalled(*ctx.saved_tensors), rounded(channels_last(dy)), None
            if ctx.needs_input_grad[0]:
                full = _unstrided(images, filters, ctx.padding)
                apart = gradients._replace(values=_apart(gradients.values, full, ctx.stride))
                dx = _to_images(apart, filters, ctx.padding, ctx.channels)
            found = dx, _to_filters(images, gradients, None, filters, ctx)
        return *once(found, (dy, *_tensors(ctx))), *[None] * 6


class _Pooled(torch.autograd.Function):
    """``max_pool2d(relu(conv2d(x, weight, bias, padding=padding)), 2)``, and which pixel of each window it took.

    If numbers are kept in float16, also the result as such, and its unit.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        images: Tensor | None,
        unit: Tensor | None,
        filters: Tensor | None,
        other: Tensor | None,
        padding: Pair,
    ) -> tuple[Tensor, ...]:
        a, b = _operand(x, images, unit), _operand(weight, filters, other)
        one, two = (None if each is None else each[None] for each in (a.unit, b.unit))
        # not for one client: what is empty without units has no client axis
        y, which, half, new = convolve_pool(_rows(a, padding)[None], _rows(b)[None], bias[None], one, two)
        pooled = channels_first(y[0]), which[0]
        return pooled if one is None or two is None else (*pooled, half[0], new[0])

    @staticmethod
    def setup_context(
        ctx: Context,
        inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Pair],
        output: tuple[Tensor, ...],
    ) -> None:
        x, weight, _, images, unit, filters, other, ctx.padding = inputs
        ctx.channels, ctx.stride = weight.shape[1], 1
        ctx.save_for_backward(*_known(x, images, unit), *_known(weight, filters, other), output[1])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Context, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            *known, chosen = ctx.saved_tensors
            (images, filters), gradients, dx = _recalled(*known), rounded(channels_last(dy)), None
            bias, which = torch.where(chosen == DEAD, 0, channels_last(dy)).sum((0, 1, 2)), cast(Tensor | None, chosen)
            if ctx.needs_input_grad[0]:  # then gradients are unpooled anyway, and a kernel reads them faster that way
                full = _unstrided(images, filters, ctx.padding)
                gradients, which = gradients._replace(values=unpool(gradients.values, chosen, full)), None
                dx = _to_images(gradients, filters, ctx.padding, ctx.channels)
            found = dx, _to_filters(images, gradients, which, filters, ctx), bias
        return *once(found, (dy, *_tensors(ctx))), *[None] * 5


_convolution: Callable[..., Tensor] = _Convolution.apply
_pooled: Callable[..., tuple[Tensor, ...]] = _Pooled.apply


def convolution(
    x: Tensor, weight: Tensor, images: Rounded | None, filters: Rounded | None, padding: Pair, stride: int
) -> Tensor:
    """Returns ``conv2d(x, weight, None, stride, padding)``, of what ``operand`` made of both."""
    return _convolution(x, weight, *(images or _AS_IT_IS), *(filters or _AS_IT_IS), padding, stride)


def pooled(
    x: Tensor, weight: Tensor, bias: Tensor, images: Rounded | None, filters: Rounded | None, padding: Pair
) -> tuple[Tensor, ...]:
    """Returns ``max_pool2d(relu(conv2d(...)), 2)`` and places of maxima; if ``operand`` made any, float16 and units."""
    return _pooled(x, weight, bias, *(images or _AS_IT_IS), *(filters or _AS_IT_IS), padding)


def operand(x: Tensor, largest: float | None = None) -> Rounded | None:
    """Returns images, or filters, in float16 if they are kept so: once, for both directions and all who read them.

    Their unit is that of their largest number, or of one that is known to be no smaller.
    """
    found = rounded(channels_last(x.detach()), largest)
    return None if found.unit is None else found._replace(values=_rows(found).contiguous())


def _operand(x: Tensor, half: Tensor | None, unit: Tensor | None) -> Rounded:
    return Rounded(channels_last(x)) if half is None else Rounded(half, unit)


def _known(x: Tensor, half: Tensor | None, unit: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Returns what a backward pass needs to know of images, or filters: not both."""
    return x if half is None else half, unit


def _tensors(ctx: Context) -> list[Tensor]:
    return [each for each in ctx.saved_tensors if each is not None]


def _recalled(images: Tensor, unit: Tensor | None, filters: Tensor, other: Tensor | None) -> tuple[Rounded, Rounded]:
    known = (images, unit), (filters, other)
    one, two = (Rounded(channels_last(x) if of is None else x, of) for x, of in known)
    return one, two


def _to_images(dy: Rounded, filters: Rounded, padding: Pair, channels: int) -> Tensor:
    """Returns the gradient of the images: the output gradients, padded, convolved with the filters backwards."""
    missing = -len(filters.values) % 4  # as the output gradients have more channels
    turned = F.pad(filters.values, (0, 0, 0, 0, 0, 0, 0, missing)) if missing else filters.values
    around = (turned.shape[1] - 1 - padding[0], turned.shape[2] - 1 - padding[1])
    dx = convolve_one(_rows(dy), turned, dy.unit, filters.unit, *around, 1, True)
    return channels_first(dx if dx.shape[-1] == channels else dx[..., :channels])


def _to_filters(images: Rounded, dy: Rounded, which: Tensor | None, filters: Rounded, ctx: Context) -> Tensor:
    tall, wide = filters.values.shape[1:3]
    rows, units = _rows(images, ctx.padding), (images.unit, dy.unit)
    sums = correlate_one(rows, dy.values, which, *units, tall, wide, ctx.stride)
    sums = sums[..., : ctx.channels]  # of real ones only, before they are added: no copy is made of the sum
    total = sums[0] if len(sums) == 1 else sums.sum(0)
    return channels_first(total.to(kind_of(filters.values, filters.unit)))


def _unstrided(images: Rounded, filters: Rounded, padding: Pair) -> list[int]:
    """Returns the height and width of a convolution's result without stride or pooling."""
    sizes = zip(images.values.shape[1:3], padding, filters.values.shape[1:3], strict=True)
    return [size + 2 * p - k + 1 for size, p, k in sizes]


def _apart(dy: Tensor, full: Sequence[int], stride: int) -> Tensor:
    """Moves pixels (B, H, W, O) apart, to where a stride took them from images of ``full`` height and width."""
    if stride == 1:
        return dy
    windows = F.pad(dy[:, :, None, :, None], (0, 0, 0, stride - 1, 0, 0, 0, stride - 1))
    return sized(windows.flatten(3, 4).flatten(1, 2), full)


def _rows(x: Rounded, padding: Pair = (0, 0)) -> Tensor:
    """One client's images, or filters, for the operators; channels are padded to a multiple of four, for wide loads."""
    missing, (above, left) = -x.values.shape[3] % 4, padding
    around = (0, missing, left, left, above, above)
    return F.pad(x.values, around) if any(around) else x.values
