"""A measure as a file: what was measured of which experiments, with which settings, and what came out."""

import json
import math
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
    """What was measured: of which experiments, with which settings, the values, and where they come from."""

    name: str
    experiments: tuple[Experiment, ...]
    settings: Values
    values: Values
    provenance: dict[str, object]


def write_measure(folder: Path, measure: Measure) -> Path:
    """Writes a measure to ``measure.json`` in a folder, in one step; machine paths stay out."""
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
    """Reads what ``write_measure`` wrote; anything else is refused with one line that names the file."""
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
        said = f"{error} is missing" if isinstance(error, KeyError) else one_line(error)
        raise ValueError(f"{path} is not a measure, or is damaged: {said}. Measure again, or take it away.") from error
    return measure


def numbers(values: object) -> list[float]:
    """Returns a list of finite numbers, or says that it is none.

    >>> numbers([1, 0.5])
    [1, 0.5]
    >>> numbers(["1"])
    Traceback (most recent call last):
    ...
    ValueError: ['1'] is not a list of numbers
    """
    if isinstance(values, list) and all(type(one) in (int, float) and math.isfinite(one) for one in values):
        return values
    raise ValueError(f"{str(values)[:40]} is not a list of numbers")


def objects(values: object) -> list[Values]:
    """Returns a list of objects, or says that it is none.

    >>> objects([{"raw": [1.0]}])
    [{'raw': [1.0]}]
    """
    return [object_of(value) for value in list_of(values)]


def object_of(value: object) -> Values:
    """Returns an object, or says that it is none.

    >>> object_of({"raw": [1.0]})
    {'raw': [1.0]}
    """
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:40]} is not an object")
    return value


def list_of(value: object) -> list[object]:
    """Returns a list, or says that it is none.

    >>> list_of([1.0])
    [1.0]
    """
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:40]} is not a list")
    return value


def _experiment(fields: object) -> Experiment:
    if not isinstance(fields, dict):
        raise ValueError("an experiment of it is not an object")
    experiment = from_json(fields)
    check(experiment)
    return experiment
