"""The results of real runs in paper-results: a folder holds what its name says."""

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT
from support.results import a_measure, an_explanation

from fedatoms.core.run_files import EXPERIMENT
from fedatoms.evidence.explain import files as explanations
from fedatoms.evidence.measures.files import read_measure
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity
from fedatoms.experiment.presets import PRESETS
from fedatoms.runs.results import read_result

RUNS = ROOT / "paper-results"
SMALL = 60_000  # bytes of a folder, without those in it
FOLDERS = sorted(path.parent for path in RUNS.rglob("result.json"))
REAL = [name for name, experiment in PRESETS.items() if experiment.dataset != "digits"]
OF_PARENT: dict[str, dict[str, object]] = {
    "atoms-lr-2": {"atoms_lr": 2.0},
    "controls": {"controls": "current"},
    "momentum-0.5": {"momentum": 0.5},
    "fedpac": {  # the network and the steps of FedPAC's code
        "model": "fedpac-cnn",
        "batch_size": 50,
        "epochs": 5,
        "lr": 0.02,
        "momentum": 0.5,
        "weight_decay": 0.0005,
        "clip": 0.0,
        "eval_every": 10,
    },
    "orthonormal": {"init": "orthonormal"},
    "own": {"rounds": 20, "eval_every": 10},
}


def said_by(suffix: str) -> dict[str, object]:
    """Reads what the end of a folder's name says of its run."""
    fields: dict[str, object] = {}
    for word, number in re.findall(r"-(sampled-|beta-|dirichlet-|iid|s|m)([\d.]*)", suffix):
        fields |= {
            "sampled-": lambda n: {"fraction": int(n) / 100, "rounds": 200},
            "beta-": lambda n: {"beta": f"1/{n}"},
            "dirichlet-": lambda n: {"partition": "dirichlet", "dirichlet": float(n)},
            "iid": lambda n: {"partition": "iid"},
            "s": lambda n: {"seed": int(n)},
            "m": lambda n: {"atoms": int(n)},
        }[word](number)
    return fields


def named(folder: Path) -> Experiment | None:
    """Returns the experiment that a folder's name says, if it begins with a preset's."""
    stems = [name for name in REAL if folder.name == name or folder.name.startswith(f"{name}-")]
    if not stems:
        return None
    stem = max(stems, key=len)
    fields = {**OF_PARENT.get(folder.parent.name, {}), **said_by(folder.name.removeprefix(stem))}
    return replace(PRESETS[stem], **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.relative_to(RUNS).as_posix())
def test_no_folder_differs_from_its_preset(folder: Path) -> None:
    if (wanted := named(folder)) is not None:
        assert identity(read_result(folder).experiment) == identity(wanted)


def test_no_result_tells_where_it_was_made() -> None:
    """A result has its experiment without paths; that of a run's folder, by which it is resumed, has them."""
    assert not [*RUNS.rglob(EXPERIMENT)]
    told = {text for path in RUNS.rglob("*.json") for text in _texts(json.loads(path.read_text()))}
    assert not {text for text in told if re.search(r"(^|[\s'\"=:])/\w+/", text)}


def test_every_folder_is_small() -> None:
    sizes = {path.parent: 0 for path in RUNS.rglob("*.json")}
    for folder in sizes:
        sizes[folder] = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    assert not {folder: size for folder, size in sizes.items() if size >= SMALL}


def test_what_is_made_small_reads_the_same_to_nine_digits_and_does_not_change_again(tmp_path: Path) -> None:
    a_measure(tmp_path / "measure")
    path = an_explanation(tmp_path / "why", with_latent=60.1234567890123)
    shorten = runpy.run_path(str(RUNS / "thin.py"))["shorten"]
    measure, explained = read_measure(tmp_path / "measure"), explanations.read(path)
    for each in (files := [tmp_path / "measure" / "measure.json", path]):
        shorten(each)
    assert read_measure(tmp_path / "measure").experiments == measure.experiments
    short = explanations.read(path)
    assert short.rounds[0].aggregates.on.accuracy == 60.1234568
    assert replace(short, rounds=explained.rounds) == explained
    before = [each.read_bytes() for each in files]
    for each in files:
        shorten(each)
    assert [each.read_bytes() for each in files] == before


def _texts(value: object) -> list[str]:
    if isinstance(value, dict | list):
        return [text for each in (value.values() if isinstance(value, dict) else value) for text in _texts(each)]
    return [value] if isinstance(value, str) else []


def test_only_searches_and_controls_have_names_of_their_own() -> None:
    others = {folder.relative_to(RUNS).parts[0] for folder in FOLDERS if named(folder) is None}
    assert others <= {"search", "search-300", "search-personal", "search-start", "tiny", "variants", "communication"}
