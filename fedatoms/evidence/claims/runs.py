"""Claims judged by runs outside the paper's tables: figures (c) and (d), and all other pairs."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from fedatoms.evidence.claims.base import CLEAR, Claim, Evidence, Unit, conditions, coverage, judge, least, mean
from fedatoms.evidence.paper.study_list import BETAS, SAMPLED
from fedatoms.evidence.results.cells import Ours
from fedatoms.evidence.results.communication import factors, headline_by_seed, never_reached, relative_cost
from fedatoms.evidence.results.groups import (
    Group,
    by_clients,
    groups_of,
    headline,
    is_stand_in,
    key_of,
    on_common_seeds,
    server_headline,
)
from fedatoms.evidence.results.names import distinct_names
from fedatoms.experiment.fields import ATOM_FIELDS, Experiment
from fedatoms.experiment.parse import period_of

CLIENTS, COMMUNICATION = "figure-clients", "figure-communication"
Twins = tuple[Group, Group]  # with atoms and plain, otherwise alike, with the same seeds


def sampled(groups: Sequence[Group]) -> Claim:
    """Judges figure (c) by the gain of the decomposition for each number of clients in a round.

    >>> sampled([]).rule
    'Each gain is above 0.'
    """
    found = by_clients(groups_of(CLIENTS, groups, quick_ones=False).values())
    plain = found.pop("plain", {})
    both = {count: _twins(mine, plain.get(count)) for each in found.values() for count, mine in sorted(each.items())}
    gains = {count: _gain(*twins) for count, each in both.items() for twins in each}
    lines = [Evidence(f"{count} clients in a round", None, gain, gain > 0) for count, gain in gains.items()]
    text = "The decomposition helps with few clients in a round and with many (figure (c), smallest gain)."
    rule = f"Each gain is above 0.{coverage(len(lines), len(SAMPLED), 'numbers of clients')}"
    rule += conditions([(mine.experiment, mine.seeds) for each in both.values() for mine, _ in each])
    return judge(text, rule, lines, (None, least(gains.values())))


def more_clients(groups: Sequence[Group]) -> Claim:
    """Judges figure (c) by the gain from the fewest to the most clients in a round."""
    found = by_clients(groups_of(CLIENTS, groups, quick_ones=False).values())
    lines = [
        Evidence(f"{name}, {few} to {many} clients", None, gain, gain > 0)
        for name, each in found.items()
        for few, many in pairwise(sorted(each))
        for gain in _added(each, few, many)
    ]
    gains = [gain for each in found.values() for gain in _added(each, min(each), max(each))]
    text = "More clients in a round make the accuracy higher (figure (c), smallest gain from the fewest to the most)."
    rule = f"With and without decomposition, the most clients add at least {CLEAR} points, the smallest gain that one "
    rule += f"seed can show. A line is one step between them.{coverage(len(lines), 2 * (len(SAMPLED) - 1), 'steps')}"
    return judge(text, rule, lines, (None, least(gains)), holds=(least(gains) or 0) >= CLEAR)


def _added(found: dict[int, Group], few: int, many: int) -> list[float]:
    """Returns the gain from few to many clients on their common seeds; empty if there is none."""
    return [_gain(*twins) for twins in _twins(found[many], found[few])]


def communication(groups: Sequence[Group]) -> Claim:
    """Judges fast and slow groups by the bytes uploaded until the plain run's accuracy is reached."""
    whole = [each for each in groups_of(COMMUNICATION, groups, quick_ones=False).values() if each.has_rounds]
    slow = [each for each in whole if period_of(each.experiment.beta) > 1]
    plain = next((each for each in whole if each.experiment.parametrisation == "plain"), None)
    found = [twins for each in slow for twins in _twins(each, plain)]
    where, names = distinct_names([mine.experiment for mine, _ in found], [twin.experiment for _, twin in found])
    lines = [line for name, pair in zip(names, found, strict=True) for line in _bytes(name, *pair)]
    text = "With slow groups every 1/beta rounds a share beta of the bytes is enough (figure (d), furthest above beta)."
    rule = "The bytes uploaded until the server reaches the plain run's mean accuracy over its last rounds are at most "
    rule += "a share beta of the plain run's. A run that never reaches it counts with all its bytes, a lower bound, "
    rule += "and contradicts the claim."
    rule += f"{_on(where)}{coverage(len(lines), len(BETAS), 'values of beta')}"
    worst = max(lines, key=lambda line: line.ours / (line.paper or 1), default=None)
    numbers = (worst.paper, worst.ours) if worst else (None, None)
    return judge(
        text, rule, lines, numbers, Unit("% of the plain run's", ".2f"), at_least=bool(worst and worst.at_least)
    )


def elsewhere(groups: Sequence[Group], ours: Ours) -> Claim:
    """Judges the decomposition by pairs that differ in nothing else and are not the paper's."""
    cells = {each.key: each.experiment for each in ours.values()}
    known = {*cells, *(each.key for each in groups_of(CLIENTS, groups, quick_ones=False).values())}
    rest = [each for each in groups if each.key not in known and not is_stand_in(each.experiment)]
    found = _pairs([each for each in rest if not each.experiment.holdout], groups)
    where, names = distinct_names(
        [mine.experiment for mine, _ in found], [one for one in cells.values() if one.personal == "none"]
    )
    gains = [_gain(*twins) for twins in found]
    lines = [Evidence(name, None, gain, gain > 0) for name, gain in zip(names, gains, strict=True)]
    text = "The decomposition adds to the accuracy in our other runs (mean gain over pairs that differ in it alone)."
    rule = "The mean gain is above 0. Runs that are scored on held-out images, by which settings are chosen, and quick "
    rule += f"stand-ins are left out. A line names only what differs from most of our runs.{_on(where)}"
    gain = mean(gains)
    return judge(text, rule, lines, (None, gain), holds=(gain or 0) > 0)


def _pairs(some: Sequence[Group], groups: Sequence[Group]) -> list[Twins]:
    """Pairs groups with atoms with the plain ones that are otherwise alike, where all groups travel in every round."""
    plain = {_but_for_atoms(each): each for each in _usual("plain", groups)}
    return [twins for each in _usual("atoms", some) for twins in _twins(each, plain.get(_but_for_atoms(each)))]


def _usual(parametrisation: str, groups: Sequence[Group]) -> list[Group]:
    experiments = [(each, each.experiment) for each in groups]
    return [each for each, one in experiments if one.parametrisation == parametrisation and period_of(one.beta) == 1]


def _twins(mine: Group, plain: Group | None) -> list[Twins]:
    """Pairs two groups on their common seeds; no pair if there is none, or if they score different models."""
    if plain is None or plain.models != mine.models:
        return []
    same = on_common_seeds([mine, plain])
    return [(same[0], same[1])] if same else []


def _gain(mine: Group, plain: Group) -> float:
    return headline(mine)[1].mean - headline(plain)[1].mean


def _bytes(name: str, mine: Group, plain: Group) -> list[Evidence]:
    model, _ = server_headline(plain)
    ratio = relative_cost(headline_by_seed(plain, model), mine, plain, model)
    if ratio is None:
        return []
    beta = 100 / period_of(mine.experiment.beta)
    missed = f"{never_reached(ratio, mine)} reached, {ratio.best:.2f} % at best; " if ratio.never else ""
    holds = not ratio.never and 100 * ratio.up <= beta
    return [Evidence(f"{name}: {missed}{factors(ratio)}", beta, 100 * ratio.up, holds, at_least=bool(ratio.never))]


def _but_for_atoms(group: Group) -> str:
    """Identifies an experiment without its decomposition, and without settings that matter for slow groups only."""
    usual = Experiment()
    same = {name: getattr(usual, name) for name in (*ATOM_FIELDS, "beta", "fast", "slow_local")}
    return key_of(replace(group.experiment, **same))


def _on(where: str) -> str:
    return f" All on {where}." if where else ""
