"""The cells of the paper's tables, matched with the groups that reproduce them."""

from collections.abc import Sequence

from fedatoms.core.gains import Gain, Pooled, gain
from fedatoms.evidence.paper.tables import ATOMS, Cell, Compared, Pair, cells_of
from fedatoms.evidence.results.groups import Group, on_common_seeds
from fedatoms.evidence.results.names import atoms_used
from fedatoms.runs.comparison import Spread, spread_of
from fedatoms.runs.results import Result

Place = tuple[int, str, object]  # table, row and column of the paper
Ours = dict[Place, Group]
# what a table's gains are, as ``tables.contrast`` pairs its cells
GAINS = {
    1: "with decomposition minus without",
    2: "local atoms and head minus this method",
    3: "this many atoms minus the fewest",
}


def place(cell: Cell) -> Place:
    """Returns the table, row and column of a cell.

    >>> from fedatoms.evidence.paper.tables import cells
    >>> place(cells(1)[0])[:2]
    (1, 'FedAvg')
    """
    return cell.table, cell.row, cell.column


def match(groups: Sequence[Group]) -> Ours:
    """Returns the groups that reproduce cells of the paper.

    >>> match([])
    {}
    """
    return {place(cell): each for each in groups for cell in cells_of(each.experiment)}


def score(group: Group, compared: Compared) -> Spread | None:
    """Returns the number of a group that is compared with the paper's; None if a run lacks it."""
    values = score_by_seed(group, compared)
    return spread_of(list(values.values())) if values and len(values) == len(group.runs) else None


def score_by_seed(group: Group, compared: Compared) -> dict[int, float]:
    """Returns that number of each run that has it, by seed."""
    found = {run.result.experiment.seed: _number(run.result, compared) for run in group.runs}
    return {seed: value for seed, value in found.items() if value is not None}


def ours_of(cell: Cell, ours: Ours) -> Spread | None:
    """Returns our number for a cell; None if it was not run.

    >>> from fedatoms.evidence.paper.tables import cells
    >>> ours_of(cells(1)[0], {}) is None
    True
    """
    found = ours.get(place(cell))
    return None if found is None else score(found, cell.compared)


def common_runs(one: Cell, other: Cell, ours: Ours) -> list[Group]:
    """Returns our groups for two cells on their common seeds; no group if there is no such seed."""
    found = [ours[place(cell)] for cell in (one, other) if place(cell) in ours]
    return on_common_seeds(found) if len(found) == 2 else []


def lead_of(one: Cell, other: Cell, ours: Ours, pooled: Pooled | None = None) -> Gain | None:
    """Returns by how many points our runs of one cell lead those of another, paired by seed."""
    mine, theirs = (ours.get(place(cell)) for cell in (one, other))
    if mine is None or theirs is None:
        return None
    return gain(score_by_seed(mine, one.compared), score_by_seed(theirs, one.compared), pooled)


def gain_of(pair: Pair, ours: Ours, pooled: Pooled | None = None) -> Gain | None:
    """Returns how many points the decomposition adds in our runs; None if no seed of both was run."""
    return lead_of(pair.atoms, pair.plain, ours, pooled)


def atoms_note(table: int, ours: Ours) -> str:
    """Compares the atoms of our runs of a table with the paper's; empty if none was run.

    >>> atoms_note(1, {})
    ''
    """
    used = atoms_used(group.experiment for (number, *_), group in ours.items() if number == table)
    return f"Ours: {used}; the paper: {ATOMS[table]}." if used and table in ATOMS else ""


def missing_reasons(printed: Sequence[Cell]) -> list[str]:
    """Returns why columns of a table cannot be run, each reason once.

    >>> from fedatoms.evidence.paper.tables import cells
    >>> missing_reasons(cells(1))[0][:60]
    "tiny-imagenet (20, 20), tiny-imagenet (20, 50): the paper's "
    """
    columns: dict[str, dict[str, None]] = {}
    for cell in printed:
        if cell.missing:
            columns.setdefault(cell.missing, {})[column_name(cell)] = None
    return [f"{', '.join(names)}: {reason}." for reason, names in columns.items()]


def row_name(cell: Cell) -> str:
    """Returns the name of a row; the paper's "Ours" becomes the method's own name.

    >>> from fedatoms.evidence.paper.tables import cells
    >>> row_name(cells(2)[-1])
    'Ours: local atoms and head'
    """
    return "Ours: local atoms and head" if cell.row == "Ours" else cell.row


def column_name(cell: Cell) -> str:
    """Returns the name of a column as the paper writes it: data set (clients, classes of each).

    >>> from fedatoms.evidence.paper.tables import cells
    >>> column_name(cells(1)[0])
    'cifar10 (100, 2)'
    """
    return f"{cell.column.dataset} ({cell.column.clients}, {cell.column.classes})"


def _number(result: Result, compared: Compared) -> float | None:
    if compared.model == "personal":
        return (result.personal or {}).get(compared.number)
    summary = result.accuracy.get(compared.model)
    return None if summary is None else float(getattr(summary, compared.number))
