"""Convolutions of many clients, each with its own filters, as operators with a client axis of their own.

Two matrix products do all the work: patches x filters (with optional bias, ReLU and 2 x 2 pooling), and patches x
output gradients. On a GPU they are Triton kernels, on a CPU plain torch. What is multiplied in tf32 is kept in float16,
which has as many bits (``rounding``). ``convolutions`` has what one client sees of them.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from fedatoms.engine.gpu.client_axis import for_one, over_clients
from fedatoms.engine.gpu.rounding import exact, unit_of_products
from fedatoms.engine.gpu.tiles import DEAD, parts_of


@torch.library.custom_op("fedatoms::convolve", mutates_args=())
def convolve(
    x: Tensor,
    filters: Tensor,
    unit: Tensor | None,
    other: Tensor | None,
    above: int,
    left: int,
    stride: int,
    turned: bool,
) -> Tensor:
    """Convolves images (C, B, H, W, I) with each client's filters (C, O, K, K, I), with zeros around the images.

    Both have a unit (C,) if they are kept in float16. Filters that are ``turned`` are those of which this is the
    transposed convolution, (C, I, K, K, O): they are read backwards.
    """
    if x.is_cuda:
        from fedatoms.engine.gpu import triton_conv

        return triton_conv.convolve(x, filters, unit, other, above, left, stride, turned)
    pairs = zip(exact(x, unit, other), filters.transpose(1, 4).flip(2, 3) if turned else filters, strict=True)
    each = [F.conv2d(channels_first(a), channels_first(f).to(a.dtype), None, stride, (above, left)) for a, f in pairs]
    return torch.stack(each).permute(0, 1, 3, 4, 2).contiguous()


@torch.library.custom_op("fedatoms::convolve_pool", mutates_args=())
def convolve_pool(
    x: Tensor, filters: Tensor, bias: Tensor, unit: Tensor | None, other: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Convolves, adds a bias (C, O), applies ReLU and takes the maximum of each 2 x 2 window, with its argmax.

    The third tensor has the same maxima in float16, the fourth their units (C,); without units both are empty.
    """
    if x.is_cuda:
        from fedatoms.engine.gpu import triton_conv

        return triton_conv.convolve_pool(x, filters, bias, unit, other)
    y = convolve(x, filters, unit, other, 0, 0, 1, False) + bias[:, None, None, None]
    windows = torch.stack(
        [y[:, :, i : _even(y.shape[2]) : 2, j : _even(y.shape[3]) : 2] for i in (0, 1) for j in (0, 1)]
    )
    largest, which = windows.max(0)
    pooled, places = largest.relu(), torch.where(largest > 0, which, DEAD).to(torch.uint8)
    if unit is None or other is None:
        return pooled, places, y.new_empty(0, dtype=torch.float16), y.new_empty(0, dtype=torch.float32)
    new = unit_of_products(unit, other, filters[0, 0].numel(), bias)
    return pooled, places, (pooled / new[:, None, None, None, None]).half(), new


@torch.library.custom_op("fedatoms::correlate", mutates_args=())
def correlate(
    x: Tensor,
    dy: Tensor,
    which: Tensor | None,
    unit: Tensor | None,
    other: Tensor | None,
    tall: int,
    wide: int,
    stride: int,
) -> Tensor:
    """Returns the gradient of the filters, (C, P, O, K, K, I), given the result's; with ``which``, the pooled result's.

    Images and gradients have a unit (C,) if they are kept in float16. There are P sums, each over a part of the
    result's pixels.
    """
    if x.is_cuda:
        from fedatoms.engine.gpu import triton_conv

        return triton_conv.correlate(x, dy, which, unit, other, tall, wide, stride)
    x = exact(x, unit, other)
    dy = dy.to(x.dtype)
    if which is not None:
        full = (x.shape[2] - tall + 1, x.shape[3] - wide + 1)
        dy = torch.stack([unpool(a, b, full) for a, b in zip(dy, which, strict=True)])
    shape = (dy.shape[-1], x.shape[-1], tall, wide)
    each = [conv2d_weight(channels_first(a), shape, channels_first(b), stride) for a, b in zip(x, dy, strict=True)]
    return torch.stack(each).permute(0, 1, 3, 4, 2)[:, None].contiguous()


def channels_last(x: Tensor) -> Tensor:
    """Moves the channels of images from the second axis to the last."""
    return x.permute(0, 2, 3, 1)


def channels_first(x: Tensor) -> Tensor:
    """Moves the channels of images from the last axis to the second."""
    return x.permute(0, 3, 1, 2)


def unpool(dy: Tensor, which: Tensor, full: Sequence[int]) -> Tensor:
    """Scatters gradients of pooled pixels, (B, H, W, O), to their argmax in images of ``full`` height and width."""
    place = torch.arange(4, device=dy.device).view(2, 1, 2, 1)
    windows = torch.where(which[:, :, None, :, None] == place, dy[:, :, None, :, None], 0)
    return sized(windows.flatten(3, 4).flatten(1, 2), full)


def sized(images: Tensor, full: Sequence[int]) -> Tensor:
    """Cuts images (B, H, W, O) to a height and width, or fills them up with zeros."""
    return F.pad(images, (0, 0, 0, full[1] - images.shape[2], 0, full[0] - images.shape[1]))


def _even(size: int) -> int:
    return size // 2 * 2


def kind_of(x: Tensor, unit: Tensor | None) -> torch.dtype:
    """Returns the type of sums of products: float32 if the factors have units."""
    return x.dtype if unit is None else torch.float32


@convolve.register_fake
def _(
    x: Tensor,
    filters: Tensor,
    unit: Tensor | None,
    other: Tensor | None,
    above: int,
    left: int,
    stride: int,
    turned: bool,
) -> Tensor:
    tall, wide = filters.shape[2:4]
    rows, columns = (x.shape[2] + 2 * above - tall) // stride + 1, (x.shape[3] + 2 * left - wide) // stride + 1
    return x.new_empty(*x.shape[:2], rows, columns, filters.shape[4 if turned else 1], dtype=kind_of(x, unit))


@convolve_pool.register_fake
def _(
    x: Tensor, filters: Tensor, bias: Tensor, unit: Tensor | None, other: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = ((size - kernel + 1) // 2 for size, kernel in zip(x.shape[2:4], filters.shape[2:4], strict=True))
    y = x.new_empty(*x.shape[:2], rows, columns, filters.shape[1], dtype=kind_of(x, unit))
    half = y.new_empty(0 if unit is None else y.shape, dtype=torch.float16)
    return (
        y,
        torch.empty_like(y, dtype=torch.uint8),
        half,
        y.new_empty(0 if unit is None else len(y), dtype=torch.float32),
    )


@correlate.register_fake
def _(
    x: Tensor,
    dy: Tensor,
    which: Tensor | None,
    unit: Tensor | None,
    other: Tensor | None,
    tall: int,
    wide: int,
    stride: int,
) -> Tensor:
    parts = parts_of(x, dy, tall * wide * x.shape[-1], pool=which is not None) if x.is_cuda else 1
    kind = kind_of(x, unit) if parts == 1 else torch.float32
    return x.new_empty(len(x), parts, dy.shape[-1], tall, wide, x.shape[-1], dtype=kind)


for _operator in (convolve, convolve_pool, correlate):
    _operator.register_vmap(over_clients(_operator))
convolve_one = cast(Callable[..., Tensor], for_one(torch.ops.fedatoms.convolve.default))
correlate_one = cast(Callable[..., Tensor], for_one(torch.ops.fedatoms.correlate.default))
