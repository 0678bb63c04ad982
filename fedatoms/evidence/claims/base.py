"""A claim: its numbers with their unit, the rule of its verdict, and the evidence for and against it."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from fedatoms.core.gains import Gain, State, written
from fedatoms.evidence.results.names import atoms_used, seeds
from fedatoms.experiment.fields import Experiment

Verdict = Literal["supported", "partly", "inconclusive", "contradicted", "not run"]
Numbers = tuple[float | None, float | None]  # the paper's and ours


class Unit(NamedTuple):
    """A unit and the format of its numbers."""

    name: str
    form: str


POINTS = Unit("points", "+.2f")
CLEAR = 0.5  # points: a gain of the paper that is clear; and what latent clients must add


class Evidence(NamedTuple):
    """One line of evidence: its topic, the paper's number if there is one, ours, and what it says of the claim."""

    about: str
    paper: float | None
    ours: float
    state: State
    gain: Gain | None = None  # ours with its interval, if it is a number over seeds
    at_least: bool = False  # ours is a lower bound

    @property
    def supports(self) -> bool:
        """Whether it supports the claim by itself."""
        return self.state == "supported"


class Claim(NamedTuple):
    """A claim of the paper with the rule of its verdict, the numbers that decide it, and its evidence."""

    text: str
    rule: str
    verdict: Verdict
    numbers: Numbers
    unit: Unit
    evidence: list[Evidence]
    evidence_unit: Unit
    gain: Gain | None = None  # our number with its interval, if it is one over seeds
    at_least: bool = False  # our number is a lower bound


def judge(
    text: str,
    rule: str,
    lines: list[Evidence],
    numbers: Numbers,
    unit: Unit = POINTS,
    *,
    evidence_unit: Unit | None = None,
    whole: State | None = None,
    gain: Gain | None = None,
    at_least: bool = False,
) -> Claim:
    """Judges a claim by its evidence: by ``whole``, the state of its one number, if that decides, else by its lines.

    Its evidence has the claim's own unit unless ``evidence_unit`` is given.

    >>> judge("It helps.", "It adds to the accuracy.", [], (None, None)).verdict
    'not run'
    """
    states = [line.state for line in lines]
    verdict: Verdict = "not run" if not lines else of_parts(states) if whole is None else of_whole(whole, states)
    shown = numbers if lines else (None, None)
    return Claim(text, rule, verdict, shown, unit, lines, evidence_unit or unit, gain if lines else None, at_least)


def of_parts(states: Sequence[State]) -> Verdict:
    """Judges a claim about every part: all must support it, and more of them than contradict it make it partly so.

    >>> yes, no, open = "supported", "contradicted", "inconclusive"
    >>> of_parts([yes, yes]), of_parts([yes, open]), of_parts([yes, no, no]), of_parts([open, open])
    ('supported', 'partly', 'contradicted', 'inconclusive')
    """
    yes, no = states.count("supported"), states.count("contradicted")
    if yes == len(states):
        return "supported"
    return "contradicted" if no > yes else "partly" if yes else "inconclusive"


def of_whole(whole: State, states: Sequence[State]) -> Verdict:
    """Judges a claim about one number: that decides, but one of its parts must support it, and none contradict it.

    >>> of_whole("supported", ["inconclusive", "supported"]), of_whole("supported", ["supported", "contradicted"])
    ('supported', 'partly')
    >>> of_whole("supported", ["inconclusive", "inconclusive"])  # their mean takes them as independent
    'inconclusive'
    """
    if whole == "supported" and "contradicted" in states:
        return "partly"
    return "inconclusive" if whole == "supported" and "supported" not in states else whole


def counted(supports: bool) -> State:
    """Returns the state of what is counted, not estimated: bytes, rounds of one replay.

    >>> counted(True), counted(False)
    ('supported', 'contradicted')
    """
    return "supported" if supports else "contradicted"


def count_of(lines: Sequence[Evidence]) -> str:
    """Writes how many lines support a claim, contradict it, or leave it open.

    >>> count_of([Evidence("a", None, 1.0, "supported"), Evidence("b", None, 0.0, "inconclusive")])
    '1 of 2 support it, 1 is open'
    """
    states = [line.state for line in lines]
    yes, no, left = (states.count(state) for state in ("supported", "contradicted", "inconclusive"))
    parts = [f"{yes} of {len(lines)} support it", f"{no} contradict{'s' * (no == 1)} it" if no else ""]
    return ", ".join(filter(None, [*parts, f"{left} {'is' if left == 1 else 'are'} open" if left else ""]))


def number_with_unit(claim: Claim) -> str:
    """Writes our number with its interval and its unit; empty if there is none.

    >>> one = Gain(1.5, 1.0, 2.0, 3, "seeds")
    >>> lines = [Evidence("it", None, 1.5, "supported", one)]
    >>> number_with_unit(judge("It helps.", "It is above 0.", lines, (None, 1.5), gain=one))
    '+1.50 ± 0.50 points (3 seeds)'
    """
    if claim.numbers[1] is None:
        return ""
    form, bound = claim.unit.form, "at least " * claim.at_least
    if claim.gain is None:
        return f"{bound}{claim.numbers[1]:{form}} {claim.unit.name}"
    value, _, seeds = written(claim.gain, form).rpartition(" (")
    return f"{bound}{value} {claim.unit.name} ({seeds}"


def smallest(lines: Sequence[Evidence]) -> Evidence | None:
    """Returns the line of our smallest number, or None.

    >>> smallest([])
    """
    return min(lines, key=lambda line: line.ours, default=None)


def coverage(found: int, total: int, what: str) -> str:
    """Writes how much of a claim's scope was run, for the end of its rule.

    >>> coverage(1, 6, "numbers of clients"), coverage(0, 6, "numbers of clients")
    (' Run: 1 of 6 numbers of clients.', '')
    """
    return f" Run: {found} of {total} {what}." if found else ""


def conditions(ours: Sequence[tuple[Experiment, Sequence[int]]], whose: str = "Ours") -> str:
    """Writes the atoms and seeds of our runs, for the end of a rule.

    >>> one = Experiment(parametrisation="atoms")
    >>> conditions([(one, [0]), (one, [0]), (one, [0, 1])])
    ' Ours: 9 atoms; seed 0, but seeds 0, 1 in 1 of 3.'
    >>> fast = Experiment(parametrisation="atoms", atoms=25, atoms_lr=2.0)
    >>> conditions([(one, [0]), (one, [0]), (one, [0, 1]), (fast, [0, 2])])
    ' Ours: 9 atoms or 25 atoms with 2 times the learning rate; seed 0, but seeds 0, 1 in 1 and seeds 0, 2 in 1 of 4.'
    """
    return f" {whose}: {atoms_used(one for one, _ in ours)}; {_seeds([some for _, some in ours])}." if ours else ""


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
