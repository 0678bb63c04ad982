"""A Flower app that is one of the simulator's experiments, and what the simulator makes of it."""

import re
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from fedatoms.core.trees import Params
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.experiment.build import configure, simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.flower.commands import Value
from fedatoms.flower.new_app import new
from fedatoms.runs.rounds import read_rounds

SMALL = Experiment(
    partition="dirichlet",
    own_test="classes",
    fraction=1.0,
    epochs=1,
    batch_size=30,
    rounds=3,
    last_epochs=0,
    threads=1,
    device="cpu",
)

PROJECT = """
[project]
name = "NAME"
version = "1.0.0"
description = "An app without torch"
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "fedatoms"

[tool.flwr.app.components]
serverapp = "NAME.server:app"
clientapp = "NAME.client:app"

[tool.flwr.app.config]
"""


def light_app(folder: Path, name: str, client: str, server: str, config: str = "") -> Path:
    """Writes an app of two modules, for deployments that need no learning."""
    (folder / name).mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT.replace("NAME", name) + config)
    for module, text in {"__init__": "", "client": client, "server": server}.items():
        (folder / name / f"{module}.py").write_text(text)
    return folder


def write_app(folder: Path, experiment: Experiment) -> Path:
    """Writes the template with another task: the built-in one of an experiment."""
    new(folder)
    task = f"from fedatoms import Experiment\nfrom fedatoms.flower import built_in\n\ntask = built_in({experiment!r})\n"
    (folder / "federation" / "task.py").write_text(task)
    project = folder / "pyproject.toml"
    words = 'rounds = 3\nname = "it"\nout = "runs"\nmin-train-nodes = 1\ntimeout = 600.0\nresume = false\n'
    words += 'wait = 60.0\nfree = ""\nstate-dir = ""\n'
    project.write_text(re.sub(r"(?s)(\[tool.flwr.app.config\]\n).*", rf"\1{words}", project.read_text()))
    return folder


def node_configs(folder: Path, count: int) -> list[dict[str, Value]]:
    return [{"partition-id": i, "num-partitions": count, "state-dir": str(folder / "state")} for i in range(count)]


def simulated(experiment: Experiment) -> Params:
    """Returns the server's model after all rounds in the simulator."""
    configure(experiment)
    sim = simulation(replace(experiment, map="one_by_one"))
    state = begin(prepare(sim))
    for _ in range(experiment.rounds):
        state, _ = advance(prepare(sim), state)
    return dict(state.server.params)


def is_the_simulators(run: Path, experiment: Experiment) -> bool:
    """Says whether a run on Flower has the simulator's model, bit for bit, and each round once."""
    ours, theirs = load_file(run / "model.safetensors"), simulated(experiment)
    rounds = [row["round"] for row in read_rounds(run)]
    same = ours.keys() == theirs.keys() and all(torch.equal(leaf, theirs[name]) for name, leaf in ours.items())
    return same and rounds == list(range(experiment.rounds))
