"""Reroutes a model's convolutions and BatchNorms to batched kernels over clients while it runs.

vmap turns the convolutions of C clients into one with C groups, for which cuDNN runs one slow kernel after another.
Inside ``BatchedKernels()``, a model's ``conv2d`` and ``max_pool2d(relu(conv2d(...)), 2)`` become the operators of
``conv_ops``, filters for them that are ``tensordot(coefficients, atoms, 1)`` those of ``atom_ops``, BatchNorm of images
those of ``norm_ops``, and ``trees.norm`` that of ``square_ops``; a convolution that they do not cover stays what it is,
and so do its filters. Of images that are ``bounded``, the largest number is not searched for. They have first
derivatives only: a step of a model that differentiates them itself fails with ``OnlyOnce``, and is traced without them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._ops import OpOverload
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from fedatoms.core import trees
from fedatoms.data.batches import bounded
from fedatoms.engine.gpu.atom_ops import LARGEST, composed
from fedatoms.engine.gpu.convolutions import Pair, convolution, operand, pooled
from fedatoms.engine.gpu.norm_ops import join_relus, normalised
from fedatoms.engine.gpu.rounding import Rounded
from fedatoms.engine.gpu.square_ops import has_kernel, norm_of, read_uncast
from fedatoms.nn.masked_norm import Normalised, masked_batch_norm


class BatchedKernels(TorchFunctionMode):
    """Reroutes supported calls to batched kernels; use one instance per trace, as it holds tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, _Made] = {}  # by the identity of the tensor, which it holds and so keeps unique
        self._filters: dict[int, _Filters] = {}
        self._operands: dict[int, _Operand] = {}
        self._bounds: dict[int, _Bound] = {}

    def __torch_function__(
        self,
        function: Callable[..., Tensor],
        types: object,
        args: tuple[Tensor, ...] = (),  # the first, that is; others may be anything
        kwargs: dict[str, Tensor] | None = None,
    ) -> Tensor | Normalised:
        """Runs one of torch's functions, or its replacement."""
        kwargs = kwargs or {}
        if function is torch.conv2d:
            return self._convolve(_arguments(*args, **kwargs))
        if function is _masked_batch_norm and _of_images(*args):
            return _normalised(*args)
        if function is _norm and _summed(*args):
            return _norm_of(*args)
        if function is _bounded:
            self._bounds[id(args[0])] = _bound(*args)
            return args[0]
        made = self._made.get(id(args[0])) if args else None
        if made is not None and made.relu and function in _POOLS and _windows(*args[1:], **kwargs):
            return self._pool(made)
        result = function(*args, **kwargs)
        if _may_change_its_input(function, kwargs):
            for known in (self._made, self._filters, self._operands, self._bounds):
                known.clear()
        if made is not None and function in _RELUS:
            self._made[id(result)] = made._replace(result=result, relu=True)
        elif function is torch.tensordot and _composes(result, *args, **kwargs):
            self._filters[id(result)] = _Filters(result, args[0], args[1])
        return result

    def _convolve(self, call: "_Conv2d") -> Tensor:
        covered = _covered(call)
        if covered is None:
            return _conv2d(*call)
        padding, stride = covered
        filters = self._filters.get(id(call.weight))
        x, weight = _cast(call.input), composed(*filters[1:], _kind(call.weight)) if filters else _cast(call.weight)
        bias = None if call.bias is None else _cast(call.bias)
        made = _Made(x, weight, bias, self._operand(x), operand(weight), padding)
        y = convolution(x, weight, made.images, made.filters, padding, stride)
        y = y if bias is None else y + bias[:, None, None]
        if stride == 1:  # else no operator pools it
            self._made[id(y)] = made._replace(result=y)
        return y

    def _operand(self, x: Tensor) -> Rounded | None:
        """Returns what the operators read instead of images, if they do: as it was made, or known to other layers."""
        if id(x) not in self._operands:
            bound = self._bounds.get(id(x))
            self._operands[id(x)] = _Operand(x, operand(x, bound and bound.largest))
        return self._operands[id(x)].rounded

    def _pool(self, made: "_Made") -> Tensor:
        bias = made.weight.new_zeros(len(made.weight)) if made.bias is None else made.bias
        y, _, *half = pooled(made.x, made.weight, bias, made.images, made.filters, made.padding)
        if half:
            self._operands[id(y)] = _Operand(y, Rounded(*half))
        return y


def traced(
    function: Callable[..., object],
    *args: object,
    decompositions: Mapping[OpOverload, Callable[..., object]] | None = None,
) -> GraphModule:
    """Traces a function into a graph without running it: its tensors have shapes and no values.

    Operators that have a decomposition do not occur in the graph: what their functions call does.
    """
    trace = make_fx(function, dict(decompositions or {}), tracing_mode="fake", _allow_non_fake_inputs=True)
    with _use_lazy_graph_module(True):  # Python code of a graph is written when it is called; a compiled one never is
        graph = trace(*args)
    read_uncast(graph.graph)
    join_relus(graph.graph)
    graph.graph.eliminate_dead_code()  # the calls that an operator replaces
    graph.recompile()
    return graph


def kernel_is_missing(error: Exception) -> bool:
    """Says whether a graph with batched kernels failed because Triton, or its support for the GPU, is missing.

    >>> kernel_is_missing(ImportError("No module named 'triton'"))
    True
    """
    return isinstance(error, ImportError) or type(error).__module__.startswith("triton")


class _Conv2d(NamedTuple):
    """The arguments of ``torch.conv2d``."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None = None
    stride: int | Sequence[int] = 1
    padding: int | Sequence[int] | str = 0
    dilation: int | Sequence[int] = 1
    groups: int = 1


class _Made(NamedTuple):
    """Provenance of a tensor: a convolution, perhaps with ReLU."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    images: Rounded | None
    filters: Rounded | None
    padding: Pair
    result: Tensor | None = None
    relu: bool = False


class _Operand(NamedTuple):
    """Images, and what the operators read instead of them, if they do."""

    full: Tensor
    rounded: Rounded | None


class _Bound(NamedTuple):
    """Images, and what none of their numbers exceeds."""

    x: Tensor
    largest: float


class _Filters(NamedTuple):
    """Provenance of filters: coefficients and atoms."""

    result: Tensor
    coefficients: Tensor
    atoms: Tensor


_conv2d: Callable[..., Tensor] = torch.conv2d
_masked_batch_norm: object = masked_batch_norm
_norm: object = trees.norm
_bounded: object = bounded
_bound: Callable[..., _Bound] = _Bound
_norm_of: Callable[..., Tensor] = norm_of
_summed: Callable[..., bool] = has_kernel
_normalised: Callable[..., Normalised] = normalised
_arguments: Callable[..., _Conv2d] = _Conv2d


_POOLS = (F.max_pool2d, torch.max_pool2d)
_RELUS = (F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_)


def _covered(call: _Conv2d) -> tuple[Pair, int] | None:
    """Returns padding and stride of a convolution that the operators cover and are faster at, else None."""
    if call.groups != 1 or call.input.dim() != 4 or len(call.weight) < 16 or {*_pair(call.dilation)} != {1}:
        return None  # fewer filters leave most of a tile empty
    (stride, other), padding = _pair(call.stride), _sides(call.padding, call.weight.shape[2:])
    if padding is None or stride != other or any(p >= k for p, k in zip(padding, call.weight.shape[2:], strict=True)):
        return None
    known = not (call.input.is_cuda and call.input.dtype == torch.float64)
    return (padding, stride) if known and not _shares_filters(call) else None


def _of_images(x: Tensor, *_: object) -> bool:
    """Says whether the operators cover a BatchNorm of these."""
    return x.dim() == 4 and not (x.is_cuda and x.dtype == torch.float64)


def _shares_filters(call: _Conv2d) -> bool:
    """Says whether all clients have the same filters: vmap then joins their images to one batch, as cuDNN likes it."""
    return is_functorch_wrapped_tensor(call.input) and not is_functorch_wrapped_tensor(call.weight)


def _sides(padding: int | Sequence[int] | str, kernel: Sequence[int]) -> Pair | None:
    """Returns a padding as numbers, or None if its two sides differ."""
    if not isinstance(padding, str):
        return _pair(padding)
    if padding == "same" and all(k % 2 for k in kernel):
        return kernel[0] // 2, kernel[1] // 2
    return (0, 0) if padding == "valid" else None


def _makes_filters(result: Tensor, a: Tensor, b: Tensor, dims: object = 2, out: Tensor | None = None) -> bool:
    """Says whether these arguments of ``tensordot`` are coefficients and atoms that the operators cover."""
    if not (isinstance(dims, int) and dims == 1 and out is None and a.dim() == b.dim() == 3):
        return False
    fits = 0 < a.shape[2] == len(b) <= LARGEST and b.shape[1] * b.shape[2] <= LARGEST
    same = a.dtype == b.dtype == result.dtype  # not so under autocast
    return fits and same and not (b.is_cuda and b.dtype != torch.float32)


_composes: Callable[..., bool] = _makes_filters


def _windows_of_two(
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:
    """Says whether these arguments of ``max_pool2d`` mean non-overlapping 2 x 2 windows."""
    windows = {*_pair(kernel_size), *_pair(stride or kernel_size)} == {2}
    return windows and {*_pair(padding)} == {0} and {*_pair(dilation)} == {1} and not (ceil_mode or return_indices)


_windows: Callable[..., bool] = _windows_of_two


def _may_change_its_input(function: Callable[..., Tensor], kwargs: dict[str, Tensor]) -> bool:
    """Says whether a function may change a tensor in place, or hooks its gradient."""
    name = getattr(function, "__name__", "")
    in_place = name.endswith("_") and name not in ("__get__", "requires_grad_")
    return (
        in_place
        or (isinstance(function, OpOverload) and function._schema.is_mutable)
        or kwargs.get("out") is not None
        or bool(kwargs.get("inplace"))
        or name in ("register_hook", "retain_grad")
    )


def _cast(x: Tensor) -> Tensor:
    """Casts an argument of a convolution as autocast does; one that needs no cast stays the same, as what is known."""
    kind = _kind(x)
    return x if x.dtype == kind else x.to(kind)


def _kind(x: Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _pair(size: int | Sequence[int]) -> Pair:
    height, width = (size, size) if isinstance(size, int) else size
    return height, width
