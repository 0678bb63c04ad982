"""Pairs of groups, plain and decomposed but otherwise alike: their gains, and the spread over seeds that they show."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from fedatoms.core.gains import Gain, Pooled, gain, paired, pool
from fedatoms.evidence.paper.tables import COMPARED, cells, contrast
from fedatoms.evidence.results.cells import Ours, match, place, score_by_seed
from fedatoms.evidence.results.groups import Group, headline_by_seed, is_quick, key_of, on_common_seeds
from fedatoms.experiment.fields import ATOM_FIELDS, Experiment
from fedatoms.experiment.parse import period_of

Twins = tuple[Group, Group]  # with atoms and plain, otherwise alike, with the same seeds


class Spreads(NamedTuple):
    """The spread of paired differences over seeds that is known: of global models, and of clients' own ones."""

    shared: Pooled | None = None
    own: Pooled | None = None

    def of_table(self, number: int) -> Pooled | None:
        """The spread of a table's gains: Tables 2 and 3 have clients' own models."""
        return self.shared if number == 1 else self.own


def known_spreads(groups: Sequence[Group]) -> Spreads:
    """Pools the spread over all pairs that have several seeds; quick runs and those on held-out images are left out.

    So are the reader's if the project's are there: the paper's claims are judged by the spread of the project's alone.

    >>> known_spreads([])
    Spreads(shared=None, own=None)
    """
    same = apart(groups)[1] or groups
    real = [each for each in same if not is_quick(each.experiment) and not each.experiment.holdout]
    shared = [paired(_headlines(mine), _headlines(plain)) for mine, plain in decomposed_pairs(real, real)]
    return Spreads(pool(shared), pool(_own(match(real))))


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
    return [both for each in _usual("atoms", some) for both in twins(each, plain.get(_but_for_atoms(each)))]


def twins(mine: Group, plain: Group | None) -> list[Twins]:
    """Pairs two groups on their common seeds; no pair if there is none, or if they score different models."""
    if plain is None or plain.models != mine.models:
        return []
    same = on_common_seeds([mine, plain])
    return [(same[0], same[1])] if same else []


def gain_between(mine: Group, plain: Group, pooled: Pooled | None) -> Gain:
    """Returns how many points the headline of a group is above that of its twin."""
    found = gain(_headlines(mine), _headlines(plain), pooled)
    assert found is not None  # twins share seeds
    return found


def _headlines(group: Group) -> dict[int, float]:
    return headline_by_seed(group, group.models[-1])


def _own(ours: Ours) -> list[list[float]]:
    """Returns what Tables 2 and 3 compare, by seed: our method with each other one, the most atoms with the fewest."""
    found = [both for table in (2, 3) for cell in cells(table) if (both := contrast(cell))]
    known = [
        (ours[place(one)], ours[place(other)]) for one, other in found if {place(one), place(other)} <= ours.keys()
    ]
    return [paired(*(score_by_seed(each, COMPARED[2]) for each in both)) for both in known]


def _usual(parametrisation: str, groups: Iterable[Group]) -> list[Group]:
    experiments = [(each, each.experiment) for each in groups]
    return [each for each, one in experiments if one.parametrisation == parametrisation and period_of(one.beta) == 1]


def _but_for_atoms(group: Group) -> str:
    """Identifies an experiment without its decomposition, and without settings that matter for slow groups only."""
    usual = Experiment()
    same = {name: getattr(usual, name) for name in (*ATOM_FIELDS, "beta", "fast", "slow_local")}
    return key_of(replace(group.experiment, **same))
