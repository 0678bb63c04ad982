"""FedPara and pFedPara: each weight is the Hadamard product of two low-rank ones, and its rank may reach R^2.

Linear:  W = (X1 Y1^T) * (X2 Y2^T)                   with X (O, R) and Y (I, R)
Conv:    W = (T1 x1 X1 x2 Y1) * (T2 x1 X2 x2 Y2)     with T (R, R, K, K) besides, and I / groups for I
pFedPara: W = W1 * (W2 + 1), where the factors of W1 are shared and those of W2 are personal.

Hyeon-Woo, Ye-Bin, Oh, "FedPara: Low-Rank Hadamard Product for Communication-Efficient Federated Learning", ICLR 2022.
"""

import math
from collections.abc import Collection, Mapping
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedatoms.core import randomness
from fedatoms.core.options import Group, check_range
from fedatoms.nn.choice import Where, require_whole_ties
from fedatoms.nn.layers import (
    Conv,
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
from fedatoms.nn.parameter_groups import groups


class LowRank(nn.Module):
    """The low-rank half of a weight: X (O, R) times Y (I, R), around a core T (R, R, K, K) if the kernel is spatial.

    >>> LowRank(torch.ones(4, 2), torch.ones(3, 2)).product().shape
    torch.Size([4, 3])
    """

    T: nn.Parameter | None

    def __init__(self, X: Tensor, Y: Tensor, T: Tensor | None = None, *, trained: bool = True) -> None:
        super().__init__()
        self.X, self.Y = nn.Parameter(X, trained), nn.Parameter(Y, trained)
        self.register_parameter("T", None if T is None else nn.Parameter(T, trained))

    def product(self) -> Tensor:
        """Returns the product of the factors.

        >>> LowRank(torch.ones(4, 2), torch.ones(3, 2), torch.ones(2, 2, 5, 5)).product().shape
        torch.Size([4, 3, 5, 5])
        """
        if self.T is None:
            return self.X @ self.Y.mT
        inner = self.Y @ self.T.flatten(2)  # (R, I, K^2); einsum takes some 50 times longer than these two products
        return (self.X @ inner.flatten(1)).reshape(len(self.X), len(self.Y), *self.T.shape[2:])

    def extra_repr(self) -> str:
        """Shows the shapes of the factors."""
        return ", ".join(f"{name}={tuple(factor.shape)}" for name, factor in self.named_parameters())


class HadamardLinear(MadeWeight):
    """A linear layer whose weight is the Hadamard product of ``first`` and ``second``; plus one, if ``personal``.

    >>> layer = factorise(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 10)))[0]
    >>> layer(torch.ones(2, 64)).shape, layer.filter().shape
    (torch.Size([2, 64]), torch.Size([64, 64]))
    """

    def __init__(self, linear: nn.Linear, first: LowRank, second: LowRank, *, personal: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.first, self.second, self.bias, self.personal = first, second, linear.bias, personal

    def filter(self) -> Tensor:
        """Returns the weight that the layer applies."""
        return _hadamard(self.first, self.second, self.personal)

    def forward(self, x: Tensor) -> Tensor:
        """Rebuilds the weight and multiplies once."""
        return functional.linear(x, self.filter(), self.bias)

    def factors(self) -> tuple[nn.Parameter, ...]:
        """Returns the factors of the weight."""
        return *self.first.parameters(), *self.second.parameters()

    def parts(self) -> Mapping[str, Group]:
        """Names no group: the factors are of the rest, as a plain layer's weights are."""
        return {}

    def fused(self, weight: nn.Parameter) -> nn.Module:
        """Returns the plain linear layer with the bias of this one."""
        linear = nn.Linear(self.in_features, self.out_features, device="meta")
        linear.weight, linear.bias = weight, self.bias
        return linear

    def extra_repr(self) -> str:
        """Shows the sizes, as torch does, and whether the second half is personal."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, personal={self.personal}"


class HadamardConv(MadeWeight):
    """A convolution in one, two or three dimensions, made as ``HadamardLinear``.

    >>> layer = factorise(nn.Conv2d(64, 64, 5, padding="same"))
    >>> layer(torch.ones(2, 64, 8, 8)).shape, layer.filter().shape
    (torch.Size([2, 64, 8, 8]), torch.Size([64, 64, 5, 5]))
    """

    def __init__(self, conv: Conv, first: LowRank, second: LowRank, *, personal: bool) -> None:
        super().__init__()
        self.in_channels, self.out_channels = conv.in_channels, conv.out_channels
        self.kernel_size, self.stride, self.dilation = conv.kernel_size, conv.stride, conv.dilation
        self.padding, self.padding_mode, self.groups = conv.padding, conv.padding_mode, conv.groups
        self.first, self.second, self.bias, self.personal = first, second, conv.bias, personal

    def filter(self) -> Tensor:
        """Returns the filter that the layer applies."""
        weight = _hadamard(self.first, self.second, self.personal)
        return weight.reshape(*weight.shape[:2], *self.kernel_size)

    def forward(self, x: Tensor) -> Tensor:
        """Rebuilds the filter and convolves once."""
        return convolve(self, x, self.filter())

    def factors(self) -> tuple[nn.Parameter, ...]:
        """Returns the factors of the filter."""
        return *self.first.parameters(), *self.second.parameters()

    def parts(self) -> Mapping[str, Group]:
        """Names no group: the factors are of the rest, as a plain layer's weights are."""
        return {}

    def fused(self, weight: nn.Parameter) -> nn.Module:
        """Returns the plain convolution with the settings and the bias of this one."""
        return plain_convolution(self, weight)

    def extra_repr(self) -> str:
        """Shows the settings, as torch does, and whether the second half is personal."""
        return f"{describe(self)}, personal={self.personal}"


def factorise(
    model: nn.Module,
    gamma: float = 0.4,
    *,
    personal: bool = False,
    where: Where | None = None,
    head: str | Collection[str] | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Returns a copy of ``model`` whose linear layers and convolutions are low-rank Hadamard products.

    ``gamma`` from 0 to 1 goes from the least rank to the largest one (see ``rank``); ``personal`` makes pFedPara of it.
    Biases stay plain, and so do the head (``head`` as in ``groups``), layers that have fewer weights than the factors
    of the least rank would be, layers that ``where(name, module)`` refuses, and subclasses of torch's layers.
    Factors are drawn afresh from ``generator``, so that weights have the variance of torch's own, 1 / (3 fan_in).
    ``fuse`` makes the model plain again.

    >>> factorise(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 10)))
    Sequential(
      (0): HadamardLinear(
        64, 64, bias=True, personal=False
        (first): LowRank(X=(64, 12), Y=(64, 12))
        (second): LowRank(X=(64, 12), Y=(64, 12))
      )
      (1): Linear(in_features=64, out_features=10, bias=True)
    )
    """
    _check_gamma(gamma)
    require_weights(model, (nn.Linear, *get_args(Conv)))
    chosen = _chosen(model, gamma, where, head)
    generator = generator or randomness.generator(0, "factorise")
    result = copied(model)
    halves: dict[Tensor, tuple[LowRank, LowRank]] = {}  # by weight, so that tied weights stay tied
    layers: dict[nn.Module, nn.Module] = {}
    for name in chosen:
        layer = result.get_submodule(name)
        assert isinstance(layer, nn.Linear | Conv)
        if layer.weight not in halves:
            halves[layer.weight] = _halves(layer.weight, gamma, personal, generator)
        layers[layer] = _layer(layer, *halves[layer.weight], personal=personal).train(layer.training)
    return swap(result, layers)


def personal_factors(model: nn.Module) -> frozenset[str]:
    """Names the entries of the state dict that pFedPara keeps on a client: the factors of every second half.

    >>> sorted(personal_factors(factorise(nn.Conv2d(64, 64, 3), personal=True)))
    ['second.T', 'second.X', 'second.Y']
    >>> personal_factors(factorise(nn.Conv2d(64, 64, 3)))
    frozenset()
    """
    return frozenset(
        _join(owner, "second", leaf)
        for owner, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, HadamardLinear | HadamardConv) and layer.personal
        for leaf, _ in layer.second.named_parameters()
    )


def rank(shape: tuple[int, ...], gamma: float) -> int | None:
    """Returns the rank R of both halves of a weight, or None if even the least rank has more factors than weights.

    R grows with gamma from the least rank to the largest whose factors are not more than the weights.
    Linear layers, and kernels of one entry, which are matrices too: ceil((1 - gamma) R_min + gamma R_max), with
    R_min = ceil(sqrt(min(O, I))) and R_max = floor(O I / (2 (O + I))).
    Convolutions, as the authors' code has it: max(ceil(sqrt(O)), ceil(sqrt(I)), R3), where the factors of R3, rounded
    up, are a share gamma of the weights: 2 R3 (O + I + R3 K^2) = gamma O I K^2.

    >>> rank((64, 64, 5, 5), gamma=0.4), rank((384, 1600), gamma=0.4), rank((16, 1, 3, 3), gamma=0.4)
    (27, 74, None)
    """
    O, I, *kernel = shape  # noqa: E741
    N, roots = math.prod(kernel), (math.isqrt(O - 1) + 1, math.isqrt(I - 1) + 1)
    if N == 1:
        least, largest = min(roots), O * I // (2 * (O + I))
        wanted = (1 - gamma) * least + gamma * largest
    else:
        least, largest = max(roots), (math.isqrt((O + I) ** 2 + 2 * O * I * N**2) - O - I) // (2 * N)
        wanted = (math.sqrt((O + I) ** 2 + 2 * gamma * O * I * N**2) - O - I) / (2 * N)
    rounded = math.ceil(wanted - 1e-9)  # a whole number stays what it is
    return min(max(least, rounded), largest) if least <= largest else None


def _layer(plain: nn.Linear | Conv, first: LowRank, second: LowRank, *, personal: bool) -> nn.Module:
    if isinstance(plain, nn.Linear):
        return HadamardLinear(plain, first, second, personal=personal)
    return HadamardConv(plain, first, second, personal=personal)


def _hadamard(first: LowRank, second: LowRank, personal: bool) -> Tensor:
    with precisely(first.X):
        return first.product() * (second.product() + 1 if personal else second.product())


def _check_gamma(gamma: float) -> None:
    if isinstance(gamma, bool) or not isinstance(gamma, int | float):
        raise TypeError(f"gamma={gamma!r} is not a number. Use gamma=0.4")
    check_range("gamma", gamma)


def _chosen(model: nn.Module, gamma: float, where: Where | None, head: str | Collection[str] | None) -> list[str]:
    """Names the layers to replace; only exact types, since a subclass may have a forward pass of its own."""
    labels = groups(model, head)
    exact = [name for name, module in model.named_modules() if type(module) in (nn.Linear, *get_args(Conv))]
    wanted = [name for name in exact if where is None or where(name, model.get_submodule(name))]
    body = [name for name in wanted if labels.get(_join(name, "weight")) != "head"]
    require_own_weights(model, body)
    chosen = [name for name in body if rank(tuple(model.get_parameter(_join(name, "weight")).shape), gamma)]
    require_whole_ties(model, chosen)
    if not chosen and not any(isinstance(module, LowRank) for module in model.modules()):
        raise ValueError(
            f"{type(model).__name__} has no layer to factorise: those are nn.Linear, nn.Conv1d, nn.Conv2d and "
            f"nn.Conv3d, the head left out, with no fewer weights than factors. Use wider layers, leave where= open, "
            f"or train the plain model"
        )
    return chosen


def _join(*parts: str) -> str:
    return ".".join(filter(None, parts))


def _halves(weight: Tensor, gamma: float, personal: bool, generator: torch.Generator) -> tuple[LowRank, LowRank]:
    """Draws both halves with one variance v that gives W the variance 1 / (3 fan_in) of torch's own weights.

    The halves are independent, of mean zero: W1 * W2 has the variance v^2, and W1 * (W2 + 1) has v (v + 1).
    """
    target = 1 / (3 * weight[0].numel())
    v = (math.sqrt(1 + 4 * target) - 1) / 2 if personal else math.sqrt(target)
    R = rank(tuple(weight.shape), gamma)
    assert R is not None
    return _half(weight, R, v, generator), _half(weight, R, v, generator)


def _half(weight: Tensor, R: int, variance: float, generator: torch.Generator) -> LowRank:
    """Draws normal factors, in float64 on the CPU, so that every dtype and device gets the same ones.

    As in the authors' code their variances are in the proportion 1 / O, 1 / I and 1 / (R K^2), which gives all of them
    the same norm. But they are scaled: a network without normalisation would start with weights that are far too small.
    """
    O, I, *kernel = weight.shape  # noqa: E741
    N = math.prod(kernel)
    X, Y = _normal(generator, 1 / O, O, R), _normal(generator, 1 / I, I, R)
    T = _normal(generator, 1 / (R * N), R, R, *kernel) if N > 1 else None
    drawn = LowRank(X, Y, T, trained=False)
    actual = drawn.product().square().mean()
    scale = (variance / actual) ** (1 / (2 * len(list(drawn.parameters()))))
    scaled = {name: (scale * factor).to(weight) for name, factor in drawn.named_parameters()}
    return LowRank(**scaled, trained=weight.requires_grad)


def _normal(generator: torch.Generator, variance: float, *shape: int) -> Tensor:
    draws = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)
    return draws.cpu() * math.sqrt(variance)
