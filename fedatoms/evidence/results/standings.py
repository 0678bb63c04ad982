"""Experiments of one setting against each other: gains paired by seed, and what the same score costs."""

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from fedatoms.algorithms import TABLE as ALGORITHMS
from fedatoms.core.gains import Gain, Pooled, gain, paired, pool_of_pairs
from fedatoms.core.ledger import total
from fedatoms.core.scales import Scale
from fedatoms.evidence.paper.tables import cells_of
from fedatoms.evidence.results.communication import ROUNDING
from fedatoms.evidence.results.finding import Run
from fedatoms.evidence.results.groups import Group, by_setting, headline_by_seed
from fedatoms.evidence.results.names import distinct_names, unlike
from fedatoms.evidence.results.pairs import Spreads, spreads_by_owner
from fedatoms.experiment.fields import Experiment
from fedatoms.personal import TABLE as PERSONAL
from fedatoms.runs.results import alike_averaged

LAST_PASS = "after the last pass"  # a score of clients' own models that no curve has


class Track(NamedTuple):
    """The rounds in which a run's model was scored: the best score so far, bytes both ways and seconds until then."""

    rounds: list[int]
    best: list[float]
    sent: list[float]
    seconds: list[float]


class Reached(NamedTuple):
    """Rounds, bytes both ways and seconds to a score, means over seeds; ``never`` counts those that do not reach it.

    ``seconds`` is None where a run withholds them.
    """

    rounds: float
    sent: float
    seconds: float | None
    never: int
    seeds: int


class Entry(NamedTuple):
    """An experiment of a setting: its name, its runs, their scores by model and seed, and how they came to them."""

    name: str
    group: Group
    scores: dict[str, dict[int, float]]  # the last model is the one that counts
    tracks: dict[str, dict[int, Track]]

    @property
    def model(self) -> str:
        """The model that counts."""
        return list(self.scores)[-1]

    @property
    def mean(self) -> float:
        """Its mean score over seeds."""
        return statistics.fmean(self.scores[self.model].values())


class Versus(NamedTuple):
    """An experiment against a baseline: its gain, and what both need to reach the baseline's score, if known."""

    model: str
    gain: Gain | None  # None: no common model, no common seed, or scores of other rounds
    mine: Reached | None
    base: Reached | None


class Standings(NamedTuple):
    """The experiments of one setting, best first, and the spreads over seeds that a single seed borrows."""

    setting: str
    metric: Scale
    entries: list[Entry]
    base: Entry  # what others are compared with unless one asks for another: the fairest to the best
    own: Pooled | None  # of the reader's experiments
    published: Pooled | None  # of the project's

    def pooled(self, one: Entry, other: Entry) -> Pooled | None:
        """The spread that a comparison of two borrows: the project's if both are its own, else the reader's."""
        return self.published if one.group.published and other.group.published else self.own


def all_standings(groups: Sequence[Group]) -> list[Standings]:
    """Sorts the experiments of each setting; the reader's settings first, of these those with most of their runs.

    Settings that are scored on held-out images come last.

    >>> all_standings([])
    []
    """
    spreads = spreads_by_owner([each for each in groups if each.metric.is_accuracy])
    found = [_standings(name, some, spreads) for name, some in by_setting(groups).items()]
    return sorted(found, key=lambda each: (not _own(each), bool(_any(each).holdout), -_runs(each), each.setting))


def of_the_reader(places: Sequence[Standings]) -> list[Standings]:
    """Keeps the experiments that the reader ran, if there are any; one alone keeps its baseline, whoever ran that.

    >>> of_the_reader([])
    []
    """
    return [_restricted(each, own) for each in places if (own := _own(each))] or list(places)


def of_the_project(places: Sequence[Standings]) -> list[Standings]:
    """Returns the settings in which the reader ran nothing, if they ran something elsewhere.

    >>> of_the_project([])
    []
    """
    rest = [each for each in places if not _own(each)]
    return rest if len(rest) < len(places) else []


def leader(groups: Sequence[Group]) -> Group:
    """Returns the best group of a setting, as its standings have it."""
    names = distinct_names([each.experiment for each in groups])[1]
    ranked = [
        (statistics.fmean(list(_scores(each).values())[-1].values()), name)
        for each, name in zip(groups, names, strict=True)
    ]
    return groups[ranked.index((max if groups[0].metric.higher else min)(ranked))]


def versus(mine: Entry, base: Entry, place: Standings) -> Versus:
    """Compares two experiments of a setting on the seeds that both have, by the last model that both score.

    Means over other rounds make no gain: it may be theirs.
    """
    if (model := _compared_model(mine, base)) is None:
        return Versus("", None, None, None)
    targets = base.scores[model]
    gained = gain(mine.scores[model], targets, place.pooled(mine, base)) if over_same_rounds(mine, base) else None
    shared = [seed for seed in targets if seed in mine.scores[model]]
    costs = [_reached(each.tracks.get(model, {}), targets, shared, place.metric) for each in (mine, base)]
    return Versus(model, gained, costs[0], costs[1])


def baseline_of(mine: Entry, place: Standings) -> Entry:
    """Returns the usual baseline of an experiment of a setting: as like it as there is one, above all as long."""
    return _baseline(mine, [*place.entries, place.base])


def over_same_rounds(one: Entry, other: Entry) -> bool:
    """Returns whether two experiments are compared by scores of the same rounds: other gains may be those of rounds.

    Scores after the last pass are of the last round, whichever others are scored.
    """
    mine, theirs = one.group.experiment, other.group.experiment
    if _compared_model(one, other) == LAST_PASS:
        return mine.rounds == theirs.rounds
    return alike_averaged(mine, theirs)


def _compared_model(one: Entry, other: Entry) -> str | None:
    """Returns the last model that both score, if there is one."""
    common = [name for name in one.scores if name in other.scores]
    return common[-1] if common else None


def _standings(setting: str, groups: Sequence[Group], spreads: tuple[Spreads, Spreads]) -> Standings:
    metric = groups[0].metric
    names = distinct_names([each.experiment for each in groups])[1]
    entries = [_entry(name, each) for name, each in zip(names, groups, strict=True)]
    ordered = sorted(entries, key=lambda each: (each.mean, each.name), reverse=metric.higher)
    known = [each.of(groups[0]) if metric.is_accuracy else None for each in spreads]
    sides = [[each for each in ordered if each.group.published == whose] for whose in (False, True)]
    own, published = (one or _spread_of(some) for one, some in zip(known, sides, strict=True))
    return Standings(setting, metric, ordered, _baseline(ordered[0], ordered), own, published)


def _spread_of(entries: Sequence[Entry]) -> Pooled | None:
    """Pools the spread over seeds of the differences from the usual baseline."""
    if not entries:
        return None
    base = min(entries, key=_as_baseline)
    same = [x for x in entries if x is not base and x.model == base.model and over_same_rounds(x, base)]
    return pool_of_pairs((paired(each.scores[each.model], base.scores[base.model]), base.name) for each in same)


def _entry(name: str, group: Group) -> Entry:
    return Entry(name, group, _scores(group), _tracks(group))


def _scores(group: Group) -> dict[str, dict[int, float]]:
    """Returns the scores of each model by seed; the last model is the one that counts."""
    scores = {model: headline_by_seed(group, model) for model in group.models}
    last = {run.result.experiment.seed: (run.result.personal or {}).get(LAST_PASS) for run in group.runs}
    known = {seed: value for seed, value in last.items() if value is not None}
    if len(known) == len(group.runs):
        scores[LAST_PASS] = known
    return scores


def _tracks(group: Group) -> dict[str, dict[int, Track]]:
    if not group.has_rounds:
        return {}
    return {
        model: {run.result.experiment.seed: _track(run, model, group.metric) for run in group.runs}
        for model in group.models
    }


def _track(run: Run, model: str, metric: Scale) -> Track:
    sent = list(accumulate(total(row["up"]) + total(row["down"]) for row in run.rows))
    seconds = list(accumulate(run.seconds))
    found = [(t, _score(row["scores"].get(model), metric)) for t, row in enumerate(run.rows)]
    scored = [(t, value) for t, value in found if value is not None]
    best = list(accumulate((value for _, value in scored), max if metric.higher else min))
    until = [seconds[t] for t, _ in scored] if seconds else []
    return Track([t + 1 for t, _ in scored], best, [sent[t] for t, _ in scored], until)


def _score(found: Mapping[str, object] | None, metric: Scale) -> float | None:
    value = (found or {}).get(metric.name)
    return float(value) if isinstance(value, int | float) else None


def _reached(
    tracks: Mapping[int, Track], targets: Mapping[int, float], seeds: Sequence[int], metric: Scale
) -> Reached | None:
    if not seeds or not all(seed in tracks and tracks[seed].rounds for seed in seeds):
        return None
    sign = 1 if metric.higher else -1
    places = [bisect_left([sign * x for x in tracks[s].best], sign * targets[s] - ROUNDING) for s in seeds]
    never = sum(place == len(tracks[seed].best) for place, seed in zip(places, seeds, strict=True))
    ends = [(tracks[s], min(place, len(tracks[s].best) - 1)) for place, s in zip(places, seeds, strict=True)]
    rounds = statistics.fmean(track.rounds[place] for track, place in ends)
    sent = statistics.fmean(track.sent[place] for track, place in ends)
    known = all(track.seconds for track, _ in ends)
    seconds = statistics.fmean(track.seconds[place] for track, place in ends) if known else None
    return Reached(rounds, sent, seconds, never, len(seeds))


def _baseline(mine: Entry, entries: Sequence[Entry]) -> Entry:
    """Chooses the most usual method, and of its experiments the fairest to this one.

    That has its rounds, its epochs, a seed of its own, and as few other settings as possible that differ. Of the usual
    method itself, whose settings are what is compared, rounds and epochs alone must be equal.
    """
    usual = min(map(_unusual, entries))
    same = [each for each in entries if _unusual(each) == usual]
    is_usual = _unusual(mine) == usual
    one = mine.group.experiment

    def unfair(base: Entry) -> tuple[bool | int, ...]:
        other = base.group.experiment
        length = not over_same_rounds(mine, base), one.epochs != other.epochs
        apart = set(mine.group.seeds).isdisjoint(base.group.seeds)
        return length if is_usual else (*length, apart, len(unlike(one, other)))

    return min(same, key=lambda base: (*unfair(base), *_as_baseline(base)))


def _as_baseline(entry: Entry) -> tuple[object, ...]:
    """Prefers plain networks, FedAvg, cells of the paper, many seeds, and short names."""
    cell = bool(cells_of(entry.group.experiment))
    return *_unusual(entry), not cell, -len(entry.group.seeds), len(entry.name), entry.name


def _unusual(entry: Entry) -> tuple[bool, ...]:
    """Returns what keeps an experiment's method from being a baseline: layers, methods, uploads and aggregation."""
    one = entry.group.experiment
    methods = ((ALGORITHMS, one.algorithm), (PERSONAL, one.personal))
    unusual = one.parametrisation != "plain", *(not table.has(name, "baseline") for table, name in methods)
    return *unusual, *(getattr(one, name) != getattr(Experiment, name) for name in ("uploads", "aggregation"))


def _own(found: Standings) -> list[Entry]:
    return [each for each in found.entries if not each.group.published]


def _restricted(place: Standings, own: list[Entry]) -> Standings:
    return place._replace(entries=own, base=_baseline(own[0], own if len(own) > 1 else place.entries))


def _any(found: Standings) -> Experiment:
    return found.entries[0].group.experiment


def _runs(found: Standings) -> int:
    return sum(len(each.group.runs) for each in _own(found) or found.entries)
