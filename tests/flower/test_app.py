"""An app that `fedatoms flower new` writes has all settings, and one that 0.1.0 wrote runs as it is."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support import ROOT

pytest.importorskip("flwr")

from fedatoms.experiment.fields import Experiment
from fedatoms.flower.new_app import new
from fedatoms.flower.task import Settings, built_in, configured

FILES = {
    "__init__.py": '"""A federation with filter atoms, on Flower."""\n',
    "client_app.py": """
from fedatoms.flower import client_app
from federation.task import task

app = client_app(task)
""",
    "server_app.py": """
from fedatoms.flower import server_app
from federation.task import task

app = server_app(task)
""",
    "task.py": """
from torch import Tensor, nn

from fedatoms import Experiment
from fedatoms.data.datasets import load
from fedatoms.flower import Own, Task


def model() -> nn.Module:
    features = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
    return nn.Sequential(features, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))


def data(partition: int, partitions: int) -> Own:
    (x, y), (test_x, test_y) = train_images(), test_images()
    mine, tested = y % partitions == partition, test_y % partitions == partition
    return Own(x[mine], y[mine], test_x[tested], test_y[tested])


def train_images() -> tuple[Tensor, Tensor]:
    digits = load("digits")
    return digits.x / 16, digits.y


def test_images() -> tuple[Tensor, Tensor]:
    digits = load("digits")
    return digits.test_x / 16, digits.test_y


task = Task(Experiment(dataset="own", model="own"), model, data, classes=10, shape=(1, 8, 8), test=test_images)
""",
}
CONFIG = """
algorithm = "fedavg"
parametrisation = "atoms"
atoms = 9
personal = "none"
beta = "1"
clients = 3
fraction = 1.0
rounds = 3
epochs = 2
batch-size = 16
lr = 0.1
lr-decay = 0.998
momentum = 0.0
weight-decay = 0.001
eval-every = 1
last-epochs = 10
seed = 0
name = ""
out = "runs"
min-train-nodes = 1
timeout = 600.0
wait = 60.0
max-examples = 10000000
far = 10.0
aggregation = "mean"
resume = false
node-keys = "auto"
free = ""
state-dir = ""
"""
ONE_ROUND = """
from dataclasses import replace
from pathlib import Path

from federation.client_app import app
from federation.server_app import app as server
from federation.task import task
from support.flower_grid import on_flower

experiment = replace(task.experiment, parametrisation="atoms", clients=3, rounds=1, epochs=1, threads=1)
on_flower(experiment, Path("."), task=task, app=app)
"""


@pytest.mark.slow
def test_an_app_of_0_1_0_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "federation").mkdir()
    for name, text in FILES.items():
        (tmp_path / "federation" / name).write_text(text)
    path = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "tests")))
    command = [sys.executable, "-c", ONE_ROUND]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "it" / "result.json").exists()


def test_a_new_app_has_every_setting_and_the_threads_of_a_node_so_that_one_run_can_change_them(tmp_path: Path) -> None:
    new(tmp_path / "app")
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert {*(name.replace("_", "-") for name in Settings._fields), "threads"} <= config.keys()
    experiment, settings = configured(built_in(Experiment(clients=3, partition="iid")), config)
    assert settings == Settings(timeout=600.0, wait=60.0) and experiment.threads == 0


def test_the_config_of_an_app_of_0_1_0_is_understood() -> None:
    experiment, settings = configured(built_in(Experiment(clients=5)), tomllib.loads(CONFIG))
    assert experiment.epochs == 2 and settings.wait == 60.0
