"""Claims judged by runs outside the paper's tables: figure (c), and all other pairs."""

from collections.abc import Sequence
from itertools import pairwise

from fedatoms.core.gains import Gain, Pooled, beyond
from fedatoms.evidence.claims.base import Claim, Evidence, conditions, coverage, judge, smallest
from fedatoms.evidence.paper.study_list import QUICK_ROUNDS, SAMPLED
from fedatoms.evidence.results.cells import Ours
from fedatoms.evidence.results.groups import Group, is_quick, is_stand_in
from fedatoms.evidence.results.names import distinct_names, layers
from fedatoms.evidence.results.pairs import (
    Spreads,
    apart,
    decomposed_pairs,
    gain_between,
    judged_pairs,
    mean_of_pairs,
    sampled_pairs,
    server_gain,
    server_growth,
    twins,
)


def sampled(groups: Sequence[Group], pooled: Pooled | None = None) -> Claim:
    """Judges figure (c) by the gain of the decomposition for each number of clients in a round.

    >>> sampled([]).rule
    "Each gain of the server's model is above 0."
    """
    both = judged_pairs(groups)
    gains = {count: server_gain(*pair, pooled) for count, pair in both.items()}
    lines = [_above(f"{count} clients in a round", gain) for count, gain in gains.items()]
    text = "The decomposition helps with few clients in a round and with many (figure (c), smallest gain)."
    rule = f"Each gain of the server's model is above 0.{coverage(len(lines), len(SAMPLED), 'numbers of clients')}"
    rule += conditions([(mine.experiment, mine.seeds) for mine, _ in both.values()])
    return _smallest(text, rule, lines)


def more_clients(groups: Sequence[Group], pooled: Pooled | None = None) -> Claim:
    """Judges figure (c) by the gain from the fewest to the most clients in a round, whose samples differ."""
    both = judged_pairs(groups)
    networks = [{count: pair[which] for count, pair in both.items()} for which in (1, 0)]  # plain first
    lines = [line for each in networks for line in _fewest_to_most(each, pooled)]
    lines = lines if len(lines) == len(networks) else []
    text = "More clients in a round make the accuracy higher (figure (c), smallest gain from the fewest to the most)."
    rule = "With and without decomposition, the gain of the server's model from the fewest to the most clients is "
    rule += "above 0. In brackets: the steps between them."
    rule += coverage(len(both) if lines else 0, len(SAMPLED), "numbers of clients")
    return _smallest(text, rule, lines)


def growing(groups: Sequence[Group], pooled: Pooled | None = None) -> Claim:
    """Judges figure (c) by how much more the decomposition adds with the most clients in a round than with the fewest.

    >>> growing([]).verdict
    'not run'
    """
    both = judged_pairs(groups)
    text = "The more clients a round has, the more the decomposition adds (figure (c), the gain with the most clients "
    text += "minus that with the fewest)."
    rule = "The difference of the two gains of the server's model is above 0. In brackets: the gains by clients in a "
    rule += "round."
    rule += coverage(len(both), len(SAMPLED), "numbers of clients")
    if len(both) < 2:
        return judge(text, rule, [], (None, None))
    few, many = min(both), max(both)
    gains = ", ".join(f"{server_gain(*pair, pooled).gain:+.2f} with {count}" for count, pair in sorted(both.items()))
    growth = server_growth(both[few], both[many], pooled)
    lines = [_above(f"{few} to {many} clients ({gains})", growth)] if growth else []
    return _smallest(text, rule + conditions([(mine.experiment, mine.seeds) for mine, _ in both.values()]), lines)


def _fewest_to_most(found: dict[int, Group], pooled: Pooled | None) -> list[Evidence]:
    """Returns the line of a network; none if fewer than two numbers of clients were run, or no common seed."""
    if len(found) < 2:
        return []
    few, many = min(found), max(found)
    steps = [
        f"{gain.gain:+.2f}" for one, other in pairwise(sorted(found)) for gain in _added(found, one, other, pooled)
    ]
    about = f"{layers(found[few].experiment)}, {few} to {many} clients ({', '.join(steps)})"
    return [_above(about, gain) for gain in _added(found, few, many, pooled)]


def _added(found: dict[int, Group], few: int, many: int, pooled: Pooled | None) -> list[Gain]:
    """Returns the gain from few to many clients on their common seeds; empty if there is none."""
    return [server_gain(*both, pooled) for both in twins(found[many], found[few])]


def elsewhere(groups: Sequence[Group], ours: Ours, spreads: Spreads) -> Claim:
    """Judges the decomposition by pairs that differ in nothing else and are not the paper's.

    Where the project's runs are there, those of the reader are no part of it.
    """
    groups = apart(groups)[1] or groups
    cells = {each.key: each.experiment for each in ours.values()}
    known = {*cells, *(mine.key for pairs in sampled_pairs(groups) for mine, _ in pairs.values())}
    rest = [each for each in groups if each.key not in known and not is_stand_in(each.experiment)]
    found = decomposed_pairs([each for each in rest if not each.experiment.holdout], groups)
    where, names = distinct_names(
        [mine.experiment for mine, _ in found], [one for one in cells.values() if one.personal == "none"]
    )
    gains = [gain_between(*both, spreads.of(both[0])) for both in found]
    quick = [is_quick(mine.experiment) for mine, _ in found]
    lines = [_other(*each) for each in zip(names, gains, quick, strict=True)]
    text = "The decomposition adds to the accuracy in our other runs (mean gain over pairs that differ in it alone)."
    rule = "The mean gain is above 0. A line supports it if its pair's gain is, too. Clients' own models have a spread "
    rule += "of their own, and are no part of the mean unless there is nothing else. Runs that are scored on held-out "
    rule += "images, by which settings are chosen, and those of --quick are left out; on digits "
    rule += f"{QUICK_ROUNDS} rounds or fewer decide nothing. A line "
    rule += f"names only what differs from most of our runs.{f' All on {where}.' if where else ''}"
    if not lines:
        return judge(text, rule, lines, (None, None))
    long = [n for n, short in enumerate(quick) if not short]
    counted = long or range(len(found))
    own = all(found[n][0].of_own_models for n in counted)
    same = [n for n in counted if found[n][0].of_own_models is own]
    used = [gains[n] for n in same]
    alone = len(used) == 1 and used[0].how == "seeds"  # it has an interval of its own, as in Compare
    pooled = spreads.own if own else spreads.shared
    mean = used[0] if alone else mean_of_pairs([found[n] for n in same], used, pooled)
    whole = beyond(mean) if long else "inconclusive"
    return judge(text, rule, lines, (None, mean.gain), whole=whole, gain=mean)


def _other(name: str, gain: Gain, quick: bool) -> Evidence:
    line = _above(name, gain)
    return line._replace(state="inconclusive") if quick else line


def _above(about: str, gain: Gain) -> Evidence:
    return Evidence(about, None, gain.gain, beyond(gain), gain)


def _smallest(text: str, rule: str, lines: list[Evidence]) -> Claim:
    worst = smallest(lines)
    return judge(text, rule, lines, (None, worst.ours if worst else None), gain=worst.gain if worst else None)
