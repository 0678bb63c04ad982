"""What a claim is on the page: its numbers in a unit, the rule of its verdict, and the evidence for and against it."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from fedatoms.evidence.results.names import atoms_of, seeds
from fedatoms.experiment.fields import Experiment

Verdict = Literal["holds", "does not hold", "not run"]
Numbers = tuple[float | None, float | None]  # the paper's, and ours


class Unit(NamedTuple):
    """What numbers count, and how they are written."""

    name: str
    form: str


POINTS = Unit("points", "+.2f")
CLEAR = 0.5  # points: a gain that one seed can tell from none


class Evidence(NamedTuple):
    """One line for a claim: what it is about, the paper's number if there is one, ours, and if it speaks for it."""

    about: str
    paper: float | None
    ours: float
    speaks_for: bool
    at_least: bool = False  # ours is a lower bound


class Claim(NamedTuple):
    """A claim of the paper, the rule of its verdict, the numbers that decide it, and the evidence that it rests on."""

    text: str
    rule: str
    verdict: Verdict
    numbers: Numbers
    unit: Unit
    evidence: list[Evidence]
    counted: Unit  # in the evidence
    at_least: bool = False  # our number is a lower bound


def judge(
    text: str,
    rule: str,
    lines: list[Evidence],
    numbers: Numbers,
    unit: Unit = POINTS,
    *,
    counted: Unit | None = None,
    holds: bool | None = None,
    at_least: bool = False,
) -> Claim:
    """Makes a claim of its evidence; it holds if all lines speak for it, or as is said.

    Its lines are ``counted`` in its own unit, or in another.

    >>> judge("It helps.", "It adds to the accuracy.", [], (None, None)).verdict
    'not run'
    """
    true = all(line.speaks_for for line in lines) if holds is None else holds
    verdict: Verdict = "not run" if not lines else "holds" if true else "does not hold"
    return Claim(text, rule, verdict, numbers if lines else (None, None), unit, lines, counted or unit, at_least)


def covered(found: int, total: int, what: str) -> str:
    """Says how much of what a claim is about was run, for the end of its rule.

    >>> covered(1, 6, "numbers of clients"), covered(0, 6, "numbers of clients")
    (' Run: 1 of 6 numbers of clients.', '')
    """
    return f" Run: {found} of {total} {what}." if found else ""


def conditions(ours: Sequence[tuple[Experiment, Sequence[int]]]) -> str:
    """Says with which atoms and seeds our side of comparisons was run, for the end of a rule.

    >>> one = Experiment(parametrisation="atoms")
    >>> conditions([(one, [0]), (one, [0]), (one, [0, 1])])
    ' Ours: 9 atoms; seed 0, but seeds 0, 1 in 1 of 3.'
    >>> fast = Experiment(parametrisation="atoms", atoms=25, atoms_lr=2.0)
    >>> conditions([(one, [0]), (one, [0]), (one, [0, 1]), (fast, [0, 2])])
    ' Ours: 9 atoms or 25 atoms with 2 times the learning rate; seed 0, but seeds 0, 1 in 1 and seeds 0, 2 in 1 of 4.'
    """
    return f" Ours: {atoms_of(one for one, _ in ours)}; {_seeds([some for _, some in ours])}." if ours else ""


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


def _seeds(found: Sequence[Sequence[int]]) -> str:
    """Names the seeds that most have, and then those of the others."""
    (usual, _), *others = Counter(map(tuple, found)).most_common()
    said = " and ".join(f"{seeds(some)} in {count}" for some, count in others)
    return seeds(usual) + (f", but {said} of {len(found)}" if said else "")
