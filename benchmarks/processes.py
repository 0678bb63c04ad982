"""What several processes gain on one machine: milliseconds of a round, and of the sum that they make.

Writes benchmarks/results/processes.json; takes minutes. Each contestant runs in processes of its own, and they take
turns: compare them within one file only.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fedatoms.bench.line_up import lenet_clients
from fedatoms.core.files import replace_file
from fedatoms.engine.gloo import connected, place_of
from fedatoms.engine.loop import begin
from fedatoms.engine.peers import Peers
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.experiment.build import simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.runs.provenance import provenance_of

RESULT = Path(__file__).parent / "results" / "processes.json"
CONTESTANTS = ((1, 1), (1, 2), (2, 1))  # processes, and threads of each
NETWORKS: dict[str, Callable[[], Simulation]] = {
    "digits-cnn, 10 clients x 72 digits, 5 epochs": lambda: simulation(Experiment(device="cpu", score="server")),
    "LeNet, 10 clients x 100 images, 1 epoch of batches of 50": lambda: lenet_clients(10, 100, 10),
}
PARAMETERS = (10**5, 10**6, 10**7)
TURNS, ROUNDS = 3, 2


def main() -> None:
    """Lets the contestants take turns, and writes their medians."""
    load = os.getloadavg()[0]
    turns = [{_named(each): _started(*each) for each in CONTESTANTS} for _ in range(TURNS)]
    rounds = [
        {"network": network, "processes": size, "threads": threads, **_summary(turns, (size, threads), network)}
        for network in NETWORKS
        for size, threads in CONTESTANTS
    ]
    sums = [{"parameters": count, "bytes": 8 * count, **_summary(turns, (2, 1), str(count))} for count in PARAMETERS]
    found = {"load when it began": load, "turns": TURNS, "rounds": rounds, "sums of two processes": sums}
    written = {**found, "provenance": provenance_of("cpu")}
    replace_file(RESULT, (json.dumps(written, indent=2) + "\n").encode())
    print(json.dumps(found, indent=2))


def work() -> None:
    """Measures in one of the processes; process 0 prints milliseconds by what was measured."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    with connected(place_of(os.environ)) as (peers, _):
        found = {name: _rounds(make(), peers) for name, make in NETWORKS.items()}
        if peers.size > 1:
            found |= {str(count): _sums(count, peers) for count in PARAMETERS}
    if peers.rank == 0:
        print(json.dumps(found))


def _rounds(sim: Simulation, peers: Peers) -> float:
    runtime = prepare(sim, peers=peers)
    state, spent = begin(runtime), []
    for _ in range(ROUNDS + 1):
        state, record = advance(runtime, state)
        spent.append(1000 * record.seconds)
    return statistics.median(spent[1:])  # the first is a warm-up


def _sums(count: int, peers: Peers) -> float:
    here, spent = torch.ones(count, dtype=torch.float64), []
    for _ in range(6):
        began = time.perf_counter()
        peers.add(here)
        spent.append(1000 * (time.perf_counter() - began))
    return statistics.median(spent[1:])


def _started(size: int, threads: int) -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    at = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": str(threads)}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "work"],
            env={**os.environ, **at, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    said = [each.communicate()[0] for each in started]
    print(f"{size} x {threads}", said[0].strip(), file=sys.stderr)
    if any(each.returncode for each in started):
        raise RuntimeError("a process failed: see above")
    found: dict[str, float] = json.loads(said[0])
    return found


def _summary(turns: list[dict[str, dict[str, float]]], contestant: tuple[int, int], what: str) -> dict[str, object]:
    every = [turn[_named(contestant)][what] for turn in turns]
    return {"ms": round(statistics.median(every), 2), "ms of each turn": [round(each, 2) for each in every]}


def _named(contestant: tuple[int, int]) -> str:
    size, threads = contestant
    return f"{size} x {threads}"


if __name__ == "__main__":
    work() if sys.argv[1:] == ["work"] else main()
