"""BatchNorm of many clients, each with its own statistics, as operators with a client axis of their own.

On a GPU they are Triton kernels, on a CPU plain torch. ``normalised`` is what one client sees: ``masked_batch_norm`` of
images, differentiable and with a rule for vmap. The compiler makes some nine kernels of a layer; these are four.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from fedatoms.engine.gpu.client_axis import for_one, over_clients
from fedatoms.engine.gpu.conv_ops import channels_first, channels_last
from fedatoms.nn import masked_norm
from fedatoms.nn.masked_norm import Gradients, Normalised, differentiable


@torch.library.custom_op("fedatoms::normalise", mutates_args=())
def normalise(x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Normalises each client's images (C, B, H, W, I) that are real (C, B), with a weight and a bias (C, I).

    Returns them with mean and variance of their channels, (C, I).
    """
    if x.is_cuda:
        from fedatoms.engine.gpu import triton_norm

        return triton_norm.normalise(x, real, weight, bias, eps)

    clients = zip(map(channels_first, x), real, weight, bias, strict=True)
    each = [masked_norm.normalise(*client, eps) for client in clients]
    out, mean, variance = (torch.stack(one) for one in zip(*each, strict=True))
    return out.permute(0, 1, 3, 4, 2).contiguous(), mean, variance


@torch.library.custom_op("fedatoms::normalise_back", mutates_args=())
def normalise_back(
    x: Tensor, real: Tensor, weight: Tensor, mean: Tensor, variance: Tensor, dy: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of images, weight and bias, given that of the normalised images."""
    if x.is_cuda:
        from fedatoms.engine.gpu import triton_norm

        return triton_norm.normalise_back(x, real, weight, mean, variance, dy, eps)

    known = map(Normalised, map(channels_first, dy), mean, variance)
    clients = zip(map(channels_first, x), real, weight, known, strict=True)
    each = [masked_norm.go_back(*client, eps) for client in clients]
    to_x, to_weight, to_bias = (torch.stack(one) for one in zip(*each, strict=True))
    return to_x.permute(0, 1, 3, 4, 2).contiguous(), to_weight, to_bias


def _normalise(x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Normalised:
    y, mean, variance = _normalise_one(channels_last(x), real, weight, bias, eps)
    return Normalised(channels_first(y), mean, variance)


def _go_back(x: Tensor, real: Tensor, weight: Tensor, known: Normalised, eps: float) -> Gradients:
    dy, mean, variance = known
    to_x, *others = _normalise_back_one(channels_last(x), real, weight, mean, variance, channels_last(dy), eps)
    return Gradients(channels_first(to_x), *others)


normalised = differentiable(_normalise, _go_back)


@normalise.register_fake
def _(x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    kind = torch.promote_types(x.dtype, torch.float32)
    mean, variance = (weight.new_empty(weight.shape, dtype=kind) for _ in range(2))
    return x.new_empty(x.shape), mean, variance


@normalise_back.register_fake
def _(
    x: Tensor, real: Tensor, weight: Tensor, mean: Tensor, variance: Tensor, dy: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape)


for _operator in (normalise, normalise_back):
    _operator.register_vmap(over_clients(_operator))
_normalise_one = cast(Callable[..., tuple[Tensor, ...]], for_one(torch.ops.fedatoms.normalise.default))
_normalise_back_one = cast(Callable[..., tuple[Tensor, ...]], for_one(torch.ops.fedatoms.normalise_back.default))
