"""Padding counts for nothing, however deep the network: no overflow in it, and the loop's model in float64."""

import copy
import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import some_now, some_of
from support.small import clients_of, difference, play
from torch import Tensor, nn

from fedatoms.algorithms import algorithm
from fedatoms.core.options import Map
from fedatoms.data.datasets import Recipe
from fedatoms.data.federations import Federation, federation
from fedatoms.engine import abreast, runtime
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.loop import begin
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.engine.training import Training
from fedatoms.nn.atoms import decompose
from fedatoms.nn.masked_norm import MaskedBatchNorm

RECIPE = Recipe(255, (0.5,), (0.25,), flip=True, pad=2, crop=0.8, fill="zero")
SIZES = (5, 18, 1, 6)  # in batches of 4: last ones of one row and of two, and steps in which nothing is real


def deep_net(
    depth: int, *, width: int = 16, halvings: int = 4, channels: int = 3, dropout: float = 0.0, eps: float = 1e-5
) -> nn.Sequential:
    """Makes a stem of stride 2 and ``depth`` times Conv 3x3, BatchNorm, ReLU, the first ``halvings`` of stride 2."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, stride=2, padding=1)]
        for place in range(depth):
            conv = nn.Conv2d(width, width, 3, stride=2 if place < halvings else 1, padding=1)
            layers += [conv, nn.BatchNorm2d(width, eps), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 3))


def images_of(sizes: tuple[int, ...], shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Federation:
    draws = torch.Generator().manual_seed(0)

    def some(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randint(256, (n, *shape), generator=draws)
        labels = torch.randint(3, (n,), generator=draws)
        return x.to(torch.uint8) if dtype == torch.uint8 else ((x - 128) / 64).to(dtype), labels

    return federation([some(n) for n in sizes], test=some(4))


def on_eight_pixels(net: nn.Module, recipe: Recipe | None = None) -> Simulation:
    # clipped, since gradients of few rows and many layers explode, and float64 with them
    training = Training(batch_size=4, lr=0.001, momentum=0.5, clip=1.0)
    data = images_of(SIZES, (1, 8, 8), torch.uint8 if recipe else torch.float32)
    return Simulation(net, data._replace(recipe=recipe), training=training, score=("server",), block=3)


def in_float64(sim: Simulation) -> Simulation:
    data = sim.data if sim.data.recipe else sim.data._replace(x=sim.data.x.double(), test_x=sim.data.test_x.double())
    return dataclasses.replace(sim, model=copy.deepcopy(sim.model).double(), data=data)


def in_both_maps(sim: Simulation, rounds: int = 2) -> list[State]:
    return [play(dataclasses.replace(sim, map=map), rounds) for map in ("one_by_one", "vectorised")]


def test_a_last_batch_of_one_row_trains_in_both_maps() -> None:
    """16 layers on 32 x 32 images, whose maps end at 1 x 1, and five images in batches of 4."""
    sim = Simulation(deep_net(16), images_of((5,), (3, 32, 32)), training=Training(batch_size=4, lr=0.01))
    loop, fast = in_both_maps(sim, rounds=1)
    assert difference(loop.server.params, fast.server.params) < 1e-2


@pytest.mark.parametrize(("recipe", "dropout", "atoms"), some_now([None, RECIPE], [0.0, 0.2], [None, 4]))
def test_deep_networks_of_few_rows_are_the_same_in_both_maps(
    recipe: Recipe | None, dropout: float, atoms: int | None
) -> None:
    """Maps are 1 x 1 from the third layer on, of 18; in float32 all is finite, or it would raise."""
    net = deep_net(18, width=6, halvings=2, channels=1, dropout=dropout)
    sim = on_eight_pixels(net if atoms is None else decompose(net, atoms, init="orthonormal"), recipe)
    play(dataclasses.replace(sim, map="vectorised"), 1)
    loop, fast = (state.server.params for state in in_both_maps(in_float64(sim), rounds=1))
    assert difference(loop, fast) < 1e-9
    assert difference(loop, begin(prepare(in_float64(sim))).server.params) > 1e-3


@pytest.mark.parametrize("name", some_of(["scaffold", "feddc"], "scaffold"))
def test_deep_networks_are_the_same_with_a_memory_too(name: str) -> None:
    sim = on_eight_pixels(deep_net(18, width=6, halvings=2, channels=1), RECIPE)
    loop, fast = in_both_maps(dataclasses.replace(in_float64(sim), algorithm=algorithm(name)))
    assert difference(loop.server.params, fast.server.params) < 1e-9
    for kind, tree in loop.server.memory.items():
        assert difference(tree, fast.server.memory[kind]) < 1e-7


def test_24_layers_and_a_last_batch_of_two_rows_agree_in_float64() -> None:
    """In float32 the loop itself goes elsewhere if inputs change by half a unit in the last place: architecture.md."""
    training = Training(batch_size=50, lr=0.01, clip=1.0)
    loop, fast = in_both_maps(in_float64(Simulation(deep_net(24), images_of((52,), (3, 32, 32)), training=training)))
    assert difference(loop.server.params, fast.server.params) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
def test_a_compiled_step_has_no_overflow_in_its_padding_and_idle_clients(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the compiler; four clients are a block of three and one of one client and two idle ones."""
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    net = deep_net(8, width=6, halvings=2, channels=1, dropout=0.2, eps=1e-11)  # as fast an overflow in fewer layers
    sim = on_eight_pixels(decompose(net, 4, init="orthonormal"), RECIPE)
    sim = in_float64(sim) if dtype == torch.float64 else sim
    fast = dataclasses.replace(sim)
    fast = prepare(fast)._replace(map_clients=cuda_graph.compiled(3))  # on a CPU a simulation would choose another map
    loop, found = play(sim, 1).server.params, play(fast, 1).server.params
    assert difference(loop, found) < (1e-9 if dtype == torch.float64 else 1e-2)


@given(
    rows=st.integers(1, 4),
    padding=st.integers(0, 3),
    side=st.integers(1, 3),
    content=st.sampled_from([0.0, 1e30, math.inf, math.nan]),
)
def test_what_stands_in_padded_rows_does_not_matter(rows: int, padding: int, side: int, content: float) -> None:
    if rows * side == 1:
        side = 2  # torch's own refuses a single value
    draws = torch.Generator().manual_seed(rows)
    x, slope = torch.randn(2, rows + padding, 3, side, side, dtype=torch.float64, generator=draws)
    x[rows:], slope[rows:] = content, 0.0
    plain = nn.BatchNorm2d(3).double()
    masked = MaskedBatchNorm(nn.BatchNorm2d(3).double())
    masked.real = torch.arange(rows + padding) < rows
    ours, theirs = x.requires_grad_(), x.detach()[:rows].requires_grad_()
    found, expected = masked(ours), plain(theirs)
    torch.testing.assert_close(found[:rows], expected)
    assert torch.equal(found[rows:], found[:1].expand(padding, -1, -1, -1))
    leaves = [(ours, *masked.parameters()), (theirs, *plain.parameters())]
    first = torch.autograd.grad((found * slope).sum(), leaves[0])
    second = torch.autograd.grad((expected * slope[:rows]).sum(), leaves[1])
    assert not first[0][rows:].any()
    for one, other in zip((first[0][:rows], *first[1:]), second, strict=True):
        torch.testing.assert_close(one, other)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(masked, name), getattr(plain, name))


@pytest.mark.parametrize("gap", [1.0, 1e-2, 1e-4])
def test_two_rows_are_normalised_as_exactly_as_torch_does(gap: float) -> None:
    """Rows that differ by little lose most of their digits: neither map may lose more of them."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(1, 1000, 1, 1, generator=draws) + gap * torch.randn(2, 1000, 1, 1, generator=draws)
    plain, exact = nn.BatchNorm2d(1000), nn.BatchNorm2d(1000).double()(x.double())
    ours = MaskedBatchNorm(nn.BatchNorm2d(1000))
    ours.real = torch.ones(2, dtype=torch.bool)
    assert (ours(x) - exact).norm() <= 1.1 * (plain(x) - exact).norm()


class Centred(nn.Module):
    """Has statistics of a batch that no layer of torch's has."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Counting(nn.Module):
    """Remembers what it sees, and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.copy_(x.detach().mean(0))
        return x


def sim_with(layer: nn.Module, sizes: tuple[int, ...], map: Map) -> Simulation:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), layer, nn.ReLU(), nn.Linear(8, 3)).double()
    return Simulation(model, clients_of(sizes), training=Training(batch_size=5, lr=0.1), map=map)


@pytest.mark.parametrize("layer", [Centred, Counting])
def test_a_network_that_would_train_on_padding_is_not_vectorised(layer: type[nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"depends on the other rows of a batch.*Use map=one_by_one"):
        prepare(sim_with(layer(), (7, 23), "vectorised"))
    whole = [play(sim_with(layer(), (10, 15), map), 1).server.params for map in ("vectorised", "one_by_one")]
    assert difference(*whole) < 1e-12  # batches that are never padded


@pytest.mark.parametrize("layer", [nn.Identity, lambda: nn.BatchNorm1d(8), lambda: nn.LayerNorm(8), nn.Dropout])
def test_a_network_that_padding_does_not_change_is_vectorised(layer: Callable[[], nn.Module]) -> None:
    both = [play(sim_with(layer(), (7, 23), map), 1).server.params for map in ("vectorised", "one_by_one")]
    assert difference(*both) < 1e-12


def test_runs_whose_networks_would_train_on_padding_share_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abreast, "is_vectorised", lambda map, device: True)  # as on a GPU
    padded, whole = sim_with(Centred(), (7, 23), "auto"), sim_with(Centred(), (10, 15), "auto")
    assert abreast.beside(prepare(padded), dataclasses.replace(padded, seed=1)) is None
    assert abreast.beside(prepare(whole), dataclasses.replace(whole, seed=1)) is not None


def test_another_batch_size_is_asked_again_whether_it_pads() -> None:
    whole = sim_with(Centred(), (10, 15), "vectorised")
    with pytest.raises(ValueError, match="depends on the other rows"):
        prepare(dataclasses.replace(whole, training=whole.training._replace(batch_size=4)), like=prepare(whole))


def test_lazy_data_that_would_be_padded_are_read_to_find_out() -> None:
    x, y = torch.rand(30, 1, 6, 6), torch.arange(30) % 3
    data = federation([(x[:7], y[:7]), (x[7:], y[7:])], test=(x, y), lazy=True)
    with pytest.raises(ValueError, match="depends on the other rows"):
        prepare(dataclasses.replace(sim_with(Centred(), (7, 23), "one_by_one"), data=data, map="vectorised"))


def test_on_a_gpu_a_network_that_would_train_on_padding_goes_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "is_vectorised", lambda map, device: True)  # as on a GPU
    sim = sim_with(Centred(), (7, 23), "auto")
    with pytest.warns(UserWarning, match="depends on the other rows of a batch"):
        found = play(sim, 1)
    monkeypatch.undo()
    assert difference(found.server.params, play(sim, 1).server.params) == 0
