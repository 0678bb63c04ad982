"""Layers of a network: replacing them, and what factored layers share."""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

from fedatoms.core.lookup import shown
from fedatoms.core.options import Group
from fedatoms.nn.saving import LoadsFactors, guarded

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
Convolution = Conv | Transposed


def swap(model: nn.Module, new: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Puts ``new[layer]`` in the place of each layer, with its hooks, in ``model`` itself and under all its names.

    >>> old = nn.Sequential(nn.ReLU(), nn.Flatten())
    >>> swap(old, {old[0]: nn.Tanh()})[0]
    Tanh()
    """
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if name and module in new:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, new[module])
    for old, layer in new.items():
        layer.__dict__.update({hooks: old.__dict__[hooks] for hooks in _HOOKS})
    return guarded(new.get(model, model))


def transfer(old: nn.Module, new: nn.Module, without: Collection[str] = ()) -> None:
    """Gives a layer what another has besides hooks and mode: settings, parameters, buffers and modules, by name.

    >>> layer = nn.Module()
    >>> transfer(nn.Conv1d(3, 8, 5), layer, without=["weight"])
    >>> layer.stride, [name for name, _ in layer.named_parameters()]
    ((1,), ['bias'])
    """
    common = {*vars(nn.Module()), *without}
    new.__dict__.update({name: value for name, value in vars(old).items() if name not in common})
    for name in (name for name in old._parameters if name not in common):
        new.register_parameter(name, old._parameters[name])
    for name, buffer in old._buffers.items():
        new.register_buffer(name, buffer, persistent=name not in old._non_persistent_buffers_set)
    for name, module in old._modules.items():
        new.register_module(name, module)


@runtime_checkable
class Factored(Protocol):
    """A layer whose filter is made of factors; ``fused`` is the plain layer with a given filter.

    ``parts`` names the groups of its parameters, by their names in the layer; what it does not name is of the rest.
    """

    def filter(self) -> Tensor: ...

    def factors(self) -> tuple[nn.Parameter, ...]: ...

    def parts(self) -> Mapping[str, Group]: ...

    def fused(self, weight: nn.Parameter) -> nn.Module: ...


class MadeWeight(LoadsFactors):
    """A layer with a ``weight`` to read, as a plain layer has, which is made of factors whenever it is read.

    A base class rather than a property, since torch's modules store a parameter that is set without calling one.
    """

    def filter(self) -> Tensor:
        """Returns the filter that the layer applies."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        """The filter, for code that reads a layer's weight; to change the layer, change its factors.

        >>> class Twice(MadeWeight):
        ...     def filter(self) -> Tensor:
        ...         return torch.full((1, 2), 2.0)
        >>> Twice().weight
        tensor([[2., 2.]])
        """
        return self.filter()

    def __setattr__(self, name: str, value: Tensor | nn.Module) -> None:
        """Refuses a new weight, which torch would store next to the factors or report as a name in use."""
        if name == "weight":
            kind = type(self).__name__
            raise AttributeError(
                f"{kind} makes its weight of factors: change those (named_parameters() lists them), or use "
                f"fuse(model), whose layers have a weight of their own"
            )
        super().__setattr__(name, value)


class Settings(Protocol):
    """The settings of a convolution besides its filter, under torch's names."""

    in_channels: int
    out_channels: int
    groups: int

    @property
    def kernel_size(self) -> tuple[int, ...]: ...

    @property
    def stride(self) -> tuple[int, ...]: ...

    @property
    def padding(self) -> str | tuple[int, ...]: ...

    @property
    def padding_mode(self) -> str: ...

    @property
    def dilation(self) -> tuple[int, ...]: ...

    @property
    def bias(self) -> Tensor | None: ...


class TransposedSettings(Settings, Protocol):
    """The settings of a transposed convolution."""

    @property
    def output_padding(self) -> tuple[int, ...]: ...


def convolve(layer: Settings, x: Tensor, weight: Tensor) -> Tensor:
    """Convolves as ``layer`` does, with another filter.

    >>> convolve(nn.Conv1d(1, 1, 3, padding=1, bias=False), torch.ones(1, 1, 3), torch.ones(1, 1, 3))
    tensor([[[2., 3., 2.]]])
    """
    sides = _sides(layer)
    padding = [before for before, _ in sides]
    if layer.padding_mode != "zeros" or any(before != after for before, after in sides):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = functional.pad(x, [side for pair in reversed(sides) for side in pair], mode=mode)
        padding = [0] * len(sides)
    run = _CONVOLVE[len(layer.kernel_size)]
    return run(x, weight, layer.bias, layer.stride, padding, layer.dilation, layer.groups)


def convolve_transposed(
    layer: "TransposedSettings", x: Tensor, weight: Tensor, output_size: Sequence[int] | None = None
) -> Tensor:
    """Convolves as a transposed ``layer`` does, with another filter.

    >>> convolve_transposed(nn.ConvTranspose1d(1, 1, 2, bias=False), torch.ones(1, 1, 2), torch.ones(1, 1, 2))
    tensor([[[1., 2., 1.]]])
    """
    dims, sizes = len(layer.kernel_size), list(output_size) if output_size is not None else None
    assert not isinstance(layer.padding, str)  # torch refuses that
    settings = list(layer.stride), list(layer.padding), list(layer.kernel_size), dims, list(layer.dilation)
    extra = nn.modules.conv._ConvTransposeNd._output_padding(cast(Transposed, layer), x, sizes, *settings)
    run = _CONVOLVE_TRANSPOSED[dims]
    return run(x, weight, layer.bias, layer.stride, layer.padding, extra, layer.groups, layer.dilation)


def plain_convolution(layer: Settings, weight: nn.Parameter) -> Conv:
    """Makes the convolution with the settings and the bias of ``layer``; on "meta" first, so that nothing is drawn.

    >>> plain_convolution(nn.Conv1d(3, 8, 5, stride=2), nn.Parameter(torch.ones(8, 3, 5)))
    Conv1d(3, 8, kernel_size=(5,), stride=(2,))
    """
    kinds: dict[int, Callable[..., Conv]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    settings = layer.stride, layer.padding, layer.dilation, layer.groups, True, layer.padding_mode, "meta"
    conv = kinds[len(layer.kernel_size)](layer.in_channels, layer.out_channels, layer.kernel_size, *settings)
    conv.weight, conv.bias = weight, layer.bias
    return conv


def describe(layer: Settings) -> str:
    """Shows the settings that differ from the defaults, as torch does.

    >>> describe(nn.Conv2d(3, 8, 5, padding="same", bias=False))
    "3, 8, kernel_size=(5, 5), stride=(1, 1), padding='same', bias=False"
    """
    dims = len(layer.kernel_size)
    zeros, ones = (0,) * dims, (1,) * dims
    defaults: dict[str, object] = {"padding": zeros, "dilation": ones, "output_padding": zeros}
    defaults |= {"groups": 1, "padding_mode": "zeros"}
    values = {key: getattr(layer, key, value) for key, value in defaults.items()}
    shown = [f"{key}={values[key]!r}" for key, value in defaults.items() if values[key] != value]
    shown += ["bias=False"] if layer.bias is None else []
    sizes = f"{layer.in_channels}, {layer.out_channels}, kernel_size={layer.kernel_size}, stride={layer.stride}"
    return ", ".join([sizes, *shown])


def precisely(like: Tensor) -> AbstractContextManager[object]:
    """Turns autocast off on the device of a tensor: a filter and its gradient are computed in its own precision.

    >>> with torch.autocast("cpu"), precisely(torch.ones(1)):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float32
    """
    kind = like.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def copied(model: nn.Module) -> nn.Module:
    """Returns a copy of a network; layers that torch cannot copy are refused by their names.

    >>> copied(nn.Linear(2, 2))
    Linear(in_features=2, out_features=2, bias=True)
    """
    require_network(model)
    for name, module in model.named_modules():
        leaves = {**vars(module), **dict(module.named_buffers(recurse=False))}
        made = [leaf for leaf, value in leaves.items() if isinstance(value, Tensor) and not value.is_leaf]
        if made:
            raise ValueError(
                f"{_called(name)} computes its {made[0]} (weight_norm, spectral_norm or prune), so torch cannot copy "
                f"it. Use torch.nn.utils.parametrizations instead, or make it plain first ({_MAKE_PLAIN})."
            )
    return copy.deepcopy(model)


def require_network(model: object) -> None:
    """Refuses what is no network.

    >>> require_network(nn.Linear)
    Traceback (most recent call last):
    ...
    ValueError: model=<class 'torch.nn.modules.linear.Linear'> is not a network. Pass an nn.Module.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model={shown(model)} is not a network. Pass an nn.Module.")


def require_eager(model: nn.Module) -> None:
    """Refuses what is no network, or one that torch.jit has made a program of.

    >>> require_eager(nn.Linear(2, 2))
    """
    require_network(model)
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise ValueError("the model is a ScriptModule, whose layers are closed. Pass the network that it was made of.")


def require_unwrapped(model: nn.Module) -> None:
    """Refuses what is no network, or a wrapper around one.

    >>> require_unwrapped(nn.DataParallel(nn.Linear(2, 2)))
    Traceback (most recent call last):
    ...
    ValueError: the model is wrapped in DataParallel, which spreads a batch over devices. Pass its module instead.
    """
    require_network(model)
    for name, module in model.named_modules():
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise ValueError(
                f"{_called(name)} is wrapped in {type(module).__name__}, which spreads a "
                f"batch over devices. Pass its module instead."
            )


def require_weights(model: nn.Module, kinds: tuple[type[nn.Module], ...] = (nn.Module,)) -> None:
    """Refuses what is no network, or has layers of some kinds whose weights have no shape yet.

    >>> require_weights(nn.Sequential(nn.LazyLinear(2)))
    Traceback (most recent call last):
    ...
    ValueError: layer '0' (LazyLinear) is lazy and has no weights yet. Run a batch through the model first.
    """
    require_network(model)
    for name, module in model.named_modules():
        leaves = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if isinstance(module, kinds) and any(map(is_lazy, leaves)):
            raise ValueError(
                f"layer '{name}' ({type(module).__name__}) is lazy and has no weights yet. Run a batch through the "
                f"model first."
            )


def require_values(model: nn.Module) -> None:
    """Refuses tensors that have a shape and no values: such a network computes nothing.

    >>> require_values(nn.Linear(2, 2, device="meta"))
    Traceback (most recent call last):
    ...
    ValueError: 'weight' of the model is on the device meta and has no values. Load its weights, or build it on cpu.
    """
    for name, leaf in (*model.named_parameters(), *model.named_buffers()):
        if leaf.is_meta:
            raise ValueError(
                f"'{name}' of the model is on the device meta and has no values. Load its weights, or build it on cpu."
            )


def require_own_weights(model: nn.Module, layers: Iterable[str]) -> None:
    """Refuses layers that compute their weight from something else: to replace them would lose that.

    >>> require_own_weights(nn.Sequential(nn.Linear(2, 2)), ["0"])
    """
    for name in layers:
        if "weight" not in dict(model.get_submodule(name).named_parameters(recurse=False)):
            raise ValueError(
                f"layer '{name}' computes its weight (weight_norm, spectral_norm or prune) and would lose that. Make "
                f"it plain first ({_MAKE_PLAIN}), or leave it out with where=..."
            )


_MAKE_PLAIN = "torch.nn.utils.remove_weight_norm, remove_spectral_norm, prune.remove"
_HOOKS = (  # on a layer's inputs, outputs and their gradients; those on its state dict know its old names
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook"),
)
_CONVOLVE: dict[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_CONVOLVE_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    **{1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
}


def _called(name: str) -> str:
    return f"layer '{name}'" if name else "the model"


def _sides(layer: Settings) -> list[tuple[int, int]]:
    """Returns the padding before and after each dimension."""
    if layer.padding == "same":
        totals = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    widths = [0] * len(layer.kernel_size) if isinstance(layer.padding, str) else layer.padding
    return [(width, width) for width in widths]
