"""What a deployed round costs before anything is learnt: Flower with an empty client, one that imports torch, and ours.

Two nodes on this machine, the digits, one thread. The three take turns on one deployment, so that a busy machine is
busy for all of them. Prints the median seconds of a round of each; takes minutes.
"""

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
    found: dict[str, list[float]] = {"Flower, empty client": [], "Flower, imports torch": [], "fedatoms, digits": []}
    with TemporaryDirectory() as name:
        folder = Path(name)
        empty, app = write_floor(folder / "empty"), folder / "app"
        new(app)
        nodes: list[dict[str, Value]] = [
            {"partition-id": i, "num-partitions": NODES, "state-dir": str(folder / "state")} for i in range(NODES)
        ]
        with deployed(folder / "deployment", nodes) as deployment:
            for turn in range(TURNS):
                found["Flower, empty client"] += floor(deployment, empty, torch=False)[1:]
                found["Flower, imports torch"] += floor(deployment, empty, torch=True)[1:]
                found["fedatoms, digits"] += ours(deployment, app, folder / "runs", f"turn-{turn}")[1:]
    for kind, seconds in found.items():
        each = ", ".join(f"{second:.1f}" for second in seconds)
        print(f"{kind:22} {statistics.median(seconds):6.1f} s a round ({each})")


if __name__ == "__main__":
    main()
