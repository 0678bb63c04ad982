"""What a deployed round costs before anything is learnt: Flower with an empty client, one that imports torch, and ours.

Two nodes on this machine, the digits, one thread. The three take turns on one deployment, so that a busy machine is
busy for all of them. Prints the median seconds of a round of each, and of processor time of the process that a message
to a node starts, which depends less on what else the machine does; takes minutes.
"""

import os
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

from fedatoms.flower.commands import Value
from fedatoms.flower.deploy import Deployment, deployed
from fedatoms.flower.new_app import new
from fedatoms.runs.rounds import read_rounds

NODES, ROUNDS, TURNS = 2, 4, 2
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


def floor(deployment: Deployment, app: Path, *, torch: bool) -> list[float]:
    """Returns the seconds of rounds of an empty client."""
    lines = deployment.run(app, {"rounds": ROUNDS, "torch": torch}, timeout=900)
    return [float(line.rpartition("seconds: ")[2]) for line in lines if "seconds: " in line]


def ours(deployment: Deployment, app: Path, out: Path, name: str) -> list[float]:
    """Returns the seconds of rounds of the template; the first also asks the nodes who they are."""
    config: dict[str, Value] = {"clients": NODES, "rounds": ROUNDS, "epochs": 1, "threads": 1, "name": name}
    deployment.run(app, {**config, "out": str(out), "wait": 300.0}, timeout=900)
    return [float(row["seconds"] or 0) for row in read_rounds(out / name)]


def main() -> None:
    """Lets the three take turns."""
    kinds = ("Flower, empty client", "Flower, imports torch", "fedatoms, digits")
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    busy: dict[str, list[float]] = {kind: [] for kind in kinds}
    with TemporaryDirectory() as name:
        folder = Path(name)
        empty, app = write_floor(folder / "empty"), folder / "app"
        new(app)
        clock = folder / "clock"
        for module in (empty / "floor" / "client.py", app / "federation" / "client_app.py"):
            clocked(module, clock)
        nodes: list[dict[str, Value]] = [
            {"partition-id": i, "num-partitions": NODES, "state-dir": str(folder / "state")} for i in range(NODES)
        ]
        with deployed(folder / "deployment", nodes) as deployment:
            for turn in range(TURNS):
                for kind, torch in ((kinds[0], False), (kinds[1], True)):
                    found[kind] += floor(deployment, empty, torch=torch)[1:]
                    busy[kind].append(taken(clock))
                found[kinds[2]] += ours(deployment, app, folder / "runs", f"turn-{turn}")[1:]
                busy[kinds[2]].append(taken(clock))
    for kind, seconds in found.items():
        each = ", ".join(f"{second:.1f}" for second in seconds)
        processor = statistics.mean(busy[kind])
        print(
            f"{kind:22} {statistics.median(seconds):6.1f} s a round ({each}), {processor:.2f} s of processor a message"
        )
    print(f"{os.getloadavg()[1]:.1f} processes wanted a core on average in the last five minutes")


if __name__ == "__main__":
    main()
