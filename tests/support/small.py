"""What the tests share: small federations and networks, in float64 where numbers are compared."""

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from fedatoms.algorithms.base import Algorithm
from fedatoms.core.options import GLOBAL_MODELS, Scored
from fedatoms.data.federations import Federation, federation
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.nn.atoms import decompose
from fedatoms.nn.layers import Conv

SIZES = (1, 7, 23)  # with batches of 10: a single sample, less than a batch, and a last batch of 3


@st.composite
def any_convolutions(
    draw: st.DrawFn, dims: int | None = None, widths: tuple[int, int] = (1, 3), kernel: int = 4
) -> Conv:
    """Draws a float64 convolution with any settings that an 8-pixel input (6 for a kernel of 3) allows."""
    dims = dims or draw(st.integers(1, 3))
    sizes = lambda low, high: st.tuples(*[st.integers(low, high)] * dims)  # noqa: E731
    split = draw(st.integers(1, 2))
    padding = draw(st.one_of(st.sampled_from(["same", "valid"]), st.integers(0, 2), sizes(0, 2)))
    torch.manual_seed(draw(st.integers(0, 2**32)))
    return {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims](
        split * draw(st.integers(*widths)),
        split * draw(st.integers(*widths)),
        draw(sizes(1, kernel)),
        stride=1 if padding == "same" else draw(sizes(1, 2)),
        padding=padding,
        dilation=draw(sizes(1, 2)),
        groups=split,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
        dtype=torch.float64,
    )


def clients_of(sizes: tuple[int, ...] = SIZES, classes: int = 3, seed: int = 0) -> Federation:
    """Makes clients of given sizes with 6x6 images in float64."""
    draws = torch.Generator().manual_seed(seed)

    def some(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 1, 6, 6, dtype=torch.float64, generator=draws)
        return x, torch.randint(classes, (n,), generator=draws)

    return federation([some(n) for n in sizes], test=some(12))


def small_net(*, norm: bool = False, dropout: bool = False, atoms: int | None = None, seed: int = 0) -> nn.Module:
    """Makes a network with two convolutions and a head, plain or decomposed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [
            ("conv1", nn.Conv2d(1, 4, 3, padding=1)),
            ("norm1", nn.BatchNorm2d(4) if norm else nn.Identity()),
            ("relu1", nn.ReLU()),
            ("pool1", nn.MaxPool2d(2)),
            ("drop", nn.Dropout(0.3) if dropout else nn.Identity()),
            ("conv2", nn.Conv2d(4, 5, 3)),
            ("relu2", nn.ReLU()),
            ("flat", nn.Flatten()),
            ("fc1", nn.Linear(5, 6)),
            ("relu3", nn.ReLU()),
            ("fc2", nn.Linear(6, 3)),
        ]
        model = nn.Sequential()
        for name, layer in layers:
            model.add_module(name, layer)
    model = model.double()
    return model if atoms is None else decompose(model, atoms, init="orthonormal")


class Drifting(nn.Module):
    """Layers behind a gain and a level, both buffers that every forward pass changes, in training or not."""

    def __init__(self, layers: nn.Module, *, inplace: bool = True, persistent: bool = True) -> None:
        super().__init__()
        self.layers, self.inplace = layers, inplace
        self.register_buffer("calls", torch.tensor(0), persistent=persistent)
        self.register_buffer("level", torch.zeros(1), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        if self.inplace:
            self.calls += 1
            self.level.mul_(0.9).add_(x.detach().mean(), alpha=0.1)
        else:
            self.calls = self.calls + 1
            self.level = 0.9 * self.level + 0.1 * x.detach().mean()
        return self.layers(x * (1 + 0.1 * self.calls) - 3 * self.level)


def all_scores(method: Algorithm) -> tuple[Scored, ...]:
    """Returns the global models that an algorithm has."""
    return GLOBAL_MODELS if method.uploads_models else ("server",)


def play(sim: Simulation | Runtime, rounds: int, state: State | None = None) -> State:
    """Runs some rounds and returns the state."""
    runtime = prepare(sim) if isinstance(sim, Simulation) else sim
    state = begin(runtime) if state is None else state
    for _ in range(rounds):
        state, _record = advance(runtime, state)
    return state


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Returns the largest difference of two trees with the same names."""
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def identical(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Says whether two trees are equal to the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
