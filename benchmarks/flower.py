"""What our own work costs on Flower: seconds of writing, reading, checking and keeping, as a share of a deployed round.

A ResNet-18 of 11 million parameters with SCAFFOLD, two nodes on this machine. Prints what it measures; takes minutes.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, TypeVar

import torch

from fedatoms import Experiment
from fedatoms.engine.loop import begin
from fedatoms.engine.remote import take_part
from fedatoms.engine.runtime import prepare
from fedatoms.experiment.identities import trajectory
from fedatoms.flower import Own, Task, wire
from fedatoms.flower.checks import check_answer
from fedatoms.flower.commands import Value
from fedatoms.flower.deploy import deployed
from fedatoms.flower.new_app import new
from fedatoms.flower.node import Kept, keep, kept_at
from fedatoms.flower.server_state import ServerState, order_for, take_in
from fedatoms.flower.task import server_simulation
from fedatoms.nn.models import build
from fedatoms.runs.rounds import read_rounds

NODES, ROUNDS = 2, 3
TASK = """
import torch
from fedatoms import Experiment
from fedatoms.flower import Own, Task
from fedatoms.nn.models import build

def data(partition, partitions):
    x = torch.rand(64, 3, 64, 64, generator=torch.Generator().manual_seed(partition))
    return Own(x, torch.arange(64) % 10, x[:4], torch.arange(4))

experiment = Experiment(dataset="own", model="own", threads=1)
task = Task(experiment, lambda: build("resnet18-gn", classes=10), data, 10, (3, 64, 64))
"""
P = ParamSpec("P")
T = TypeVar("T")


def own_work(folder: Path) -> dict[str, float]:
    """Passes a model to a node and back without Flower: median seconds of each part, training left out."""
    x, y = torch.rand(16, 3, 64, 64), torch.arange(16) % 10
    experiment = Experiment(
        dataset="own", model="own", clients=1, fraction=1.0, epochs=1, algorithm="scaffold", threads=1, device="cpu"
    )
    task = Task(
        experiment, lambda: build("resnet18-gn", classes=10), lambda i, n: Own(x, y, x[:4], y[:4]), 10, (3, 64, 64)
    )
    sim = server_simulation(task, experiment)
    runtime = prepare(replace(sim, data=sim.data._replace(x=x, y=y, parts=[torch.arange(16)])))
    known, spent = ServerState(begin(runtime), "run", trajectory(experiment)), dict[str, list[float]]()

    def timed(name: str, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        began = time.perf_counter()
        done = work(*given, **named)
        spent.setdefault(name, []).append(time.perf_counter() - began)
        return done

    for number in range(ROUNDS):
        order = timed("server writes an order", lambda known: wire.write_order(order_for(runtime, known, 0)), known)
        read = timed("node reads it", wire.read_order, order)
        done = take_part(runtime, known.state, 0)
        kept = Kept(dict(known.state.server.params), read.versions, done.row)
        timed("node keeps its state", keep, folder, number + 1, kept, before=number)
        timed("node reads its state", kept_at, folder, number + 1)
        sent = timed("node writes an answer", wire.write_answer, wire.Answer(read.round, 16, done.loss, done.upload))
        good = timed("server reads it", wire.read_answer, sent)
        checked = timed("server checks it", check_answer, runtime, known.state, good, most=16)
        known = timed("server averages", take_in, runtime, known, {0: checked})
    return {name: statistics.median(seconds) for name, seconds in spent.items()}


def deployed_round(folder: Path) -> float:
    """Returns the median seconds of a round on a SuperLink and two SuperNodes on this machine."""
    new(folder / "app")
    (folder / "app" / "federation" / "task.py").write_text(TASK)
    nodes: list[dict[str, Value]] = [
        {"partition-id": i, "num-partitions": NODES, "state-dir": str(folder / "state")} for i in range(NODES)
    ]
    config: dict[str, Value] = {"clients": NODES, "rounds": ROUNDS, "algorithm": "scaffold", "epochs": 1, "name": "it"}
    with deployed(folder / "deployment", nodes) as deployment:
        deployment.run(folder / "app", {**config, "out": str(folder / "runs")}, timeout=900)
    return statistics.median(float(row["seconds"] or 0) for row in read_rounds(folder / "runs" / "it"))


def main() -> None:
    """Measures both, and prints the share: all of a node's work, and the server's for each node."""
    with TemporaryDirectory() as name:
        parts, seconds = own_work(Path(name) / "own"), deployed_round(Path(name))
    for part, spent in parts.items():
        print(f"{part:28} {spent:6.2f} s")
    node = sum(spent for part, spent in parts.items() if part.startswith("node"))
    server = NODES * (sum(parts.values()) - node)
    print(f"of a round of {seconds:.1f} s: {node:.2f} s on each node, {server:.2f} s on the server, ", end="")
    print(f"{(node + server) / seconds:.1%}")


if __name__ == "__main__":
    main()
