"""Runs of one experiment over its seeds, and the cells of the paper that they reproduce."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from fedatoms.evidence.paper.studies import quick, studies, study
from fedatoms.evidence.paper.tables import ATOMS, Cell, Compared, Pair, cells_of
from fedatoms.evidence.results.find import Run
from fedatoms.evidence.results.names import atoms_of, setting
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identity import identity
from fedatoms.runs.compare import Spread
from fedatoms.runs.results import Result


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
        """What its runs compute, whatever the seed."""
        return key_of(self.experiment)

    @property
    def models(self) -> list[str]:
        """The models that its runs score, the one that counts last."""
        return list(self.runs[0].result.accuracy)

    @property
    def has_rounds(self) -> bool:
        """Whether all rounds of all its runs are there, and not their results alone."""
        return all(len(run.rows) == run.result.experiment.rounds for run in self.runs)

    @property
    def up(self) -> float:
        """Bytes that clients send in the whole run, mean over seeds."""
        return statistics.mean(sum(run.result.bytes_up.values()) for run in self.runs)

    @property
    def down(self) -> float:
        """Bytes that clients receive in the whole run, mean over seeds."""
        return statistics.mean(sum(run.result.bytes_down.values()) for run in self.runs)


STAND_IN = "quick stand-in"
Ours = dict[tuple[int, str, object], Group]  # by table, row and column of the paper


def key_of(experiment: Experiment) -> str:
    """Hashes what an experiment computes, whatever the seed.

    >>> key_of(Experiment(seed=1)) == key_of(Experiment())
    True
    """
    return identity(experiment, without=("seed",))


def is_stand_in(experiment: Experiment) -> bool:
    """Says whether an experiment is what ``fedatoms reproduce --quick`` puts in the place of a run of the paper.

    >>> is_stand_in(Experiment()), is_stand_in(quick(study("iid").runs["fedavg-cifar10-5 --partition iid"]))
    (False, True)
    """
    return key_of(experiment) in _stand_ins()


def group(runs: Sequence[Run]) -> list[Group]:
    """Groups runs that differ in the seed only."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(key_of(run.result.experiment), []).append(run)
    return [Group(sorted(each, key=lambda run: run.result.experiment.seed)) for each in groups.values()]


def on_common_seeds(groups: Sequence[Group]) -> list[Group]:
    """Keeps of groups that are compared the runs whose seeds all of them have; no group if there is no such seed.

    >>> on_common_seeds([])
    []
    """
    seeds = set.intersection(*(set(each.seeds) for each in groups)) if groups else set()
    kept = [[run for run in each.runs if run.result.experiment.seed in seeds] for each in groups]
    return [Group(runs) for runs in kept if runs]


def groups_of(name: str, groups: Sequence[Group], *, quick_ones: bool) -> dict[str, Group]:
    """Finds the groups that are runs of a study, by what one would type for them."""
    known = {each.key: each for each in groups}
    runs = {typed: key_of(quick(one) if quick_ones else one) for typed, one in study(name).runs.items()}
    return {typed: known[key] for typed, key in runs.items() if key in known}


def by_clients(groups: Iterable[Group]) -> dict[str, dict[int, Group]]:
    """Sorts groups by network, plain or with atoms, and then by the clients of a round.

    >>> by_clients([])
    {}
    """
    found: dict[str, dict[int, Group]] = {}
    for each in groups:
        one = each.experiment
        name = "plain" if one.parametrisation == "plain" else f"{one.atoms} atoms"
        found.setdefault(name, {})[round(one.fraction * one.clients)] = each
    return found


def places(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Sorts groups by setting; personalised methods, whose regime is another, and quick stand-ins are apart.

    >>> places([])
    {}
    """
    found: dict[str, list[Group]] = {}
    for each in groups:
        own = "" if each.experiment.personal == "none" else ", personalised"
        found.setdefault(setting(each.experiment) + own + marked(each.experiment), []).append(each)
    return dict(sorted(found.items()))


def marked(experiment: Experiment) -> str:
    """Returns what the name of a quick stand-in ends with; nothing for other experiments.

    >>> marked(Experiment())
    ''
    """
    return f", {STAND_IN}" if is_stand_in(experiment) else ""


def score(group: Group, compared: Compared) -> Spread | None:
    """Returns a group's number that stands beside the paper's; None if its runs lack it."""
    found = [_number(run.result, compared) for run in group.runs]
    values = [value for value in found if value is not None]
    return _spread(values) if values and len(values) == len(found) else None


def headline(group: Group) -> tuple[str, Spread]:
    """Returns the last model that a group scores, and its accuracy over the last rounds."""
    return _over_last(group, group.models[-1])


def of_server(group: Group) -> tuple[str, Spread]:
    """Returns the server's model, all that a federation has of what was sent, or the headline's if it is not scored."""
    return _over_last(group, "server") if "server" in group.models else headline(group)


def place(cell: Cell) -> tuple[int, str, object]:
    """Returns where a cell stands: its table, row and column.

    >>> from fedatoms.evidence.paper.tables import cells
    >>> place(cells(1)[0])[:2]
    (1, 'FedAvg')
    """
    return cell.table, cell.row, cell.column


def match(groups: Sequence[Group]) -> Ours:
    """Finds the groups that reproduce cells of the paper."""
    return {place(cell): each for each in groups for cell in cells_of(each.experiment)}


def ours_of(cell: Cell, ours: Ours) -> Spread | None:
    """Returns what we have for a cell of the paper."""
    found = ours.get(place(cell))
    return None if found is None else score(found, cell.compared)


def atoms_beside(table: int, ours: Ours) -> str:
    """Says with which atoms our runs of a table were made, and the paper's; nothing if there are none.

    >>> atoms_beside(1, {})
    ''
    """
    said = atoms_of(group.experiment for (number, *_), group in ours.items() if number == table)
    return f"Ours: {said}; the paper: {ATOMS[table]}." if said and table in ATOMS else ""


def reasons(printed: Sequence[Cell]) -> list[str]:
    """Says why columns of a table cannot be run, each reason once.

    >>> from fedatoms.evidence.paper.tables import cells
    >>> reasons(cells(1))[0][:60]
    'tiny-imagenet (20, 20), tiny-imagenet (20, 50): no preset ye'
    """
    columns: dict[str, dict[str, None]] = {}
    for cell in printed:
        if cell.missing:
            columns.setdefault(cell.missing, {})[column_name(cell)] = None
    return [f"{', '.join(names)}: {reason}." for reason, names in columns.items()]


def both_of(one: Cell, other: Cell, ours: Ours) -> list[Group]:
    """Returns what we have for two cells, with the seeds of both; no group if one was not run with any of them."""
    found = [ours[place(cell)] for cell in (one, other) if place(cell) in ours]
    return on_common_seeds(found) if len(found) == 2 else []


def ahead_of(one: Cell, other: Cell, ours: Ours) -> float | None:
    """Returns by how many points our runs of one cell are ahead of those of another, with the same seeds."""
    scores = [score(each, one.compared) for each in both_of(one, other, ours)]
    mine, theirs = scores or (None, None)
    return None if mine is None or theirs is None else mine.mean - theirs.mean


def gain_of(pair: Pair, ours: Ours) -> float | None:
    """Returns what the decomposition adds in our runs, in points; None if one of the two was not run."""
    return ahead_of(pair.atoms, pair.plain, ours)


def row_name(cell: Cell) -> str:
    """Names a row; what the paper calls its own gets a name that ours can stand beside.

    >>> from fedatoms.evidence.paper.tables import cells
    >>> row_name(cells(2)[-1])
    'Ours: local atoms and head'
    """
    return "Ours: local atoms and head" if cell.row == "Ours" else cell.row


def column_name(cell: Cell) -> str:
    """Names a column as the paper does: data set, clients, classes of each.

    >>> from fedatoms.evidence.paper.tables import cells
    >>> column_name(cells(1)[0])
    'cifar10 (100, 2)'
    """
    return f"{cell.column.dataset} ({cell.column.clients}, {cell.column.classes})"


@cache
def _stand_ins() -> frozenset[str]:
    return frozenset(key_of(quick(one)) for study in studies().values() for one in study.runs.values())


def _over_last(group: Group, model: str) -> tuple[str, Spread]:
    return model, _spread([run.result.accuracy[model].headline for run in group.runs])


def _number(result: Result, compared: Compared) -> float | None:
    if compared.model == "personal":
        return (result.personal or {}).get(compared.number)
    summary = result.accuracy.get(compared.model)
    return None if summary is None else float(getattr(summary, compared.number))


def _spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None)
