"""A measure as a file: its experiments, settings, values and provenance."""

import json
from dataclasses import dataclass
from pathlib import Path

from fedatoms.core.files import replace_file, strict_json
from fedatoms.core.lookup import one_line
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
    content = json.dumps(fields, indent=1, allow_nan=False)  # fails before anything is written
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
        fields = strict_json(path.read_text())
        if not isinstance(fields, dict) or fields.get("format") != FORMAT:
            raise ValueError(f"it does not say {FORMAT!r}")
        measure = Measure(
            name=fields["name"],
            experiments=tuple(_experiment(one) for one in fields["experiments"]),
            settings=fields["settings"],
            values=fields["values"],
            provenance=fields["provenance"],
        )
        if not isinstance(measure.name, str):
            raise ValueError("its name is not a text")
        if not all(isinstance(part, dict) for part in (measure.settings, measure.values, measure.provenance)):
            raise ValueError("its settings, values or provenance are not objects")
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else one_line(error)
        raise ValueError(f"{path} is not a measure, or is damaged: {why}. Measure again, or delete it.") from error
    return measure


def _experiment(fields: object) -> Experiment:
    if not isinstance(fields, dict):
        raise ValueError("one of its experiments is not an object")
    experiment = from_json(fields)
    check(experiment)
    return experiment
