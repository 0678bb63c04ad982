"""The contestants: fedatoms, and a round of FedAvg written by hand over the same clients and batches."""

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedatoms.bench.expert_loop import by_expert
from fedatoms.bench.settings import Bench
from fedatoms.core.options import Precision
from fedatoms.core.randomness import generator
from fedatoms.data.batches import Plan, fetch
from fedatoms.data.datasets import Recipe
from fedatoms.data.federations import Federation, federation
from fedatoms.engine.client_round import rate_of
from fedatoms.engine.loop import begin, rounds
from fedatoms.engine.round import select
from fedatoms.engine.runtime import Runtime, on_device, prepare
from fedatoms.engine.spec import Simulation, batches_of
from fedatoms.engine.training import Training
from fedatoms.nn.atoms import decompose
from fedatoms.nn.models import build

ATOMS = 9
TABLE1_BATCH = 50  # smaller batches stand for the personal regime, which has momentum
OURS, PLAIN = "fedatoms, decomposed", "fedatoms, plain"
EAGER, EAGER_PLAIN = "eager loop, decomposed", "eager loop, plain"
COMPILED, COMPILED_PLAIN = "compiled loop, decomposed", "compiled loop, plain"
REDUCED, REDUCED_PLAIN = "reduce-overhead loop, decomposed", "reduce-overhead loop, plain"
EXPERT, EXPERT_PLAIN = "expert loop, decomposed", "expert loop, plain"
JAX = "JAX vmap + scan, plain"
Round = Callable[[], object]


class Cell(NamedTuple):
    """A cell of the grid."""

    clients: int
    batch: int


class Contestant(NamedTuple):
    """A name, how to set up its rounds (the first compiles), and how many rounds to measure."""

    name: str
    start: Callable[[], Round]
    turns: int


def contestants(settings: Bench, sim: Simulation, *, baselines: bool) -> list[Contestant]:
    """Lists the contestants of a cell: fedatoms with atoms and, if asked for, all others that run on torch."""
    plain = replace(sim, model=build("lenet", classes=10))
    few = min(3, settings.repeats)  # the loops are slow: three rounds of them must do
    first = Contestant(OURS, lambda: ours(sim), settings.repeats)
    if not baselines:
        return [first]
    return [
        first,
        Contestant(PLAIN, lambda: ours(plain), settings.repeats),
        Contestant(EAGER, lambda: by_hand(sim), few),
        Contestant(EAGER_PLAIN, lambda: by_hand(plain), few),
        Contestant(COMPILED, lambda: by_hand(sim, settings.backend), few),
        Contestant(COMPILED_PLAIN, lambda: by_hand(plain, settings.backend), few),
        Contestant(REDUCED, lambda: by_hand(sim, settings.backend, "reduce-overhead"), few),
        Contestant(REDUCED_PLAIN, lambda: by_hand(plain, settings.backend, "reduce-overhead"), few),
        Contestant(EXPERT, lambda: by_expert(sim, settings.backend), settings.repeats),
        Contestant(EXPERT_PLAIN, lambda: by_expert(plain, settings.backend), settings.repeats),
    ]


def ours(sim: Simulation) -> Round:
    """Sets a simulation up: each call of the result runs its next round."""
    return one_after_another(prepare(sim))


def one_after_another(runtime: Runtime) -> Callable[[], None]:
    """Returns what runs the next round of a run, as a command does between evaluations."""
    unending = rounds(runtime, begin(runtime), until=sys.maxsize, eval_every=sys.maxsize)

    def work() -> None:
        next(unending)

    return work


def by_hand(sim: Simulation, backend: str | None = None, mode: str | None = None) -> Round:
    """Sets the hand-written loop up, with forward and backward pass compiled if a backend is named."""
    model, t = copy.deepcopy(sim.model).to(sim.device), -1
    forward = torch.compile(model, backend=backend, mode=mode, dynamic=False) if backend else model

    def work() -> None:
        nonlocal t
        t += 1
        eager_round(sim, model, t, forward)

    return work


def eager_round(sim: Simulation, model: nn.Module, t: int, forward: Callable[[Tensor], Tensor] | None = None) -> None:
    """A round of FedAvg as one would write it by hand; ``forward`` is the model itself, or its compiled form."""
    data = sim.data
    start = {name: leaf.clone() for name, leaf in model.state_dict().items()}
    _, clients = select(sim, t)
    samples = sum(len(data.parts[client]) for client in clients)
    mean = {name: torch.zeros_like(leaf) for name, leaf in start.items()}
    for client in clients:
        model.load_state_dict(start)
        _train(sim, model, forward or model, client, t)
        with torch.no_grad():
            for name, leaf in model.state_dict().items():
                mean[name] += leaf * (len(data.parts[client]) / samples)
    model.load_state_dict(mean)


def lenet_clients(
    clients: int, samples: int, sampled: int, *, training: Training | None = None, tested: int = 10
) -> Simulation:
    """LeNet on random images: the work of a round does not depend on their content."""
    draws = torch.Generator().manual_seed(0)
    n = clients * samples
    x = torch.randint(256, (n + tested, 3, 32, 32), dtype=torch.uint8, generator=draws)
    y = torch.randint(10, (n + tested,), generator=draws)
    recipe = Recipe(255.0, (0.5,) * 3, (0.25,) * 3, flip=True, pad=4, crop=0.5, fill="zero")
    parts = list(torch.arange(n).split(samples))
    data = Federation(x[:n], y[:n], parts, x[n:], y[n:], [y[:0]] * clients, 10, recipe)
    return Simulation(
        build("lenet", classes=10),
        data,
        training=training or Training(1, min(samples, 50), 0.01, weight_decay=1e-3, clip=10.0),
        fraction=sampled / clients,
        score=("server",),
        device="cpu",
    )


def resnet_clients(
    clients: int, samples: int, batch: int = 20, pixels: int = 64, model: str = "resnet18"
) -> Simulation:
    """ResNet-18 on random images, in batches with momentum.

    >>> resnet_clients(2, 40).data.x.shape
    torch.Size([80, 3, 64, 64])
    """
    draws = generator(0, "synthetic")
    parts = [
        (
            torch.randint(256, (samples, 3, pixels, pixels), dtype=torch.uint8, generator=draws),
            torch.randint(200, (samples,), generator=draws),
        )
        for _ in range(clients)
    ]
    return Simulation(
        build(model, classes=200),
        federation(parts, test=(parts[0][0][:20], parts[0][1][:20])),
        training=Training(1, batch, lr=0.01, momentum=0.9, clip=10.0),
        device="cpu",
        score=("server",),
    )


def cell_clients(settings: Bench, cell: Cell, *, population: int = 0, precision: Precision | None = None) -> Simulation:
    """Makes the decomposed simulation of a cell, data on the device; of ``population`` clients the cell's train."""
    sim = lenet_clients(
        population or cell.clients,
        settings.samples,
        cell.clients,
        training=training_of(settings, cell.batch),
        tested=settings.tested,
    )
    sim = replace(sim, model=decompose(sim.model, ATOMS, init="orthonormal"), device=settings.device, map="vectorised")
    return replace(sim, data=on_device(sim.data, sim.device), precision=precision or settings.precision)


def training_of(settings: Bench, batch: int) -> Training:
    """Returns the regime of a batch size; the learning rate costs nothing, and random labels allow no large one.

    >>> training_of(Bench(), 10).momentum, training_of(Bench(), 50).epochs
    (0.9, 5)
    """
    epochs = max((settings.steps or 50) * batch // settings.samples, 1)
    momentum = 0.9 if batch < TABLE1_BATCH else 0.0
    return Training(epochs, batch, 0.01, momentum=momentum, weight_decay=1e-3, clip=10.0)


def _train(sim: Simulation, model: nn.Module, forward: Callable[[Tensor], Tensor], client: int, t: int) -> None:
    data, training = sim.data, sim.training
    sgd = torch.optim.SGD(
        model.parameters(), rate_of(training, t), momentum=training.momentum, weight_decay=training.weight_decay
    )
    batches = Plan(*(leaf.to(sim.device) for leaf in batches_of(sim, client, t)))
    # all batches at once: on a GPU a small kernel takes as long as a large one
    images, labels = fetch(data.x, data.y, batches.rows, data.recipe, torch.float32, batches.flip, batches.shift)
    for x, y in zip(images, labels, strict=True):
        sgd.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16, enabled=sim.precision == "bf16"):
            logits = forward(x)
        nn.functional.cross_entropy(logits.float(), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        sgd.step()
