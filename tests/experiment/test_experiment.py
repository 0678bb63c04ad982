"""An experiment is text and numbers: its files give it back, its identity never changes, and presets are sound."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from fedatoms.algorithms import ALGORITHMS
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import from_json, to_json
from fedatoms.experiment.identities import identity, run_name
from fedatoms.experiment.presets import PRESETS, preset
from fedatoms.nn.models import MODELS
from fedatoms.personal import METHODS


def test_experiments_survive_their_files() -> None:
    experiment = Experiment(beta=0.2, strength=0.1, name="x")
    again = from_json(json.loads(json.dumps(to_json(experiment))))
    assert identity(again) == identity(experiment) and run_name(again) == "x"
    assert identity(Experiment(beta="1/5")) == identity(Experiment(beta=0.2)) != identity(Experiment())


@pytest.mark.parametrize("name", [field.name for field in fields(Experiment) if "float" in str(field.type)])
def test_a_whole_number_is_the_float_that_a_file_gives_back(name: str) -> None:
    whole, point = Experiment(**{name: 1}), Experiment(**{name: 1.0})  # type: ignore[arg-type]
    again = from_json(json.loads(json.dumps(to_json(whole))))
    assert identity(whole) == identity(point) == identity(again)
    assert run_name(whole) == run_name(point) == run_name(again)


def test_identities_never_change() -> None:
    """They name results that are stored; only a preset that gets other values gets another line in the file."""
    known = json.loads((Path(__file__).parent / "identities.json").read_text())
    assert {name: identity(preset) for name, preset in PRESETS.items()} == known["presets"]
    others = {
        "lists": Experiment(fast="atoms, head", score="all,server", fixed="head", beta=0.2),
        "personal": Experiment(personal="ditto", personal_strength=0.5, parametrisation="pfedpara"),
    }
    assert {name: identity(one) for name, one in others.items()} == known["others"]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_what_there_is(name: str) -> None:
    experiment = PRESETS[name]
    check(experiment)
    assert experiment.personal in METHODS and experiment.algorithm in ALGORITHMS and experiment.model in MODELS
    assert ("-personal-" in name) == (experiment.personal != "none")


@pytest.mark.parametrize("name", [None, 3, ""])
def test_a_preset_of_no_name_is_answered_with_names(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^unknown preset '{name}'\. Did you mean .*`fedatoms presets` lists all\.$"):
        preset(name)
