"""A last pass that would train nothing is refused before the first round, and not after all of them."""

import dataclasses
import sys
from pathlib import Path

import pytest

from fedatoms.cli import main
from fedatoms.engine.checks import check_last_pass
from fedatoms.engine.runtime import layout_of
from fedatoms.experiment.build import simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.personal import METHODS
from fedatoms.runs.execute import run

MINE = """
from torch import nn

from fedatoms.personal import Personal, Phase


def network(classes, affine=True):
    norm = nn.BatchNorm2d(4, affine=affine)
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, classes))


def still_norm(classes):
    return network(classes, affine=False)


def still_head(classes):
    model = network(classes)
    model[-1].requires_grad_(False)
    return model


def statistics(model, labels):
    return frozenset(name for name, group in labels.items() if group == "statistics")


def of_statistics():
    return Personal(final=statistics)


def own_phase():
    return Personal(statistics, phases=(Phase("own"), Phase("shared")))


def of_nothing():
    return Personal()


def typed_wrong():
    return Personal(final=lambda model, labels: frozenset({"0.wieght"}))
"""
TINY = Experiment(clients=5, rounds=2, epochs=1, batch_size=50, last_epochs=1, threads=1, device="cpu")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_parts.py").write_text(MINE)
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)


CASES = [
    ("my_parts:still_norm", "fedbn", r"nothing to train: .*\(1\.num_batches_tracked, .*\) is frozen, or statistics"),
    ("my_parts:still_head", "finetune-head", r"nothing to train: .*\(4\.bias, 4\.weight\) is frozen"),
    ("my_parts:still_norm", "my_parts:of_statistics", r"nothing to train: .*\(1\.num_batches_tracked"),
    ("my_parts:still_norm", "my_parts:of_nothing", r"nothing to train: .*\(nothing\)"),
    ("my_parts:still_norm", "my_parts:typed_wrong", r"names '0\.wieght', .* Did you mean '0.weight'"),
]


@pytest.mark.parametrize(("model", "method", "words"), CASES)
@pytest.mark.usefixtures("mine")
def test_a_last_pass_without_anything_to_train_is_refused_before_the_first_round(
    model: str, method: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = dataclasses.replace(TINY, model=model, personal=method)
    with pytest.raises(ValueError, match=words):
        simulation(experiment)
    flags = ["--rounds", "2", "--clients", "5", "--last-epochs", "1", "--threads", "1", "--device", "cpu"]
    assert main(["run", "--model", model, "--personal", method, *flags]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedatoms: ")]
    assert len(said) == 1 and not Path("runs").exists()


@pytest.mark.parametrize(("model", "method", "words"), CASES[:-1])
@pytest.mark.usefixtures("mine")
def test_without_a_last_pass_the_same_run_ends_and_writes_its_model(model: str, method: str, words: str) -> None:
    done = run(dataclasses.replace(TINY, model=model, personal=method, last_epochs=0))
    assert done.personal is not None and done.model_sha256


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("none", "pfedpara")])
def test_every_method_has_a_last_pass(name: str) -> None:
    norm = {"model": "resnet18-gn-small"} if name == "fedbn" else {"parametrisation": "atoms"}
    sim = simulation(dataclasses.replace(TINY, personal=name, **norm))
    check_last_pass(sim)
    part = (sim.personal.final or sim.personal.own)(sim.model, layout_of(sim).labels)
    for leaf, parameter in sim.model.named_parameters():
        parameter.requires_grad_(leaf not in part)
    with pytest.raises(ValueError, match="has nothing to train: "):
        check_last_pass(sim)


@pytest.mark.usefixtures("mine")
def test_an_own_phase_of_the_rounds_is_looked_at_too() -> None:
    with pytest.raises(ValueError, match="round 1 has nothing to train"):
        simulation(dataclasses.replace(TINY, model="my_parts:still_norm", personal="my_parts:own_phase", last_epochs=0))
