"""A kind of measure: its function, its settings and experiments, the paper's and quick ones."""

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from fedatoms.evidence.measures.files import Measure, Values
from fedatoms.experiment.build import device_of
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity
from fedatoms.runs.provenance import provenance_of

if TYPE_CHECKING:
    from dataclasses import Field

Experiments = tuple[Experiment, ...]
Size = Literal["full", "quick", "other"]  # the paper's setting, few rounds on digits, or another setting
Watch = Callable[[int, int, str], None]  # progress callback: steps done, of how many, of what


class Settings(Protocol):
    """A frozen dataclass with the size of a measure."""

    __dataclass_fields__: ClassVar[dict[str, "Field[object]"]]


S = TypeVar("S", bound=Settings)


class Kind(NamedTuple):
    """A kind of measure; ``measure(experiments, settings, watch)`` measures it.

    ``settings`` and ``experiments`` are the paper's, as we read it; ``quick`` and ``quick_experiments`` take seconds.
    """

    name: str
    title: str
    measure: Callable[[Experiments, Settings, Watch], Measure]
    settings: Settings
    quick: Settings
    experiments: Experiments = ()
    quick_experiments: Experiments = ()


def kind(
    name: str,
    title: str,
    function: Callable[[Experiments, S, Watch], Values],
    settings: tuple[S, S],
    experiments: tuple[Experiments, Experiments] = ((), ()),
) -> Kind:
    """Makes a kind of measure of a function; pairs are (the paper's, quick)."""
    full, quick = settings

    def measure(given: Experiments, settings: Settings, watch: Watch) -> Measure:
        if not isinstance(settings, type(full)):
            raise TypeError(f"{settings} are not the settings of {name}. Use for example {full}.")
        if bool(given) != bool(experiments[0]):
            raise ValueError(f"{name} {'takes no' if given else 'needs'} experiments. Use those of MEASURES[{name!r}].")
        source, began = provenance_of(device_of(given[0]) if given else "cpu"), time.perf_counter()
        values = function(given, settings, watch)
        source["seconds"] = round(time.perf_counter() - began, 3)
        return Measure(name, given, as_json(settings), values, source)

    return Kind(name, title, measure, full, quick, *experiments)


def as_json(settings: Settings) -> Values:
    """Returns settings as in a file: tuples become lists.

    >>> from fedatoms.evidence.measures.update_variance import Repeats
    >>> as_json(Repeats((0, 5), repeats=3))
    {'rounds': [0, 5], 'repeats': 3}
    """
    written: Values = json.loads(json.dumps(asdict(settings)))
    return written


def size_of(kind: Kind, measure: Measure) -> Size:
    """Returns whether a measure has the paper's settings and experiments (with any seed), the quick ones, or others."""
    taken, full = ([identity(one, without=("seed",)) for one in each.experiments] for each in (measure, kind))
    if measure.settings == as_json(kind.settings) and taken == full:
        return "full"
    return "quick" if measure.settings == as_json(kind.quick) else "other"


def counting(watch: Watch, total: int) -> Callable[[str], None]:
    """Returns a progress callback that counts to ``total``.

    >>> tick = counting(print, 2)
    >>> tick("rounds")
    1 2 rounds
    """
    done = itertools.count(1)
    return lambda what: watch(next(done), total, what)
