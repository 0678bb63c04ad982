"""A claim: its numbers with their unit, the rule of its verdict, and the evidence for and against it."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from fedatoms.evidence.results.names import atoms_used, seeds
from fedatoms.experiment.fields import Experiment

Verdict = Literal["holds", "does not hold", "not run"]
Numbers = tuple[float | None, float | None]  # the paper's and ours


class Unit(NamedTuple):
    """A unit and the format of its numbers."""

    name: str
    form: str


POINTS = Unit("points", "+.2f")
CLEAR = 0.5  # points: the smallest gain that one seed can show


class Evidence(NamedTuple):
    """One line of evidence: its topic, the paper's number if there is one, ours, and whether it supports the claim."""

    about: str
    paper: float | None
    ours: float
    supports: bool
    at_least: bool = False  # ours is a lower bound


class Claim(NamedTuple):
    """A claim of the paper with the rule of its verdict, the numbers that decide it, and its evidence."""

    text: str
    rule: str
    verdict: Verdict
    numbers: Numbers
    unit: Unit
    evidence: list[Evidence]
    evidence_unit: Unit
    at_least: bool = False  # our number is a lower bound


def judge(
    text: str,
    rule: str,
    lines: list[Evidence],
    numbers: Numbers,
    unit: Unit = POINTS,
    *,
    evidence_unit: Unit | None = None,
    holds: bool | None = None,
    at_least: bool = False,
) -> Claim:
    """Judges a claim by its evidence: it holds if all lines support it, unless ``holds`` decides.

    Its evidence has the claim's own unit unless ``evidence_unit`` is given.

    >>> judge("It helps.", "It adds to the accuracy.", [], (None, None)).verdict
    'not run'
    """
    true = all(line.supports for line in lines) if holds is None else holds
    verdict: Verdict = "not run" if not lines else "holds" if true else "does not hold"
    return Claim(text, rule, verdict, numbers if lines else (None, None), unit, lines, evidence_unit or unit, at_least)


def coverage(found: int, total: int, what: str) -> str:
    """Writes how much of a claim's scope was run, for the end of its rule.

    >>> coverage(1, 6, "numbers of clients"), coverage(0, 6, "numbers of clients")
    (' Run: 1 of 6 numbers of clients.', '')
    """
    return f" Run: {found} of {total} {what}." if found else ""


def conditions(ours: Sequence[tuple[Experiment, Sequence[int]]]) -> str:
    """Writes the atoms and seeds of our runs, for the end of a rule.

    >>> one = Experiment(parametrisation="atoms")
    >>> conditions([(one, [0]), (one, [0]), (one, [0, 1])])
    ' Ours: 9 atoms; seed 0, but seeds 0, 1 in 1 of 3.'
    >>> fast = Experiment(parametrisation="atoms", atoms=25, atoms_lr=2.0)
    >>> conditions([(one, [0]), (one, [0]), (one, [0, 1]), (fast, [0, 2])])
    ' Ours: 9 atoms or 25 atoms with 2 times the learning rate; seed 0, but seeds 0, 1 in 1 and seeds 0, 2 in 1 of 4.'
    """
    return f" Ours: {atoms_used(one for one, _ in ours)}; {_seeds([some for _, some in ours])}." if ours else ""


def mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the known values.

    >>> mean([1.0, None, 2.0]), mean([])
    (1.5, None)
    """
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def least(values: Iterable[float | None]) -> float | None:
    """Returns the smallest of the known values.

    >>> least([1.0, None]), least([])
    (1.0, None)
    """
    return min((value for value in values if value is not None), default=None)


def most(values: Iterable[float]) -> float | None:
    """Returns the largest value, or None.

    >>> most([1.0, 2.0]), most([])
    (2.0, None)
    """
    return max(values, default=None)


def _seeds(found: Sequence[Sequence[int]]) -> str:
    """Writes the most common seeds first, then the exceptions."""
    (usual, _), *others = Counter(map(tuple, found)).most_common()
    rest = " and ".join(f"{seeds(some)} in {count}" for some, count in others)
    return seeds(usual) + (f", but {rest} of {len(found)}" if rest else "")
