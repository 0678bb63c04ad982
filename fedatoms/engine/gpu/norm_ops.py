"""BatchNorm of many clients, each with its own statistics, as operators with a client axis of their own.

On a GPU they are Triton kernels, on a CPU plain torch. ``normalised`` is what one client sees: ``masked_batch_norm`` of
images, differentiable and with a rule for vmap. The compiler makes some nine kernels of a layer; these are four.
"""

import torch
from torch import Tensor

from fedatoms.engine.gpu.conv_ops import channels_first, channels_last, over_clients
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


def _normalise_one(x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Normalised:
    y, mean, variance = normalise(channels_last(x)[None], real[None], weight[None], bias[None], eps)
    return Normalised(channels_first(y[0]), mean[0], variance[0])


def _go_back_one(x: Tensor, real: Tensor, weight: Tensor, known: Normalised, eps: float) -> Gradients:
    dy, mean, variance = known
    found = normalise_back(
        channels_last(x)[None],
        real[None],
        weight[None],
        mean[None],
        variance[None],
        channels_last(dy)[None],
        eps,
    )
    return Gradients(channels_first(found[0][0]), found[1][0], found[2][0])


normalised = differentiable(_normalise_one, _go_back_one)


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
