"""What a claim is on the page: its numbers in a unit, the rule of its verdict, and the evidence for and against it."""

import statistics
from collections.abc import Iterable
from typing import Literal, NamedTuple

Verdict = Literal["holds", "does not hold", "not run"]
Numbers = tuple[float | None, float | None]  # the paper's, and ours


class Unit(NamedTuple):
    """What numbers count, and how they are written."""

    name: str
    form: str


POINTS = Unit("points", "+.2f")


class Evidence(NamedTuple):
    """One line for a claim: what it is about, the paper's number if there is one, ours, and if it speaks for it."""

    about: str
    paper: float | None
    ours: float
    speaks_for: bool


class Claim(NamedTuple):
    """A claim of the paper, the rule of its verdict, the numbers that decide it, and the evidence that it rests on."""

    text: str
    rule: str
    verdict: Verdict
    numbers: Numbers
    unit: Unit
    evidence: list[Evidence]
    counted: Unit  # in the evidence


def judge(
    text: str, rule: str, lines: list[Evidence], numbers: Numbers, unit: Unit = POINTS, *, holds: bool | None = None
) -> Claim:
    """Makes a claim of its evidence; it holds if all lines speak for it, or as is said.

    >>> judge("It helps.", "It adds to the accuracy.", [], (None, None)).verdict
    'not run'
    """
    true = all(line.speaks_for for line in lines) if holds is None else holds
    verdict: Verdict = "not run" if not lines else "holds" if true else "does not hold"
    return Claim(text, rule, verdict, numbers if lines else (None, None), unit, lines, unit)


def mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of what is known.

    >>> mean([1.0, None, 2.0]), mean([])
    (1.5, None)
    """
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def least(values: Iterable[float | None]) -> float | None:
    """Returns the smallest of what is known.

    >>> least([1.0, None]), least([])
    (1.0, None)
    """
    return min((value for value in values if value is not None), default=None)


def most(values: Iterable[float]) -> float | None:
    """Returns the largest.

    >>> most([1.0, 2.0]), most([])
    (2.0, None)
    """
    return max(values, default=None)
