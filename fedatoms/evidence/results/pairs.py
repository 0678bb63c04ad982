"""Pairs of groups, plain and decomposed but otherwise alike: their gains, and the spread over seeds that they show."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from fedatoms.core.gains import Gain, Pooled, alike_by_draws, gain, mean_gain, paired, pool, pool_of_pairs
from fedatoms.evidence.explain.filter_mean import RULE
from fedatoms.evidence.paper.study_list import CLIENTS
from fedatoms.evidence.paper.tables import COMPARED, cells, contrast
from fedatoms.evidence.results.cells import Ours, match, place, score_by_seed
from fedatoms.evidence.results.groups import (
    Group,
    by_clients,
    earlier_of,
    groups_of,
    headline_by_seed,
    is_quick,
    key_of,
    on_common_seeds,
    server_or_last,
)
from fedatoms.experiment.fields import ATOM_FIELDS, Experiment
from fedatoms.experiment.parse import period_of

Twins = tuple[Group, Group]  # with atoms and plain, otherwise alike, with the same seeds
DRAWN = (  # by these a seed draws the same clients, data and rounds for every method
    *("dataset", "holdout", "partition", "clients", "classes_per_client", "distinct", "dirichlet", "unbalanced"),
    *("fraction", "sampling", "failures"),
)


class Spreads(NamedTuple):
    """The spread of paired differences over seeds that is known: of global models, and of clients' own ones."""

    shared: Pooled | None = None
    own: Pooled | None = None

    def of_table(self, number: int) -> Pooled | None:
        """The spread of a table's gains: Tables 2 and 3 have clients' own models."""
        return self.shared if number == 1 else self.own

    def of(self, group: Group) -> Pooled | None:
        """The spread that a comparison of a group with others borrows."""
        return self.own if group.of_own_models else self.shared


def known_spreads(groups: Sequence[Group]) -> Spreads:
    """Pools the spread over all pairs that have several seeds; those with the same plain runs lend fewer degrees.

    Gains of different methods with one seed are alike, as it draws the same clients and data for both: by how much is
    estimated, too, from pairs that have no plain run in common.
    Quick runs and those on held-out images are left out. So are the reader's if the project's are there: the paper's
    claims are judged by the spread of the project's alone.

    >>> known_spreads([])
    Spreads(shared=None, own=None)
    """
    real = _real(groups)
    pairs, own = (_real_pairs(real, of_own_models=whose) for whose in (False, True))
    shared, others = ([_differences(both, _headlines) for both in some] for some in (pairs, own))
    return Spreads(_with_draws(pool_of_pairs(shared), pairs), pool_of_pairs([*_own(match(real)), *others]))


def spreads_by_owner(groups: Sequence[Group]) -> tuple[Spreads, Spreads]:
    """Returns the spreads of the reader's groups and of the project's: neither lends to the other.

    >>> spreads_by_owner([])[0]
    Spreads(shared=None, own=None)
    """
    own, published = apart(groups)
    return known_spreads(own), known_spreads(published)


def apart(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Splits groups by the owner of their runs: the reader's, and the project's; an experiment of both is in both.

    >>> apart([])
    ([], [])
    """

    def of(ours: bool) -> list[Group]:
        runs = ([run for run in each.runs if run.published is ours] for each in groups)
        return [Group(some) for some in runs if some]

    return of(ours=False), of(ours=True)


def decomposed_pairs(some: Iterable[Group], groups: Sequence[Group]) -> list[Twins]:
    """Pairs groups with atoms with the plain ones that are otherwise alike, where all groups travel in every round.

    >>> decomposed_pairs([], [])
    []
    """
    plain = {_but_for_atoms(each): each for each in _usual("plain", groups)}
    found = [both for each in _usual("atoms", some) for both in twins(each, plain.get(_but_for_atoms(each)))]
    return _trained_once(found)


def _trained_once(found: Sequence[Twins]) -> list[Twins]:
    """Keeps the first of pairs that differ in the rounds that are scored alone: their models are the same."""
    kept: dict[str, Twins] = {}
    for both in found:
        kept.setdefault(key_of(replace(both[0].experiment, eval_every=1)), both)
    return list(kept.values())


def twins(mine: Group, plain: Group | None) -> list[Twins]:
    """Pairs two groups on their common seeds; no pair if there is none, or if they score different models."""
    if plain is None or plain.models != mine.models:
        return []
    same = on_common_seeds([mine, plain])
    return [(same[0], same[1])] if same else []


def sampled_pairs(groups: Sequence[Group]) -> list[dict[int, Twins]]:
    """Returns the pairs of figure (c) by clients in a round: those with the paper's atoms, then the earlier ones.

    >>> sampled_pairs([])
    [{}, {}]
    """
    return [_by_count(some) for some in (groups_of(CLIENTS, groups, quick_ones=False), earlier_of(CLIENTS, groups))]


def judged_pairs(groups: Sequence[Group]) -> dict[int, Twins]:
    """Returns the pairs by which figure (c) is judged: those with the atoms that have more, the paper's on a tie.

    >>> judged_pairs([])
    {}
    """
    return max(sampled_pairs(groups), key=len)


def latent_pairs(groups: Sequence[Group]) -> list[Twins]:
    """Pairs groups with atoms with those whose server averages filters, which have no latent clients, but all else.

    >>> latent_pairs([])
    []
    """
    usual = _usual("atoms", _real(groups))
    known = {each.key: each for each in usual}
    without = [each for each in usual if each.experiment.aggregation == RULE]
    found = [(known.get(key_of(replace(each.experiment, aggregation="mean"))), each) for each in without]
    same = [on_common_seeds([mine, each]) for mine, each in found if mine]
    return [(both[0], both[1]) for both in same if both]


def gain_between(mine: Group, plain: Group, pooled: Pooled | None) -> Gain:
    """Returns how many points the headline of a group is above that of its twin."""
    return _gain(_headlines(mine), _headlines(plain), pooled)


def server_gain(mine: Group, plain: Group, pooled: Pooled | None) -> Gain:
    """Returns how many points the server's model of a group is above that of its twin."""
    return _gain(_of_server(mine), _of_server(plain), pooled)


def mean_of_pairs(found: Iterable[Sequence[Group]], gains: Sequence[Gain], pooled: Pooled | None) -> Gain:
    """Returns the mean gain over pairs, in whose interval a group that several share counts once, as do seeds' draws.

    >>> mean_of_pairs([], [Gain(1.0, None, None, 1, "none")], None).gain
    1.0
    """
    both = list(found)
    sides = [(_runs(one), _runs(other)) for one, other in both]
    return mean_gain(gains, pooled, sides, [{(_drawn(one), seed) for seed in one.seeds} for one, _ in both])


def server_growth(few: Twins, many: Twins, pooled: Pooled | None) -> Gain | None:
    """Returns how much more one pair's gain is than another's, by the server's models and the seeds of all four.

    One seed has the spread of two gains, which count as independent.
    """
    most, least = (
        dict(zip(mine.seeds, paired(_of_server(mine), _of_server(plain)), strict=True)) for mine, plain in (many, few)
    )
    return gain(most, least, None if pooled is None else _of_two(pooled))


def server_spread(groups: Sequence[Group]) -> Pooled | None:
    """Pools the spread of the server's models over all pairs that have several seeds, as ``known_spreads`` does."""
    return pool_of_pairs(_differences(both, _of_server) for both in _real_pairs(_real(groups)))


def unpaired_server_spread(groups: Sequence[Group]) -> Pooled | None:
    """Pools the spread of the difference of two server's models that have nothing in common but the seed's number."""
    real = _real(groups)
    paired_keys = {each.key for both in _real_pairs(real) for each in both}  # a plain one may have two twins
    found = pool([*_of_server(each).values()] for each in real if each.key in paired_keys)
    return None if found is None else _of_two(found)


def _by_count(groups: Mapping[str, Group]) -> dict[int, Twins]:
    found = by_clients(groups.values())
    plain = found.get("plain", {})
    decomposed = [each for name, some in found.items() if name != "plain" for each in sorted(some.items())]
    return {count: both for count, mine in decomposed for both in twins(mine, plain.get(count))}


def _gain(mine: Mapping[int, float], plain: Mapping[int, float], pooled: Pooled | None) -> Gain:
    found = gain(mine, plain, pooled)
    assert found is not None  # twins share seeds
    return found


def _of_server(group: Group) -> dict[int, float]:
    return headline_by_seed(group, server_or_last(group))


def _real(groups: Sequence[Group]) -> list[Group]:
    same = apart(groups)[1] or groups
    return [each for each in same if not is_quick(each.experiment) and not each.experiment.holdout]


def _real_pairs(real: Sequence[Group], *, of_own_models: bool = False) -> list[Twins]:
    return [both for both in decomposed_pairs(real, real) if both[0].of_own_models is of_own_models]


def _of_two(pooled: Pooled) -> Pooled:
    """Returns the spread of a difference of two that are independent."""
    return pooled._replace(deviation=math.sqrt(2) * pooled.deviation)


def _headlines(group: Group) -> dict[int, float]:
    return headline_by_seed(group, group.models[-1])


def _runs(group: Group) -> set[tuple[str, int]]:
    return {(group.key, seed) for seed in group.seeds}


def _drawn(group: Group) -> tuple[object, ...]:
    """Returns what a seed's draws depend on."""
    return tuple(getattr(group.experiment, name) for name in DRAWN)


def _with_draws(pooled: Pooled | None, pairs: Sequence[Twins]) -> Pooled | None:
    """Adds to a spread how alike the gains of one seed and its draws are, by one pair for each plain group."""
    if pooled is None:
        return None
    first = {both[1].key: both for both in sorted(pairs, key=lambda both: len(both[0].seeds))}
    cells = [(_differences(both, _headlines)[0], (_drawn(both[0]), *both[0].seeds)) for both in first.values()]
    alike, draws = alike_by_draws(cells)
    return pooled._replace(alike=alike, draws=draws)


def _differences(both: Twins, scores: Callable[[Group], dict[int, float]]) -> tuple[list[float], Hashable]:
    """Returns the differences of a pair by seed, and the plain group that they are from."""
    return paired(*map(scores, both)), both[1].key


def _own(ours: Ours) -> list[tuple[list[float], Hashable]]:
    """Returns what Tables 2 and 3 compare, by seed: our method with each other one, the most atoms with the fewest."""
    found = [tuple(map(place, both)) for table in (2, 3) for cell in cells(table) if (both := contrast(cell))]
    known = [(one, other) for one, other in found if {one, other} <= ours.keys()]
    differences = (paired(*(score_by_seed(ours[each], COMPARED[2]) for each in both)) for both in known)
    shared = (one if one[0] == 2 else other for one, other in known)  # by all pairs of a column
    return list(zip(differences, shared, strict=True))


def _usual(parametrisation: str, groups: Iterable[Group]) -> list[Group]:
    experiments = [(each, each.experiment) for each in groups]
    return [each for each, one in experiments if one.parametrisation == parametrisation and period_of(one.beta) == 1]


def _but_for_atoms(group: Group) -> str:
    """Identifies an experiment without its decomposition, and without settings that matter for slow groups only."""
    usual = Experiment()
    same = {name: getattr(usual, name) for name in (*ATOM_FIELDS, "beta", "fast", "slow_local")}
    return key_of(replace(group.experiment, **same))
