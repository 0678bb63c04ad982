"""Claims about what an accuracy costs: rounds in figure (a), bytes in figure (d)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedatoms.core.gains import Gain, Pooled, State, beyond, over_seeds, pool
from fedatoms.evidence.claims.base import Claim, Evidence, Unit, coverage, judge
from fedatoms.evidence.paper.study_list import BETAS, OWN_TARGET
from fedatoms.evidence.paper.tables import Pair, pairs
from fedatoms.evidence.results.cells import Ours, column_name, common_runs
from fedatoms.evidence.results.communication import (
    Cost,
    Targets,
    cost_to_reach,
    factors,
    mean_cost,
    never_reached,
    relative_costs,
)
from fedatoms.evidence.results.groups import Group, groups_of, headline_by_seed, server_headline
from fedatoms.evidence.results.names import distinct_names
from fedatoms.evidence.results.pairs import mean_of_pairs, twins
from fedatoms.experiment.parse import period_of

COMMUNICATION, OWN_MODELS = "figure-communication", "figure-communication-local"


class _Ratio(NamedTuple):
    """A pair of Table 1: its groups, its name, the ratios of rounds by seed, and how many are lower bounds."""

    both: list[Group]
    about: str
    rounds: list[float]
    never: int


def fewer_rounds(ours: Ours) -> Claim:
    """Judges figure (a) by the rounds that reach the plain run's accuracy in each pair of Table 1.

    >>> fewer_rounds({}).verdict
    'not run'
    """
    found = _ratios(ours)
    pooled = _spread(found)
    each_mean = [over_seeds(each.rounds, pooled) for each in found]
    lines = [_line(each.about, gain, 1.0, bound=bool(each.never)) for each, gain in zip(found, each_mean, strict=True)]
    text = "Fewer rounds reach the plain run's accuracy with decomposition (figure (a), mean over pairs of Table 1)."
    rule = "The mean ratio of rounds to reach the plain run's mean accuracy over its last rounds is below 1. A line "
    rule += "is the mean ratio over seeds; a run that never reaches it counts with all its rounds, a lower bound."
    rule += coverage(len(lines), len(pairs()), "pairs")
    times = Unit("times the plain run's", ".2f")
    if not lines:
        return judge(text, rule, lines, (None, None), times)
    mean = mean_of_pairs([each.both for each in found], each_mean, pooled)
    bound = any(each.never for each in found)
    whole = _below(mean, 1.0, bound=bound)
    return judge(text, rule, lines, (None, mean.gain), times, whole=whole, gain=mean, at_least=bound)


def rounds_spread(ours: Ours, model: str = "") -> Pooled | None:
    """Pools the spread over seeds of the ratios of rounds in Table 1, by the model that it compares or another one.

    >>> rounds_spread({})
    """
    return _spread(_ratios(ours, model))


def communication(groups: Sequence[Group], pooled: Pooled | None = None) -> Claim:
    """Judges fast and slow groups by the bytes uploaded until the plain run's accuracy is reached.

    ``pooled`` is the spread of a ratio of rounds: what a round sends is counted.
    """
    where, lines = _slow_groups(COMMUNICATION, groups, pooled, _last_of_server)
    text = "With slow groups every 1/beta rounds a share beta of the bytes is enough (figure (d), furthest above beta)."
    rule = "The bytes uploaded until the server reaches the plain run's mean accuracy over its last rounds are below "
    rule += "a share beta of the plain run's. A run that never reaches it counts with all its bytes, a lower bound. "
    rule += "Bytes of a round are counted; the spread is that of the rounds needed, with one seed that of Table 1's "
    rule += "pairs by the server's model."
    return _judged_by_beta(text, rule + (f" All on {where}." if where else ""), lines)


def own_models(groups: Sequence[Group], pooled: Pooled | None = None) -> Claim:
    """Judges the same as we think the paper counted it: until clients' own models have the paper's 52 %.

    >>> own_models([]).verdict
    'not run'
    """
    where, lines = _slow_groups(OWN_MODELS, groups, pooled, _own_target)
    text = f"Clients' own models need a share beta of the bytes to {OWN_TARGET:g} % (figure (d), furthest above beta)."
    rule = f"The bytes uploaded until each client's last trained model has {OWN_TARGET:g} % on its own test images, on "
    rule += "average, are below a share beta of the plain run's. All else is as for the server's model, but with one "
    rule += "seed the spread is that of Table 1's pairs by model all."
    return _judged_by_beta(text, rule + (f" All on {where}." if where else ""), lines)


_Aim = Callable[[Group], tuple[str, Targets]]  # from the plain runs: the model that is scored, and what it must reach


def _last_of_server(plain: Group) -> tuple[str, Targets]:
    model, _ = server_headline(plain)
    return model, headline_by_seed(plain, model)


def _own_target(plain: Group) -> tuple[str, Targets]:
    return "local", dict.fromkeys(plain.seeds, OWN_TARGET)


def _slow_groups(study: str, groups: Sequence[Group], pooled: Pooled | None, aim: _Aim) -> tuple[str, list[Evidence]]:
    """Returns where the runs of a study were made, and a line for each of its runs with slow groups."""
    whole = [each for each in groups_of(study, groups, quick_ones=False).values() if each.has_rounds]
    slow = [each for each in whole if period_of(each.experiment.beta) > 1]
    plain = next((each for each in whole if each.experiment.parametrisation == "plain"), None)
    found = [both for each in slow for both in twins(each, plain)]
    where, names = distinct_names([mine.experiment for mine, _ in found], [twin.experiment for _, twin in found])
    return where, [line for name, pair in zip(names, found, strict=True) for line in _bytes(name, *pair, pooled, aim)]


def _judged_by_beta(text: str, rule: str, lines: list[Evidence]) -> Claim:
    rule += coverage(len(lines), len(BETAS), "values of beta")
    worst = max(lines, key=lambda line: line.ours / (line.paper or 1), default=None)
    numbers = (worst.paper, worst.ours) if worst else (None, None)
    unit, at_least = Unit("% of the plain run's", ".2f"), bool(worst and worst.at_least)
    return judge(text, rule, lines, numbers, unit, gain=worst.gain if worst else None, at_least=at_least)


def _bytes(name: str, mine: Group, plain: Group, pooled: Pooled | None, aim: _Aim) -> list[Evidence]:
    model, targets = aim(plain)
    found = relative_costs(targets, mine, plain, model)
    if not found:
        return []
    ratio, beta = mean_cost(found), 100 / period_of(mine.experiment.beta)
    share = _share(found, pooled)
    missed = f"{never_reached(ratio, mine)} reached, {ratio.best:.2f} % at best; " if ratio.never else ""
    about = f"{name}: {missed}{factors(ratio)}; {100 * ratio.both:.0f} % both ways"
    return [_line(about, share, beta, paper=beta, bound=bool(ratio.never))]


def _line(about: str, mine: Gain, bar: float, *, bound: bool, paper: float | None = None) -> Evidence:
    """Returns the line of a mean ratio that shall be below a bar."""
    return Evidence(about, paper, mine.gain, _below(mine, bar, bound=bound), mine, at_least=bound)


def _below(mine: Gain, bar: float, *, bound: bool) -> State:
    """Says whether a mean ratio is below a bar; one of runs that never reach the target can only be larger."""
    state = beyond(mine, bar, below=True)
    return "inconclusive" if bound and state == "supported" else state


def _share(found: Sequence[Cost], pooled: Pooled | None) -> Gain:
    """Returns the share of bytes up in per cent; of one seed the rounds are uncertain, and a round's bytes are not."""
    a_round = 100 * found[0].up / found[0].rounds
    spread = pooled and Pooled(a_round * pooled.deviation, pooled.degrees)
    return over_seeds([100 * each.up for each in found], spread)


def _spread(found: Sequence[_Ratio]) -> Pooled | None:
    """Pools the spread over seeds of ratios; lower bounds have none."""
    return pool(each.rounds for each in found if not each.never)


def _ratios(ours: Ours, model: str = "") -> list[_Ratio]:
    return [ratio for pair in pairs() for ratio in _ratio(pair, ours, model or pair.plain.compared.model)]


def _ratio(pair: Pair, ours: Ours, model: str) -> list[_Ratio]:
    both = common_runs(*pair, ours)
    if not both or not all(each.has_rounds for each in both):
        return []
    plain, atoms = both
    targets = headline_by_seed(plain, model)
    found = relative_costs(targets, atoms, plain, model)
    if not found:
        return []
    base, mine = (cost_to_reach(targets, each, model) for each in (plain, atoms))
    missed = f" ({never_reached(mine, atoms)})" if mine.never else ""
    name = f"{pair.plain.row}, {column_name(pair.plain)}"
    about = f"{name}: {mine.rounds:.0f} rounds{missed}, plain {base.rounds:.0f}"
    return [_Ratio(both, about, [each.rounds for each in found], mine.never)]
