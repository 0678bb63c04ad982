"""Two dozen kinds of hostile answers on a deployed federation: each refused with its line, and none averaged."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from safetensors.torch import load_file
from support.deployed_app import SMALL, node_configs, write_app
from support.flower_grid import App, on_flower
from support.lies import DEPLOYED, HONEST, lie_of
from support.small import identical

from fedatoms.flower import built_in
from fedatoms.flower.deploy import deployed
from fedatoms.runs.rounds import read_rounds

LIARS = 4
EXPERIMENT = replace(
    SMALL, clients=HONEST + LIARS, rounds=len(DEPLOYED) // LIARS, algorithm="scaffold", parametrisation="atoms"
)
CLIENT = """
from fedatoms.flower import client_app
from federation.task import task
from support.lies import lying

app = client_app(task, mods=[lying])
"""


def silent(client: int, message: Message, app: App) -> Message | None:
    return app(message) if client < HONEST or message.metadata.message_type == "query" else None


@pytest.mark.federation
def test_each_of_two_dozen_hostile_answers_is_refused_with_its_line_and_none_is_averaged(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", EXPERIMENT)
    (app / "federation" / "client_app.py").write_text(CLIENT)
    env = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with deployed(tmp_path / "deployment", node_configs(tmp_path, EXPERIMENT.clients), env=env) as deployment:
        config = {"out": str(tmp_path / "runs"), "rounds": EXPERIMENT.rounds, "wait": 300.0}
        lines = deployment.run(app, config, timeout=1800)
    for number in range(EXPERIMENT.rounds):
        for client in range(HONEST, EXPERIMENT.clients):
            name = lie_of(client, number, LIARS)
            about = [line for line in lines if f"round {number + 1}: " in line and f"client {client} (node" in line]
            assert any(DEPLOYED[name] in line for line in about), (name, about)
    rows = read_rounds(tmp_path / "runs" / "it")
    assert [(row["clients"], row["failed"]) for row in rows] == [(HONEST, LIARS)] * EXPERIMENT.rounds
    on_flower(EXPERIMENT, tmp_path / "silent", silent, task=built_in(EXPERIMENT))
    models = [folder / "model.safetensors" for folder in (tmp_path / "runs" / "it", tmp_path / "silent/runs/it")]
    assert identical(*map(load_file, models))
