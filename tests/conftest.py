"""What the tests share: small federations and networks, in float64 where numbers are compared."""

import os

import torch
from hypothesis import settings
from torch import Tensor, nn

from fedatoms.data.federation import Federation, federation
from fedatoms.decompose import decompose
from fedatoms.simulate import advance, begin
from fedatoms.simulation import Simulation, State

settings.register_profile("fedatoms", deadline=None, derandomize=True)
settings.load_profile("fedatoms")
torch.set_num_threads(1)  # small tensors: a second thread only waits
os.environ["COLUMNS"] = "200"
os.environ["TRITON_INTERPRET"] = "1"  # runs the GPU's kernels on a CPU; read when triton is first imported

SIZES = (1, 7, 23)  # with batches of 10: a single sample, less than a batch, and a last batch of 3


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
    return model if atoms is None else decompose(model, atoms)


def play(sim: Simulation, rounds: int, state: State | None = None) -> State:
    """Runs some rounds and returns the state."""
    state = begin(sim) if state is None else state
    for _ in range(rounds):
        state, _record = advance(sim, state)
    return state


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Returns the largest difference of two trees with the same names."""
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def identical(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Says whether two trees are equal to the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
