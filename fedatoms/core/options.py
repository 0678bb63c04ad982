"""What an option may be: every closed set and every range of numbers, each stated once. No torch."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar, get_args

from fedatoms.core.lookup import unknown

Augment = Literal["feddc", "fedrep", "none"]
Controls = Literal["current", "first"]  # eta_t, or eta_0: smaller gradients in late rounds
Group = Literal["atoms", "coefficients", "head", "rest", "statistics"]
Init = Literal["orthonormal", "dct", "fourier-bessel", "kaiming", "svd"]
Map = Literal["auto", "one_by_one", "vectorised"]
OwnTest = Literal["split", "classes"]
Parametrisation = Literal["plain", "atoms", "fedpara", "pfedpara"]
Partition = Literal["iid", "shards", "dirichlet"]
Place = Literal["device", "host", "disk"]
Precision = Literal["float32", "tf32", "bf16"]
Scored = Literal["server", "selected", "all", "personal"]
SlowLocal = Literal["discard", "freeze", "keep"]

CONTROLS: tuple[Controls, ...] = get_args(Controls)
GROUPS: tuple[Group, ...] = get_args(Group)
INITS: tuple[Init, ...] = get_args(Init)
MAPS: tuple[Map, ...] = get_args(Map)
MODELS_SCORED: tuple[Scored, ...] = get_args(Scored)
PLACES: tuple[Place, ...] = get_args(Place)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
SLOW_LOCALS: tuple[SlowLocal, ...] = get_args(SlowLocal)
TRAINED_GROUPS: tuple[Group, ...] = tuple(group for group in GROUPS if group != "statistics")
GLOBAL_MODELS: tuple[Scored, ...] = tuple(model for model in MODELS_SCORED if model != "personal")

CHOICES: dict[str, tuple[str, ...]] = {
    "parametrisation": get_args(Parametrisation),
    "init": INITS,
    "augment": get_args(Augment),
    "partition": get_args(Partition),
    "slow_local": SLOW_LOCALS,
    "controls": CONTROLS,
    "own_test": get_args(OwnTest),
    "precision": PRECISIONS,
    "map": MAPS,
    "client_state": PLACES,
}

Ends = Literal["[]", "[)", "(]", "()"]  # whether the two ends of an interval belong to it
Choice = TypeVar("Choice", bound=str)


class Range(NamedTuple):
    """An interval of numbers, what to use instead of a number outside it, and the reason if it is not obvious."""

    low: float
    high: float
    ends: Ends
    use: str
    why: str = ""

    def holds(self, value: float) -> bool:
        """Returns whether a number lies in the interval; nan lies in none.

        >>> [SHARE.holds(value) for value in (0, 0.5, 1, math.nan)]
        [True, True, False, False]
        """
        above = value >= self.low if self.ends[0] == "[" else value > self.low
        return above and (value <= self.high if self.ends[1] == "]" else value < self.high)

    @property
    def broken(self) -> str:
        """Describes a number outside the interval.

        >>> SHARE.broken, COUNT.broken, POSITIVE.broken, NOT_NEGATIVE.broken
        ('not in [0, 1)', 'less than 1', 'not a positive number', 'negative or not finite')
        """
        if self.high < math.inf:
            return f"not in {self.ends[0]}{self.low:g}, {self.high:g}{self.ends[1]}"
        if self.low == 0:
            return "negative or not finite" if self.ends[0] == "[" else "not a positive number"
        return f"less than {self.low:g}"


COUNT = Range(1, math.inf, "[]", "a whole number from 1 up")
SHARE = Range(0, 1, "[)", "for example 0.1, or 0 for none")
POSITIVE = Range(0, math.inf, "()", "for example 0.1")
NOT_NEGATIVE = Range(0, math.inf, "[)", "0 or a positive number")

RANGES: dict[str, Range] = {
    "atoms": COUNT._replace(use="atoms=9 (the paper's choice)", why="a filter needs at least one atom"),
    "atoms_decay": NOT_NEGATIVE,
    "atoms_lr": POSITIVE,
    "batch_size": COUNT._replace(use="batch_size=50 (the paper's choice)"),
    "block": NOT_NEGATIVE,
    "checkpoint_every": COUNT,
    "classes_per_client": COUNT,
    "clients": COUNT._replace(use="clients=100 (the paper's choice)", why="someone must hold the data"),
    "clip": NOT_NEGATIVE,
    "dirichlet": POSITIVE._replace(use="for example 0.3 or 0.6", why="it is the concentration of a Dirichlet law"),
    "epochs": COUNT._replace(use="epochs=5", why="a client that is chosen must train"),
    "eval_every": COUNT,
    "failures": SHARE,  # without 1: nobody would ever report
    "fraction": Range(0, 1, "(]", "for example 0.1 to sample a tenth of the clients"),
    "gamma": Range(0, 1, "[]", "gamma=0.4", "0 is the least rank, 1 the largest that adds no parameters"),
    "holdout": SHARE._replace(use="for example 0.1, or 0 for the test set"),
    "last_epochs": NOT_NEGATIVE,
    "lr": POSITIVE,
    "lr_decay": POSITIVE,
    "momentum": SHARE._replace(use="for example 0.9, or 0 for none"),
    "rounds": COUNT,
    "threads": NOT_NEGATIVE,
    "unbalanced": NOT_NEGATIVE._replace(use="0 for equal sizes", why="it is a standard deviation"),
    "weight_decay": NOT_NEGATIVE,
}


def check_range(option: str, value: float, argument: str = "") -> None:
    """Refuses a number that an option cannot be; ``argument`` is what the caller calls it.

    >>> check_range("fraction", 0)
    Traceback (most recent call last):
    ...
    ValueError: fraction=0 is not in (0, 1]. Use for example 0.1 to sample a tenth of the clients.
    """
    valid = RANGES[option]
    if not valid.holds(value):
        why = f": {valid.why}" if valid.why else ""
        raise ValueError(f"{argument or option}={value} is {valid.broken}{why}. Use {valid.use}.")


def one_of(valid: Sequence[Choice], value: object, kind: str) -> Choice:
    """Returns the member of a closed set that a value is, or refuses the value with the nearest one.

    >>> one_of(MAPS, "vectorized", "map")
    Traceback (most recent call last):
    ...
    ValueError: unknown map 'vectorized'. Did you mean 'vectorised'? Valid: auto, one_by_one, vectorised.
    """
    for member in valid:
        if member == value:
            return member
    raise unknown(value, valid, kind)


def listed(valid: Sequence[Choice], text: str, argument: str, kind: str) -> tuple[Choice, ...]:
    """Reads names of a closed set with commas between them.

    >>> listed(GROUPS, "atoms, head", "fast", "group")
    ('atoms', 'head')
    >>> listed(GROUPS, "atoms,hed", "fast", "group")
    Traceback (most recent call last):
    ...
    ValueError: fast=atoms,hed: unknown group 'hed'. Did you mean 'head'? Valid: atoms, coefficients, head, rest,
    statistics.
    """
    try:
        return tuple(one_of(valid, part.strip(), kind) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"{argument}={text}: {error}") from None
