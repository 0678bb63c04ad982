"""Convolutions of many clients, each with its own filters, as operators with a client axis of their own.

Two matrix products do all the work: patches x filters (with optional bias, ReLU and 2 x 2 pooling), and patches x
output gradients. On a GPU they are Triton kernels, on a CPU plain torch. ``convolution`` and ``pooled`` are what
one client sees: differentiable, with a rule for vmap.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

Pair = tuple[int, int]
_DEAD = 4  # argmax code of a 2 x 2 window with no positive value


@torch.library.custom_op("fedatoms::convolve", mutates_args=())
def convolve(x: Tensor, filters: Tensor) -> Tensor:
    """Convolves images (C, B, H, W, I) with each client's filters (C, O, K, K, I), without padding."""
    if x.is_cuda:
        from fedatoms.engine.gpu import triton_conv

        return triton_conv.convolve(x, filters)
    each = [F.conv2d(_first(a), _first(f)) for a, f in zip(x, filters, strict=True)]
    return torch.stack(each).permute(0, 1, 3, 4, 2).contiguous()


@torch.library.custom_op("fedatoms::convolve_pool", mutates_args=())
def convolve_pool(x: Tensor, filters: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Convolves, adds a bias (C, O), applies ReLU and takes the maximum of each 2 x 2 window, with its argmax."""
    if x.is_cuda:
        from fedatoms.engine.gpu import triton_conv

        return triton_conv.convolve_pool(x, filters, bias)
    y = convolve(x, filters) + bias[:, None, None, None]
    windows = torch.stack(
        [y[:, :, i : _even(y.shape[2]) : 2, j : _even(y.shape[3]) : 2] for i in (0, 1) for j in (0, 1)]
    )
    largest, which = windows.max(0)
    return largest.relu(), torch.where(largest > 0, which, _DEAD).to(torch.uint8)


@torch.library.custom_op("fedatoms::correlate", mutates_args=())
def correlate(x: Tensor, dy: Tensor, which: Tensor | None, tall: int, wide: int) -> Tensor:
    """Returns the gradient of the filters, (C, K, K, I, O), given the result's; with ``which``, the pooled result's."""
    if x.is_cuda:
        from fedatoms.engine.gpu import triton_conv

        return triton_conv.correlate(x, dy, which, tall, wide)
    if which is not None:
        full = (x.shape[2] - tall + 1, x.shape[3] - wide + 1)
        dy = torch.stack([_unpool(a, b, full) for a, b in zip(dy, which, strict=True)])
    shape = (dy.shape[-1], x.shape[-1], tall, wide)
    each = [conv2d_weight(_first(a), shape, _first(b)) for a, b in zip(x, dy, strict=True)]
    return torch.stack(each).permute(0, 3, 4, 2, 1).contiguous()


class Context(Protocol):
    """What torch passes from a forward to its backward pass."""

    padding: Pair
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


class _Convolution(torch.autograd.Function):
    """``conv2d(x, weight, padding=padding)`` with gradients by the operators."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, padding: Pair) -> Tensor:
        return _first(convolve(_rows(_pad(x, padding)), _rows(weight))[0])

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor, Pair], output: Tensor) -> None:
        x, weight, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    @torch.no_grad()  # first derivatives only
    def backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, Tensor, None]:
        x, weight = ctx.saved_tensors
        dx = _to_images(_last(dy), weight, ctx.padding) if ctx.needs_input_grad[0] else None
        return dx, _to_filters(x, _last(dy), None, weight, ctx.padding), None


class _Pooled(torch.autograd.Function):
    """``max_pool2d(relu(conv2d(x, weight, bias, padding=padding)), 2)``, and which pixel of each window it took."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, padding: Pair) -> tuple[Tensor, Tensor]:
        y, which = convolve_pool(_rows(_pad(x, padding)), _rows(weight), bias[None])
        return _first(y[0]), which[0]

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor, Tensor, Pair], output: tuple[Tensor, Tensor]) -> None:
        x, weight, _, ctx.padding = inputs
        ctx.save_for_backward(x, weight, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @torch.no_grad()  # first derivatives only
    def backward(ctx: Context, dy: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight, chosen = ctx.saved_tensors
        which: Tensor | None = chosen
        gradients, dx = _last(dy), None
        bias = torch.where(chosen == _DEAD, 0, gradients).sum((0, 1, 2))
        if ctx.needs_input_grad[0]:  # then the gradients are unpooled anyway, and a kernel reads them faster that way
            full = [size + 2 * p - k + 1 for size, p, k in zip(x.shape[2:], ctx.padding, weight.shape[2:], strict=True)]
            gradients, which = _unpool(gradients, chosen, full), None
            dx = _to_images(gradients, weight, ctx.padding)
        return dx, _to_filters(x, gradients, which, weight, ctx.padding), bias, None


convolution: Callable[[Tensor, Tensor, Pair], Tensor] = _Convolution.apply
pooled: Callable[[Tensor, Tensor, Tensor, Pair], tuple[Tensor, Tensor]] = _Pooled.apply


def _to_images(dy: Tensor, weight: Tensor, padding: Pair) -> Tensor:
    """Returns the gradient of the images: the output gradients, padded, convolved with the flipped filters."""
    around = _pad(_first(dy), (weight.shape[2] - 1 - padding[0], weight.shape[3] - 1 - padding[1]))
    return _first(convolve(_rows(around), _rows(weight.transpose(0, 1).flip(2, 3)))[0])


def _to_filters(x: Tensor, dy: Tensor, which: Tensor | None, weight: Tensor, padding: Pair) -> Tensor:
    chosen = None if which is None else which[None]
    gradients: Tensor = correlate(_rows(_pad(x, padding)), dy[None], chosen, weight.shape[2], weight.shape[3])
    return gradients[0, :, :, : weight.shape[1]].permute(3, 2, 0, 1)


def _unpool(dy: Tensor, which: Tensor, full: Sequence[int]) -> Tensor:
    """Scatters gradients of pooled pixels, (B, H, W, O), to their argmax in images of ``full`` height and width."""
    place = torch.arange(4, device=dy.device).view(2, 1, 2, 1)
    windows = torch.where(which[:, :, None, :, None] == place, dy[:, :, None, :, None], 0)
    dense = windows.flatten(3, 4).flatten(1, 2)
    return F.pad(dense, (0, 0, 0, full[1] - dense.shape[2], 0, full[0] - dense.shape[1]))


def _pad(x: Tensor, padding: Sequence[int]) -> Tensor:
    return F.pad(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x


def _even(size: int) -> int:
    return size // 2 * 2


def _rows(x: Tensor) -> Tensor:
    """One client's images, or filters, for the operators; channels are padded to a multiple of four, for wide loads."""
    missing = -x.shape[1] % 4
    return _last(F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x)[None]


def _last(x: Tensor) -> Tensor:
    """Moves channels from the second axis to the last."""
    return x.permute(0, 2, 3, 1)


def _first(x: Tensor) -> Tensor:
    """Moves channels from the last axis to the second."""
    return x.permute(0, 3, 1, 2)


@convolve.register_fake
def _(x: Tensor, filters: Tensor) -> Tensor:
    rows, columns = (size - kernel + 1 for size, kernel in zip(x.shape[2:4], filters.shape[2:4], strict=True))
    return x.new_empty(*x.shape[:2], rows, columns, filters.shape[1])


@convolve_pool.register_fake
def _(x: Tensor, filters: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = ((size - kernel + 1) // 2 for size, kernel in zip(x.shape[2:4], filters.shape[2:4], strict=True))
    y = x.new_empty(*x.shape[:2], rows, columns, filters.shape[1])
    return y, torch.empty_like(y, dtype=torch.uint8)


@correlate.register_fake
def _(x: Tensor, dy: Tensor, which: Tensor | None, tall: int, wide: int) -> Tensor:
    return x.new_empty(len(x), tall, wide, x.shape[-1], dy.shape[-1])


class _Vmap(Protocol):
    """What torch passes to a vmap rule."""

    batch_size: int


Rule = Callable[..., tuple[Tensor, int] | tuple[tuple[Tensor, ...], tuple[int, ...]]]


def over_clients(operator: Callable[..., Tensor | tuple[Tensor, ...]]) -> Rule:
    """Makes an operator's rule for vmap: the new axis joins the client axis."""

    def rule(
        info: _Vmap, axes: Sequence[int | None], *args: Tensor | int | None
    ) -> tuple[Tensor, int] | tuple[tuple[Tensor, ...], tuple[int, ...]]:
        def join(value: Tensor | int | None, axis: int | None) -> Tensor | int | None:
            if not isinstance(value, Tensor):
                return value
            each = value.expand(info.batch_size, *value.shape) if axis is None else value.movedim(axis, 0)
            return each.flatten(0, 1).contiguous()

        result = operator(*(join(value, axis) for value, axis in zip(args, axes, strict=True)))
        if isinstance(result, Tensor):
            return result.unflatten(0, (info.batch_size, -1)), 0
        return tuple(each.unflatten(0, (info.batch_size, -1)) for each in result), (0,) * len(result)

    return rule


for _operator in (convolve, convolve_pool, correlate):
    _operator.register_vmap(over_clients(_operator))
