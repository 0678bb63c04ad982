"""Words into settings: every field is a flag that tyro parses and explains, and commas make grids of experiments."""

import ast
import dataclasses
import difflib
import inspect
import itertools
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import OmitArgPrefixes
from tyro.constructors import PrimitiveConstructorSpec

from fedatoms.core.options import CHOICES, DATA_SETS
from fedatoms.experiment.fields import LIST_FIELDS, PATH_FIELDS, Experiment
from fedatoms.experiment.weights import changed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")

GROUPS = {  # of the flags of an experiment, in the order of their help
    "data": (
        *("dataset", "data_dir", "augment", "holdout", "partition", "clients", "classes_per_client", "distinct"),
        *("dirichlet", "unbalanced"),
    ),
    "model": ("model", "weights", "weights_sha256", "head", "parametrisation", "atoms", "init", "where", "gamma"),
    "algorithm": ("algorithm", "strength", "controls", "personal", "personal_strength"),
    "exchange": (
        *("rounds", "fraction", "sampling", "failures", "aggregation", "attack", "beta", "fast", "slow_local", "fixed"),
        "uploads",
    ),
    "privacy": ("dp_epsilon", "dp_noise", "dp_clip", "dp_delta"),
    "local training": (
        *("objective", "objective_strength", "epochs", "batch_size", "accumulate", "optimiser", "lr", "lr_decay"),
        *("schedule", "warmup", "step_schedule", "warmup_steps", "momentum", "weight_decay", "clip", "atoms_lr"),
        *("atoms_decay", "last_epochs"),
    ),
    "scoring": ("score", "eval_every", "own_test"),
    "machine": ("seed", "device", "precision", "deterministic", "threads", "map", "block", "client_state"),
    "output": ("name", "out", "checkpoint_every", "tensorboard", "watch"),
}
MOST = 10  # values of a range that a message spells out
WHOLE = {*LIST_FIELDS, *PATH_FIELDS, "where"}  # a comma in these belongs to the value


class Words(NamedTuple):
    """The kind of a text that is one of some words; the library itself refuses others, and names the nearest."""

    all: tuple[str, ...]


class Flag(NamedTuple):
    """A flag as tyro wants it: an annotated type, and the value if it is not given."""

    kind: object
    default: object


def flags(default: "DataclassInstance", groups: Mapping[str, Sequence[str]] | None = None) -> object:
    """Marks a parameter as the flags of some settings, in groups if there are any; ``updated`` reads what was given."""
    kinds, docs = kinds_of(type(default)), docs_of(type(default))
    made = {name: _flag(kinds[name], getattr(default, name), docs[name]) for name in docs}
    return tyro.conf.arg(name="", constructor=_grouped(made, groups) if groups else _struct(made))


def updated(default: Settings, given: object) -> Settings:
    """Returns settings with what was given by their flags."""
    return _replaced(default, _values(given))


def axes(default: Experiment, many: Mapping[str, tuple[object, ...]] | None = None) -> object:
    """Marks a parameter as the axes of a grid: every flag of an experiment, with commas between its values.

    What is not given is () or, for a flag without a value, False; ``many`` has values of its own for some.
    """
    kinds, docs, many = kinds_of(Experiment), docs_of(Experiment), many or {}
    made = {name: _axis(name, kinds[name], many.get(name, ()), getattr(default, name), docs[name]) for name in docs}
    return tyro.conf.arg(name="", constructor=_grouped(made, GROUPS))


def grid(starts: Sequence[Experiment], given: object, words: Sequence[str]) -> list[Experiment]:
    """Returns every combination of the values on some axes, the first that was typed varying slowest."""
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in _values(given).items() if value}
    names = sorted(values, key=lambda name: _place(name, words))
    points = [dict(zip(names, point, strict=True)) for point in itertools.product(*(values[name] for name in names))]
    return [changed(start, point) for start in starts for point in points]


def before_flags(words: Sequence[str]) -> list[str]:
    """Returns the words that come before the first flag.

    >>> before_flags(["table1", "--quick"])
    ['table1']
    """
    return list(itertools.takewhile(lambda word: not word.startswith("-"), words))


def value_of(flag: str, words: Sequence[str]) -> str | None:
    """Returns the value that follows a flag, if it was typed.

    >>> value_of("--resume", ["--resume=runs/mine"]), value_of("--resume", ["--rounds", "3"])
    ('runs/mine', None)
    """
    parts = [part for word in words for part in (word.split("=", 1) if word.startswith(f"{flag}=") else [word])]
    pairs = itertools.pairwise(parts)
    return next((value for word, value in pairs if word == flag and not value.startswith("--")), None)


def typed(flag: str, words: Sequence[str]) -> bool:
    """Says whether a flag was typed.

    >>> typed("--init", ["--init=dct"]), typed("--init", ["--weights", "net.pth"])
    (True, False)
    """
    return flag in (word.split("=")[0] for word in words)


def kinds_of(kind: type["DataclassInstance"]) -> dict[str, object]:
    """Returns the types of a dataclass's fields; of an experiment's that are one of a closed set, the set's words.

    >>> kinds_of(Experiment)["map"], kinds_of(Experiment)["name"]
    (Words(all=('auto', 'one_by_one', 'vectorised')), <class 'str'>)
    """
    closed = {**CHOICES, "dataset": DATA_SETS} if kind is Experiment else {}
    return {**get_type_hints(kind), **{name: Words(words) for name, words in closed.items()}}


def docs_of(kind: type["DataclassInstance"]) -> dict[str, str]:
    """Returns what the fields of a dataclass are for: the help in their metadata, or the strings below them.

    >>> docs_of(Experiment)["lr"]
    'Learning rate of the first round.'
    """
    (body,) = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    below = {
        one.target.id: inspect.cleandoc(after.value.value)
        for one, after in itertools.pairwise(body.body)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(after, ast.Expr)
        if isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
    }
    helps = {field.name: field.metadata.get("help") or below.get(field.name, "") for field in dataclasses.fields(kind)}
    return {name: " ".join(text.split()) for name, text in helps.items()}


def _flag(kind: object, default: object, doc: str) -> Flag:
    about = tyro.conf.arg(help=doc, help_behavior_hint=_hint("" if default is False else _text(default)))
    if kind is bool:
        return Flag(Annotated[bool, about], default)
    return Flag(Annotated[object, _reader(_metavar(kind), lambda word: _read(word, kind)), about], default)


def _axis(name: str, kind: object, many: tuple[object, ...], default: object, doc: str) -> Flag:
    if kind is bool:
        return _flag(kind, False, doc)
    whole = name in WHOLE or get_origin(kind) in (tuple, list)
    reader = _reader(
        _metavar(kind) if whole else f"{_metavar(kind)},...",
        lambda word: tuple(_read(part, kind) for part in ([word] if whole else _points(word, kind))),
    )
    about = tyro.conf.arg(
        name="seeds" if name == "seed" else None,
        aliases=("--seed",) if name == "seed" else None,
        help=doc,
        help_behavior_hint=_hint(_text(many) or _text(default)),
    )
    return Flag(Annotated[object, reader, about], many)


def _reader(metavar: str, read: Callable[[str], object]) -> PrimitiveConstructorSpec[object]:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [_text(value)],
    )


def _read(word: str, kind: object) -> object:
    """Reads a value of a kind.

    >>> _read("3", float | None), _read("None", float | None), _read("1/5", str | float), _read("a,b", tuple[str, ...])
    (3.0, None, '1/5', ('a', 'b'))
    """
    origin, members = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if word == "None" and type(None) in members:
            return None
        return _read(word, str if str in members else members[0])
    if origin in (tuple, list):
        parts = [_read(part.strip(), members[0]) for part in word.split(",") if part.strip()]
        return tuple(parts) if origin is tuple else parts
    if origin is Literal and word not in members:
        near = difflib.get_close_matches(word, map(str, members), n=1, cutoff=0)[0]
        raise ValueError(f"'{word}' is not one of {', '.join(members)}. Did you mean '{near}'?")
    return _number(word, whole=kind is int) if kind in (int, float) else word


def _points(word: str, kind: object) -> list[str]:
    """Splits the values of an axis, and refuses what reads as a range of whole numbers.

    >>> _points("0,1", int), _points("1e-3", float)
    (['0', '1'], ['1e-3'])
    >>> _points("0-2", int)
    Traceback (most recent call last):
    ...
    ValueError: '0-2' is not a whole number. Put commas between values: 0,1,2
    """
    if kind is int and (ends := re.fullmatch(r"(\d{1,9})(?:-|:|\.\.)(\d{1,9})", word)):
        first, last = int(ends[1]), int(ends[2])
        some = [*range(first, last + 1)] if last < first + MOST else [first, first + 1, "...", last]
        raise ValueError(f"'{word}' is not a whole number. Put commas between values: {_text(some)}")
    return word.split(",")


def _number(word: str, *, whole: bool) -> float:
    try:
        return int(word) if whole else float(word)
    except ValueError:
        raise ValueError(f"'{word}' is not a {'whole ' * whole}number") from None


def _metavar(kind: object) -> str:
    origin, members = get_origin(kind), get_args(kind)
    if words := kind.all if isinstance(kind, Words) else members if origin is Literal else ():
        return f"{{{','.join(words)}}}"
    if origin in (tuple, list):
        return f"{_metavar(members[0])},..."
    if members:
        return _metavar(str if str in members else members[0])
    return {int: "INT", float: "FLOAT"}.get(kind, "TEXT") if isinstance(kind, type) else "TEXT"


def _text(value: object) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(_text, value))
    return "" if value is None else str(value)


def _hint(default: str) -> str:
    return f"(default: {default})" if default else ""


def _struct(members: Mapping[str, Flag]) -> type:
    parts = [(name, flag.kind, dataclasses.field(default=flag.default)) for name, flag in members.items()]
    return dataclasses.make_dataclass("Flags", parts, frozen=True)


def _grouped(members: Mapping[str, Flag], groups: Mapping[str, Sequence[str]]) -> type:
    """Makes a type of types: tyro draws a box for each, and its flags have the names that they have alone."""
    kinds = {title: _struct({name: members[name] for name in names}) for title, names in groups.items()}
    marked = {
        title: Annotated[kind, tyro.conf.arg(name=title, help=""), OmitArgPrefixes] for title, kind in kinds.items()
    }
    return dataclasses.make_dataclass("Groups", [(title.replace(" ", "_"), kind) for title, kind in marked.items()])


def _values(given: object) -> dict[str, object]:
    """Returns what was given by flags, whatever their groups."""
    nested = [
        _values(value) if dataclasses.is_dataclass(value) else {name: value} for name, value in vars(given).items()
    ]
    return {name: value for part in nested for name, value in part.items()}


def _replaced(default: Settings, values: Mapping[str, object]) -> Settings:
    return dataclasses.replace(default, **values)


def _place(name: str, words: Sequence[str]) -> int:
    """Returns where a flag was typed; what was not typed comes last."""
    found = [word.split("=")[0].replace("_", "-").replace("--seeds", "--seed") for word in words]
    flag = f"--{name.replace('_', '-')}"
    return found.index(flag) if flag in found else len(found)
