"""BatchNorm of many clients, each with its own statistics, as operators with a client axis of their own.

On a GPU they are Triton kernels, on a CPU plain torch. ``normalised`` is what one client sees: ``masked_batch_norm`` of
images, differentiable once and with a rule for vmap. The compiler makes some eleven kernels of a layer; these are four,
which also compute a ReLU that follows in a traced graph.
"""

from collections.abc import Callable, Iterable
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fedatoms.engine.gpu.client_axis import for_one, over_clients
from fedatoms.engine.gpu.conv_ops import channels_first, channels_last
from fedatoms.engine.gpu.first_only import once
from fedatoms.nn.masked_norm import Normalised, axes_of, column_of, count_of, exact, masked_batch_norm, rows_of


@torch.library.custom_op("fedatoms::normalise", mutates_args=())
def normalise(
    x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalises each client's images (C, B, H, W, I) that are real (C, B), with a weight and a bias (C, I).

    Returns them, or their ReLU, with mean and variance of their channels, (C, I).
    """
    if x.is_cuda:
        from fedatoms.engine.gpu import triton_norm

        return triton_norm.normalise(x, real, weight, bias, eps, relu)
    clients = zip(map(channels_first, x), real, weight, bias, strict=True)
    each = [masked_batch_norm(*client, eps) for client in clients]
    out, mean, variance = (torch.stack(one) for one in zip(*each, strict=True))
    out = out.permute(0, 1, 3, 4, 2).contiguous()
    return out.relu() if relu else out, mean, variance


@torch.library.custom_op("fedatoms::normalise_back", mutates_args=())
def normalise_back(
    x: Tensor,
    real: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    dy: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of images, weight and bias, given that of the normalised images, or of their ReLU.

    Where a ReLU is 0 is computed again, which reads no more images than the gradients do.
    """
    if x.is_cuda:
        from fedatoms.engine.gpu import triton_norm

        return triton_norm.normalise_back(x, real, weight, bias, mean, variance, dy, eps, relu)
    clients = zip(x, real, weight, bias, mean, variance, dy, strict=True)
    each = [
        _gradients(channels_first(a), r, w, b, m, v, channels_first(d), eps, relu) for a, r, w, b, m, v, d in clients
    ]
    to_x, to_weight, to_bias = (torch.stack(one) for one in zip(*each, strict=True))
    return to_x.permute(0, 1, 3, 4, 2).contiguous(), to_weight, to_bias


def _gradients(
    x: Tensor,
    real: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    dy: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a client's gradients by formula: one pass for two sums, and one for the images."""
    rows, column, dy = rows_of(real, x), column_of(x), exact(dy)
    scale = (variance + eps).rsqrt()
    standard = (exact(torch.where(rows, x, x[:1])) - mean.reshape(column)) * scale.reshape(column)
    if relu:
        dy = torch.where(standard * weight.reshape(column) + bias.reshape(column) <= 0, 0, dy)
    to_bias, to_weight = dy.sum(axes_of(x)), (dy * standard).sum(axes_of(x))
    through = (to_bias.reshape(column) + standard * to_weight.reshape(column)) / count_of(rows, x)
    to_x = torch.where(rows, (dy - through) * (scale * weight).reshape(column), 0).to(x.dtype)
    return to_x, to_weight.to(weight.dtype), to_bias.to(weight.dtype)


class _Context(Protocol):
    """What torch passes from a forward to its backward pass."""

    eps: float
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


class _Norm(torch.autograd.Function):
    """``masked_batch_norm`` of images, with gradients by the operators."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Normalised:
        y, mean, variance = _normalise_one(channels_last(x), real, weight, bias, eps, False)
        return channels_first(y), mean, variance

    @staticmethod
    def setup_context(ctx: _Context, inputs: tuple[Tensor, Tensor, Tensor, Tensor, float], output: Normalised) -> None:
        *tensors, ctx.eps = inputs
        ctx.save_for_backward(*tensors, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: _Context, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, real, weight, *others = ctx.saved_tensors
        with torch.no_grad():
            each = channels_last(x), real, weight, *others, channels_last(dy)
            to_x, to_weight, to_bias = _normalise_back_one(*each, ctx.eps, False)
            found = channels_first(to_x), None, to_weight, to_bias
        return *once(found, (dy, x, weight)), None


normalised: Callable[[Tensor, Tensor, Tensor, Tensor, float], Normalised] = _Norm.apply


def join_relus(graph: Graph) -> None:
    """Lets the operators compute ReLUs of what they normalise, and their gradients, where nobody reads it without."""
    for norm in graph.find_nodes(op="call_function", target=torch.ops.fedatoms.normalise.default):
        outputs, means = (
            [user for node in norm.users if node.args[1] == part for user in node.users] for part in (0, 1)
        )
        images = _only(outputs, torch.ops.aten.permute.default)
        relu = _only(images.users if images else [], *_RELUS)
        if images is None or relu is None:
            continue
        norm.args = (*norm.args[:-1], True)
        relu.replace_all_uses_with(images)
        graph.erase_node(relu)
        for back in means:
            if back.target is torch.ops.fedatoms.normalise_back.default:
                _join_back(back, images)


def _join_back(back: Node, images: Node) -> None:
    """Lets an operator take the gradient of a ReLU, ``images``, if what it takes is made of that for it alone."""
    down = cast(Node, back.args[6])
    if down.target is not torch.ops.aten.permute.default or len(down.users) > 1:
        return
    masked = cast(Node, down.args[0])
    whole = _unmasked(masked, images)
    if whole is None or len(masked.users) > 1:
        return
    down.args = (whole, *down.args[1:])
    back.args = (*back.args[:-1], True)
    back.graph.erase_node(masked)


def _unmasked(node: Node, images: Node) -> Node | None:
    """Returns the gradient of a ReLU, given what is made of it: by torch's operator, or by those of the compiler."""
    if node.target is torch.ops.aten.threshold_backward.default:
        whole, known, threshold = node.args
        return cast(Node, whole) if known is images and threshold == 0 else None
    if node.target is not torch.ops.aten.where.self:
        return None
    where, zero, whole = cast(tuple[Node, Node, Node], node.args)
    is_zero = zero.target is torch.ops.aten.scalar_tensor.default and zero.args == (0,)
    below = where.target is torch.ops.aten.le.Scalar and where.args == (images, 0)
    return whole if is_zero and below else None


def _only(users: Iterable[Node], *targets: object) -> Node | None:
    """Returns who reads something, if it is one alone and one of these."""
    found = list(users)
    return found[0] if len(found) == 1 and found[0].target in targets else None


_RELUS = torch.ops.aten.relu.default, torch.ops.aten.relu_.default


@normalise.register_fake
def _(x: Tensor, real: Tensor, weight: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    kind = torch.promote_types(x.dtype, torch.float32)
    mean, variance = (weight.new_empty(weight.shape, dtype=kind) for _ in range(2))
    return x.new_empty(x.shape), mean, variance


@normalise_back.register_fake
def _(x: Tensor, real: Tensor, weight: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape)


for _operator in (normalise, normalise_back):
    _operator.register_vmap(over_clients(_operator))
_normalise_one = cast(Callable[..., tuple[Tensor, ...]], for_one(torch.ops.fedatoms.normalise.default))
_normalise_back_one = cast(Callable[..., tuple[Tensor, ...]], for_one(torch.ops.fedatoms.normalise_back.default))
