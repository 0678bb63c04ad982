"""A layer that makes its filter of factors has it as ``weight``, for code that asks a plain layer for that."""

import copy
import dataclasses
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small import any_convolutions, clients_of, difference, identical, play
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedatoms.engine.gpu.rewrite import BatchedKernels
from fedatoms.engine.loop import begin
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.nn.atoms import AtomConv, decompose, fuse
from fedatoms.nn.hadamard import HadamardConv, HadamardLinear, factorise
from fedatoms.nn.layers import Conv

Make = Callable[[nn.Module], nn.Module]
MAKERS: dict[str, tuple[Make, nn.Module]] = {
    "atoms": (lambda layer: decompose(layer, 4, init="orthonormal"), nn.Conv2d(16, 16, 3, padding=1)),
    "fedpara, conv": (factorise, nn.Conv2d(16, 16, 3, padding=1)),
    "pfedpara, conv": (lambda layer: factorise(layer, personal=True), nn.Conv2d(16, 16, 3, padding=1)),
    "fedpara, linear": (lambda layer: factorise(nn.Sequential(layer, nn.Linear(16, 2)))[0], nn.Linear(16, 16)),
}


@pytest.fixture(params=MAKERS.values(), ids=MAKERS.keys())
def layer(request: pytest.FixtureRequest) -> nn.Module:
    make, plain = request.param
    made = make(plain)
    assert isinstance(made, AtomConv | HadamardConv | HadamardLinear)
    return made


@settings(max_examples=30)
@given(any_convolutions(), st.integers(1, 12))
def test_it_is_the_weight_of_the_fused_layer_and_trains_its_factors(conv: Conv, atoms: int) -> None:
    layer = decompose(conv, atoms, where=lambda name, module: True, init="orthonormal")
    assert layer.weight.shape == conv.weight.shape and torch.equal(layer.weight, fuse(layer).weight)
    slopes = torch.autograd.grad(layer.weight.square().sum(), [*layer.factors()])
    expected = torch.autograd.grad(layer.filter().square().sum(), [*layer.factors()])
    assert all(torch.equal(one, other) and one.any() for one, other in zip(slopes, expected, strict=True))


def test_it_is_the_filter_and_no_parameter(layer: nn.Module) -> None:
    assert torch.equal(layer.weight, layer.filter()) and torch.equal(layer.weight, fuse(layer).weight)
    assert "weight" not in layer.state_dict() and "weight" not in dict(layer.named_parameters())
    half = copy.deepcopy(layer).double()
    assert half.weight.dtype == torch.float64 and half.weight.device == layer.weight.device
    assert torch.equal(pickle.loads(pickle.dumps(layer)).weight, layer.weight)
    other = {name: 2 * leaf for name, leaf in layer.named_parameters()}

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = layer

        def forward(self) -> Tensor:
            return self.inside.weight

    found = functional_call(Reads(), {f"inside.{name}": leaf for name, leaf in other.items()}, ())
    changed = copy.deepcopy(layer)
    changed.load_state_dict(other)
    assert torch.equal(found, changed.weight) and not torch.equal(found, layer.weight)


@pytest.mark.parametrize("value", [nn.Parameter(torch.ones(1)), torch.ones(1), None])
def test_it_cannot_be_set(layer: nn.Module, value: Tensor | None) -> None:
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(AttributeError, match=r"makes its weight of factors.*named_parameters\(\).*fuse\(model\)"):
        layer.weight = value
    assert identical(dict(layer.state_dict()), dict(before))


class PatchEmbedding(nn.Module):
    """What ViT, DINOv2 and CLIP do in Hugging Face's code: images are cast to the type of the projection's weight."""

    def __init__(self, width: int = 16, patch: int = 3) -> None:
        super().__init__()
        self.projection = nn.Conv2d(1, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.zeros(1, 4, width))

    def forward(self, pixels: Tensor) -> Tensor:
        target_dtype = self.projection.weight.dtype
        patches = self.projection(pixels.to(dtype=target_dtype)).flatten(2).transpose(1, 2)
        return patches + self.positions


class Transformer(nn.Module):
    """A vision transformer of one layer on images of 6 x 6."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = PatchEmbedding(), nn.LayerNorm(16)
        self.keys, self.values = nn.Linear(16, 16, bias=False), nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        z = self.norm(x).to(self.keys.weight.dtype)  # as T5 does
        return self.head((x + functional.scaled_dot_product_attention(z, self.keys(z), self.values(z))).mean(1))


class ByHand(nn.Module):
    """Convolves with the layer's weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 16, 3), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.conv2d(x, self.conv.weight, self.conv.bias).relu().mean((2, 3)))


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: decompose(Transformer(), 4, init="orthonormal"), id="transformer, atoms"),
        pytest.param(lambda: factorise(Transformer()), id="transformer, fedpara"),
        pytest.param(lambda: decompose(ByHand(), 4, init="orthonormal"), id="by hand, atoms"),
    ],
)
def test_networks_that_ask_for_a_weight_train_in_both_maps(model: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    sim = Simulation(model().double(), clients_of(), training=Training(batch_size=10, lr=0.1), score=("server",))
    loop, fast = (play(dataclasses.replace(sim, map=map), 2).server.params for map in ("one_by_one", "vectorised"))
    assert difference(loop, fast) < 1e-10
    start = begin(prepare(sim)).server.params
    assert all(not torch.equal(loop[name], start[name]) for name in prepare(sim).network.parameters)


def test_a_weight_that_is_read_does_not_keep_filters_from_the_products() -> None:
    """Filters are recognised by how they were made, and one that is read by the way is made the same."""
    layer, x = (
        decompose(nn.Conv2d(16, 16, 3, padding=1).double(), 4, init="orthonormal"),
        torch.randn(2, 16, 6, 6).double(),
    )
    with BatchedKernels() as products:
        found = layer(x.to(layer.weight.dtype))
        by_hand = functional.conv2d(x, layer.weight, layer.bias, padding=1)
    assert len(products._made) == 2
    torch.testing.assert_close(found, layer(x))
    torch.testing.assert_close(by_hand, layer(x))
