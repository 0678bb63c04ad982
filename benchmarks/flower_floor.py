"""What a deployed round costs before anything is learnt: Flower with an empty client, one that imports torch, and ours.

Two nodes on this machine, the digits, one thread. Ours runs on Flower's SuperNodes and on those of ``fedatoms flower
supernode``, which keep torch loaded. All take turns, so that a busy machine is busy for all of them. Prints the median
seconds of a round of each, and what depends less on what else the machine does: the processor time of the process that
a message to a node starts, and that of SuperLink and SuperNodes in a round. Takes minutes.
"""

import os
import statistics
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fedatoms.flower.commands import Value
from fedatoms.flower.deploy import Deployment, deployed
from fedatoms.flower.new_app import new
from fedatoms.flower.processes import marked
from fedatoms.runs.rounds import read_rounds

NODES, ROUNDS, TURNS = 2, 4, 2
APPS = ("flwr-clientapp", "flwr-serverapp")
PROJECT = """
[project]
name = "floor"
version = "1.0.0"
description = "A client that does nothing"
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "fedatoms"

[tool.flwr.app.components]
serverapp = "floor.server:app"
clientapp = "floor.client:app"

[tool.flwr.app.config]
rounds = 1
torch = false
"""
CLIENT = """
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    if context.run_config["torch"]:
        import torch
    return Message(RecordDict(), reply_to=message)
"""
CLOCK = """
import atexit, time
atexit.register(lambda: print(time.process_time(), file=open("{path}", "a")))
"""
SERVER = """
import time

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

from fedatoms.flower.membership import ask

app = ServerApp()


@app.main()
def main(grid, context):
    for _ in range(context.run_config["rounds"]):
        began = time.perf_counter()
        orders = [Message(RecordDict(), node, MessageType.TRAIN) for node in grid.get_node_ids()]
        assert len(ask(grid, orders, 600)) == len(orders)
        print(f"seconds: {time.perf_counter() - began}", flush=True)
"""


def write_floor(folder: Path) -> Path:
    """Writes an app whose clients answer at once."""
    (folder / "floor").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    for name, text in {"__init__": "", "client": CLIENT, "server": SERVER}.items():
        (folder / "floor" / f"{name}.py").write_text(text)
    return folder


def clocked(module: Path, path: Path) -> None:
    """Lets the process of a client write its processor time when it ends."""
    module.write_text(CLOCK.format(path=path) + module.read_text())


def taken(path: Path) -> float:
    """Returns the median of what ``clocked`` wrote, and forgets it."""
    seconds = [float(line) for line in path.read_text().split()]
    path.unlink()
    return statistics.median(seconds)


class Kind(NamedTuple):
    """What takes its turn: a name, where it runs, its app, and what its rounds are."""

    name: str
    deployment: Deployment
    app: Path
    rounds: Callable[[Deployment, Path], list[float]]


class Found(NamedTuple):
    """Seconds of each round, and processor seconds of a message's process and, in a round, of Flower's services."""

    rounds: list[float]
    message: float
    services: float


def services(deployment: Deployment) -> float:
    """Returns the processor seconds of SuperLink and SuperNodes so far, without those of apps."""
    marks = [deployment.mark(part) for part in deployment.parts]
    apps = {process for mark in marks for word in APPS for process in marked(mark, word)}
    found = 0.0
    for process in {process for mark in marks for process in marked(mark)} - apps:
        with suppress(OSError):  # it has just ended
            numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            found += (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")  # user, system
    return found


def floor(deployment: Deployment, app: Path, *, torch: bool) -> list[float]:
    """Returns the seconds of rounds of an empty client."""
    lines = deployment.run(app, {"rounds": ROUNDS, "torch": torch}, timeout=900)
    return [float(line.rpartition("seconds: ")[2]) for line in lines if "seconds: " in line]


def ours(deployment: Deployment, app: Path) -> list[float]:
    """Returns the seconds of rounds of the template; the first also asks the nodes who they are."""
    name, out = uuid.uuid4().hex, deployment.folder / "runs"
    config: dict[str, Value] = {"clients": NODES, "rounds": ROUNDS, "epochs": 1, "threads": 1, "name": name}
    deployment.run(app, {**config, "out": str(out), "wait": 300.0}, timeout=900)
    return [float(row["seconds"] or 0) for row in read_rounds(out / name)]


def turn(kind: Kind, clock: Path) -> Found:
    """Lets one run."""
    before = services(kind.deployment)
    rounds = kind.rounds(kind.deployment, kind.app)
    return Found(rounds[1:], taken(clock), (services(kind.deployment) - before) / len(rounds))


def table(found: Mapping[str, Sequence[Found]]) -> str:
    """Writes what was found as the table of docs/federation.md."""
    lines = [
        "| client | seconds of a round, median (range) | processor seconds of a message | and of Flower's services |",
        "|---|---|---|---|",
    ]
    for name, turns in found.items():
        rounds = [second for each in turns for second in each.rounds]
        message, rest = (statistics.mean(column) for column in list(zip(*turns, strict=True))[1:])
        span = f"{statistics.median(rounds):.1f} ({min(rounds):.1f} to {max(rounds):.1f})"
        lines.append(f"| {name} | {span} | {message:.2f} | {rest:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Lets all take turns."""
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        empty, app, clock = write_floor(folder / "empty"), folder / "app", folder / "clock"
        new(app)
        for module in (empty / "floor" / "client.py", app / "federation" / "client_app.py"):
            clocked(module, clock)
        nodes: list[dict[str, Value]] = [
            {"partition-id": i, "num-partitions": NODES, "state-dir": str(folder / "state")} for i in range(NODES)
        ]
        cold, warm = (
            stack.enter_context(deployed(folder / f"deployment-{warm}", nodes, warm=warm)) for warm in (False, True)
        )
        kinds = (
            Kind("Flower, empty", cold, empty, partial(floor, torch=False)),
            Kind("Flower, imports torch", cold, empty, partial(floor, torch=True)),
            Kind("fedatoms, digits", cold, app, ours),
            Kind("fedatoms, digits, on nodes that keep torch loaded", warm, app, ours),
        )
        found = {kind.name: list[Found]() for kind in kinds}
        for _ in range(TURNS):
            for kind in kinds:
                found[kind.name].append(turn(kind, clock))
    print(table(found))
    print(f"{os.getloadavg()[1]:.1f} processes wanted a core on average in the last five minutes")


if __name__ == "__main__":
    main()
