"""Filter decomposition: each convolution's filter is coefficients times atoms, and the layer has one set of atoms.

theta[o, i] = sum over q of coefficients[o, i, q] * atoms[q], with coefficients (O, I / groups, M) and atoms (M, K, K).
"""

import copy
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.lazy import LazyModuleMixin

from fedatoms.core import lookup, randomness
from fedatoms.nn import bases
from fedatoms.nn.layers import (
    Conv,
    Factored,
    MadeWeight,
    convolve,
    describe,
    plain_convolution,
    precisely,
    require_own_weights,
    swap,
)

Where = Callable[[str, nn.Module], bool]
Init = Literal["orthonormal", "dct", "fourier-bessel", "kaiming", "svd"]
Start = Callable[[Tensor, int, torch.Generator], tuple[Tensor, Tensor]]  # weight, atoms -> atoms (M, N), coefficients
Group = Literal["atoms", "coefficients", "head", "rest", "statistics"]
GROUPS: tuple[Group, ...] = get_args(Group)


class AtomConv(MadeWeight):
    """A convolution with the filter ``coefficients`` x ``atoms``; use it as AtomConv1d, AtomConv2d or AtomConv3d.

    Takes the arguments of torch's convolution of that dimension, and those of ``decompose``. Its ``weight`` is the
    filter, to be read only.

    >>> layer = AtomConv2d(3, 8, 5, padding="same", atoms=9)
    >>> layer
    AtomConv2d(3, 8, kernel_size=(5, 5), stride=(1, 1), padding='same', atoms=9, rank=9/25)
    >>> layer(torch.ones(2, 3, 32, 32)).shape
    torch.Size([2, 8, 32, 32])
    """

    plain: Callable[..., Conv]

    def __init__(
        self,
        *sizes: int | tuple[int, ...],
        atoms: int = 9,
        init: Init = "orthonormal",
        generator: torch.Generator | None = None,
        **settings: object,
    ) -> None:
        _check_arguments(atoms, init)
        super().__init__()
        conv = type(self).plain(*sizes, **settings)
        self._adopt(
            conv, *_factors(conv.weight, atoms, init, generator or torch.default_generator)
        )  # as torch's layers

    @staticmethod
    def of(conv: Conv, atoms: nn.Parameter, coefficients: nn.Parameter) -> "AtomConv":
        """Makes a layer with the settings and the bias of ``conv``, and the filter ``coefficients`` x ``atoms``.

        >>> AtomConv.of(nn.Conv1d(3, 8, 5), nn.Parameter(torch.ones(2, 5)), nn.Parameter(torch.ones(8, 3, 2)))
        AtomConv1d(3, 8, kernel_size=(5,), stride=(1,), atoms=2, rank=2/5)
        """
        kind = {1: AtomConv1d, 2: AtomConv2d, 3: AtomConv3d}[len(conv.kernel_size)]
        layer = kind.__new__(kind)
        nn.Module.__init__(layer)
        layer._adopt(conv, atoms, coefficients)
        return layer

    def filter(self) -> Tensor:
        """Returns the filter that the layer applies, of the shape of the plain convolution's ``weight``.

        >>> decompose(nn.Conv2d(3, 8, 5)).filter().shape
        torch.Size([8, 3, 5, 5])
        """
        with precisely(self.atoms):
            theta: Tensor = torch.tensordot(self.coefficients, self.atoms, 1)
        return theta

    def forward(self, x: Tensor) -> Tensor:
        """Rebuilds the filter (M multiplications per entry) and convolves once."""
        return convolve(self, x, self.filter())

    def factors(self) -> tuple[nn.Parameter, ...]:
        """Returns what the filter is made of.

        >>> [tuple(factor.shape) for factor in decompose(nn.Conv2d(3, 8, 5)).factors()]
        [(9, 5, 5), (8, 3, 9)]
        """
        return self.atoms, self.coefficients

    def fused(self, weight: nn.Parameter) -> nn.Module:
        """Returns the plain convolution with the settings and the bias of this layer.

        >>> decompose(nn.Conv2d(3, 8, 5)).fused(nn.Parameter(torch.ones(8, 3, 5, 5)))
        Conv2d(3, 8, kernel_size=(5, 5), stride=(1, 1))
        """
        return plain_convolution(self, weight)

    def extra_repr(self) -> str:
        """Shows what differs from the defaults, as torch does, and the rank out of the entries of the kernel."""
        M, N = len(self.atoms), math.prod(self.kernel_size)
        return f"{describe(self)}, atoms={M}, rank={min(M, N)}/{N}"

    def _adopt(self, conv: Conv, atoms: nn.Parameter, coefficients: nn.Parameter) -> None:
        expected = (*conv.weight.shape[:2], len(atoms)), (len(atoms), *conv.kernel_size)
        if (coefficients.shape, atoms.shape) != expected:
            raise ValueError(
                f"coefficients {tuple(coefficients.shape)} and atoms {tuple(atoms.shape)} do not make the filter "
                f"{tuple(conv.weight.shape)}: use shapes {expected[0]} and {expected[1]}"
            )
        self.in_channels, self.out_channels = conv.in_channels, conv.out_channels
        self.kernel_size, self.stride, self.dilation = conv.kernel_size, conv.stride, conv.dilation
        self.padding, self.padding_mode, self.groups = conv.padding, conv.padding_mode, conv.groups
        self.atoms, self.coefficients, self.bias = atoms, coefficients, conv.bias


class AtomConv1d(AtomConv):
    """``nn.Conv1d`` made of atoms."""

    plain = nn.Conv1d


class AtomConv2d(AtomConv):
    """``nn.Conv2d`` made of atoms."""

    plain = nn.Conv2d


class AtomConv3d(AtomConv):
    """``nn.Conv3d`` made of atoms."""

    plain = nn.Conv3d


def decompose(
    model: nn.Module,
    atoms: int = 9,
    *,
    where: Where | None = None,
    init: Init = "orthonormal",
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Returns a copy of ``model`` whose convolutions are made of ``atoms`` atoms and their coefficients.

    ``where(name, module)`` chooses among the convolutions; by default those with a spatial kernel (1x1 are left alone).
    Subclasses of torch's convolutions, parametrized ones included, are always left alone.
    ``init`` is "orthonormal" (fresh, the variance of torch's own filters), "dct" or "fourier-bessel" (the same
    coefficients on smooth atoms, see ``bases``), "kaiming" (fresh, Kaiming normal for both factors), or "svd" (from the
    present weights: exact with enough atoms, otherwise the best of that rank, and a warning). The bias is kept. All
    draws come from ``generator``.

    >>> decompose(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 1)))
    Sequential(
      (0): AtomConv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), atoms=9, rank=9/9)
      (1): Conv2d(8, 2, kernel_size=(1, 1), stride=(1, 1))
    )
    """
    _check_arguments(atoms, init)
    chosen = _chosen(model, where or _is_spatial)
    generator = generator or randomness.generator(0, "decompose")
    result = copy.deepcopy(model)
    factors: dict[Tensor, tuple[nn.Parameter, nn.Parameter]] = {}  # by weight, so that tied weights stay tied
    layers: dict[nn.Module, nn.Module] = {}
    for name in chosen:
        conv = result.get_submodule(name)
        assert isinstance(conv, Conv)
        if conv.weight not in factors:
            factors[conv.weight] = _factors(conv.weight, atoms, init, generator)
        layer = AtomConv.of(conv, *factors[conv.weight])
        if init == "svd":
            _warn_if_lossy(name, conv.weight, layer)
        layers[conv] = layer.train(conv.training)
    return swap(result, layers)


def fuse(model: nn.Module) -> nn.Module:
    """Returns a copy of ``model`` with plain layers that compute the same; its state dict fits the original.

    >>> fuse(decompose(nn.Conv2d(3, 8, 3)))
    Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
    """
    result = copy.deepcopy(model)
    weights: dict[tuple[nn.Parameter, ...], nn.Parameter] = {}  # by factors, so that tied weights stay tied
    layers: dict[nn.Module, nn.Module] = {}
    for layer in result.modules():
        if isinstance(layer, Factored):
            factors = layer.factors()
            if factors not in weights:
                trained = any(factor.requires_grad for factor in factors)
                weights[factors] = nn.Parameter(layer.filter().detach(), requires_grad=trained)
            layers[layer] = layer.fused(weights[factors]).train(layer.training)
    return swap(result, layers)


def is_decomposed(model: nn.Module) -> bool:
    """Says whether ``model`` has a decomposed convolution.

    >>> is_decomposed(nn.Conv2d(3, 8, 3)), is_decomposed(decompose(nn.Conv2d(3, 8, 3)))
    (False, True)
    """
    return any(isinstance(module, AtomConv) for module in model.modules())


def groups(model: nn.Module, head: str | Collection[str] | None = None) -> dict[str, Group]:
    """Labels every entry of the state dict; buffers are "statistics", what is nothing else is "rest".

    ``head`` names the module or modules of the head; by default the last linear layer. Tied parameters have one label.

    >>> groups(decompose(nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8, affine=False))))
    {'0.atoms': 'atoms', '0.coefficients': 'coefficients', '1.running_mean': 'statistics', '1.running_var':
    'statistics', '1.num_batches_tracked': 'statistics'}
    """
    of_head = heads(model, head)
    modules = dict(model.named_modules(remove_duplicate=False))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    labels: dict[Tensor, Group] = {}
    for name, parameter in parameters.items():
        if labels.get(parameter, "rest") == "rest":  # a tied parameter takes the most specific label of its names
            labels[parameter] = _label(name, modules, of_head)
    return {name: labels[parameters[name]] if name in parameters else "statistics" for name in model.state_dict()}


def heads(model: nn.Module, head: str | Collection[str] | None = None) -> list[str]:
    """Names the modules of the head: by default the last linear layer.

    >>> heads(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))
    ['2']
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    if head is None:
        return [name for name, module in modules.items() if isinstance(module, nn.Linear)][-1:]
    chosen = [head] if isinstance(head, str) else list(head)
    for name in chosen:
        if name not in modules:
            raise lookup.unknown(name, filter(None, modules), "head module")
    return chosen


def _check_arguments(atoms: object, init: str) -> None:
    if isinstance(atoms, bool) or not isinstance(atoms, Integral):
        raise TypeError(
            f"atoms={atoms!r} is not an int: the number of atoms is a count. Use atoms=9 (the paper's choice)"
        )
    if atoms < 1:
        raise ValueError(
            f"atoms={atoms} is less than 1: a filter needs at least one atom. Use atoms=9 (the paper's choice), or "
            f"leave layers out with where=..."
        )
    lookup.find(init, _INITS, "init")


def _chosen(model: nn.Module, where: Where) -> list[str]:
    """Names the convolutions to replace; only exact types, since a subclass may have a forward pass of its own."""
    if not callable(where):
        raise TypeError(f"where={where!r} is no function. Use where=lambda name, module: name == {str(where)!r}")
    present = {name: module for name, module in model.named_modules() if type(module) in get_args(Conv)}
    chosen = [name for name, module in present.items() if where(name, module)]
    require_own_weights(model, chosen)
    if not chosen and not is_decomposed(model):
        raise ValueError(_why_none(model, present, where))
    return chosen


def _why_none(model: nn.Module, present: Collection[str], where: Where) -> str:
    kinds = [(name, module) for name, module in model.named_modules() if isinstance(module, Conv)]
    lazy = [name for name, module in kinds if isinstance(module, LazyModuleMixin)]
    if lazy:
        return f"'{lazy[0]}' is lazy and has no filters yet. Run a batch through the model first, then decompose it"
    if present and where is not _is_spatial:
        first = next(iter(present))
        return (
            f"no convolution is chosen: there are {', '.join(map(repr, present))}. Use for example "
            f"where=lambda name, module: name == {first!r} (on the command line --where {first})"
        )
    return (
        f"{type(model).__name__} has no convolution to replace: by default those are nn.Conv1d, nn.Conv2d and "
        f"nn.Conv3d with a kernel side above 1. Use where=lambda name, module: True for 1x1 convolutions too, or "
        f"train the plain model"
    )


def _is_spatial(name: str, module: nn.Module) -> bool:
    return isinstance(module, Conv) and max(module.kernel_size) > 1


def _factors(weight: Tensor, atoms: int, init: Init, generator: torch.Generator) -> tuple[nn.Parameter, nn.Parameter]:
    """Draws or computes the factors in float64 on the CPU, so that every dtype and device gets the same ones."""
    D, A = _INITS[init](weight, atoms, generator)
    D, A = D.reshape(atoms, *weight.shape[2:]).to(weight), A.to(weight)
    return nn.Parameter(D, weight.requires_grad), nn.Parameter(A, weight.requires_grad)


def _orthonormal(weight: Tensor, M: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Stacks as many orthonormal sets as M atoms need.

    Every atom has norm 1, so the squares of all atoms sum to M, whether M is below or above the N entries of a kernel.
    An entry of the filter has variance var(A) * M / N on average over the kernel, and var(A) = 1 / (3 I M) makes that
    1 / (3 I N) = 1 / (3 fan_in), torch's default.
    """
    N = math.prod(weight.shape[2:])
    sets = torch.linalg.qr(_normal(generator, math.ceil(M / N), N, min(M, N))).Q
    return sets.mT.reshape(-1, N)[:M], _coefficients(weight, M, generator)


def _on(basis: Callable[[Sequence[int], int], Tensor]) -> Start:
    """Puts the coefficients of ``_orthonormal`` on the first atoms of a basis; their squares sum to M there too."""
    return lambda weight, M, generator: (basis(weight.shape[2:], M), _coefficients(weight, M, generator))


def _coefficients(weight: Tensor, M: int, generator: torch.Generator) -> Tensor:
    O, I = weight.shape[:2]  # noqa: E741
    return _normal(generator, O, I, M) * math.pow(3 * I * M, -0.5)


def _kaiming(weight: Tensor, M: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws both factors as CLA does (models/Conv_DCFE.py): the variance of the filter is 4 / M over fan_in."""
    O, I, N = weight.flatten(2).shape  # noqa: E741
    return _normal(generator, M, N) * (2 / (M * N)) ** 0.5, _normal(generator, O, I, M) * (2 / (I * M)) ** 0.5


def _svd(weight: Tensor, M: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Takes the M first right singular vectors as atoms; beyond the rank, random unit atoms that nothing uses yet."""
    O, I, N = weight.flatten(2).shape  # noqa: E741
    U, S, Vh = torch.linalg.svd(_precise(weight).reshape(O * I, N), full_matrices=False)
    unused = max(0, M - len(S))
    spare = functional.normalize(_normal(generator, unused, N), dim=1)
    return torch.cat([Vh[:M], spare]), functional.pad((U * S)[:, :M], (0, unused)).reshape(O, I, M)


_INITS: dict[str, Start] = {
    "orthonormal": _orthonormal,
    "dct": _on(bases.dct),
    "fourier-bessel": _on(bases.fourier_bessel),
    "kaiming": _kaiming,
    "svd": _svd,
}


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64).cpu()


def _precise(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().to(torch.promote_types(tensor.dtype, torch.float64))


def _warn_if_lossy(name: str, weight: Tensor, layer: AtomConv) -> None:
    exact, kept = _precise(weight), _precise(layer.filter())
    M, full = len(layer.atoms), min(exact.flatten(2).flatten(0, 1).shape)
    lost = ((exact - kept).norm() / exact.norm()).item()  # nan for a filter of zeros, which is exact
    if M < full and lost > 10 * torch.finfo(weight.dtype).eps + 1e-12:  # more than rounding
        warnings.warn(
            f"layer '{name}': {M} atoms give rank {M} of {full} and keep {1 - lost**2:.1%} of the energy of its "
            f"weights, so its outputs change. Use atoms={full} for an exact copy, or leave it out with where=...",
            stacklevel=3,
        )


def _label(name: str, modules: Mapping[str, nn.Module], heads: Collection[str]) -> Group:
    owner, _, leaf = name.rpartition(".")
    if any(head in ("", owner) or owner.startswith(head + ".") for head in heads):
        return "head"
    if isinstance(modules[owner], AtomConv) and leaf != "bias":
        return "atoms" if leaf == "atoms" else "coefficients"
    return "rest"
