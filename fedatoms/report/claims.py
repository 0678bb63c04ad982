"""The paper's claims, each judged by a rule that is stated, with the evidence for and against it."""

import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from fedatoms.experiment import OF_ATOMS, Experiment, identity, period_of
from fedatoms.paper.tables import DECOMPOSED, Pair, cells, pairs
from fedatoms.report.groups import Group, Ours, column_name, gain_of, headline, ours_of, place
from fedatoms.report.names import method, setting
from fedatoms.report.studied import spent

Verdict = Literal["holds", "does not hold", "not run"]
NEAR = 0.7  # points: a baseline this close to the paper's agrees with it
CLEAR = 0.5  # points: a gain that one seed can tell from none
FREE = 0.01  # share: bytes that count as no extra cost


class Evidence(NamedTuple):
    """One line for a claim: what it is about, the paper's number if there is one, ours, and if it speaks for it."""

    about: str
    paper: float | None
    ours: float
    speaks_for: bool


class Claim(NamedTuple):
    """A claim of the paper, the number that decides it, the rule of the verdict, and what that rests on."""

    text: str
    rule: str
    unit: str
    paper: float | None
    ours: float | None
    verdict: Verdict
    evidence: list[Evidence]
    form: str = "+.2f"  # of the numbers in the evidence


def claims(ours: Ours, groups: Sequence[Group]) -> list[Claim]:
    """Judges the paper's claims by our runs of its cells, and its main one by all others too.

    >>> {claim.verdict for claim in claims({}, [])}
    {'not run'}
    """
    known = {id(group) for group in ours.values()}
    return [*(judge(ours) for judge in CLAIMS), _communication(groups), _elsewhere(groups, known)]


def _mean_gain(ours: Ours) -> Claim:
    found = _gains(ours)
    lines = [Evidence(_pair_name(pair), pair.gain, gain, gain > 0) for pair, gain in found]
    paper, mine = _mean(line.paper for line in lines), _mean(line.ours for line in lines)
    text = "The decomposition adds to the accuracy of the global model (Table 1, mean gain over its pairs)."
    rule = "Our mean gain is at least the paper's"
    rule += f" over the same {len(lines)} of its {len(pairs())} pairs." if lines else "."
    rule += _conditions([ours[place(pair.atoms)] for pair, _ in found])
    return _claim(text, rule, "points", paper, mine, lines, lambda: (mine or 0) >= (paper or 0))


def _every_algorithm(ours: Ours) -> Claim:
    found = _gains(ours)
    lines = []
    for row in dict.fromkeys(pair.plain.row for pair, _ in found):
        some = [(pair.gain, gain) for pair, gain in found if pair.plain.row == row]
        printed, gain = (statistics.mean(column) for column in zip(*some, strict=True))
        lines.append(Evidence(f"{row}, mean of {len(some)}", printed, gain, gain > 0))
    text = "The decomposition helps each algorithm (Table 1, smallest of the algorithms' mean gains)."
    paper, worst = _least(line.paper for line in lines), _least(line.ours for line in lines)
    return _claim(text, "Every algorithm's mean gain is above 0.", "points", paper, worst, lines)


def _signs(ours: Ours) -> Claim:
    found = [(pair, gain) for pair, gain in _gains(ours) if pair.gain >= CLEAR]
    lines = [Evidence(_pair_name(pair), pair.gain, gain, gain > 0) for pair, gain in found]
    text = f"The decomposition helps wherever the paper's gain is {CLEAR} points or more (Table 1, smallest gain)."
    paper, worst = _least(line.paper for line in lines), _least(line.ours for line in lines)
    return _claim(text, "Each of these gains is above 0.", "points", paper, worst, lines)


def _baselines(ours: Ours) -> Claim:
    lines = []
    for cell in (cell for cell in cells(1) if not cell.row.endswith(DECOMPOSED)):
        if (mine := ours_of(cell, ours)) is not None:
            near = abs(mine.mean - cell.value) <= NEAR
            lines.append(Evidence(f"{cell.row}, {column_name(cell)}", cell.value, mine.mean, near))
    off = max((line.ours - (line.paper or 0) for line in lines), key=abs, default=None)
    text = "Our baselines are the paper's (Table 1 without decomposition, largest difference)."
    return _claim(text, f"Each is within {NEAR} points of the paper's.", "points", None, off, lines)._replace(
        form=".2f"
    )


def _no_extra_cost(ours: Ours) -> Claim:
    lines = []
    for pair, _ in _gains(ours):
        plain, atoms = (ours[place(cell)].up for cell in pair)
        more = 100 * (atoms / plain - 1) if plain else 0.0
        lines.append(Evidence(_pair_name(pair), None, more, more <= 100 * FREE))
    text = "The extra clients cost no extra bytes (decomposed against plain, bytes up, largest difference)."
    most = max((line.ours for line in lines), default=None)
    return _claim(text, f"At most {100 * FREE:g} % more bytes in each pair.", "%", None, most, lines)


def _personal(ours: Ours) -> Claim:
    lines = []
    for cell in (cell for cell in cells(2) if cell.row == "Ours"):
        others = [each for each in cells(2) if each.column == cell.column and each.row != cell.row]
        scores = [found.mean for each in others if (found := ours_of(each, ours)) is not None]
        mine = ours_of(cell, ours)
        if mine is not None and scores:
            ahead, printed = mine.mean - max(scores), cell.value - max(each.value for each in others)
            about = f"{column_name(cell)}, against {len(scores)} of {len(others)}"
            lines.append(Evidence(about, printed, ahead, ahead > 0 or cell.mark != "best"))
    text = "Personal atoms are ahead of the other personalised methods (Table 2, smallest lead)."
    rule = "The lead is above 0 in each column where the paper has one."
    paper, least = _least(line.paper for line in lines), _least(line.ours for line in lines)
    return _claim(text, rule, "points", paper, least, lines)


def _elsewhere(groups: Sequence[Group], known: Collection[int]) -> Claim:
    """Judges the decomposition by pairs that differ in nothing else and are no pair of the paper's."""
    plain = {_but_for_atoms(group): group for group in groups if _is_usual(group.experiment)}
    lines = []
    for group in (group for group in groups if period_of(group.experiment.beta) == 1):
        twin = plain.get(_but_for_atoms(group))
        if group.experiment.parametrisation == "atoms" and twin is not None and id(group) not in known:
            (model, with_atoms), (other, without) = headline(group), headline(twin)
            gain = with_atoms.mean - without.mean
            lines += [Evidence(_name(group), None, gain, gain > 0)] if model == other else []
    text = "The decomposition adds to the accuracy in our other runs (mean gain over pairs that differ in it alone)."
    mine = _mean(line.ours for line in lines)
    return _claim(text, "The mean gain is above 0.", "points", None, mine, lines, lambda: (mine or 0) > 0)


def _communication(groups: Sequence[Group]) -> Claim:
    """Judges fast and slow groups by the bytes that clients send until the plain network's accuracy is reached."""
    usual = {_but_for_atoms(group): group for group in groups if _is_usual(group.experiment)}
    lines = []
    for group in (group for group in groups if period_of(group.experiment.beta) > 1):
        twin, share = usual.get(_but_for_atoms(group)), 100 / period_of(group.experiment.beta)
        if twin is None or not twin.up or not all(run.rows for run in (*group.runs, *twin.runs)):
            continue
        target = headline(twin)[1].mean
        mine, reference = spent(target, group).up, spent(target, twin).up
        about = f"{_name(group)}, beta {group.experiment.beta}"
        if mine is None:
            lines.append(Evidence(f"{about}: never reached, all its bytes", share, 100 * group.up / twin.up, False))
        elif reference:
            lines.append(Evidence(about, share, 100 * mine / reference, mine <= reference * share / 100))
    text = "With slow groups every 1/beta rounds a share beta of the bytes is enough (for the plain accuracy, largest)."
    paper, most = (max(column, default=None) for column in ([e.paper or 0 for e in lines], [e.ours for e in lines]))
    rule = "Bytes up to the plain run's mean accuracy of the last rounds are at most beta of the plain run's."
    return _claim(text, rule, "%", paper, most, lines)


CLAIMS: tuple[Callable[[Ours], Claim], ...] = (
    _mean_gain,
    _every_algorithm,
    _signs,
    _baselines,
    _no_extra_cost,
    _personal,
)


def _claim(
    text: str,
    rule: str,
    unit: str,
    paper: float | None,
    ours: float | None,
    lines: list[Evidence],
    holds: Callable[[], bool] | None = None,
) -> Claim:
    if not lines:
        return Claim(text, rule, unit, None, None, "not run", [])
    true = holds() if holds is not None else all(line.speaks_for for line in lines)
    return Claim(text, rule, unit, paper, ours, "holds" if true else "does not hold", lines)


def _is_usual(experiment: Experiment) -> bool:
    return experiment.parametrisation == "plain" and period_of(experiment.beta) == 1


def _but_for_atoms(group: Group) -> str:
    """Names an experiment without its decomposition and without its fast and slow groups."""
    usual = Experiment()
    fields = (*OF_ATOMS, "beta", "fast", "slow_local")
    same = replace(group.experiment, **{name: getattr(usual, name) for name in fields})
    return identity(same, without=("seed",))


def _name(group: Group) -> str:
    experiment = group.experiment
    rate = f", lr {experiment.lr:g}, atoms-lr {experiment.atoms_lr:g}"
    return f"{method(experiment)}{rate}; {setting(experiment)}"


def _conditions(groups: Sequence[Group]) -> str:
    """Says with which atoms our side of a comparison was run."""
    kinds = {(group.experiment.atoms, group.experiment.atoms_lr) for group in groups}
    said = [f"{atoms} atoms with {rate:g} times the learning rate" for atoms, rate in sorted(kinds)]
    return f" Ours: {' or '.join(said)}, seeds: {_numbers(groups)}." if said else ""


def _numbers(groups: Sequence[Group]) -> str:
    return ", ".join(map(str, sorted({seed for group in groups for seed in group.seeds})))


def _gains(ours: Ours) -> list[tuple[Pair, float]]:
    return [(pair, gain) for pair in pairs() if (gain := gain_of(pair, ours)) is not None]


def _pair_name(pair: Pair) -> str:
    return f"{pair.plain.row}, {column_name(pair.plain)}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
