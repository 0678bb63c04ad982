"""Convolutions of many clients, each with its own filters, as operators with a client axis of their own.

Two matrix products do all the work: patches x filters (with optional bias, ReLU and 2 x 2 pooling), and patches x
output gradients. On a GPU they are Triton kernels, on a CPU plain torch. ``convolution`` and ``pooled`` are what
one client sees: differentiable, with a rule for vmap. What is multiplied in tf32 is kept in float16, which has as many
bits (``rounding``).
"""

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from fedatoms.engine.gpu.client_axis import for_one, over_clients
from fedatoms.engine.gpu.rounding import Rounded, exact, rounded, scale_of, unit_of_products
from fedatoms.engine.gpu.tiles import parts_of

Pair = tuple[int, int]
_DEAD = 4  # argmax code of a 2 x 2 window with no positive value


@torch.library.custom_op("fedatoms::convolve", mutates_args=())
def convolve(
    x: Tensor, filters: Tensor, scale: Tensor | None, above: int, left: int, stride: int, turned: bool
) -> Tensor:
    """Convolves images (C, B, H, W, I) with each client's filters (C, O, K, K, I), with zeros around the images.

    ``scale`` (C,), if there is any, multiplies the products. Filters that are ``turned`` are those of which this is the
    transposed convolution, (C, I, K, K, O): they are read backwards.
    """
    if x.is_cuda:
        from fedatoms.engine.gpu import triton_conv

        return triton_conv.convolve(x, filters, scale, above, left, stride, turned)
    pairs = zip(exact(x, scale), filters.transpose(1, 4).flip(2, 3) if turned else filters, strict=True)
    each = [F.conv2d(channels_first(a), channels_first(f).to(a.dtype), None, stride, (above, left)) for a, f in pairs]
    return torch.stack(each).permute(0, 1, 3, 4, 2).contiguous()


@torch.library.custom_op("fedatoms::convolve_pool", mutates_args=())
def convolve_pool(
    x: Tensor, filters: Tensor, bias: Tensor, scale: Tensor | None, unit: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Convolves, adds a bias (C, O), applies ReLU and takes the maximum of each 2 x 2 window, with its argmax.

    The third tensor has the same maxima in float16, in units (C,); without a unit it is empty.
    """
    if x.is_cuda:
        from fedatoms.engine.gpu import triton_conv

        return triton_conv.convolve_pool(x, filters, bias, scale, unit)
    y = convolve(x, filters, scale, 0, 0, 1, False) + bias[:, None, None, None]
    windows = torch.stack(
        [y[:, :, i : _even(y.shape[2]) : 2, j : _even(y.shape[3]) : 2] for i in (0, 1) for j in (0, 1)]
    )
    largest, which = windows.max(0)
    pooled = largest.relu()
    half = y.new_empty(0, dtype=torch.float16) if unit is None else (pooled / unit[:, None, None, None, None]).half()
    return pooled, torch.where(largest > 0, which, _DEAD).to(torch.uint8), half


@torch.library.custom_op("fedatoms::correlate", mutates_args=())
def correlate(
    x: Tensor, dy: Tensor, which: Tensor | None, scale: Tensor | None, tall: int, wide: int, stride: int
) -> Tensor:
    """Returns the gradient of the filters, (C, P, O, K, K, I), given the result's; with ``which``, the pooled result's.

    There are P sums, each over a part of the result's pixels.
    """
    if x.is_cuda:
        from fedatoms.engine.gpu import triton_conv

        return triton_conv.correlate(x, dy, which, scale, tall, wide, stride)
    x = exact(x, scale)
    dy = dy.to(x.dtype)
    if which is not None:
        full = (x.shape[2] - tall + 1, x.shape[3] - wide + 1)
        dy = torch.stack([_unpool(a, b, full) for a, b in zip(dy, which, strict=True)])
    shape = (dy.shape[-1], x.shape[-1], tall, wide)
    each = [conv2d_weight(channels_first(a), shape, channels_first(b), stride) for a, b in zip(x, dy, strict=True)]
    return torch.stack(each).permute(0, 1, 3, 4, 2)[:, None].contiguous()


def channels_last(x: Tensor) -> Tensor:
    """Moves the channels of images from the second axis to the last."""
    return x.permute(0, 2, 3, 1)


def channels_first(x: Tensor) -> Tensor:
    """Moves the channels of images from the last axis to the second."""
    return x.permute(0, 3, 1, 2)


class Context(Protocol):
    """What torch passes from a forward to its backward pass."""

    padding: Pair
    stride: int
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


class _Convolution(torch.autograd.Function):
    """``conv2d(x, weight, None, stride, padding)`` of images, rounded already or not; gradients by the operators."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, half: Tensor | None, unit: Tensor | None, padding: Pair, stride: int
    ) -> Tensor:
        images, filters = _images(x, half, unit), rounded(channels_last(weight))
        scale = scale_of(images, filters)
        return channels_first(_convolve_one(_rows(images), _rows(filters), scale, *padding, stride, False))

    @staticmethod
    def setup_context(
        ctx: Context, inputs: tuple[Tensor, Tensor, Tensor | None, Tensor | None, Pair, int], output: Tensor
    ) -> None:
        x, weight, half, unit, ctx.padding, ctx.stride = inputs
        ctx.save_for_backward(weight, *_known(x, half, unit))

    @staticmethod
    @torch.no_grad()  # first derivatives only
    def backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, Tensor, None, None, None, None]:
        weight, *known = ctx.saved_tensors
        images, gradients, dx = _recalled(*known), rounded(channels_last(dy)), None
        if ctx.needs_input_grad[0]:
            full = _unstrided(images, weight, ctx.padding)
            apart = gradients._replace(values=_apart(gradients.values, full, ctx.stride))
            dx = _to_images(apart, rounded(channels_last(weight)), ctx.padding)
        return dx, _to_filters(images, gradients, None, weight, ctx.padding, ctx.stride), None, None, None, None


class _Pooled(torch.autograd.Function):
    """``max_pool2d(relu(conv2d(x, weight, bias, padding=padding)), 2)``, and which pixel of each window it took.

    If numbers are kept in float16, also the result as such, and its unit.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, half: Tensor | None, unit: Tensor | None, padding: Pair
    ) -> tuple[Tensor, ...]:
        images, filters = _images(x, half, unit), rounded(channels_last(weight))
        new = unit_of_products(images, filters, bias)
        scale = scale_of(images, filters)
        y, which, small = convolve_pool(  # not for one client: what is empty without a unit has no client axis
            _rows(images, padding)[None],
            _rows(filters)[None],
            bias[None],
            None if scale is None else scale[None],
            None if new is None else new[None],
        )
        return (channels_first(y[0]), which[0]) if new is None else (channels_first(y[0]), which[0], small[0], new)

    @staticmethod
    def setup_context(
        ctx: Context,
        inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Pair],
        output: tuple[Tensor, ...],
    ) -> None:
        x, weight, _, half, unit, ctx.padding = inputs
        ctx.save_for_backward(weight, output[1], *_known(x, half, unit))
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    @torch.no_grad()  # first derivatives only
    def backward(ctx: Context, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None, None]:
        weight, chosen, *known = ctx.saved_tensors
        images, dx = _recalled(*known), None
        which: Tensor | None = chosen
        bias, gradients = torch.where(chosen == _DEAD, 0, channels_last(dy)).sum((0, 1, 2)), rounded(channels_last(dy))
        if ctx.needs_input_grad[0]:  # then the gradients are unpooled anyway, and a kernel reads them faster that way
            full = _unstrided(images, weight, ctx.padding)
            gradients, which = gradients._replace(values=_unpool(gradients.values, chosen, full)), None
            dx = _to_images(gradients, rounded(channels_last(weight)), ctx.padding)
        return dx, _to_filters(images, gradients, which, weight, ctx.padding, 1), bias, None, None, None


convolution: Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Pair, int], Tensor] = _Convolution.apply
pooled: Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Pair], tuple[Tensor, ...]] = _Pooled.apply


def _images(x: Tensor, half: Tensor | None, unit: Tensor | None) -> Rounded:
    return rounded(channels_last(x)) if half is None else Rounded(half, unit)


def _known(x: Tensor, half: Tensor | None, unit: Tensor | None) -> tuple[Tensor, ...]:
    """Returns what a backward pass needs to know of the images."""
    return (x,) if half is None or unit is None else (half, unit)


def _recalled(x: Tensor, unit: Tensor | None = None) -> Rounded:
    return rounded(channels_last(x)) if unit is None else Rounded(x, unit)


def _to_images(dy: Rounded, filters: Rounded, padding: Pair) -> Tensor:
    """Returns the gradient of the images: the output gradients, padded, convolved with the filters backwards."""
    missing = -len(filters.values) % 4  # as the output gradients have more channels
    turned = F.pad(filters.values, (0, 0, 0, 0, 0, 0, 0, missing)) if missing else filters.values
    around = (turned.shape[1] - 1 - padding[0], turned.shape[2] - 1 - padding[1])
    return channels_first(_convolve_one(_rows(dy), turned, scale_of(dy, filters), *around, 1, True))


def _to_filters(
    images: Rounded, dy: Rounded, which: Tensor | None, weight: Tensor, padding: Pair, stride: int
) -> Tensor:
    scale = scale_of(images, dy)
    sums = _correlate_one(_rows(images, padding), dy.values, which, scale, *weight.shape[2:], stride)
    sums = sums[..., : weight.shape[1]]  # of real channels only, before they are added: no copy is made of the sum
    total = sums[0] if len(sums) == 1 else sums.sum(0)
    return channels_first(total.to(weight.dtype))


def _unstrided(images: Rounded, weight: Tensor, padding: Pair) -> list[int]:
    """Returns the height and width of a convolution's result without stride or pooling."""
    sizes = zip(images.values.shape[1:3], padding, weight.shape[2:], strict=True)
    return [size + 2 * p - k + 1 for size, p, k in sizes]


def _apart(dy: Tensor, full: Sequence[int], stride: int) -> Tensor:
    """Moves pixels (B, H, W, O) apart, to where a stride took them from images of ``full`` height and width."""
    if stride == 1:
        return dy
    windows = F.pad(dy[:, :, None, :, None], (0, 0, 0, stride - 1, 0, 0, 0, stride - 1))
    return _sized(windows.flatten(3, 4).flatten(1, 2), full)


def _unpool(dy: Tensor, which: Tensor, full: Sequence[int]) -> Tensor:
    """Scatters gradients of pooled pixels, (B, H, W, O), to their argmax in images of ``full`` height and width."""
    place = torch.arange(4, device=dy.device).view(2, 1, 2, 1)
    windows = torch.where(which[:, :, None, :, None] == place, dy[:, :, None, :, None], 0)
    return _sized(windows.flatten(3, 4).flatten(1, 2), full)


def _sized(images: Tensor, full: Sequence[int]) -> Tensor:
    """Cuts images (B, H, W, O) to a height and width, or fills them up with zeros."""
    return F.pad(images, (0, 0, 0, full[1] - images.shape[2], 0, full[0] - images.shape[1]))


def _even(size: int) -> int:
    return size // 2 * 2


def _rows(x: Rounded, padding: Pair = (0, 0)) -> Tensor:
    """One client's images, or filters, for the operators; channels are padded to a multiple of four, for wide loads."""
    missing, (above, left) = -x.values.shape[3] % 4, padding
    around = (0, missing, left, left, above, above)
    return F.pad(x.values, around) if any(around) else x.values


@convolve.register_fake
def _(x: Tensor, filters: Tensor, scale: Tensor | None, above: int, left: int, stride: int, turned: bool) -> Tensor:
    tall, wide = filters.shape[2:4]
    rows, columns = (x.shape[2] + 2 * above - tall) // stride + 1, (x.shape[3] + 2 * left - wide) // stride + 1
    return x.new_empty(*x.shape[:2], rows, columns, filters.shape[4 if turned else 1], dtype=_kind(x, scale))


@convolve_pool.register_fake
def _(
    x: Tensor, filters: Tensor, bias: Tensor, scale: Tensor | None, unit: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = ((size - kernel + 1) // 2 for size, kernel in zip(x.shape[2:4], filters.shape[2:4], strict=True))
    y = x.new_empty(*x.shape[:2], rows, columns, filters.shape[1], dtype=_kind(x, scale))
    half = y.new_empty(0 if unit is None else y.shape, dtype=torch.float16)
    return y, torch.empty_like(y, dtype=torch.uint8), half


@correlate.register_fake
def _(x: Tensor, dy: Tensor, which: Tensor | None, scale: Tensor | None, tall: int, wide: int, stride: int) -> Tensor:
    parts = parts_of(x, dy, tall * wide * x.shape[-1], pool=which is not None) if x.is_cuda else 1
    kind = _kind(x, scale) if parts == 1 else torch.float32
    return x.new_empty(len(x), parts, dy.shape[-1], tall, wide, x.shape[-1], dtype=kind)


def _kind(x: Tensor, scale: Tensor | None) -> torch.dtype:
    return x.dtype if scale is None else torch.float32


for _operator in (convolve, convolve_pool, correlate):
    _operator.register_vmap(over_clients(_operator))
_convolve_one = cast(Callable[..., Tensor], for_one(torch.ops.fedatoms.convolve.default))
_correlate_one = cast(Callable[..., Tensor], for_one(torch.ops.fedatoms.correlate.default))
