"""BatchNorm that does not count padding: what stands in for a network's own where clients are trained at once."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_variadic

from fedatoms.nn.layers import swap

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def with_masked_norm(model: nn.Module) -> nn.Module:
    """Puts masked layers in the place of those BatchNorms that are known, in ``model`` itself.

    One that the network's own ``train()`` keeps in evaluation mode uses its statistics as they are, and stays.

    >>> [type(layer).__name__ for layer in with_masked_norm(nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval()))]
    ['MaskedBatchNorm', 'BatchNorm1d']
    """
    norms = [layer for layer in model.modules() if isinstance(layer, BatchNorm) and layer.training]
    known = [(layer, then) for layer in norms if (then := _applied_after(layer)) is not None]
    return swap(model, {layer: MaskedBatchNorm(layer, then) for layer, then in known})


def counts_padding(layer: nn.Module) -> bool:
    """Says whether a layer has statistics of a batch and is not known, so that padded rows would be counted.

    >>> counts_padding(nn.BatchNorm1d(2)), counts_padding(nn.SyncBatchNorm(2))
    (False, True)
    """
    if isinstance(layer, BatchNorm) and _applied_after(layer) is not None:
        return False
    kinds = nn.modules.batchnorm
    tracks = isinstance(layer, kinds._NormBase) and layer.track_running_stats
    return tracks or isinstance(layer, kinds._BatchNorm)


class MaskedBatchNorm(nn.Module):
    """BatchNorm of the rows that the buffer ``real`` marks; the others, padding, become copies of the first.

    ``then`` names modules of the layer that are applied to its outputs.

    >>> norm = MaskedBatchNorm(nn.BatchNorm1d(1))
    >>> norm.real = torch.tensor([True, True, False])
    >>> norm(torch.tensor([[0.0], [2.0], [1e9]])).flatten()
    tensor([-1.0000,  1.0000, -1.0000], grad_fn=<ViewBackward0>)
    """

    real: Tensor
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, plain: BatchNorm, then: Sequence[str] = ()) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.momentum = plain.weight, plain.bias, plain.eps, plain.momentum
        self.tracks = plain.track_running_stats
        for name, buffer in plain.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        self.register_buffer("real", torch.ones(1, dtype=torch.bool), persistent=False)
        self.then = tuple(then)
        for name in self.then:
            self.register_module(name, plain.get_submodule(name))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (self.weight, self.bias) if self.weight is not None else _no_change(x)
        out, mean, variance = masked_batch_norm(x, self.real, weight, bias, self.eps)
        if self.tracks:
            count = _count(_rows(self.real, x), x)
            self._remember(mean, variance * count / (count - 1).clamp(min=1))
        return reduce(lambda outputs, name: self.get_submodule(name)(outputs), self.then, out)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        self.num_batches_tracked = self.num_batches_tracked + 1
        share = 1 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
        self.running_mean = self.running_mean + share * (mean - self.running_mean)
        self.running_var = self.running_var + share * (variance - self.running_var)


class Normalised(NamedTuple):
    """Normalised images, in their own type, and mean and (biased) variance of their channels."""

    out: Tensor
    mean: Tensor
    variance: Tensor


class Gradients(NamedTuple):
    """Those of images, weight and bias."""

    x: Tensor
    weight: Tensor
    bias: Tensor


Normalise = Callable[[Tensor, Tensor, Tensor, Tensor, float], Normalised]
GoBack = Callable[[Tensor, Tensor, Tensor, Normalised, float], Gradients]


def masked_batch_norm(x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Normalised:
    """Normalises the rows that are real; a mode of torch's functions may do it in another way."""
    if has_torch_function_variadic(x, real, weight, bias):
        same: Normalised = handle_torch_function(masked_batch_norm, (x, real), x, real, weight, bias, eps)
        return same
    return _by_formula(x, real, weight, bias, eps)


def differentiable(normalise: Normalise, back: GoBack) -> Normalise:
    """Makes a function that is differentiated by another one, and vectorised by vmap; first derivatives only.

    By autograd, each of a dozen operations would go through the images again.
    """

    class Norm(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
            return tuple(normalise(x, real, weight, bias, eps))

        @staticmethod
        def setup_context(
            ctx: _Context,
            inputs: tuple[Tensor, Tensor, Tensor, Tensor, float],
            output: tuple[Tensor, ...],
        ) -> None:
            x, real, weight, _, ctx.eps = inputs
            ctx.save_for_backward(x, real, weight, *output[1:])
            ctx.mark_non_differentiable(*output[1:])

        @staticmethod
        @torch.no_grad()
        def backward(ctx: _Context, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
            x, real, weight, mean, variance = ctx.saved_tensors
            found = back(x, real, weight, Normalised(dy, mean, variance), ctx.eps)
            return found.x, None, found.weight, found.bias, None

    apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = Norm.apply
    return lambda *args: Normalised(*apply(*args))


class _Context(Protocol):
    """What torch passes from a forward to its backward pass."""

    eps: float
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


def normalise(x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Normalised:
    """Returns images of mean 0 and variance 1, scaled and moved; in one pass, what is less exact in float32."""
    rows, column = _rows(real, x), _column(x)
    count = _count(rows, x)
    first = _exact(x[:1].flatten(2)[..., :1] if x.dim() > 2 else x[:1]).reshape(column)
    far = torch.where(rows, _exact(x) - first, 0)  # from one of the numbers: else a small variance would cancel out
    offset = far.sum(_axes(x)) / count
    variance = (far.square().sum(_axes(x)) / count - offset.square()).clamp(min=0)
    mean = offset + first.flatten()
    out = _standard(x, rows, mean, variance, eps) * weight.reshape(column) + bias.reshape(column)
    return Normalised(out.to(x.dtype), mean, variance)


def go_back(x: Tensor, real: Tensor, weight: Tensor, known: Normalised, eps: float) -> Gradients:
    """Returns the gradients, given that of the result, in its place, and its mean and variance."""
    dy, mean, variance = known
    rows, column, dy = _rows(real, x), _column(x), _exact(dy)
    standard = _standard(x, rows, mean, variance, eps)
    to_bias, to_weight = dy.sum(_axes(x)), (dy * standard).sum(_axes(x))
    through = (to_bias.reshape(column) + standard * to_weight.reshape(column)) / _count(rows, x)
    scale = ((variance + eps).rsqrt() * weight).reshape(column)
    to_x = torch.where(rows, (dy - through) * scale, 0).to(x.dtype)
    return Gradients(to_x, to_weight.to(weight.dtype), to_bias.to(weight.dtype))


_by_formula = differentiable(normalise, go_back)


def _standard(x: Tensor, rows: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    """Returns images of mean 0 and variance 1, with the first of them instead of padding.

    A few equal rows have next to no variance: what differs from them is scaled by up to 1 / sqrt(eps) = 316, and by as
    much in the next layer, until it overflows and 0 * inf enters the sums.
    """
    column = _column(x)
    return (_exact(torch.where(rows, x, x[:1])) - mean.reshape(column)) * (variance + eps).rsqrt().reshape(column)


def _no_change(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_ones(x.shape[1]), x.new_zeros(x.shape[1])


def _rows(real: Tensor, x: Tensor) -> Tensor:
    return real.reshape(-1, *([1] * (x.dim() - 1)))


def _count(rows: Tensor, x: Tensor) -> Tensor:
    """Returns how many numbers of a channel are real, at least 1."""
    return (_exact(rows.to(x.dtype)).sum() * math.prod(x.shape[2:])).clamp(min=1)


def _axes(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]


def _column(x: Tensor) -> list[int]:
    return [1, -1, *([1] * (x.dim() - 2))]


def _exact(x: Tensor) -> Tensor:
    """Returns numbers in float32, if they are less exact."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _applied_after(layer: BatchNorm) -> tuple[str, ...] | None:
    """Names the modules that a BatchNorm applies to what it has normalised; None for what is something else.

    torch's own has none; timm's ``BatchNormAct2d`` drops and activates.
    """
    if type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        return ()
    then = ("drop", "act")
    if type(layer).__name__ != "BatchNormAct2d" or not all(
        isinstance(getattr(layer, name, None), nn.Module) for name in then
    ):
        return None
    return then if _normalises_first(layer, then) else None


@torch.no_grad()
def _normalises_first(layer: BatchNorm, then: Sequence[str]) -> bool:
    """Tries whether a layer of that name does no more than that, with statistics at random: a name is no promise."""
    layer, draws = copy.deepcopy(layer).cpu().double().eval(), torch.Generator().manual_seed(0)
    for leaf in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
        if leaf is not None:
            leaf.copy_(torch.rand(leaf.shape, dtype=leaf.dtype, generator=draws) + 0.5)
    x = torch.randn(1, layer.num_features, 2, 2, dtype=torch.float64, generator=draws)
    settings = layer.weight, layer.bias, layer.running_mean is None, 0.0, layer.eps
    plain = functional.batch_norm(x, layer.running_mean, layer.running_var, *settings)
    try:
        return torch.allclose(layer(x), reduce(lambda out, name: layer.get_submodule(name)(out), then, plain))
    except Exception:  # of another kind
        return False
