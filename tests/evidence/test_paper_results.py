"""The results of real runs in paper-results: a folder holds what its name says."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT

from fedatoms.core.run_files import EXPERIMENT, RESULT
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity
from fedatoms.experiment.presets import PRESETS
from fedatoms.runs.results import read_result

RUNS = ROOT / "paper-results"
FOLDERS = sorted(path.parent for path in RUNS.rglob("result.json"))
REAL = [name for name, experiment in PRESETS.items() if experiment.dataset != "digits"]
OF_PARENT: dict[str, dict[str, object]] = {
    "atoms-lr-2": {"atoms_lr": 2.0},
    "controls": {"controls": "current"},
    "momentum-0.5": {"momentum": 0.5},
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
    told = {value for folder in FOLDERS for value in _texts(json.loads((folder / RESULT).read_text()))}
    assert not {text for text in told if Path(text).is_absolute()}


def _texts(value: object) -> list[str]:
    if isinstance(value, dict | list):
        return [text for each in (value.values() if isinstance(value, dict) else value) for text in _texts(each)]
    return [value] if isinstance(value, str) else []


def test_only_searches_and_controls_have_names_of_their_own() -> None:
    others = {folder.relative_to(RUNS).parts[0] for folder in FOLDERS if named(folder) is None}
    assert others <= {"search", "search-300", "search-personal", "search-start", "tiny", "variants", "communication"}
