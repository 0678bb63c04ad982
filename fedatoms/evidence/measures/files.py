"""A measure as a file: its experiments, settings, values and provenance."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from fedatoms.core.files import replace_file
from fedatoms.core.lookup import one_line
from fedatoms.core.records import fit, read_record, sealed
from fedatoms.core.version import __version__
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import from_json, without_paths

Values = dict[str, object]
FILE = "measure.json"
FORMAT = "fedatoms measure 1"


@dataclass(frozen=True)
class Measure:
    """A measure: its experiments, settings, values and provenance."""

    name: str
    experiments: tuple[Experiment, ...]
    settings: Values
    values: Values
    provenance: dict[str, object]


def write_measure(folder: Path, measure: Measure) -> Path:
    """Writes ``measure.json`` to a folder, atomically and without paths of this machine."""
    fields = {
        "format": FORMAT,
        "fedatoms": __version__,
        "name": measure.name,
        "experiments": [without_paths(one) for one in measure.experiments],
        "settings": measure.settings,
        "values": measure.values,
        "provenance": measure.provenance,
    }
    content = json.dumps(sealed(fields), indent=1, allow_nan=False)  # fails before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / FILE, (content + "\n").encode())
    return folder / FILE


def read_measure(folder: Path | str) -> Measure:
    """Reads what ``write_measure`` wrote; refuses anything else with one line that names the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_measure(Path(folder), Measure("training_loss", (), {"rounds": 1}, {"lines": [[2.0, 1.5]]}, {}))
    ...     read_measure(folder).values
    {'lines': [[2.0, 1.5]]}
    """
    path = Path(folder) / FILE
    try:
        found = fit(read_record(path, "it"), _File, "")
        experiments = tuple(_experiment(one) for one in found["experiments"])
    except (ValueError, OSError) as error:
        what = f"{path} is not a measure, or is damaged: {one_line(error)}"
        raise ValueError(f"{what}. Measure again, or delete it.") from error
    return Measure(found["name"], experiments, found["settings"], found["values"], found["provenance"])


class _File(TypedDict):
    format: Literal["fedatoms measure 1"]
    name: str
    experiments: list[Values]
    settings: Values
    values: Values
    provenance: Values


def _experiment(fields: Values) -> Experiment:
    experiment = from_json(fields)
    check(experiment)
    return experiment
