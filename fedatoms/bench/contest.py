"""Contestants side by side on one device: a first round each, then rounds in turn; failures are listed."""

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fedatoms.bench.line_up import Contestant, Round
from fedatoms.bench.machine_limits import timed, watch_memory
from fedatoms.bench.results import Gap

WHILE = 0.5  # seconds per turn


class Timing(NamedTuple):
    """What a contestant's rounds took."""

    name: str
    first: float  # seconds of set-up and of the first round
    memory: float | None  # peak of that, in MB
    seconds: list[float]  # of the rounds after it
    note: str  # what it warned about


class _Ready(NamedTuple):
    contestant: Contestant
    work: Round
    timing: Timing


def compete(device: str, contestants: Sequence[Contestant], where: str) -> Iterator[str | Gap | Timing]:
    """Sets all contestants up, lets them take turns, and yields the timings of those that did not fail."""
    ready: list[_Ready] = []
    for contestant in contestants:
        try:
            ready.append(_first_round(device, contestant))
            yield f"{where}: {contestant.name}, first round {ready[-1].timing.first:.1f} s"
        except Exception as error:  # out of memory, or a compiler error: the others continue
            yield Gap(f"{contestant.name}, {where}", reason_of(error))
    for turn in range(max((each.contestant.turns for each in ready), default=0)):
        for each in [each for each in ready if turn < each.contestant.turns]:
            try:
                each.timing.seconds.append(_turn(device, each))
            except Exception as error:
                ready.remove(each)
                yield Gap(f"{each.contestant.name}, {where}", reason_of(error))
    yield from (each.timing for each in ready)


def _turn(device: str, each: _Ready) -> float:
    """Runs rounds for one turn, at least one, and returns the mean: the first after a change is slower."""
    seconds = timed(device, each.work)
    more = round(WHILE / seconds) - 1
    if more < 1:
        return seconds

    def rounds() -> None:
        for _ in range(more):
            each.work()

    return (seconds + timed(device, rounds)) / (1 + more)


def reason_of(error: Exception) -> str:
    """Returns an error as one line.

    >>> reason_of(ValueError("too big\\nat line 3"))
    'ValueError: too big'
    """
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:300]}"


def _first_round(device: str, contestant: Contestant) -> _Ready:
    works: list[Round] = []

    def first() -> None:
        works.append(contestant.start())
        works[0]()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        peak = watch_memory(device)
        seconds = timed(device, first)
    note = "; ".join(
        dict.fromkeys(str(each.message).splitlines()[0] for each in warned if each.category is UserWarning)
    )
    return _Ready(contestant, works[0], Timing(contestant.name, seconds, peak(), [], note))
