"""Laws of what convolves besides nn.Conv: subclasses through adapters, transposed ones, and what must stay plain."""

import copy
import dataclasses
import math
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small import clients_of, difference, play
from torch import Tensor, nn
from torch.nn import functional

import fedatoms
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.nn.atoms import AtomConv, decompose, fuse, is_decomposed
from fedatoms.nn.choice import choose
from fedatoms.nn.layers import Settings, Transposed, convolve

# Small look-alikes of timm's layers, with timm's arithmetic and the module names that the table goes by


def pad_same(x: Tensor, layer: nn.Conv2d) -> Tensor:
    h, w = (
        max((math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n, 0)
        for n, k, s, d in zip(x.shape[-2:], layer.kernel_size, layer.stride, layer.dilation, strict=True)
    )
    return functional.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2))


class Conv2dSame(nn.Conv2d):
    __module__ = "timm.layers.conv2d_same"

    def forward(self, x: Tensor) -> Tensor:
        x = pad_same(x, self)
        return functional.conv2d(x, self.weight, self.bias, self.stride, (0, 0), self.dilation, self.groups)


class StdConv2d(nn.Conv2d):
    __module__ = "timm.layers.std_conv"

    def __init__(self, *sizes: int, **more: int) -> None:
        super().__init__(*sizes, **more)
        self.eps, self.same_pad = 1e-6, False

    def scale_of(self) -> Tensor | None:
        return None

    def forward(self, x: Tensor) -> Tensor:
        x = pad_same(x, self) if self.same_pad else x
        rows = self.weight.reshape(1, self.out_channels, -1)
        made = functional.batch_norm(rows, None, None, self.scale_of(), training=True, momentum=0.0, eps=self.eps)
        made = made.reshape_as(self.weight)
        return functional.conv2d(x, made, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ScaledStdConv2d(StdConv2d):
    __module__ = "timm.layers.std_conv"

    def __init__(self, *sizes: int, **more: int) -> None:
        super().__init__(*sizes, **more)
        self.scale, self.eps = self.weight[0].numel() ** -0.5, 1e-5
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5)

    def scale_of(self) -> Tensor:
        return (self.gain * self.scale).view(-1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class ScaledStdConv2dSame(ScaledStdConv2d):
    __module__ = "timm.layers.std_conv"

    def __init__(self, *sizes: int, **more: int) -> None:
        super().__init__(*sizes, **more)
        self.same_pad = True

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Inherits(nn.Conv2d):
    """Starts its filters in another way, and has settings of its own; its forward pass is torch's."""

    def __init__(self, *sizes: int, **more: int) -> None:
        super().__init__(*sizes, **more)
        self.note = "mine"
        self.register_buffer("seen", torch.tensor(3.0))
        self.register_buffer("unsaved", torch.tensor(4.0), persistent=False)

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class OwnForward(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.abs())


class OwnInside(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight.tanh(), bias)


class OwnWeight(nn.Conv2d):
    """Its weight is positive whenever it is read."""

    def __getattr__(self, name: str) -> Tensor:
        return super().__getattr__(name).abs() if name == "weight" else super().__getattr__(name)


KNOWN = [Conv2dSame, StdConv2d, ScaledStdConv2d, ScaledStdConv2dSame, Inherits]


def conv_of(kind: Callable[..., nn.Conv2d], *, stride: int = 2, groups: int = 2, bias: bool = True) -> nn.Conv2d:
    torch.manual_seed(0)
    return kind(4, 6, 3, stride=stride, groups=groups, bias=bias).double()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KNOWN)
def test_known_subclasses_are_decomposed_and_compute_the_same(kind: type[nn.Conv2d], bias: bool, stride: int) -> None:
    conv = conv_of(kind, bias=bias, stride=stride)
    layer = decompose(conv, 9, init="svd")
    assert isinstance(layer, AtomConv) and f"of={kind.__name__}" in repr(layer)
    for size in (7, 8):
        x = torch.randn(2, 4, size, size, dtype=torch.float64)
        torch.testing.assert_close(layer(x), conv(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KNOWN)
def test_fuse_gives_back_the_class_with_all_that_it_had(kind: type[nn.Conv2d]) -> None:
    conv = conv_of(kind).requires_grad_(True)
    layer = decompose(nn.Sequential(conv), 4, init="orthonormal")
    back, x = fuse(layer), torch.randn(2, 4, 7, 7, dtype=torch.float64)
    assert type(back[0]) is kind and repr(back[0]) == repr(conv) and vars(back[0]).keys() == vars(conv).keys()
    assert torch.equal(back(x), layer(x))
    assert list(back[0].state_dict()) == list(conv.state_dict())
    conv.load_state_dict(back[0].state_dict())
    torch.testing.assert_close(conv(x), layer(x))
    assert dict(back[0].named_buffers()).keys() == dict(conv.named_buffers()).keys()


@pytest.mark.parametrize("kind", KNOWN)
def test_they_survive_copies_and_training_in_both_maps(kind: type[nn.Conv2d]) -> None:
    torch.manual_seed(0)
    layers = [kind(1, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    model = decompose(nn.Sequential(*layers).double(), 4, init="orthonormal")
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    sim = Simulation(model, clients_of(), training=Training(batch_size=10, lr=0.1), score=("server",))
    loop, fast = (play(dataclasses.replace(sim, map=map), 2).server.params for map in ("one_by_one", "vectorised"))
    assert difference(loop, fast) < 1e-9
    assert not torch.equal(loop["0.coefficients"], model[0].coefficients)


def test_a_scaled_layer_keeps_its_gain_as_a_parameter_of_the_rest() -> None:
    layer = decompose(nn.Sequential(conv_of(ScaledStdConv2d)), 4, init="orthonormal")
    assert fedatoms.nn.groups(layer)["0.gain"] == "rest"
    layer(torch.randn(2, 4, 7, 7, dtype=torch.float64)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in layer.parameters())


def test_a_pickled_layer_computes_the_same() -> None:
    layer, x = decompose(nn.ConvTranspose2d(2, 4, 3), 4, init="orthonormal"), torch.randn(1, 2, 5, 5)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))


@pytest.mark.parametrize(
    "kind, reason",
    [(OwnForward, "OwnForward has a forward"), (OwnInside, "OwnInside has"), (OwnWeight, "OwnWeight has")],
)
def test_a_forward_of_its_own_stays_plain_and_is_said_once(kind: type[nn.Conv2d], reason: str) -> None:
    model = nn.Sequential(kind(2, 2, 3), nn.Conv2d(2, 2, 3), kind(2, 2, 3), kind(2, 2, 1))
    with pytest.warns(UserWarning, match=rf"layers stay plain: '0' \({reason}.*'2'.*ADAPTERS") as said:
        made = decompose(model, 9, init="orthonormal")
    assert len(said) == 1 and [isinstance(layer, AtomConv) for layer in made] == [False, True, False, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decompose(model, 9, init="orthonormal", where=lambda name, module: name == "1")
    with pytest.raises(ValueError, match=rf"{kind.__name__} has no convolution to replace: '' \({reason}"):
        decompose(kind(2, 2, 3), init="orthonormal")


def test_a_forward_that_was_replaced_on_the_layer_itself_is_not_lost() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3))
    model[0].forward = lambda x: x
    with pytest.warns(UserWarning, match=r"one layer stays plain: '0' \(its forward pass was replaced\)"):
        assert type(decompose(model, init="orthonormal")[0]) is nn.Conv2d


def test_names_that_a_decomposed_layer_needs_are_not_taken_over() -> None:
    model = nn.Sequential(Inherits(2, 2, 3), Inherits(2, 2, 3))
    model[0].atoms = 7
    assert choose(model).unable == {"0": "Inherits has an attribute 'atoms' of its own"}


def test_an_adapter_of_your_own_is_a_line_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def absolute(layer: Settings, x: Tensor, weight: Tensor) -> Tensor:
        return convolve(layer, x.abs(), weight)

    monkeypatch.setitem(fedatoms.nn.ADAPTERS, OwnForward, absolute)
    model = nn.Sequential(OwnForward(2, 2, 3), type("Below", (OwnForward,), {})(2, 2, 3)).double()
    made, x = decompose(model, 9, init="svd"), torch.randn(1, 2, 8, 8, dtype=torch.float64)
    assert all(isinstance(layer, AtomConv) for layer in made)
    torch.testing.assert_close(made(x), model(x), rtol=1e-9, atol=1e-9)
    assert [type(layer) for layer in fuse(made)] == [type(layer) for layer in model]


# transposed convolutions


@st.composite
def transposed(draw: st.DrawFn) -> Transposed:
    dims, split = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    sizes = lambda low, high: draw(st.tuples(*[st.integers(low, high)] * dims))  # noqa: E731
    torch.manual_seed(draw(st.integers(0, 2**32)))
    stride = sizes(1, 3)
    return {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}[dims](
        split * draw(st.integers(1, 3)),
        split * draw(st.integers(1, 3)),
        sizes(1, 3),
        stride=stride,
        padding=sizes(0, 1),
        output_padding=tuple(draw(st.integers(0, s - 1)) for s in stride),
        groups=split,
        bias=draw(st.booleans()),
        dilation=sizes(1, 2),
        dtype=torch.float64,
    )


@settings(max_examples=40, deadline=None)
@given(transposed())
def test_transposed_convolutions_are_rebuilt_and_fused(conv: Transposed) -> None:
    layer = decompose(conv, math.prod(conv.kernel_size), where=lambda name, module: True, init="svd")
    x = torch.randn(2, conv.in_channels, *[5] * len(conv.kernel_size), dtype=torch.float64)
    torch.testing.assert_close(layer(x), conv(x), rtol=1e-9, atol=1e-9)
    back = fuse(layer)
    assert type(back) is type(conv) and repr(back) == repr(conv) and is_decomposed(layer)
    conv.load_state_dict(back.state_dict())
    assert torch.equal(conv(x), layer(x))


def test_transposed_convolutions_take_an_output_size() -> None:
    conv, x = nn.ConvTranspose2d(2, 4, 3, stride=2, groups=2), torch.randn(1, 2, 4, 4)
    layer = decompose(conv, 9, init="svd")
    for size in ((9, 9), (10, 10)):
        torch.testing.assert_close(layer(x, output_size=size), conv(x, output_size=size))


def test_fresh_transposed_filters_have_the_variance_of_torchs_own() -> None:
    conv = nn.ConvTranspose2d(64, 32, 3)
    made = decompose(conv, 9, init="orthonormal").filter()
    assert made.square().mean().item() == pytest.approx(conv.weight.square().mean().item(), rel=0.1)


def test_hooks_stay_on_layers_of_every_kind() -> None:
    for conv in (conv_of(ScaledStdConv2d), nn.ConvTranspose2d(4, 2, 3).double()):
        conv.register_forward_hook(lambda module, inputs, out: 2 * out)
        x = torch.randn(1, 4, 7, 7, dtype=torch.float64)
        layer = decompose(conv, 9, init="svd")
        torch.testing.assert_close(layer(x), conv(x), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(fuse(layer)(x), conv(x), rtol=1e-9, atol=1e-9)
