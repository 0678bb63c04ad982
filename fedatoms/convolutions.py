"""What vmap makes of a convolution, many groups in one, as products that a GPU is fast at.

A map over clients turns a convolution of C clients into one with C groups, for which cuDNN runs one slow kernel after
another. ``TABLE`` says, for a tracer, what to do instead; where it does not apply, the convolution stays.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
Sizes = Sequence[int]


@torch.library.custom_op("fedatoms::convolve", mutates_args=())
def convolve(x: Tensor, filters: Tensor) -> Tensor:
    """Convolves images (C, B, H, W, I) with each client's filters (C, O, K, K, I), without padding."""
    clients, out = filters.shape[:2]
    y = F.conv2d(_as_groups(x), filters.permute(0, 1, 4, 2, 3).flatten(0, 1), groups=clients)
    return _as_clients(y, clients).contiguous()


@torch.library.custom_op("fedatoms::correlate", mutates_args=())
def correlate(x: Tensor, dy: Tensor, tall: int, wide: int) -> Tensor:
    """Returns the gradient of the filters, (C, K, K, I, O), of a convolution whose result has gradient ``dy``."""
    clients, channels, out = len(x), x.shape[-1], dy.shape[-1]
    shape = (clients * out, channels, tall, wide)
    dw = torch.nn.grad.conv2d_weight(_as_groups(x), shape, _as_groups(dy), groups=clients)
    return dw.view(clients, out, channels, tall, wide).permute(0, 3, 4, 2, 1).contiguous()


@convolve.register_kernel("cuda")
def _(x: Tensor, filters: Tensor) -> Tensor:
    from fedatoms import kernels  # triton comes with torch's CUDA builds only

    return kernels.convolve(x, filters)


@correlate.register_kernel("cuda")
def _(x: Tensor, dy: Tensor, tall: int, wide: int) -> Tensor:
    from fedatoms import kernels

    return kernels.correlate(x, dy, tall, wide)


@convolve.register_fake
def _(x: Tensor, filters: Tensor) -> Tensor:
    clients, batch, height, width, _ = x.shape
    return x.new_empty(clients, batch, height - filters.shape[2] + 1, width - filters.shape[3] + 1, filters.shape[1])


@correlate.register_fake
def _(x: Tensor, dy: Tensor, tall: int, wide: int) -> Tensor:
    return x.new_empty(len(x), tall, wide, x.shape[-1], dy.shape[-1])


def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Tensor:
    if not _suits(x, weight, stride, padding, dilation, transposed, groups):
        return NotImplemented
    filters = weight.unflatten(0, (groups, -1)).permute(0, 1, 3, 4, 2)
    y = _as_groups(convolve(_padded(x, groups, padding[0], padding[1]), filters.contiguous()))
    return y if bias is None else y + bias[:, None, None]


def _backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if not _suits(x, weight, stride, padding, dilation, transposed, groups):
        return NotImplemented
    dx = dw = db = None
    tall, wide = weight.shape[2:]
    if output_mask[0]:  # a convolution of the padded slopes with the filters turned round, from outputs to inputs
        turned = weight.unflatten(0, (groups, -1)).permute(0, 2, 3, 4, 1).flip(2, 3)
        around = _padded(dy, groups, tall - 1 - padding[0], wide - 1 - padding[1])
        dx = _as_groups(convolve(around, turned.contiguous()))
    if output_mask[1]:
        slopes = correlate(_padded(x, groups, padding[0], padding[1]), _padded(dy, groups, 0, 0), tall, wide)
        dw = slopes.permute(0, 4, 3, 1, 2).flatten(0, 1)
    if output_mask[2]:
        db = dy.sum((0, 2, 3))
    return dx, dw, db


TABLE: dict[object, Callable[..., object]] = {
    aten.convolution.default: _forward,
    aten.convolution_backward.default: _backward,
}


def _suits(
    x: Tensor, weight: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, transposed: bool, groups: int
) -> bool:
    """Says whether our products are the better ones: images, whole steps, many groups, and enough filters in each."""
    plain = not transposed and x.dim() == 4 and set(stride) == {1} and set(dilation) == {1}
    inside = plain and all(p < k for p, k in zip(padding, weight.shape[2:], strict=True))
    return inside and x.dtype != torch.float64 and groups > 1 and len(weight) >= 16 * groups


def _padded(x: Tensor, groups: int, rows: int, columns: int) -> Tensor:
    around = F.pad(x, (columns, columns, rows, rows)) if rows or columns else x
    return _as_clients(around, groups).contiguous()


def _as_clients(x: Tensor, groups: int) -> Tensor:
    """(B, C I, H, W) to (C, B, H, W, I)."""
    return x.unflatten(1, (groups, -1)).permute(1, 0, 3, 4, 2)


def _as_groups(x: Tensor) -> Tensor:
    """(C, B, H, W, I) to (B, C I, H, W)."""
    return x.permute(1, 0, 4, 2, 3).flatten(1, 2)
