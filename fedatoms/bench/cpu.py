"""Ratios for any machine: measured side by side in one process, interleaved, medians."""

import copy
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path

from fedatoms.bench.line_up import ATOMS, eager_round, lenet_clients, resnet_clients
from fedatoms.bench.results import Ratio, paired
from fedatoms.bench.settings import Bench
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.nn.atoms import decompose

CLIENTS, IMAGES = 2, 40  # of ResNet-18
LENETS, RESNETS = "LeNet, 10 clients x 50", f"ResNet-18, {CLIENTS} clients x {IMAGES} images of 64 pixels"
COMPARED = (  # what is measured, whose time over whose, the bar, and the work
    ("round / hand-written loop", "one_by_one", "by hand", 1.03, LENETS),
    ("decomposed / plain", "one_by_one, atoms", "one_by_one", 1.10, LENETS),
    ("vectorised / one_by_one", "vectorised", "one_by_one", None, LENETS),
    ("decomposed / plain, ResNet-18", "ResNet-18, atoms", "ResNet-18", 1.30, RESNETS),
)


def measure(settings: Bench) -> Iterator[str | Ratio]:
    """Measures part by part, and yields progress."""
    yield from _rounds(settings)
    yield "imports, each in a process of its own"
    yield from _imports(settings)
    yield "memory of a round with many clients"
    yield _memory()


def _rounds(settings: Bench) -> Iterator[str | Ratio]:
    seconds = yield from _interleaved(_contestants(settings), settings.repeats)
    for name, over, under, bar, work in COMPARED:
        yield paired(name, seconds[over], seconds[under], bar, work)


def _contestants(settings: Bench) -> dict[str, Callable[[], object]]:
    """Returns who takes turns: LeNet by hand and in three ways of ours, then ResNet-18 plain and with atoms."""
    lenet = replace(lenet_clients(10, 50 * (settings.steps or 5), 10), map="one_by_one")
    resnet, hand = replace(resnet_clients(CLIENTS, IMAGES), map="one_by_one"), copy.deepcopy(lenet.model)
    return {
        "by hand": lambda: eager_round(lenet, hand, 0),
        "one_by_one": _first_round_of(lenet),
        "one_by_one, atoms": _first_round_of(_with_atoms(lenet)),
        "vectorised": _first_round_of(replace(lenet, map="vectorised", block=10)),
        "ResNet-18": _first_round_of(resnet),
        "ResNet-18, atoms": _first_round_of(_with_atoms(resnet)),
    }


def _with_atoms(sim: Simulation) -> Simulation:
    return replace(sim, model=decompose(sim.model, ATOMS, init="orthonormal"))


def _first_round_of(sim: Simulation) -> Callable[[], object]:
    """Sets a simulation up: each call of the result runs its first round."""
    runtime = prepare(sim)
    start = begin(runtime)
    return lambda: advance(runtime, start)


def _interleaved(
    contestants: dict[str, Callable[[], object]], repeats: int
) -> Generator[str, None, dict[str, list[float]]]:
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        yield f"rounds, turn {turn} of {repeats}" if turn else "rounds, a warm-up"
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
        Ratio("import fedatoms after torch, seconds", statistics.median(added), 0.3, f"median of {settings.repeats}"),
        Ratio("fedatoms --help, seconds", statistics.median(helps), 1.0, "plus 10 if it imports torch"),
    ]


def _memory() -> Ratio:
    probe = "from fedatoms.bench.cpu import peak; print(peak({sampled}))"
    few, many = (int(_python(probe.format(sampled=sampled))) for sampled in (50, 1000))
    return Ratio(
        "peak memory, 1,000 / 50 sampled", many / few, 1.2, f"{many / 1024:.0f} MB against {few / 1024:.0f} MB"
    )


def peak(sampled: int) -> int:
    """Runs a round of FedAvg and returns the process's peak memory in kilobytes."""
    runtime = prepare(lenet_clients(1000, 2, sampled))
    advance(runtime, begin(runtime))
    status = Path("/proc/self/status")
    if status.exists():  # Linux: ru_maxrss would start at the parent's peak
        return int(re.findall(r"VmHWM:\s+(\d+)", status.read_text())[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
