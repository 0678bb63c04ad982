"""A federation of four small clients and a small network with every group of parameters: a law runs in a moment."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fedatoms.core.trees import Params
from fedatoms.data.federations import Federation, federation
from fedatoms.engine.loop import Trained, rounds, train
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.nn.atoms import decompose
from fedatoms.runs.checkpoints import load_checkpoint, save_checkpoint

SIZES = (1, 7, 12, 5)  # with batches of 5: a single sample, and last batches of 2 and 5
TRAINING = Training(epochs=2, batch_size=5, lr=0.05, lr_decay=0.9, momentum=0.5, weight_decay=1e-3, clip=1.0)
WHOLE = TRAINING._replace(epochs=1, batch_size=1000)  # one batch of all samples: their order does not matter


def simulation(model: nn.Module | None = None, data: Federation | None = None, **changes: object) -> Simulation:
    """Returns a simulation of the small federation, in which three of four clients are sampled and some of them fail.

    >>> simulation(fraction=0.5).fraction
    0.5
    """
    sim = Simulation(
        model=model or network(),
        data=data or clients(),
        training=TRAINING,
        fraction=0.75,
        failures=0.2,
        score=("server",),
    )
    return replace(sim, **changes)  # type: ignore[arg-type]


def clients(
    order: Sequence[int] = range(len(SIZES)), copies: int = 1, targets: Callable[[Tensor], Tensor] = torch.clone
) -> Federation:
    """Makes clients of 6x6 images in three classes; the same ones in another order, or with every sample repeated.

    ``targets`` makes other targets of the classes.

    >>> [len(part) for part in clients(order=[1, 0], copies=2).parts]
    [14, 2]
    """
    draws = torch.Generator().manual_seed(0)
    samples = [_images(size, draws) for size in (*SIZES, 12)]
    chosen = [(x.repeat(copies, 1, 1, 1), y.repeat(copies)) for x, y in (samples[client] for client in order)]
    return federation([(x, targets(y)) for x, y in chosen], test=(samples[-1][0], targets(samples[-1][1])))


def network(*, norm: bool = True, dropout: bool = True) -> nn.Module:
    """Builds a decomposed network in float64, the same one each time.

    >>> from fedatoms.nn.parameter_groups import groups
    >>> sorted(set(groups(network()).values()))
    ['atoms', 'coefficients', 'head', 'rest', 'statistics']
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4) if norm else nn.Identity(), nn.ReLU(), nn.MaxPool2d(2)]
        head = [nn.Linear(16, 6), nn.ReLU(), nn.Dropout(0.2) if dropout else nn.Identity(), nn.Linear(6, 3)]
        return decompose(nn.Sequential(*body, nn.Flatten(), *head).double(), atoms=4, init="orthonormal")


def resumed(sim: Simulation, stop: int, until: int) -> Params:
    """Stops after some rounds, writes a checkpoint, reads it again, and returns the tensors of the last round."""
    runtime = prepare(sim)
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder), train(sim, stop).state, trajectory="law", seconds=0.0)
        train(sim, 1)  # another run in between: what is remembered beside the state is lost
        state = load_checkpoint(Path(folder), runtime, trajectory="law").state
        *_, last = rounds(runtime, state, until)
        return tensors(Trained(sim.model, {}, [], last.state))


def tensors(done: Trained) -> Params:
    """Returns all tensors of a state as one tree: the server's, and those that clients keep."""
    state = done.state
    found = {f"the server's '{name}'": leaf for name, leaf in {**state.server.params, **state.common}.items()}
    for kind, tree in state.server.memory.items():
        found |= {f"the server's {kind} of '{name}'": leaf for name, leaf in tree.items()}
    for client in sorted(state.clients.rows):
        row = state.clients.read(client)
        assert row is not None
        kept = {f"own '{name}'": leaf for name, leaf in row.own.items()}
        for kind, tree in row.memory.items():
            kept |= {f"{kind} of '{name}'": leaf for name, leaf in tree.items()}
        found |= {f"client {client}'s {name}": leaf for name, leaf in kept.items()}
    return found


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Lets torch use one thread: with tensors this small a second one only waits.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_same(found: Params, expected: Params, within: float = 0.0) -> None:
    """Refuses trees that differ by more than rounding, and names the first tensor that does.

    >>> check_same({"w": torch.ones(1)}, {"w": torch.zeros(1)}, within=0.1)
    Traceback (most recent call last):
    ...
    AssertionError: w differs by 1
    """
    if odd := sorted(found.keys() ^ expected.keys()):
        raise AssertionError(f"only one of the two has {odd[0]}")
    for name, leaf in found.items():
        if leaf.shape != expected[name].shape or leaf.dtype != expected[name].dtype:
            raise AssertionError(f"{name} is {_kind(leaf)}, and was {_kind(expected[name])}")
        gap = float((leaf.double() - expected[name].double()).abs().max()) if leaf.numel() else 0.0
        if not gap <= within:  # nan is not
            raise AssertionError(f"{name} differs by {gap:.3g}")


def _images(count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 1, 6, 6, dtype=torch.float64, generator=draws)
    return x, torch.randint(3, (count,), generator=draws)


def _kind(leaf: Tensor) -> str:
    return f"{str(leaf.dtype).removeprefix('torch.')} of shape {tuple(leaf.shape)}"
