"""An explanation as a file, `explain.json`: all measurements, and the findings in sentences."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import TypeVar, cast, get_args, get_origin, get_type_hints

from fedatoms.core.files import replace_file, strict_json
from fedatoms.core.lookup import one_line
from fedatoms.evidence.explain.latent import Latent
from fedatoms.evidence.explain.values import Explanation
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import PATH_FIELDS, Experiment
from fedatoms.experiment.files import from_json, to_json
from fedatoms.experiment.identity import identity

FILE = "explain.json"  # in the run's folder, unless another is asked for
NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a finite number",
}
T = TypeVar("T")


def write(explanation: Explanation, path: Path, found: Sequence[str]) -> None:
    """Writes all measurements and the findings to a JSON file."""
    settings = cast(dict[str, object], _plain(explanation.settings))
    content = {
        **cast(dict[str, object], _plain(explanation)),
        "experiment": _portable(to_json(explanation.experiment)),
        "identity": identity(explanation.experiment),
        "settings": _portable(settings),
        "found": list(found),
    }
    replace_file(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read(path: Path) -> Explanation:
    """Reads what ``write`` wrote, except the findings, which follow from the numbers; refuses anything else."""
    try:
        explanation = _value(Explanation, strict_json(path.read_text()), "it")
        assert isinstance(explanation, Explanation)
        _check(explanation)
    except (ValueError, TypeError, OSError, RecursionError) as error:
        raise ValueError(
            f"{path} is not what `fedatoms explain` writes, or is damaged: {one_line(error)}. "
            f"Explain the run again, or delete it."
        ) from error
    return explanation


def _check(explanation: Explanation) -> None:
    """Refuses numbers that contradict each other."""
    rounds, plain, fork = explanation.rounds, explanation.plain, explanation.fork
    if not rounds or explanation.images < 1:
        raise ValueError("it has no rounds or no images")
    last = explanation.round + explanation.settings.rounds
    if any(not explanation.round <= each.round < last for each in rounds):
        raise ValueError("its rounds are not those that follow its checkpoint")
    if plain is not None and len(plain) != explanation.settings.rounds:
        raise ValueError("its plain run has another number of rounds")
    if any(not _is_crossed(each.latent) for each in rounds if each.latent):
        raise ValueError("its latent clients are not all products of its real ones")
    if fork and not fork.accuracy_on:
        raise ValueError("its fork has no rounds")
    if fork and {len(line) for line in vars(fork).values() if isinstance(line, list)} != {explanation.settings.fork}:
        raise ValueError("its fork has another number of rounds")
    accuracies = [both.accuracy for each in rounds for both in (each.aggregates.on, each.aggregates.off)]
    accuracies += [*(plain or ()), *(fork.accuracy_on + fork.accuracy_off if fork else ())]
    if not all(0 <= accuracy <= 100 for accuracy in accuracies):
        raise ValueError("its accuracies are not numbers from 0 to 100")


def _is_crossed(latent: Latent) -> bool:
    """Returns whether all pairs of real clients are combined."""
    clients = [each.atoms for each in latent.real]
    found = {(each.coefficients, each.atoms) for each in (*latent.real, *latent.latent)}
    return found == {(i, j) for i in clients for j in clients}


def _plain(value: object) -> object:
    """Turns dataclasses into dictionaries of fields and properties, and infinity into None, for JSON."""
    if is_dataclass(value):
        derived = [name for name, each in vars(type(value)).items() if isinstance(each, property)]
        names = [*(field.name for field in fields(value)), *derived]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _value(kind: object, raw: object, name: str) -> object:
    """Inverts ``_plain`` for a type; the error names a value of another type."""
    origin, of = get_origin(kind), get_args(kind)
    if NoneType in of:
        return None if raw is None else _value(of[0], raw, name)
    if kind is Experiment:
        return _experiment(_of_type(dict, raw, name))
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**_fields(kind, _of_type(dict, raw, name), name))
    if origin is list:
        return [_value(of[0], each, f"{name}[{n}]") for n, each in enumerate(_of_type(list, raw, name))]
    if origin is dict:
        return {key: _value(of[1], each, f"{name}.{key}") for key, each in _of_type(dict, raw, name).items()}
    if kind is float:
        return float(raw) if type(raw) is int else _of_type(float, raw, name)
    return raw if kind is object else _of_type(cast(type, kind), raw, name)


def _fields(kind: type, raw: dict[str, object], name: str) -> dict[str, object]:
    """Reads the fields of a dataclass; those with a default may be missing, as machine-specific ones are."""
    kinds, found = get_type_hints(kind), {}
    for field in fields(kind):
        if field.name in raw:
            found[field.name] = _value(kinds[field.name], raw[field.name], f"{name}.{field.name}")
        elif field.default is MISSING:
            raise ValueError(f"{name}.{field.name} is missing")
    return found


def _of_type(kind: type[T], raw: object, name: str) -> T:
    """Returns a finite value of exactly this type (a bool is not a number)."""
    if type(raw) is not kind or (isinstance(raw, float) and not math.isfinite(raw)):
        raise ValueError(f"{name} is {str(raw)[:40]}, which is not {NAMES[kind]}")
    return raw


def _experiment(raw: Mapping[str, object]) -> Experiment:
    experiment = from_json(raw)
    check(experiment)
    return experiment


def _portable(named: Mapping[str, object]) -> dict[str, object]:
    """Leaves out paths of this machine."""
    return {name: value for name, value in named.items() if name not in (*PATH_FIELDS, "plain")}
