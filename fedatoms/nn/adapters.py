"""Subclasses of torch's convolutions: which of them can run on a filter that is made of factors, and how."""

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from fedatoms.nn.layers import Convolution, Settings, convolve

Adapter = Callable[[Settings, Tensor, Tensor], Tensor]  # a layer, its input and its filter -> what the layer computes


def padded_same(layer: Settings, x: Tensor, weight: Tensor) -> Tensor:
    """Convolves as TensorFlow's "SAME" does: with a stride, the padding depends on the size of the image.

    >>> import torch
    >>> padded_same(nn.Conv1d(1, 1, 3, stride=2, bias=False), torch.ones(1, 1, 4), torch.ones(1, 1, 3))
    tensor([[[3., 2.]]])
    """
    sizes = x.shape[-len(layer.kernel_size) :]
    sides = list[int]()
    for size, k, s, d in reversed([*zip(sizes, layer.kernel_size, layer.stride, layer.dilation, strict=True)]):
        total = max((math.ceil(size / s) - 1) * s + (k - 1) * d + 1 - size, 0)
        sides += [total // 2, total - total // 2]
    return convolve(layer, functional.pad(x, sides), weight)


def standardised(layer: Settings, x: Tensor, weight: Tensor) -> Tensor:
    """Convolves with every filter at mean 0 and variance 1, times a gain if there is one (Qiao et al., 2019).

    >>> import torch
    >>> layer = nn.Conv1d(1, 1, 2, bias=False)
    >>> layer.eps = 1e-9
    >>> standardised(layer, torch.eye(2)[:, None], torch.tensor([[[5.0, 7.0]]])).flatten()
    tensor([-1.,  1.])
    """
    gain: Tensor | None = getattr(layer, "gain", None)
    scale = None if gain is None else (gain * getattr(layer, "scale")).view(-1)  # noqa: B009 (not of every layer)
    rows, eps = weight.reshape(1, len(weight), -1), float(getattr(layer, "eps"))  # noqa: B009
    made = functional.batch_norm(rows, None, None, scale, training=True, momentum=0.0, eps=eps).reshape_as(weight)
    return padded_same(layer, x, made) if getattr(layer, "same_pad", False) else convolve(layer, x, made)


# By class, or by package and name for packages that are not needed here. Yours: fedatoms.nn.ADAPTERS[MyConv] = run.
ADAPTERS: dict[type[nn.Module] | str, Adapter] = {
    "timm.Conv2dSame": padded_same,
    "timm.ScaledStdConv2d": standardised,
    "timm.ScaledStdConv2dSame": standardised,
    "timm.StdConv2d": standardised,
    "timm.StdConv2dSame": standardised,
}


def adapter_of(conv: nn.Module) -> Adapter | None:
    """Returns the adapter of a layer's class; None if there is none, or torch's own forward pass is all that it needs.

    >>> class Causal(nn.Conv1d):
    ...     def forward(self, x: Tensor) -> Tensor:
    ...         return super().forward(functional.pad(x, (2, 0)))
    >>> ADAPTERS[Causal] = lambda layer, x, weight: convolve(layer, functional.pad(x, (2, 0)), weight)
    >>> adapter_of(Causal(1, 1, 3)) is ADAPTERS.pop(Causal), adapter_of(nn.Conv1d(1, 1, 3))
    (True, None)
    """
    for kind in _until(type(conv), "forward"):
        named = f"{kind.__module__.split('.')[0]}.{kind.__qualname__}"
        if found := ADAPTERS.get(kind) or ADAPTERS.get(named):
            return found
    return None


def why_plain(conv: nn.Module) -> str:
    """Returns why a convolution cannot be made of factors; "" if it can: its filter is known to be all that changes.

    >>> class Own(nn.Conv2d):
    ...     def forward(self, x: Tensor) -> Tensor:
    ...         return super().forward(x.abs())
    >>> why_plain(Own(3, 8, 3))
    'Own has a forward pass of its own'
    """
    kind, own = type(conv).__name__, _own_classes(type(conv))
    if parametrize.is_parametrized(conv):
        return "it is parametrized, which remove_parametrizations ends"
    if "forward" in vars(conv):
        return "its forward pass was replaced"
    if adapter_of(conv) is None and any(name in vars(each) for each in own for name in _COMPUTING):
        return f"{kind} has a forward pass of its own"
    if taken := [name for name in _TAKEN if name in vars(conv) or name in {*conv._parameters, *conv._modules}]:
        return f"{kind} has an attribute {taken[0]!r} of its own"
    return ""


_COMPUTING = ("forward", "_conv_forward", "_output_padding", "__call__", "__getattr__", "weight", "bias")
_TAKEN = ("atoms", "coefficients", "filter", "factors", "fused")


def _own_classes(kind: type[nn.Module]) -> list[type]:
    """Returns the classes of a layer that come before torch's convolution."""
    return [each for each in kind.__mro__ if issubclass(each, Convolution) and each not in _PLAIN]


def _until(kind: type[nn.Module], method: str) -> list[type[nn.Module]]:
    """Returns the classes of a layer up to the first that has a method."""
    order = [each for each in kind.__mro__ if issubclass(each, nn.Module)]
    first = next(n for n, each in enumerate(order) if method in vars(each))
    return order[: first + 1]


_PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
