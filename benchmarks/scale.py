"""What a round and a checkpoint cost by the number of clients, all of which have a state on disk.

1,000, 10,000 and 100,000 clients of ten images each, of which 100 train in every round; a checkpoint after each. Each
number and method is measured in a process of its own, after every client has been given a state. Prints a table and
writes benchmarks/results/scale.json; takes about ten minutes and a gigabyte of disk.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from torch import nn

from fedatoms.algorithms import scaffold
from fedatoms.data.federations import Federation
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.engine.training import Training
from fedatoms.nn.atoms import decompose
from fedatoms.personal import local_atoms
from fedatoms.runs.checkpoints import Checkpoints, load_checkpoint
from fedatoms.runs.provenance import provenance_of

CLIENTS = (1_000, 10_000, 100_000)
METHODS = ("scaffold", "local-atoms")
SAMPLED, IMAGES, POOL, ROUNDS, SEED = 100, 10, 10_000, 30, 0
RESULTS = Path(__file__).parent / "results" / "scale.json"


def federation_of(clients: int) -> Federation:
    """Makes clients that share a pool of images, so that the images themselves weigh the same for any number."""
    draws = torch.Generator().manual_seed(SEED)
    x, y = torch.rand(POOL, 1, 8, 8, generator=draws), torch.randint(10, (POOL,), generator=draws)
    rows = torch.randint(POOL, (clients, IMAGES), generator=draws)
    return Federation(x, y, list(rows), x[:100], y[:100], [torch.arange(100)] * clients, 10, None)


def simulation_of(method: str, data: Federation, folder: Path) -> Simulation:
    """Makes a simulation of a small network (754 parameters, 916 with atoms) whose clients have states in files."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        parts = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8, 10)]
        model = nn.Sequential(*parts)
    method_of = {"personal": local_atoms()} if method == "local-atoms" else {"algorithm": scaffold()}
    return Simulation(
        decompose(model, 9) if method == "local-atoms" else model,
        data,
        **method_of,
        training=Training(batch_size=IMAGES, lr=0.01),
        fraction=SAMPLED / len(data.parts),
        score=("server",),
        seed=SEED,
        client_state="disk",
        folder=folder,
    )


def with_states(runtime: Runtime, state: State) -> State:
    """Gives all clients the state that one has after a round, each in a file of its own."""
    after, _ = advance(runtime, state)
    row = after.clients.read(next(iter(after.clients.rows)))
    assert row is not None
    everyone = range(len(runtime.sim.data.parts))
    for first in everyone[:: len(everyone) // 10]:  # so that what is here for a while is not taken for the state
        some = everyone[first : first + len(everyone) // 10]
        kept = {client: after.clients.keep(client, row, after.round) for client in some}
        held = after.held.updated(dict.fromkeys(some, state.versions))
        after = after._replace(clients=after.clients.updated(kept, after.round), held=held)
    return after


def measure(method: str, clients: int) -> dict[str, float]:
    """Runs rounds with a checkpoint after each, and returns seconds, bytes and the peak above the data."""
    data = federation_of(clients)
    before = _status("VmRSS")
    with TemporaryDirectory() as name:
        folder = Path(name)
        runtime = prepare(simulation_of(method, data, folder / "clients"))
        state = with_states(runtime, begin(runtime))
        checkpoints = Checkpoints(folder, "scale")
        checkpoints.save(state, 0.0)
        _forget_peak()
        rounds, saves, written = list[Spent](), list[Spent](), list[int]()
        for _ in range(ROUNDS):
            with timed(rounds):
                state, _ = advance(runtime, state)
            already = _written()
            with timed(saves):
                checkpoints.save(state, 0.0)
            written.append(_written() - already)
        peak = _status("VmHWM") - before
        with timed(resumes := list[Spent]()):
            load_checkpoint(folder, runtime, trajectory="scale")
    return {
        "round, ms": 1e3 * statistics.median(one.seconds for one in rounds),
        "round, ms of the processor": 1e3 * statistics.median(one.processor for one in rounds),
        "checkpoint, ms": 1e3 * statistics.median(one.seconds for one in saves),
        "checkpoint, ms of the processor": 1e3 * statistics.median(one.processor for one in saves),
        "checkpoint, mean ms": 1e3 * statistics.mean(one.seconds for one in saves),
        "checkpoint, mean kB": statistics.mean(written) / 1e3,
        "peak above the data, MB": peak / 1e6,
        "resume, s": resumes[0].seconds,
    }


class Spent(NamedTuple):
    """Seconds by the clock, and those in which a processor worked: other programs disturb the first only."""

    seconds: float
    processor: float


@contextmanager
def timed(spent: list[Spent]) -> Iterator[None]:
    """Adds to a list what something takes."""
    began, at_work = time.perf_counter(), time.process_time()
    yield
    spent.append(Spent(time.perf_counter() - began, time.process_time() - at_work))


def _status(field: str) -> int:
    """Returns a number of bytes that Linux knows of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = next((line for line in lines if line.startswith(f"{field}:")), None)
    return 1024 * (int(found.split()[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _written() -> int:
    """Returns the bytes that this process has written so far."""
    return int(next(line for line in Path("/proc/self/io").read_text().splitlines() if "wchar" in line).split()[1])


def report() -> None:
    """Measures every method with every number of clients, prints a table and writes the file, whose past it keeps."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for method in METHODS:
        for clients in CLIENTS:
            words = [sys.executable, __file__, method, str(clients)]
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            found.setdefault(method, {})[str(clients)] = json.loads(done.stdout)
            print(method, clients, found[method][str(clients)], flush=True)
    about = {"sampled": SAMPLED, "images": IMAGES, "rounds": ROUNDS, "seed": SEED}
    past = {"before": json.loads(RESULTS.read_text())["before"]} if RESULTS.exists() else {}
    whole = {"settings": about, "source": provenance_of("cpu"), "measured": found, **past}
    RESULTS.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2])))) if len(sys.argv) > 1 else report()
