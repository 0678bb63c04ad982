"""Filter decomposition: each convolution's filter is coefficients times atoms, and the layer has one set of atoms.

theta[o, i] = sum over q of coefficients[o, i, q] * atoms[q], with coefficients (O, I / groups, M) and atoms (M, K, K).
"""

import math
import warnings
from collections.abc import Callable, Collection
from numbers import Integral
from typing import get_args

import torch
from torch import Tensor, nn

from fedatoms.core import randomness
from fedatoms.core.memory import available, check_fits
from fedatoms.core.options import INITS, Init, check_range, one_of
from fedatoms.nn.initialise import in_float64, initial_factors
from fedatoms.nn.layers import (
    Conv,
    Factored,
    MadeWeight,
    convolve,
    copied,
    describe,
    plain_convolution,
    precisely,
    require_own_weights,
    require_weights,
    swap,
)

Where = Callable[[str, nn.Module], bool]


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
            conv, *initial_factors(conv.weight, atoms, init, generator or torch.default_generator)
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
        """Returns the factors of the filter.

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
    Subclasses of torch's convolutions, parametrized ones included, are always left alone. Hooks stay on their layers.
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
    require_weights(model, get_args(Conv))
    chosen = _chosen(model, where or _is_spatial)
    _check_same(model, atoms, where)
    pairs = sum(len(weight := model.get_parameter(_weight_of(name))) * weight.shape[1] for name in chosen)
    check_fits({"coefficients": 8 * atoms * pairs}, available(), "Lower atoms, or leave layers out with where.")
    generator = generator or randomness.generator(0, "decompose")
    result = copied(model)
    factors: dict[Tensor, tuple[nn.Parameter, nn.Parameter]] = {}  # by weight, so that tied weights stay tied
    layers: dict[nn.Module, nn.Module] = {}
    for name in chosen:
        conv = result.get_submodule(name)
        assert isinstance(conv, Conv)
        if conv.weight not in factors:
            factors[conv.weight] = initial_factors(conv.weight, atoms, init, generator)
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
    result, layers = copied(model), dict[nn.Module, nn.Module]()
    weights: dict[tuple[nn.Parameter, ...], nn.Parameter] = {}  # by factors, so that tied weights stay tied
    for layer in result.modules():
        if isinstance(layer, Factored):
            factors = layer.factors()
            if factors not in weights:
                trained = any(factor.requires_grad for factor in factors)
                weights[factors] = nn.Parameter(layer.filter().detach(), requires_grad=trained)
            layers[layer] = layer.fused(weights[factors]).train(layer.training)
    return swap(result, layers)


def is_decomposed(model: nn.Module) -> bool:
    """Returns whether ``model`` has a decomposed convolution.

    >>> is_decomposed(nn.Conv2d(3, 8, 3)), is_decomposed(decompose(nn.Conv2d(3, 8, 3)))
    (False, True)
    """
    return any(isinstance(module, AtomConv) for module in model.modules())


def _check_arguments(atoms: object, init: str) -> None:
    if isinstance(atoms, bool) or not isinstance(atoms, Integral):
        raise TypeError(
            f"atoms={atoms!r} is not an int: the number of atoms is a count. Use atoms=9 (the paper's choice)"
        )
    check_range("atoms", int(atoms))
    one_of(INITS, init, "init")


def _chosen(model: nn.Module, where: Where) -> list[str]:
    """Names the convolutions to replace; only exact types, since a subclass may have a forward pass of its own."""
    if not callable(where):
        raise TypeError(f"where={where!r} is not a function. Use where=lambda name, module: name == {str(where)!r}")
    present = {name: module for name, module in model.named_modules() if type(module) in get_args(Conv)}
    chosen = [name for name, module in present.items() if where(name, module)]
    require_own_weights(model, chosen)
    if not chosen and not is_decomposed(model):
        raise ValueError(_why_none(model, present, where))
    return chosen


def _check_same(model: nn.Module, atoms: int, where: Where | None) -> None:
    """Refuses another number of atoms for layers that are decomposed already: they would keep theirs."""
    made = {name: layer for name, layer in model.named_modules() if isinstance(layer, AtomConv)}
    for name, layer in made.items():
        if len(layer.atoms) != atoms and (where is None or where(name, layer)):
            raise ValueError(
                f"layer '{name}' has {len(layer.atoms)} atoms already, and atoms={atoms} would not change it. Use "
                f"atoms={len(layer.atoms)}, or begin again with decompose(fuse(model), atoms={atoms}, init='svd')."
            )


def _why_none(model: nn.Module, present: Collection[str], where: Where) -> str:
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


def _weight_of(layer: str) -> str:
    return f"{layer}.weight" if layer else "weight"


def _is_spatial(name: str, module: nn.Module) -> bool:
    return isinstance(module, Conv) and max(module.kernel_size) > 1


def _warn_if_lossy(name: str, weight: Tensor, layer: AtomConv) -> None:
    exact, kept = in_float64(weight), in_float64(layer.filter())
    M, full = len(layer.atoms), min(exact.flatten(2).flatten(0, 1).shape)
    lost = ((exact - kept).norm() / exact.norm()).item()  # nan for a filter of zeros, which is exact
    if M < full and lost > 10 * torch.finfo(weight.dtype).eps + 1e-12:  # more than rounding
        warnings.warn(
            f"layer '{name}': {M} atoms give rank {M} of {full} and keep {1 - lost**2:.1%} of the energy of its "
            f"weights, so its outputs change. Use atoms={full} for an exact copy, or leave it out with where=...",
            stacklevel=3,
        )
