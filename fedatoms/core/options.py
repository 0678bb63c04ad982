"""What an option may be: every closed set and every range of numbers, each stated once. No torch."""

import dataclasses
import math
import sys
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

from fedatoms.core.lookup import unknown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

AttackName = Literal["sign-flip", "label-flip", "noise", "inf", "little-is-enough"]
Augment = Literal["feddc", "fedrep", "none"]
Controls = Literal["current", "first"]  # eta_t, or eta_0: smaller gradients in late rounds
DataSet = Literal["digits", "cifar10", "cifar100", "tiny-imagenet", "fashion-mnist"]
Export = Literal["onnx", "torch-export", "safetensors"]
Group = Literal["atoms", "coefficients", "head", "rest", "statistics"]
Init = Literal["orthonormal", "dct", "fourier-bessel", "kaiming", "svd"]
Map = Literal["auto", "one_by_one", "vectorised"]
Moves = Literal["all", "own", "shared"]  # what a phase of a client's round trains
OwnTest = Literal["split", "classes"]
Parametrisation = Literal["plain", "atoms", "fedpara", "pfedpara"]
Partition = Literal["iid", "shards", "dirichlet"]
Place = Literal["device", "host", "disk"]
Precision = Literal["float32", "tf32", "bf16"]
Pruning = Literal["median", "none"]  # when a search stops a trial early
Sampling = Literal["fixed", "poisson"]  # so many clients in each round, or every client by itself
Scored = Literal["server", "selected", "all", "local", "personal"]
Shape = Literal["constant", "cosine"]  # of a schedule of the learning rate
SlowLocal = Literal["discard", "freeze", "keep"]
Uploads = Literal["exact", "8-bit", "4-bit"]
View = Literal["personal", "global"]
Watcher = Literal["tensorboard", "mlflow", "wandb"]
Weighting = Literal["samples", "uniform"]

ATTACKS: tuple[AttackName, ...] = get_args(AttackName)
MERE_ATTACKS: tuple[AttackName, ...] = ("label-flip", "inf")  # of which no strength makes more or less
CONTROLS: tuple[Controls, ...] = get_args(Controls)
DATA_SETS: tuple[DataSet, ...] = get_args(DataSet)
EXPORTS: tuple[Export, ...] = get_args(Export)
GROUPS: tuple[Group, ...] = get_args(Group)
INITS: tuple[Init, ...] = get_args(Init)
MAPS: tuple[Map, ...] = get_args(Map)
MOVES: tuple[Moves, ...] = get_args(Moves)
MODELS_SCORED: tuple[Scored, ...] = get_args(Scored)
PLACES: tuple[Place, ...] = get_args(Place)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)
SHAPES: tuple[Shape, ...] = get_args(Shape)
SLOW_LOCALS: tuple[SlowLocal, ...] = get_args(SlowLocal)
UPLOADS: tuple[Uploads, ...] = get_args(Uploads)
VIEWS: tuple[View, ...] = get_args(View)
WATCHERS: tuple[Watcher, ...] = get_args(Watcher)
WEIGHTINGS: tuple[Weighting, ...] = get_args(Weighting)
TRAINED_GROUPS: tuple[Group, ...] = tuple(group for group in GROUPS if group != "statistics")
MEANS_SCORED: tuple[Scored, ...] = ("selected", "all")  # means of uploads
OWN_SCORED: tuple[Scored, ...] = ("local", "personal")  # clients' own models, each on its own test images
GLOBAL_MODELS: tuple[Scored, ...] = tuple(model for model in MODELS_SCORED if model not in OWN_SCORED)

CHOICES: dict[str, tuple[str, ...]] = {
    "parametrisation": get_args(Parametrisation),
    "init": INITS,
    "augment": get_args(Augment),
    "partition": get_args(Partition),
    "slow_local": SLOW_LOCALS,
    "uploads": UPLOADS,
    "sampling": SAMPLINGS,
    "controls": CONTROLS,
    "own_test": get_args(OwnTest),
    "schedule": SHAPES,
    "step_schedule": SHAPES,
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
    whole: bool = False  # a count, not any number

    def holds(self, value: float) -> bool:
        """Returns whether a number lies in the interval; nan lies in none.

        >>> [SHARE.holds(value) for value in (0, 0.5, 1, math.nan)], COUNT.holds(1.5)
        ([True, True, False, False], False)
        """
        above = value >= self.low if self.ends[0] == "[" else value > self.low
        below = value <= self.high if self.ends[1] == "]" else value < self.high
        return above and below and (not self.whole or is_whole(value))

    def broken(self, value: float) -> str:
        """Describes a value outside the interval.

        >>> SHARE.broken(1), COUNT.broken(0), POSITIVE.broken(0), NOT_NEGATIVE.broken(-1), POSITIVE.broken(1e308)
        ('not in [0, 1)', 'less than 1', 'not a positive number', 'negative or not finite', 'more than 1e6')
        >>> COUNT.broken(1.5), SHARE.broken(True)
        ('not a whole number', 'not a number')
        """
        if not is_number(value) or (self.whole and not is_whole(value)):
            return f"not a {'whole ' * self.whole}number"
        if self.high <= 1:
            return f"not in {self.ends[0]}{self.low:g}, {self.high:g}{self.ends[1]}"
        if self.high < value < math.inf:
            return f"more than {_short(self.high)}"
        if self.low == 0 and not self.whole:
            return "negative or not finite" if self.ends[0] == "[" else "not a positive number"
        return f"less than {_short(self.low)}" if value < self.low else "not finite"


BILLION = 10**9  # rounds, clients or epochs beyond these are a slip of the hand
COUNT = Range(1, BILLION, "[]", "a whole number from 1 up", whole=True)
COUNT_OR_NONE = COUNT._replace(low=0, use="0 or a whole number above it")
SHARE = Range(0, 1, "[)", "for example 0.1, or 0 for none")
POSITIVE = Range(0, 1e6, "(]", "for example 0.1")
NOT_NEGATIVE = Range(0, 1e6, "[]", "0 or a positive number")
DEFAULT = "None, or leave it out, for its default"
HUGE = 2**63 - 1  # what a file of numbers holds
LAST = sys.float_info.max
TOGETHER = 8  # runs in one block by default: each takes memory for its clients' states and batches
ANY = 1e12  # where a large number means "no limit", or is a constant of a bound

# By name, for experiments and for Python alike. A command whose number of that name means something else has its own
# line, with the command before the name.
RANGES: dict[str, Range] = {
    "accumulate": COUNT._replace(high=10**6, use="accumulate=1 for a step per batch"),
    "atoms": COUNT._replace(high=1000, use="atoms=9 (the paper's choice)", why="a filter needs at least one atom"),
    "atoms_decay": NOT_NEGATIVE,
    "atoms_lr": POSITIVE,
    "batch_size": COUNT._replace(use="batch_size=50 (the paper's choice)"),
    "block": COUNT_OR_NONE._replace(high=10**6, use="0 for as many clients as fit"),
    "checkpoint_every": COUNT._replace(high=HUGE),
    "classes_per_client": COUNT,
    "clients": COUNT._replace(use="clients=100 (the paper's choice)", why="someone must hold the data"),
    "clip": NOT_NEGATIVE._replace(high=ANY),
    "dirichlet": Range(0, LAST, "(]", "for example 0.3 or 0.6", "it is the concentration of a Dirichlet law"),
    "dp_clip": Range(1e-6, 1e6, "[]", "for example 1", "a shorter update is lost in rounding"),
    "dp_delta": Range(1e-12, 0.1, "[]", "for example 1e-5", "it must be below one in the number of clients"),
    "dp_epsilon": Range(0, 1000, "(]", "for example 8"),
    "dp_noise": Range(0.1, 1e6, "[]", "for example 1"),
    "epochs": COUNT._replace(use="epochs=5", why="a client that is chosen must train"),
    "eval_every": COUNT._replace(high=HUGE),
    "failures": SHARE,  # without 1: nobody would ever report
    "fraction": Range(0, 1, "(]", "for example 0.1 to sample a tenth of the clients"),
    "gamma": Range(0, 1, "[]", "gamma=0.4", "0 is the least rank, 1 the largest that adds no parameters"),
    "holdout": SHARE._replace(use="for example 0.1, or 0 for the test set"),
    "last_epochs": COUNT_OR_NONE,
    "lr": POSITIVE,
    "lr_decay": POSITIVE._replace(use="for example 0.998, or 1 for none"),
    "momentum": SHARE._replace(use="for example 0.9, or 0 for none"),
    "objective_strength": Range(-1e6, 1e6, "[]", "None for its default"),
    "personal_strength": Range(-1e6, 1e6, "[]", "None for its authors' default"),
    "rounds": COUNT,
    "seed": Range(-HUGE, HUGE, "[]", "for example 0", whole=True),
    "strength": Range(-1e6, 1e6, "[]", "None for its authors' default"),
    "threads": COUNT_OR_NONE._replace(high=10_000, use="0 for torch's choice"),
    "together": COUNT._replace(high=1000, use="together=8, or 1 for one run after the other"),
    "unbalanced": NOT_NEGATIVE._replace(use="0 for equal sizes", why="it is a standard deviation"),
    "warmup": COUNT_OR_NONE._replace(high=10**6),
    "warmup_steps": COUNT_OR_NONE._replace(high=10**6),
    "weight_decay": NOT_NEGATIVE,
    # of networks
    "channels": COUNT._replace(high=4096, use="for example 3"),
    "classes": COUNT._replace(high=10**5, use="for example 10"),
    # of methods
    "adamw epsilon": Range(0, 1, "(]", "epsilon=1e-8"),
    "method share": Range(0, 1, "()", DEFAULT),
    "method share or 0": SHARE._replace(use=DEFAULT),
    "method strength": POSITIVE._replace(use=DEFAULT),
    "method strength or 0": NOT_NEGATIVE._replace(use=DEFAULT),
    # of aggregation rules and attacks
    "aggregation liars": COUNT._replace(high=10**6, use="for example 1", why="who expects no liar can take the mean"),
    "aggregation radius": POSITIVE._replace(use="for example 1"),
    "aggregation steps": COUNT._replace(high=1000, use="for example 8"),
    "attack share": Range(0, 1, "()", "for example 0.2, a fifth of the clients"),
    "attack strength": POSITIVE._replace(use="for example 9"),
    "aggregation trim": Range(0, 0.5, "[)", "for example 0.2"),
    # of one client's training and data, in Python
    "workers": COUNT_OR_NONE._replace(high=1000, use="0 for none, or for example 4"),
    "align": NOT_NEGATIVE,
    "period": COUNT._replace(use="period=1 to send the slow groups every round"),
    "phase epochs": COUNT_OR_NONE._replace(use="0 for the run's"),
    "phase lr": NOT_NEGATIVE._replace(use="0 for the run's"),
    "pull": NOT_NEGATIVE,
    "training lr": NOT_NEGATIVE._replace(use="for example 0.1, or 0 for a client at rest"),
    # of commands
    "bench against": COUNT._replace(high=10**6, use="against=10"),
    "bench pfl_clients": COUNT._replace(high=10**6, use="pfl_clients=1000"),
    "bench pfl_cohort": COUNT._replace(high=10**6, use="pfl_cohort=50"),
    "bench pfl_rounds": COUNT_OR_NONE._replace(use="pfl_rounds=1500, or 0 for none"),
    "bench pfl_seeds": COUNT._replace(high=1000, use="pfl_seeds=3"),
    "bench repeats": COUNT._replace(high=10**6, use="repeats=7"),
    "bench rounds": COUNT._replace(use="rounds=100"),
    "bench samples": COUNT._replace(high=10**7, use="samples=500"),
    "bench steps": COUNT_OR_NONE._replace(high=10**6, use="steps=0"),
    "bench tested": COUNT._replace(high=10**7, use="tested=10000"),
    "bench threads": COUNT._replace(high=10_000, use="threads=2"),
    "bounds convexity": POSITIVE._replace(high=ANY),
    "bounds epsilon": POSITIVE._replace(high=ANY),
    "bounds fast": COUNT_OR_NONE._replace(high=HUGE),
    "bounds gradient": NOT_NEGATIVE._replace(high=ANY),
    "bounds heterogeneity": NOT_NEGATIVE._replace(high=ANY),
    "bounds sampled": COUNT._replace(use="for example 10"),
    "bounds slow": COUNT_OR_NONE._replace(high=HUGE),
    "bounds smoothness": POSITIVE._replace(high=ANY),
    "bounds start": NOT_NEGATIVE._replace(high=ANY),
    "explain crossed": COUNT_OR_NONE._replace(high=10**6, use="crossed=10, or 0 for none"),
    "explain fork": COUNT_OR_NONE._replace(high=10**6, use="0 for none"),
    "explain rounds": COUNT._replace(high=10**6, use="rounds=3"),
    "flower client": COUNT_OR_NONE._replace(high=10**6, use="client=0 for the first"),
    "flower samples": COUNT._replace(high=HUGE, use="how many samples its node trains on"),
    "flower tests": COUNT_OR_NONE._replace(high=HUGE, use="how many test images its node has, or 0"),
    "flower nodes": COUNT._replace(high=10_000, use="nodes=3"),
    "inspect side": COUNT._replace(high=10**5, use="for example 3x32x32"),
    "report port": COUNT_OR_NONE._replace(high=65_535, use="port=8765, or 0 for any that is free"),
    "tune search_seed": Range(-HUGE, HUGE, "[]", "for example 0", whole=True),
    "tune trials": COUNT._replace(high=10_000, use="trials=20"),
    "reproduce minutes": NOT_NEGATIVE._replace(high=ANY, use="for example 30, or 0 for no limit"),
}


def range_of(option: str, command: str = "") -> Range:
    """Returns the range of an option, as a command means it.

    >>> range_of("threads").low, range_of("threads", "bench").low
    (0, 1)
    """
    return RANGES.get(f"{command} {option}") or RANGES[option]


def check_range(option: str, value: float, argument: str = "", *, command: str = "") -> None:
    """Refuses a number that an option cannot be; ``argument`` is what the caller calls it.

    >>> check_range("fraction", 0)
    Traceback (most recent call last):
    ...
    ValueError: fraction=0 is not in (0, 1]. Use for example 0.1 to sample a tenth of the clients.
    """
    valid = range_of(option, command)
    if not is_number(value) or not valid.holds(value):
        broken = valid.broken(value)
        why = f": {valid.why}" if valid.why and broken.startswith(("not in", "less", "not a positive", "neg")) else ""
        given = value if is_number(value) else repr(value)  # '0.1' with its quotes
        raise ValueError(f"{argument or option}={given} is {broken}{why}. Use {valid.use}.")


def is_number(value: object) -> bool:
    """Says whether a value is a number, of Python or NumPy; truth values are none.

    >>> is_number(1), is_number(0.5), is_number(True), is_number("1")
    (True, True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Says whether a value is of a type of whole numbers; 1.0 is none.

    >>> is_whole(1), is_whole(1.0)
    (True, False)
    """
    return isinstance(value, Integral)


def check_numbers(settings: "DataclassInstance", command: str = "") -> None:
    """Refuses the first number among the fields of some settings that the table does not allow, or that is missing."""
    kinds = {field.name: field.type for field in dataclasses.fields(settings)}
    for name in numbers_of(type(settings)):
        value = getattr(settings, name)
        if value is not None or kinds[name] in (int, float):
            check_range(name, value, command=command)


def numbers_of(settings: type["DataclassInstance"]) -> list[str]:
    """Names the fields of some settings that are numbers, or may be one or None."""
    fields = dataclasses.fields(settings)
    return [field.name for field in fields if field.type in (int, float, int | None, float | None)]


def _short(number: float) -> str:
    """Writes a number as people type it.

    >>> _short(1e6), _short(1000), _short(-1e6)
    ('1e6', '1000', '-1e6')
    """
    return f"{number:g}".replace("e+0", "e").replace("e+", "e")


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
        return tuple(one_of(valid, part.strip(), kind) for part in str(text).split(","))
    except ValueError as error:
        raise ValueError(f"{argument}={text}: {error}") from None
