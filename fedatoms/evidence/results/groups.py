"""Runs of one experiment over its seeds, sorted by study, by setting and by clients in a round."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from fedatoms.core.ledger import total
from fedatoms.core.options import OWN_SCORED
from fedatoms.core.scales import Scale
from fedatoms.evidence.paper.study_list import QUICK_ROUNDS, quick, studies, study
from fedatoms.evidence.results.finding import Run
from fedatoms.evidence.results.names import layers, setting
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity
from fedatoms.runs.comparison import Spread, spread_of

STAND_IN = "quick run"


@dataclass(frozen=True)
class Group:
    """Runs of one experiment with different seeds."""

    runs: list[Run]

    @property
    def experiment(self) -> Experiment:
        """The experiment, with the first seed."""
        return self.runs[0].result.experiment

    @property
    def seeds(self) -> list[int]:
        """The seeds, in order."""
        return [run.result.experiment.seed for run in self.runs]

    @property
    def key(self) -> str:
        """The identity of the experiment, without its seed."""
        return key_of(self.experiment)

    @property
    def models(self) -> list[str]:
        """The models that its runs score; the last one is the headline."""
        return list(self.runs[0].result.scores)

    @property
    def of_own_models(self) -> bool:
        """Whether its headline is of clients' own models, each on its own client's images."""
        return self.models[-1] in OWN_SCORED or self.experiment.personal != "none"

    @property
    def metric(self) -> Scale:
        """What its scores are numbers of."""
        return self.runs[0].result.metric

    @property
    def published(self) -> bool:
        """Whether all its runs are the project's own, and none the reader's."""
        return all(run.published for run in self.runs)

    @property
    def has_rounds(self) -> bool:
        """Whether the rounds of all its runs are complete."""
        return all(len(run.rows) == run.result.experiment.rounds for run in self.runs)

    @property
    def up(self) -> float:
        """Bytes that clients upload in the whole run, mean over seeds."""
        return statistics.mean(total(run.result.bytes_up) for run in self.runs)

    @property
    def down(self) -> float:
        """Bytes that clients download in the whole run, mean over seeds."""
        return statistics.mean(total(run.result.bytes_down) for run in self.runs)

    @property
    def seconds(self) -> float | None:
        """Seconds of the whole run, mean over seeds; None if one withholds them."""
        known = [run.result.own_seconds for run in self.runs if run.result.own_seconds is not None]
        return statistics.mean(known) if len(known) == len(self.runs) else None


def key_of(experiment: Experiment) -> str:
    """Returns the identity of an experiment, without its seed.

    >>> key_of(Experiment(seed=1)) == key_of(Experiment())
    True
    """
    return identity(experiment, without=("seed",))


def is_stand_in(experiment: Experiment) -> bool:
    """Returns whether ``fedatoms reproduce --quick`` runs this experiment in place of one of the paper's.

    >>> is_stand_in(Experiment()), is_stand_in(quick(study("iid").runs["fedavg-cifar10-5 --partition iid"]))
    (False, True)
    """
    return key_of(experiment) in _stand_ins()


def is_quick(experiment: Experiment) -> bool:
    """Returns whether an experiment is too short to support anything: a stand-in, or as few rounds on the digits.

    >>> is_quick(Experiment(rounds=2)), is_quick(Experiment(rounds=20))
    (True, False)
    """
    return is_stand_in(experiment) or (experiment.dataset == "digits" and experiment.rounds <= QUICK_ROUNDS)


def readers_own(groups: Sequence[Group]) -> list[Group]:
    """Keeps the groups that the reader ran; all, if there is none.

    >>> readers_own([])
    []
    """
    return [each for each in groups if not each.published] or list(groups)


def group(runs: Sequence[Run]) -> list[Group]:
    """Groups runs that differ in the seed only.

    >>> group([])
    []
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(key_of(run.result.experiment), []).append(run)
    return [Group(sorted(each, key=lambda run: run.result.experiment.seed)) for each in groups.values()]


def on_common_seeds(groups: Sequence[Group]) -> list[Group]:
    """Keeps the runs whose seeds all groups have; returns no group if there is no common seed.

    >>> on_common_seeds([])
    []
    """
    seeds = set.intersection(*(set(each.seeds) for each in groups)) if groups else set()
    kept = [[run for run in each.runs if run.result.experiment.seed in seeds] for each in groups]
    return [Group(runs) for runs in kept if runs]


def groups_of(name: str, groups: Sequence[Group], *, quick_ones: bool) -> dict[str, Group]:
    """Returns the groups that belong to a study, by what one types to run them.

    >>> groups_of("table1", [], quick_ones=False)
    {}
    """
    runs = study(name).runs
    return _among({typed: quick(one) for typed, one in runs.items()} if quick_ones else runs, groups)


def earlier_of(name: str, groups: Sequence[Group]) -> dict[str, Group]:
    """Returns the groups of a study's earlier setting; some, such as plain ones, may be of the study itself, too.

    >>> earlier_of("figure-clients", [])
    {}
    """
    return _among(study(name).earlier, groups)


def by_clients(groups: Iterable[Group]) -> dict[str, dict[int, Group]]:
    """Sorts groups by network (plain or with atoms), then by clients in a round.

    >>> by_clients([])
    {}
    """
    found: dict[str, dict[int, Group]] = {}
    for each in groups:
        one = each.experiment
        found.setdefault(layers(one), {})[round(one.fraction * one.clients)] = each
    return found


def by_setting(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Sorts groups by setting, the reader's first; personalised, other metrics and quick stand-ins are apart.

    So are clients' own models where no method personalises them: each is scored on its own client's images.

    >>> by_setting([])
    {}
    """
    found: dict[str, list[Group]] = {}
    for each in groups:
        own = ", clients' own models" if each.of_own_models else ""
        own = own if each.experiment.personal == "none" else ", personalised"
        by = "" if each.metric.is_accuracy else f", {each.metric.axis}"
        found.setdefault(setting(each.experiment) + own + by + stand_in_mark(each.experiment), []).append(each)
    return dict(sorted(found.items(), key=lambda each: (all(one.published for one in each[1]), each[0])))


def stand_in_mark(experiment: Experiment) -> str:
    """Returns the mark at the end of a quick stand-in's name; nothing for other experiments.

    >>> stand_in_mark(Experiment())
    ''
    """
    return f", {STAND_IN}" if is_stand_in(experiment) else ""


def headline_by_seed(group: Group, model: str) -> dict[int, float]:
    """Returns the mean score of a model over the last rounds, by seed."""
    return {run.result.experiment.seed: run.result.scores[model].headline for run in group.runs}


def headline(group: Group) -> tuple[str, Spread]:
    """Returns the last model that a group scores, and its mean score over the last rounds."""
    return _over_last(group, group.models[-1])


def server_headline(group: Group) -> tuple[str, Spread]:
    """Returns the same for the server's model, or for the headline's if the server's is not scored."""
    return _over_last(group, server_or_last(group))


def server_or_last(group: Group) -> str:
    """Returns the server's model, or the last one that a group scores if the server's is not among them."""
    return "server" if "server" in group.models else group.models[-1]


def _among(runs: Mapping[str, Experiment], groups: Sequence[Group]) -> dict[str, Group]:
    known = {each.key: each for each in groups}
    keys = {typed: key_of(one) for typed, one in runs.items()}
    return {typed: known[key] for typed, key in keys.items() if key in known}


@cache
def _stand_ins() -> frozenset[str]:
    runs = [one for study in studies().values() for one in (*study.runs.values(), *study.earlier.values())]
    return frozenset(key_of(quick(one)) for one in runs)


def _over_last(group: Group, model: str) -> tuple[str, Spread]:
    return model, spread_of([run.result.scores[model].headline for run in group.runs])
