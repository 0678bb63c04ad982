"""BatchNorm that does not count padding: what stands in for a network's own where clients are trained at once."""

import copy
import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_variadic

from fedatoms.nn.layers import swap

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
Normalised = tuple[Tensor, Tensor, Tensor]  # images in their own type; mean and variance


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
            count = count_of(rows_of(self.real, x), x)
            self._remember(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        return reduce(lambda outputs, name: self.get_submodule(name)(outputs), self.then, out)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        self.num_batches_tracked = self.num_batches_tracked + 1
        share = 1 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
        self.running_mean = _moved(self.running_mean, mean, share)
        self.running_var = _moved(self.running_var, variance, share)


def masked_batch_norm(x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Normalised:
    """Normalises images by the rows that are real; returns them with mean and (biased) variance of their channels.

    A mode of torch's functions may do it in another way.
    """
    if has_torch_function_variadic(x, real, weight, bias):
        same: Normalised = handle_torch_function(masked_batch_norm, (x, real), x, real, weight, bias, eps)
        return same
    rows, column = rows_of(real, x), column_of(x)
    # A few equal rows have next to no variance: what differs from them is scaled by up to 1 / sqrt(eps) = 316, and by
    # as much in the next layer, until it overflows and 0 * inf enters the sums.
    filled, count = exact(torch.where(rows, x, x[:1].detach())), count_of(rows, x)
    mean = (filled * rows).sum(axes_of(x)) / count
    centred = filled - mean.reshape(column)
    variance = (centred**2 * rows).sum(axes_of(x)) / count
    out = centred * (variance + eps).rsqrt().reshape(column) * weight.reshape(column) + bias.reshape(column)
    return out.to(x.dtype), mean, variance


def _moved(old: Tensor, new: Tensor, share: Tensor | float) -> Tensor:
    return (old + share * (new - old)).to(old.dtype)


def _no_change(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_ones(x.shape[1]), x.new_zeros(x.shape[1])


def rows_of(real: Tensor, x: Tensor) -> Tensor:
    """Returns which rows are real, as an axis of images."""
    return real.reshape(-1, *([1] * (x.dim() - 1)))


def count_of(rows: Tensor, x: Tensor) -> Tensor:
    """Returns how many numbers of a channel are real, at least 1."""
    return (exact(rows.to(x.dtype)).sum() * math.prod(x.shape[2:])).clamp(min=1)


def axes_of(x: Tensor) -> list[int]:
    """Returns all axes but that of channels."""
    return [axis for axis in range(x.dim()) if axis != 1]


def column_of(x: Tensor) -> list[int]:
    """Returns the shape of a number for each channel, beside images."""
    return [1, -1, *([1] * (x.dim() - 2))]


def exact(x: Tensor) -> Tensor:
    """Returns numbers of fewer bits in float32, in which they are summed."""
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
            leaf.copy_(torch.rand(leaf.shape, dtype=leaf.dtype, generator=draws, device="cpu") + 0.5)
    x = torch.randn(1, layer.num_features, 2, 2, dtype=torch.float64, generator=draws, device="cpu")
    settings = layer.weight, layer.bias, layer.running_mean is None, 0.0, layer.eps
    plain = functional.batch_norm(x, layer.running_mean, layer.running_var, *settings)
    try:
        return torch.allclose(layer(x), reduce(lambda out, name: layer.get_submodule(name)(out), then, plain))
    except Exception:  # of another kind
        return False
