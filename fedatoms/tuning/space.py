"""Axes of a search, as text and as values: a list to choose from, or a range to draw from. No torch."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, get_args, get_type_hints

from fedatoms.core.lookup import unknown
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import EXECUTION_FIELDS, LIST_FIELDS, Experiment

Settings = Mapping[str, object]  # the fields of a trial that are searched

MOST = 10_000  # points of a grid
TO, LOG = "..", ":log"
KINDS: Mapping[str, object] = get_type_hints(Experiment)
COMMAS = LIST_FIELDS | {"where"}  # a comma in these belongs to the value: `;` separates values
NEVER = {  # fields that no search has as an axis, and why
    **dict.fromkeys(EXECUTION_FIELDS - {"weights"}, "says how or where to compute, and changes no score"),
    **dict.fromkeys(("weights", "weights_sha256"), "is a file, which a search does not choose"),
    **dict.fromkeys(("dataset", "objective", "own_test"), "changes what is scored: such scores do not compare"),
    **dict.fromkeys(("score", "eval_every", "holdout"), "says what is scored, which is the same in all trials"),
    **dict.fromkeys(("dp_epsilon", "dp_noise", "dp_clip", "dp_delta"), "costs privacy in every trial, unaccounted for"),
    "seed": "is no setting to choose: give --seeds 0,1,2, and a trial's score is their mean",
}


class Listed(NamedTuple):
    """An axis that is one of some values."""

    field: str
    values: tuple[object, ...]

    @property
    def ends(self) -> tuple[object, ...]:
        """The values to check before a search begins."""
        return self.values

    def __str__(self) -> str:
        return f"{self.field}={_separator(self.field).join(map(_written, self.values))}"


class Between(NamedTuple):
    """An axis that is any number of an interval, or any whole one; drawn by their logarithms if ``log``."""

    field: str
    low: float
    high: float
    log: bool = False

    @property
    def ends(self) -> tuple[object, ...]:
        """The values to check before a search begins."""
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.field}={self.low!r}{TO}{self.high!r}{LOG * self.log}"


Axis = Listed | Between


def axes_of(texts: Sequence[str], experiment: Experiment) -> tuple[Axis, ...]:
    """Reads the axes of a search around an experiment, and refuses values that it cannot have.

    >>> axes_of(["lr=0.05,0.1", "weight-decay=1e-4..1e-2:log"], Experiment())
    (Listed(field='lr', values=(0.05, 0.1)), Between(field='weight_decay', low=0.0001, high=0.01, log=True))
    >>> axes_of(["lr=0.1,-1"], Experiment())
    Traceback (most recent call last):
    ...
    ValueError: lr=-1.0 is not a positive number. Use for example 0.1.
    """
    if not texts:
        raise ValueError("there is nothing to search. Use for example --over 'lr=0.05,0.1' or --over 'lr=0.01..1:log'.")
    axes = tuple(map(axis_of, texts))
    for one, other in itertools.combinations(axes, 2):
        if one.field == other.field:
            raise ValueError(f"'{one}' and '{other}' search the same field. Leave one out.")
    for axis in axes:
        for value in axis.ends:
            check(replace(experiment, **{axis.field: value}))  # type: ignore[arg-type]
    return axes


def axis_of(text: str) -> Axis:
    """Reads one axis: ``field=value,value,...``, ``field=low..high`` or ``field=low..high:log``.

    >>> axis_of("epochs=1..16:log"), str(axis_of("fixed=atoms;atoms,head"))
    (Between(field='epochs', low=1, high=16, log=True), 'fixed=atoms;atoms,head')
    """
    typed, equals, values = text.partition("=")
    field = typed.strip().removeprefix("--").replace("-", "_")
    if field not in KINDS:
        raise unknown(typed, [name.replace("_", "-") for name in KINDS if name not in NEVER], "flag in --over")
    if field in NEVER:
        raise ValueError(f"--over '{text}': {typed} {NEVER[field]}. Leave it out of --over.")
    if not equals or not values.strip():
        raise ValueError(f"--over '{text}' has no values. Use for example --over '{typed}=VALUE,VALUE'.")
    return _between(field, text, values) if TO in values and _is_number(field) else _listed(field, text, values)


def is_grid(axes: Sequence[Axis]) -> bool:
    """Says whether all axes are lists, so that every point can be tried."""
    return all(isinstance(axis, Listed) for axis in axes)


def points(axes: Sequence[Axis]) -> Iterator[Settings]:
    """Returns every point of a grid, the first axis varying slowest.

    >>> list(points(axes_of(["lr=0.1,0.3", "epochs=1,5"], Experiment())))[1]
    {'lr': 0.1, 'epochs': 5}
    """
    lists = [axis.values for axis in axes if isinstance(axis, Listed)]
    for point in itertools.product(*lists):
        yield dict(zip((axis.field for axis in axes), point, strict=True))


def size_of(axes: Sequence[Axis]) -> int:
    """Counts the points of a grid, and refuses one that nobody would try.

    >>> size_of(axes_of(["lr=0.1,0.3", "epochs=1,5"], Experiment()))
    4
    """
    size = math.prod(len(axis.values) for axis in axes if isinstance(axis, Listed))
    if size > MOST:
        raise ValueError(
            f"these lists have {size:,} combinations, more than {MOST:,}. Leave values out, or use a range."
        )
    return size


def written(settings: Settings) -> str:
    """Writes settings as people read them.

    >>> written({"lr": 0.1, "weight_decay": 1.23456e-4})
    'lr=0.1 weight-decay=0.0001235'
    """
    shown = {name: f"{value:.4g}" if isinstance(value, float) else _written(value) for name, value in settings.items()}
    return " ".join(f"{name.replace('_', '-')}={value}" for name, value in shown.items())


def _between(field: str, text: str, values: str) -> Between:
    low, _, high = values.strip().removesuffix(LOG).partition(TO)
    log, read = values.strip().endswith(LOG), _reader(field, text)
    first, last = read(low), read(high)
    if not (isinstance(first, int | float) and isinstance(last, int | float)):
        raise ValueError(f"--over '{text}': a range is between two numbers. Use for example 0.1{TO}1.")
    if first >= last:
        raise ValueError(f"--over '{text}' does not rise. Put the smaller number first: low{TO}high.")
    if log and first <= 0:
        raise ValueError(f"--over '{text}': a logarithmic range begins above 0. Raise its first number, or drop {LOG}.")
    return Between(field, first, last, log)


def _listed(field: str, text: str, values: str) -> Listed:
    read = _reader(field, text)
    found = tuple(read(part.strip()) for part in values.split(_separator(field)))
    for place, value in enumerate(found):
        if value in found[:place]:
            raise ValueError(f"--over '{text}' has {_written(value)} twice. Leave one out.")
    return Listed(field, found)


def _reader(field: str, text: str) -> Callable[[str], object]:
    """Returns what reads a value of a field; ``text`` is what was typed, for errors."""
    kind, members = KINDS[field], get_args(KINDS[field])

    def read(word: str) -> object:
        if word == "None" and type(None) in members:
            return None
        if kind is bool:
            return _truth(word, text)
        if kind is str or str in members:
            return word
        try:
            return int(word) if kind is int else float(word)
        except ValueError:
            what = "whole number" if kind is int else "number"
            raise ValueError(f"--over '{text}': '{word}' is not a {what}.{_hint(field)}") from None

    return read


def _hint(field: str) -> str:
    flag = field.replace("_", "-")
    return f" Use for example --over '{flag}=1,5' or --over '{flag}=1{TO}9'." if KINDS[field] is int else ""


def _truth(word: str, text: str) -> bool:
    if word.lower() not in ("true", "false"):
        raise ValueError(f"--over '{text}': '{word}' is neither true nor false. Use true,false.")
    return word.lower() == "true"


def _is_number(field: str) -> bool:
    members = get_args(KINDS[field])
    return KINDS[field] in (int, float) or (float in members and str not in members)


def _separator(field: str) -> str:
    return ";" if field in COMMAS else ","


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
