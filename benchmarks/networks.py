"""Steps on one card that the contest has not: ResNet-18, LeNet in bf16, and two processes that share the card.

    python benchmarks/networks.py --cache FOLDER                       # writes benchmarks/results/networks.json
    python benchmarks/networks.py --cache FOLDER lenet-bf16 resnet18   # some of them; the file keeps the others
    python benchmarks/networks.py --page                               # writes the table of docs/performance.md

Each is run in processes of its own, so that its first round begins with the start of Python. The folder has the
compiler's caches: a second call measures what a start takes with them. It also has byte code of all modules, made
beforehand, as any machine has it that ran them before and may write.
"""

import argparse
import gc
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import torch

from fedatoms.bench.line_up import Cell, cell_clients, resnet_clients
from fedatoms.bench.report import fill, table
from fedatoms.bench.settings import Bench
from fedatoms.core.files import replace_file
from fedatoms.core.options import Precision
from fedatoms.engine.gloo import connected, place_of
from fedatoms.engine.loop import begin, rounds
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.experiment.build import configure
from fedatoms.experiment.fields import Experiment
from fedatoms.nn.atoms import decompose
from fedatoms.runs.commit import known_commit
from fedatoms.runs.provenance import provenance_of

ROOT = Path(__file__).parent.parent
RESULT, PAGE = ROOT / "benchmarks" / "results" / "networks.json", ROOT / "docs" / "performance.md"
TURNS = 9  # of a second at most; now and then one stalls, as Python's garbage collector looks through all objects
STALL = 0.1  # ms a step
NEVER = 10**9
PACKAGES = ("fedatoms", "torch", "triton", "sympy", "mpmath", "networkx", "numpy", "safetensors", "msgspec")


class Measured(TypedDict, total=False):
    """Seconds from the start of Python to the end of the first round, without and with a cache, and what follows."""

    first: float
    again: float
    ms_step: list[float]  # of each turn
    collector: list[float]  # of these, what Python's garbage collector took
    peak: float  # MB of one process
    commit: str | None


def lenet(precision: Precision, clients: int = 10) -> Simulation:
    """Returns a cell of the contest in another precision, or of another size."""
    return replace(cell_clients(Bench(device="cuda"), Cell(clients, 50)), precision=precision)


def resnet18(atoms: int | None) -> Simulation:
    """Returns ten clients with 200 random images of 64 pixels each, for ten steps of 20 images."""
    sim = replace(resnet_clients(10, 200), device="cuda", precision="bf16")
    return replace(sim, model=decompose(sim.model, atoms, init="orthonormal")) if atoms else sim


def small_stem() -> Simulation:
    """Returns ten clients with 500 random images of 32 pixels each, for ten steps of 50 images."""
    return replace(resnet_clients(10, 500, 50, 32, "resnet18-small"), device="cuda", precision="tf32")


# what is measured, by how many processes; steps of a round; rounds of a turn
CASES: dict[str, tuple[str, Callable[[], Simulation], int, int, int]] = {
    "lenet-bf16": ("LeNet with 9 atoms, 10 x 50, bf16", lambda: lenet("bf16"), 1, 50, 20),
    "resnet18": ("ResNet-18, 10 x 20 of 64 pixels, bf16", lambda: resnet18(None), 1, 10, 10),
    "resnet18-atoms": ("ResNet-18 with 9 atoms, 10 x 20 of 64 pixels, bf16", lambda: resnet18(9), 1, 10, 10),
    "resnet18-small": ("ResNet-18 with a small stem, 10 x 50 of 32 pixels, tf32", small_stem, 1, 10, 10),
    "lenet-1": ("LeNet with 9 atoms, 100 x 50, tf32", lambda: lenet("tf32", 100), 1, 50, 4),
    "lenet-2": (
        "LeNet with 9 atoms, 100 x 50, tf32, two processes that share the card",
        lambda: lenet("tf32", 100),
        2,
        50,
        4,
    ),
}


def main() -> None:
    """Measures what is asked for and adds it to the file, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all by default")
    parser.add_argument("--cache", type=Path, default=Path("networks-cache"), help="folder of the compiler's caches")
    parser.add_argument("--page", action="store_true", help="write the table, and run nothing")
    told = parser.parse_args()
    if told.page:
        replace_file(PAGE, with_table(PAGE.read_text()).encode())
        return
    for name in told.cases or CASES:
        new, found = _started(name, told.cache / name), read()["measured"]
        found[name] = {**found.get(name, {}), **new, "commit": known_commit()}
        written = {"measured": found, "provenance": provenance_of("cuda")}
        replace_file(RESULT, (json.dumps(written, indent=1) + "\n").encode())
        print(name, new, flush=True)


def read() -> dict[str, dict[str, Measured]]:
    """Reads what has been measured."""
    return json.loads(RESULT.read_text()) if RESULT.exists() else {"measured": {}}


def with_table(page: str) -> str:
    """Puts the table between the page's marks."""
    found = read()
    heads = ("", "ms a step", "of each turn", "stalls", "first round, s", "with a cache, s", "peak, MB", "commit")
    lines = [_line(name, found["measured"][name]) for name in CASES if name in found["measured"]]
    made = found["provenance"]
    origin = f"{made['device']}, torch {made['torch']}, fedatoms {made['fedatoms']}."
    return fill(page, f"{table(heads, lines)}\n\n{origin}", "networks", "benchmarks/networks.py --page")


def work(name: str, began: float) -> None:
    """Measures in one of the processes; process 0 prints seconds and milliseconds."""
    _, make, _, steps, count = CASES[name]
    sim = make()
    configure(Experiment(device="cuda", precision=sim.precision))
    with connected(place_of(os.environ)) as (peers, _):
        runtime = prepare(sim, peers=peers)
        unending = rounds(runtime, begin(runtime), NEVER, NEVER)
        next(unending)
        torch.cuda.synchronize()
        first, spent, collected, taken = time.time() - began, list[float](), list[float](), collecting()
        for _ in range(TURNS):
            start = time.perf_counter()
            taken()
            for _ in range(count):
                next(unending)
            torch.cuda.synchronize()
            for turns, seconds in ((spent, time.perf_counter() - start), (collected, taken())):
                turns.append(round(1000 * seconds / count / steps, 3))
    if peers.rank == 0:
        peak = torch.cuda.max_memory_allocated() / 1e6
        print(json.dumps({"first": first, "ms_step": spent, "collector": collected, "peak": peak}))


def collecting() -> Callable[[], float]:
    """Returns a function that tells the seconds of Python's garbage collector since it was called last."""
    spans = list[float]()  # the collector runs between two calls of ours, never during one

    def note(phase: str, _: object) -> None:
        spans.append((1 if phase == "stop" else -1) * time.perf_counter())

    def taken() -> float:
        seconds = sum(spans)
        spans.clear()
        return seconds

    gc.callbacks.append(note)
    return taken


def _started(name: str, cache: Path) -> Measured:
    size, known, kept = CASES[name][2], cache.exists(), byte_code(cache.parent / "bytecode")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
    at = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **caches, **kept}
    command = [sys.executable, __file__, "work", name, str(time.time())]
    envs = [{**os.environ, **at, "RANK": str(rank)} for rank in range(size)]
    started = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for env in envs]
    said = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        raise RuntimeError(f"{name}: a process failed, see above")
    found = json.loads(said[0].splitlines()[-1])
    start: Measured = {"again": found["first"]} if known else {"first": found["first"]}
    return {**start, "ms_step": found["ms_step"], "collector": found["collector"], "peak": found["peak"]}


def byte_code(folder: Path) -> dict[str, str]:
    """Compiles the modules of a start into a folder, unless it is there; returns what lets Python read it."""
    env = {"PYTHONPYCACHEPREFIX": str(folder.resolve()), "PYTHONDONTWRITEBYTECODE": ""}
    if not folder.exists():
        specs = [importlib.util.find_spec(package) for package in PACKAGES]
        places = [place for spec in specs if spec for place in spec.submodule_search_locations or ()]
        command = [sys.executable, "-m", "compileall", "-q", "-j", "0", *places]
        subprocess.run(command, env={**os.environ, **env}, stdout=subprocess.DEVNULL)  # a file of tests may not compile
    return env


def _line(name: str, found: Measured) -> list[str]:
    middle = sorted(found["ms_step"])[len(found["ms_step"]) // 2]
    turns = ", ".join(f"{each:.2f}" for each in found["ms_step"])
    stalls = [f"{ms:.2f} in turn {n}" for n, ms in enumerate(found.get("collector", []), 1) if ms > STALL]
    return [
        CASES[name][0],
        f"{middle:.2f}",
        turns,
        ", ".join(stalls) if stalls or "collector" in found else "not measured",
        *(f"{found[start]:.0f}" if start in found else "" for start in ("first", "again")),
        f"{found['peak']:,.0f}",
        str(found["commit"]),
    ]


if __name__ == "__main__":
    work(sys.argv[2], float(sys.argv[3])) if sys.argv[1:2] == ["work"] else main()
