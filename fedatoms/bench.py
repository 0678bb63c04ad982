"""How fast and how big: ratios measured side by side in one process, interleaved, medians."""

import copy
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from fedatoms.data.batches import fetch
from fedatoms.data.datasets import Recipe
from fedatoms.data.federation import Federation
from fedatoms.decompose import decompose
from fedatoms.local import Training
from fedatoms.models import build
from fedatoms.provenance import provenance
from fedatoms.simulate import Simulation, State, advance, batches_of, begin, select


@dataclass(frozen=True)
class Bench:
    """Settings of the benchmark."""

    threads: int = 2
    """CPU threads of every contestant."""
    repeats: int = 7
    """Measurements of each; the median counts."""
    steps: int = 5
    """Local steps per client and round (the paper's regime has 50: the fewer, the more a round's own cost shows)."""
    out: str = ""
    """File for the results as JSON; empty writes none."""


class Ratio(NamedTuple):
    """A measured ratio (or number), and the bar that it should not pass."""

    name: str
    value: float
    bar: float | None
    detail: str


def measure(settings: Bench) -> list[Ratio]:
    """Measures everything and returns it line by line."""
    torch.set_num_threads(settings.threads)
    return [*_rounds(settings), *_imports(settings), _memory()]


def as_json(settings: Bench, ratios: list[Ratio]) -> str:
    """Writes results with where they come from."""
    lines = [ratio._asdict() for ratio in ratios]
    return json.dumps({"settings": vars(settings), "results": lines, "provenance": provenance("cpu")}, indent=2) + "\n"


def eager_round(sim: Simulation, model: nn.Module, t: int) -> None:
    """A round of FedAvg as one would write it by hand: eager PyTorch over the same clients and batches."""
    data, training = sim.data, sim.training
    start = {name: leaf.clone() for name, leaf in model.state_dict().items()}
    _, clients = select(sim, t)
    samples = sum(len(data.parts[client]) for client in clients)
    mean = {name: torch.zeros_like(leaf) for name, leaf in start.items()}
    for client in clients:
        model.load_state_dict(start)
        sgd = torch.optim.SGD(model.parameters(), training.rate(t), weight_decay=training.weight_decay)
        batches = batches_of(sim, client, t)
        for rows, flip, shift in zip(batches.rows, batches.flip, batches.shift, strict=True):
            x, y = fetch(data.x, data.y, rows, data.recipe, torch.float32, flip, shift)
            sgd.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), training.clip)
            sgd.step()
        with torch.no_grad():
            for name, leaf in model.state_dict().items():
                mean[name] += leaf * (len(data.parts[client]) / samples)
    model.load_state_dict(mean)


def lenet_clients(clients: int, samples: int, sampled: int) -> Simulation:
    """LeNet on random pictures: the work of a round does not depend on what they show."""
    draws = torch.Generator().manual_seed(0)
    n = clients * samples
    x = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=draws)
    y = torch.randint(10, (n,), generator=draws)
    recipe = Recipe(255.0, (0.5,) * 3, (0.25,) * 3, flip=True, pad=4, crop=0.5, fill="zero")
    parts = list(torch.arange(n).split(samples))
    data = Federation(x, y, parts, x[:10], y[:10], [y[:0]] * clients, 10, recipe)
    training = Training(1, min(samples, 50), 0.01, weight_decay=1e-3, clip=10.0)
    return Simulation(
        build("lenet", classes=10), data, training=training, fraction=sampled / clients, score=("server",), device="cpu"
    )


def _rounds(settings: Bench) -> list[Ratio]:
    sim = lenet_clients(10, 50 * settings.steps, 10)
    loop, ours = replace(sim, map="one_by_one"), replace(sim, map="vectorised", block=10)
    atoms = replace(loop, model=decompose(sim.model, 9))
    hand = copy.deepcopy(sim.model)
    starts: dict[str, State] = {name: begin(each) for name, each in (("loop", loop), ("vmap", ours), ("atoms", atoms))}
    seconds = _interleaved(
        {
            "by hand": lambda: eager_round(sim, hand, 0),
            "one_by_one": lambda: advance(loop, starts["loop"]),
            "one_by_one, atoms": lambda: advance(atoms, starts["atoms"]),
            "vectorised": lambda: advance(ours, starts["vmap"]),
        },
        settings.repeats,
    )

    def ratio(name: str, a: str, b: str, bar: float | None) -> Ratio:
        pairs = [x / y for x, y in zip(seconds[a], seconds[b], strict=True)]
        medians = f"{statistics.median(seconds[a]):.2f} s against {statistics.median(seconds[b]):.2f} s"
        return Ratio(name, statistics.median(pairs), bar, f"{medians} a round, LeNet, 10 clients x 50")

    return [
        ratio("round / hand-written loop", "one_by_one", "by hand", 1.05),
        ratio("decomposed / plain", "one_by_one, atoms", "one_by_one", 1.10),
        ratio("vectorised / one_by_one", "vectorised", "one_by_one", None),
    ]


def _interleaved(contestants: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        for name, work in contestants.items():
            began = time.perf_counter()
            work()
            if turn:  # the first is a warm-up
                seconds[name].append(time.perf_counter() - began)
    return seconds


def _imports(settings: Bench) -> list[Ratio]:
    probe = "import time, torch; t = time.perf_counter(); import fedatoms; print(time.perf_counter() - t)"
    added = [float(_python(probe)) for _ in range(settings.repeats)]
    asked = "import time, sys; t = time.perf_counter(); from fedatoms.cli import main; main(['--help']); "
    asked += "print(); print(time.perf_counter() - t + 10 * ('torch' in sys.modules))"
    helps = [float(_python(asked).split()[-1]) for _ in range(settings.repeats)]
    return [
        Ratio("import fedatoms after torch, seconds", statistics.median(added), 0.3, f"{settings.repeats} processes"),
        Ratio("fedatoms --help, seconds", statistics.median(helps), 1.0, "plus 10 if it imports torch"),
    ]


def _memory() -> Ratio:
    probe = "from fedatoms.bench import peak; print(peak({sampled}))"
    few, many = (int(_python(probe.format(sampled=sampled))) for sampled in (50, 1000))
    return Ratio(
        "peak memory, 1,000 / 50 sampled", many / few, 1.2, f"{many / 1024:.0f} MB against {few / 1024:.0f} MB"
    )


def peak(sampled: int) -> int:
    """Runs a round of FedAvg and returns the process's peak memory in kilobytes."""
    sim = lenet_clients(1000, 2, sampled)
    advance(sim, begin(sim))
    status = Path("/proc/self/status")
    if status.exists():  # Linux: ru_maxrss would start at the parent's peak
        return int(re.findall(r"VmHWM:\s+(\d+)", status.read_text())[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def write(settings: Bench, ratios: list[Ratio]) -> None:
    """Writes the results to the file that the settings name, if any."""
    if settings.out:
        Path(settings.out).parent.mkdir(parents=True, exist_ok=True)
        Path(settings.out).write_text(as_json(settings, ratios))
