"""Filter decomposition: each convolution's filter is coefficients times atoms, and the layer has one set of atoms.

theta[o, i] = sum over q of coefficients[o, i, q] * atoms[q], with coefficients (O, I / groups, M) and atoms (M, K, K).
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import get_args

import torch
from torch import Tensor, nn

from fedatoms.core import randomness
from fedatoms.core.lookup import some
from fedatoms.core.memory import available, check_fits
from fedatoms.core.options import INITS, Group, Init, check_range, one_of
from fedatoms.nn.adapters import Adapter, adapter_of
from fedatoms.nn.choice import Where, choose, warn_if_unable, why_none
from fedatoms.nn.initialise import error_of, initial_factors
from fedatoms.nn.layers import (
    Conv,
    Convolution,
    Factored,
    MadeWeight,
    Transposed,
    convolve,
    convolve_transposed,
    copied,
    describe,
    plain_convolution,
    precisely,
    require_values,
    require_weights,
    swap,
    transfer,
)

MANY, FEW = 4096, 16  # filters of a layer, and numbers of an atom, from and up to which two are composed at once


def compose(coefficients: Tensor, atoms: Tensor) -> Tensor:
    """Multiplies coefficients (O, I, M) by atoms (M, ...); on a CPU by two copies of small atoms, if for many.

    Products of few columns are slow there: with twice as many, half of them zeros, one takes half the time, and so do
    those of its gradients.

    >>> coefficients, atoms = torch.randn(64, 64, 9).double(), torch.randn(9, 3, 3).double()
    >>> torch.allclose(compose(coefficients, atoms), torch.tensordot(coefficients, atoms, 1))
    True
    """
    filters, numbers = coefficients.shape[:-1].numel(), atoms.shape[1:].numel()
    if coefficients.device.type != "cpu" or not (filters >= MANY and filters % 2 == 0 and 1 < numbers <= FEW):
        theta: Tensor = torch.tensordot(coefficients, atoms, 1)
        return theta
    flat = atoms.flatten(1)
    both: Tensor = torch.block_diag(flat, flat)
    pairs = coefficients.reshape(-1, 2 * len(atoms)) @ both
    return pairs.reshape(*coefficients.shape[:-1], *atoms.shape[1:])


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

    plain: Callable[..., Convolution]
    _kind: type[nn.Module] | None = None  # the class to give back, if it is none of nn.Conv1d, nn.Conv2d and nn.Conv3d
    _adapter: Adapter | None = None

    def __init_subclass__(cls, plain: Callable[..., Convolution] | None = None) -> None:
        super().__init_subclass__()
        if plain is not None:
            cls.plain = plain

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
    def of(conv: Convolution, atoms: nn.Parameter, coefficients: nn.Parameter) -> "AtomConv":
        """Makes a layer with the settings and the bias of ``conv``, and the filter ``coefficients`` x ``atoms``.

        >>> AtomConv.of(nn.Conv1d(3, 8, 5), nn.Parameter(torch.ones(2, 5)), nn.Parameter(torch.ones(8, 3, 2)))
        AtomConv1d(3, 8, kernel_size=(5,), stride=(1,), atoms=2, rank=2/5)
        """
        kinds = _TRANSPOSED if isinstance(conv, Transposed) else _KINDS
        kind = kinds[len(conv.kernel_size)]
        layer = kind.__new__(kind)
        nn.Module.__init__(layer)
        layer._adopt(conv, atoms, coefficients)
        return layer

    def filter(self) -> Tensor:
        """Returns the filter that the layer applies, of the shape of the plain convolution's ``weight``.

        >>> AtomConv2d(3, 8, 5, atoms=9).filter().shape
        torch.Size([8, 3, 5, 5])
        """
        with precisely(self.atoms):
            return compose(self.coefficients, self.atoms)

    def forward(self, x: Tensor) -> Tensor:
        """Rebuilds the filter (M multiplications per entry) and convolves once."""
        return (self._adapter or convolve)(self, x, self.filter())

    def factors(self) -> tuple[nn.Parameter, ...]:
        """Returns the factors of the filter.

        >>> [tuple(factor.shape) for factor in AtomConv2d(3, 8, 5, atoms=9).factors()]
        [(9, 5, 5), (8, 3, 9)]
        """
        return self.atoms, self.coefficients

    def parts(self) -> Mapping[str, Group]:
        """Returns the groups of the factors.

        >>> AtomConv1d(3, 8, 5, atoms=4).parts()
        {'atoms': 'atoms', 'coefficients': 'coefficients'}
        """
        return {"atoms": "atoms", "coefficients": "coefficients"}

    def fused(self, weight: nn.Parameter) -> nn.Module:
        """Returns the plain convolution, of the class that it was, with the settings and the bias of this layer.

        >>> AtomConv2d(3, 8, 5, atoms=9).fused(nn.Parameter(torch.ones(8, 3, 5, 5)))
        Conv2d(3, 8, kernel_size=(5, 5), stride=(1, 1))
        """
        if self._kind is None:
            return plain_convolution(self, weight)
        plain = self._kind.__new__(self._kind)
        nn.Module.__init__(plain)
        plain.register_parameter("weight", weight)
        transfer(self, plain, without=("atoms", "coefficients", "_kind", "_adapter"))
        return plain

    def extra_repr(self) -> str:
        """Shows what differs from the defaults, as torch does, and the rank out of the entries of the kernel."""
        M, N = len(self.atoms), math.prod(self.kernel_size)
        kind = "" if self._kind in (None, type(self).plain) else f", of={self._kind.__name__}"
        return f"{describe(self)}, atoms={M}, rank={min(M, N)}/{N}{kind}"

    def _adopt(self, conv: Convolution, atoms: nn.Parameter, coefficients: nn.Parameter) -> None:
        expected = (*conv.weight.shape[:2], len(atoms)), (len(atoms), *conv.kernel_size)
        if (coefficients.shape, atoms.shape) != expected:
            raise ValueError(
                f"coefficients {tuple(coefficients.shape)} and atoms {tuple(atoms.shape)} do not make the filter "
                f"{tuple(conv.weight.shape)}: use shapes {expected[0]} and {expected[1]}"
            )
        self.in_channels, self.out_channels = conv.in_channels, conv.out_channels
        self.kernel_size, self.stride, self.dilation = conv.kernel_size, conv.stride, conv.dilation
        self.padding, self.padding_mode, self.groups = conv.padding, conv.padding_mode, conv.groups
        self.atoms, self.coefficients = atoms, coefficients
        if type(conv) in get_args(Conv):
            self.bias = conv.bias
        else:
            self._kind, self._adapter = type(conv), adapter_of(conv)
            transfer(conv, self, without=("weight",))


class AtomConv1d(AtomConv, plain=nn.Conv1d):
    """``nn.Conv1d`` made of atoms."""


class AtomConv2d(AtomConv, plain=nn.Conv2d):
    """``nn.Conv2d`` made of atoms."""


class AtomConv3d(AtomConv, plain=nn.Conv3d):
    """``nn.Conv3d`` made of atoms."""


class AtomConvTranspose(AtomConv):
    """A transposed convolution made of atoms: torch's filters are (I, O / groups, K, K), and so are these.

    >>> AtomConvTranspose2d(3, 8, 5, stride=2, atoms=9)(torch.ones(2, 3, 4, 4), output_size=(12, 12)).shape
    torch.Size([2, 8, 12, 12])
    """

    output_padding: tuple[int, ...]

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Rebuilds the filter and convolves once; ``output_size`` as torch has it."""
        if self._adapter is not None:
            return self._adapter(self, x, self.filter())
        return convolve_transposed(self, x, self.filter(), output_size)


class AtomConvTranspose1d(AtomConvTranspose, plain=nn.ConvTranspose1d):
    """``nn.ConvTranspose1d`` made of atoms."""


class AtomConvTranspose2d(AtomConvTranspose, plain=nn.ConvTranspose2d):
    """``nn.ConvTranspose2d`` made of atoms."""


class AtomConvTranspose3d(AtomConvTranspose, plain=nn.ConvTranspose3d):
    """``nn.ConvTranspose3d`` made of atoms."""


_KINDS: dict[int, type[AtomConv]] = {1: AtomConv1d, 2: AtomConv2d, 3: AtomConv3d}
_TRANSPOSED: dict[int, type[AtomConv]] = {1: AtomConvTranspose1d, 2: AtomConvTranspose2d, 3: AtomConvTranspose3d}


def decompose(
    model: nn.Module,
    atoms: int = 9,
    *,
    where: Where | None = None,
    init: Init = "svd",
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Returns a copy of ``model`` whose convolutions are made of ``atoms`` atoms and their coefficients.

    ``where(name, module)`` chooses among the convolutions, transposed ones too; by default those with a spatial kernel
    (1x1 are left alone). Subclasses are decomposed if they have torch's forward pass or an adapter (``ADAPTERS``);
    others, and parametrized ones, stay plain, and a warning says so. Hooks stay on their layers.
    ``init`` is "svd" (the present weights are kept: exactly with enough atoms, otherwise as well as that rank can, and
    a warning says how well), or a fresh start: "orthonormal" (the variance of torch's own filters), "dct" or
    "fourier-bessel" (the same coefficients on smooth atoms, see ``bases``), or "kaiming" (Kaiming normal for both
    factors). The bias is kept. All draws come from ``generator``.

    >>> decompose(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 1)))
    Sequential(
      (0): AtomConv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), atoms=9, rank=9/9)
      (1): Conv2d(8, 2, kernel_size=(1, 1), stride=(1, 1))
    )
    """
    _check_arguments(atoms, init)
    require_weights(model, get_args(Convolution))
    if init == "svd":
        require_values(model)
    choice = choose(model, where)
    if not choice.replaced and not is_decomposed(model):
        raise ValueError(why_none(model, choice, where))
    warn_if_unable(choice, level=2)
    _check_same(model, atoms, where)
    pairs = sum(len(weight := model.get_parameter(_weight_of(name))) * weight.shape[1] for name in choice.replaced)
    check_fits({"coefficients": 8 * atoms * pairs}, available(), "Lower atoms, or leave layers out with where.")
    generator = generator or randomness.generator(0, "decompose")
    result = copied(model)
    factors: dict[Tensor, tuple[nn.Parameter, nn.Parameter]] = {}  # by weight, so that tied weights stay tied
    layers: dict[nn.Module, nn.Module] = {}
    for name in choice.replaced:
        conv = result.get_submodule(name)
        assert isinstance(conv, Convolution)
        if conv.weight not in factors:
            factors[conv.weight] = initial_factors(conv.weight, atoms, init, generator)
        layer = AtomConv.of(conv, *factors[conv.weight])
        if init == "svd":
            _warn_if_lossy(name, conv.weight, layer)
        layers[conv] = layer.train(conv.training)
    if init != "svd":
        _warn_if_frozen([name for name in choice.replaced if not model.get_parameter(_weight_of(name)).requires_grad])
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


def _check_same(model: nn.Module, atoms: int, where: Where | None) -> None:
    """Refuses another number of atoms for layers that are decomposed already: they would keep theirs."""
    made = {name: layer for name, layer in model.named_modules() if isinstance(layer, AtomConv)}
    for name, layer in made.items():
        if len(layer.atoms) != atoms and (where is None or where(name, layer)):
            raise ValueError(
                f"layer '{name}' has {len(layer.atoms)} atoms already, and atoms={atoms} would not change it. Use "
                f"atoms={len(layer.atoms)}, or begin again with decompose(fuse(model), atoms={atoms}, init='svd')."
            )


def _weight_of(layer: str) -> str:
    return f"{layer}.weight" if layer else "weight"


def _warn_if_frozen(names: Sequence[str]) -> None:
    if names:
        which = f"layer {names[0]!r} is" if len(names) == 1 else f"{len(names)} layers ({some(names)}) are"
        warnings.warn(
            f"{which} frozen, and a fresh start replaces filters that are never trained then. Use init='svd' to keep "
            f"them, or thaw them with requires_grad_(True)",
            stacklevel=3,
        )


def _warn_if_lossy(name: str, weight: Tensor, layer: AtomConv) -> None:
    M, full = len(layer.atoms), min(weight.flatten(2).flatten(0, 1).shape)
    lost = error_of(weight, layer.filter()) if M < full else 0.0
    if lost > 10 * torch.finfo(weight.dtype).eps + 1e-12:  # more than rounding
        warnings.warn(
            f"layer '{name}': {M} atoms give rank {M} of {full} and keep {1 - lost**2:.1%} of the energy of its "
            f"weights, so its outputs change. Use atoms={full} for an exact copy, or leave it out with where=...",
            stacklevel=3,
        )
