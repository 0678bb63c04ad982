"""Images of bytes: what none of their numbers exceeds is known, and need not be searched for."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.small import difference, play
from torch import Tensor, nn

from fedatoms.data.batches import bounded, largest_input, normalise
from fedatoms.data.datasets import DATASETS, Recipe
from fedatoms.data.federations import federation
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.gpu import convolutions
from fedatoms.engine.gpu.rewrite import BatchedKernels
from fedatoms.engine.gpu.rounding import Rounded, in_half
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation


@given(st.floats(2.0**-60, 2.0**90, width=32))
def test_a_known_bound_gives_the_unit_that_a_search_finds(largest: float) -> None:
    x = torch.tensor([[largest, -largest / 3, 0.0]])
    found, known = in_half(x), in_half(x, largest)
    assert found.unit is not None and known.unit is not None
    assert torch.equal(found.values, known.values) and torch.equal(found.unit, known.unit)


@pytest.mark.parametrize("dataset", DATASETS)
def test_no_image_of_bytes_exceeds_its_bound_and_one_reaches_it(dataset: str) -> None:
    for recipe in DATASETS[dataset].recipes.values():
        x = torch.arange(256, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, len(recipe.mean), 1, 1)
        largest = largest_input(x, recipe)
        assert largest == pytest.approx(float(normalise(x, recipe, torch.float32).abs().max()), rel=1e-5)
        assert largest_input(x.float(), recipe) is None and largest_input((x,), recipe) is None
        assert largest_input(x, None) is None


@pytest.mark.parametrize("changes", [False, True])
def test_a_step_rounds_images_of_bytes_without_a_search_unless_the_network_changes_them(
    changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the compiled map, without the compiler, and in float16 as on a GPU."""
    known: dict[tuple[int, ...], float | None] = {}

    def noting(x: Tensor, largest: float | None = None) -> Rounded:
        known[tuple(x.shape)] = largest
        return in_half(x, largest)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 16, 3), nn.Linear(16 * 16, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x * 100.0 if changes else x
            return self.head(F.relu(self.conv(x)).flatten(1))

    draws = torch.Generator().manual_seed(0)
    x, y = torch.randint(256, (8, 1, 6, 6), dtype=torch.uint8, generator=draws), torch.arange(8) % 3
    recipe = Recipe(255, (0.5,), (0.25,), flip=True, pad=1, crop=0.5, fill="zero")
    data = federation([(x[:4], y[:4]), (x[4:], y[4:])], test=(x, y))._replace(recipe=recipe)
    sim = Simulation(Net(), data)
    expected = play(sim, 1).server.params
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    monkeypatch.setattr(convolutions, "rounded", noting)
    found = play(prepare(sim)._replace(map_clients=cuda_graph.compiled(2)), 1).server.params
    (images,) = (largest for shape, largest in known.items() if shape[1:] == (6, 6, 1))
    assert images == (None if changes else 2.0) and len(known) == 3
    assert difference(expected, found) < 1e-3 * (100 if changes else 1)


@pytest.mark.parametrize("change", [Tensor.mul_, torch.ops.aten.mul_.Tensor])
def test_a_bound_is_forgotten_when_anything_is_changed_in_place(
    change: Callable[[Tensor, float], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolutions, "rounded", in_half)

    def model(x: Tensor, w: Tensor) -> Tensor:
        x = bounded(x, 1.0)
        change(x[:, :1], 2.0**20)  # by a view
        return F.conv2d(x, w)

    draws = torch.Generator().manual_seed(0)
    x, w = torch.rand(2, 3, 4, 6, 6, generator=draws), torch.rand(2, 16, 4, 3, 3, generator=draws)
    expected = torch.vmap(model)(x.clone(), w)
    with BatchedKernels():
        found = torch.vmap(model)(x.clone(), w)
    assert float((expected - found).norm() / expected.norm()) < 2**-9
