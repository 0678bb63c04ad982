"""The numbers that the paper prints in its Tables 1, 2 and 3, each with the experiment that reproduces it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Literal, NamedTuple

from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity
from fedatoms.experiment.presets import PRESETS

Mark = Literal["", "best", "second"]


class Column(NamedTuple):
    """A column of a table: a data set, its clients, and the classes of each."""

    dataset: str
    clients: int
    classes: int


class Compared(NamedTuple):
    """The number of a ``Result`` that is compared with a printed one: a scored model, and which of its numbers.

    For ``all`` the number is a field of ``Result.accuracy["all"]``, for ``personal`` a key of ``Result.personal``.
    """

    model: Literal["all", "personal"]
    number: str


class Cell(NamedTuple):
    """A printed number: an accuracy in per cent, in Table 1 the mean of three seeds; no deviations are printed."""

    table: int
    row: str
    column: Column
    printed: str  # digit for digit
    compared: Compared
    mark: Mark = ""  # Table 2 has the best of a column in bold, the second underlined
    preset: str = ""  # the name of the experiment, if it has one
    typed: str = ""  # what to type after `fedatoms run`: the preset, or one with a flag
    experiment: Experiment | None = None
    missing: str = ""  # the reason if there is no experiment
    readings: tuple[str, ...] = ()  # names in ``readings.READINGS`` that define the cell

    @property
    def value(self) -> float:
        """The printed number as a number."""
        return float(self.printed)


class Pair(NamedTuple):
    """An algorithm of Table 1 on the plain network and on the decomposed one."""

    plain: Cell
    atoms: Cell

    @property
    def gain(self) -> float:
        """The gain of the decomposition, in points."""
        return self.atoms.value - self.plain.value


CIFAR = (Column("cifar10", 100, 2), Column("cifar10", 100, 5), Column("cifar100", 100, 5), Column("cifar100", 100, 20))
COLUMNS = {
    1: (*CIFAR, Column("tiny-imagenet", 20, 20), Column("tiny-imagenet", 20, 50)),
    2: (*CIFAR, Column("tiny-imagenet", 1000, 20), Column("tiny-imagenet", 1000, 50)),
    3: (*CIFAR, Column("tiny-imagenet", 1000, 20), Column("tiny-imagenet", 1000, 50)),
}
COMPARED = {
    1: Compared("all", "headline"),
    2: Compared("personal", "after the last pass"),
    3: Compared("personal", "after the last pass"),
}
DECOMPOSED = " + Decomposition"
ATOMS = {1: 9, 2: 9}  # "9 atoms in each experiment" (``readings.READINGS["atoms"]``); rows of Table 3 name their own
# The row, the start of our presets' names, and the printed numbers: * is the best (bold in the paper), _ the second
# (underlined).
PRINTED = {
    1: """
FedAvg                   | fedavg         | 75.57 79.44 39.72 42.14 33.47 38.67
FedAvg + Decomposition   | fedavg-atoms   | 77.67 81.05 42.54 44.47 34.91 41.05
FedProx                  | fedprox        | 75.83 79.35 39.74 41.97 34.29 39.81
FedProx + Decomposition  | fedprox-atoms  | 76.98 80.93 41.77 44.13 36.17 42
Scaffold                 | scaffold       | 74.96 81.74 42.48 47.49 37.27 42.98
Scaffold + Decomposition | scaffold-atoms | 77.11 83.3  45.31 50.83 39.64 44.22
FedDyn                   | feddyn         | 77.04 81.81 43.48 48.8  36.77 41.98
FedDyn + Decomposition   | feddyn-atoms   | 77.88 82.82 43.57 51.05 36.7  43.56
FedDC                    | feddc          | 77.2  82.49 43.95 50.54 36.1  41.53
FedDC + Decomposition    | feddc-atoms    | 77.89 83.45 43.9  52.32 37.74 43.2
""",
    2: """
Local        | local-personal                |  88.00  76.00  76.10  41.90  12.89   6.13
FedAvg + FT  | fedavg-finetune-personal      |  93.53 _86.85 *85.29 *64.10 _30.77  14.6
FedProx + FT | fedprox-finetune-personal     |  92.46  85.31  80.28  59.07  28.69 _14.96
Ditto        | ditto-personal                | _93.67  85.75  80.37  62.56  21.93   9.64
FedPer       | fedper-personal               |  92.60  83.30  76.00  37.70  14.20   6.15
FedRep       | fedrep-personal               |  89.34  79.25  78.53  57.89  13.90   6.14
FedPAC       | fedpac-personal               |  91.20  85.30  80.90  61.64  13.90   6.15
LG-FedAvg    | lg-fedavg-personal            |  88.50  72.80  73.00  41.10  12.44   5.99
Ours         | local-atoms-and-head-personal | *94.14 *87.49 _84.28 _63.28 *41.57 *24.32
""",
    3: """
m_a=12 | local-atoms-and-head-personal | 94.25 87.08 84.66 63.67 42.25 23.81
m_a=9  | local-atoms-and-head-personal | 94.14 87.49 84.28 63.28 41.57 24.32
m_a=6  | local-atoms-and-head-personal | 94.29 85.92 83.38 62.71 39.4  21.5
m_a=3  | local-atoms-and-head-personal | 91.98 81.66 80.27 57.68 38.51 20.91
""",
}
MISSING = {
    1: "the paper's ResNet18 is pre-trained; our presets (`*-tiny-*`) start from random weights",
    2: "it is open whether the paper's network is pre-trained; our presets (`*-personal-tiny-*`) are not",
    3: "it is open whether the paper's network is pre-trained; our presets (`*-personal-tiny-*`) are not",
}


def cells(table: int | None = None, dataset: str = "") -> tuple[Cell, ...]:
    """Returns the cells of a table or of all, for one data set if it is named, row after row.

    >>> [cell.value for cell in cells(2, "cifar10")][:2], len(cells(1)), len(cells())
    ([88.0, 76.0], 60, 138)
    """
    if table is not None and table not in PRINTED:
        raise ValueError(f"the paper has no table {table}. Use 1, 2 or 3.")
    wanted = [cell for cell in _all_cells() if table in (None, cell.table)]
    return tuple(cell for cell in wanted if dataset in ("", cell.column.dataset))


def cells_of(experiment: Experiment) -> tuple[Cell, ...]:
    """Returns the cells that an experiment reproduces, whatever its seed.

    >>> ours = PRESETS["local-atoms-and-head-personal-cifar10-2"]
    >>> [(cell.table, cell.row) for cell in cells_of(replace(ours, seed=7))]
    [(2, 'Ours'), (3, 'm_a=9')]
    """
    return _index().get(_key(experiment), ())


def pairs(dataset: str = "") -> tuple[Pair, ...]:
    """Returns the pairs of Table 1 with and without decomposition, for one data set if it is named.

    >>> [round(pair.gain, 2) for pair in pairs("cifar10")][:2]
    [2.1, 1.61]
    """
    found = {(cell.row, cell.column): cell for cell in cells(1, dataset)}
    names = [place for place in found if not place[0].endswith(DECOMPOSED)]
    return tuple(Pair(found[row, column], found[row + DECOMPOSED, column]) for row, column in names)


def contrast(cell: Cell) -> tuple[Cell, Cell] | None:
    """Returns the two cells whose difference a row is about; None if it has none.

    Table 1: decomposed and plain. Table 2: the paper's method and this one. Table 3: this many atoms and the fewest.

    >>> one, other = contrast(cells(3)[0])
    >>> one.row, other.row, round(one.value - other.value, 2), contrast(other)
    ('m_a=12', 'm_a=3', 2.27, None)
    """
    same = {each.row: each for each in cells(cell.table) if each.column == cell.column}
    if cell.table == 1:
        plain = same[cell.row.removesuffix(DECOMPOSED)]
        return None if plain == cell else (cell, plain)
    mine, other = (same["Ours"], cell) if cell.table == 2 else (cell, same["m_a=3"])
    return None if mine == other else (mine, other)


@cache
def _all_cells() -> tuple[Cell, ...]:
    return tuple(
        cell for table, text in PRINTED.items() for line in text.split("\n")[1:-1] for cell in _row(table, line)
    )


@cache
def _index() -> dict[str, tuple[Cell, ...]]:
    index: dict[str, tuple[Cell, ...]] = {}
    for cell in _all_cells():
        if cell.experiment is not None:
            index[_key(cell.experiment)] = (*index.get(_key(cell.experiment), ()), cell)
    return index


def _key(experiment: Experiment) -> str:
    return identity(experiment, without=("seed",))


def _row(table: int, line: str) -> Iterator[Cell]:
    row, stem, numbers = (part.strip() for part in line.split("|"))
    for column, printed in zip(COLUMNS[table], numbers.split(), strict=True):
        yield _described(table, row, stem, column, printed)


def _described(table: int, row: str, stem: str, column: Column, printed: str) -> Cell:
    mark: Mark = "best" if printed.startswith("*") else "second" if printed.startswith("_") else ""
    cell = Cell(table, row, column, printed.lstrip("*_"), COMPARED[table], mark, readings=_readings(table, row, column))
    preset = f"{stem}-{column.dataset}-{column.classes}"
    if preset not in PRESETS:
        return cell._replace(missing=MISSING[table])
    atoms = int(row.removeprefix("m_a=")) if table == 3 else PRESETS[preset].atoms
    experiment = replace(PRESETS[preset], atoms=atoms)
    if experiment == PRESETS[preset]:
        return cell._replace(preset=preset, typed=preset, experiment=experiment)
    return cell._replace(typed=f"{preset} --atoms {atoms}", experiment=experiment)


def _readings(table: int, row: str, column: Column) -> tuple[str, ...]:
    tiny = _OF_TINY[table] if column.dataset == "tiny-imagenet" else ()
    atoms = ("atoms", "initialisation") if row.endswith(DECOMPOSED) else ()
    return (*_OF_TABLE[table], *tiny, *_OF_ROW.get(row.removesuffix(DECOMPOSED), ()), *atoms)


_OF_TABLE = {
    1: ("regime", "rounds", "global-model", "final-score", "shards"),
    2: ("regime", "rounds", "clipping", "personal-score", "shards"),
    3: ("regime", "rounds", "clipping", "personal-score", "shards", "personalisation", "personal-head"),
}
_OF_TINY = {
    1: ("tiny-clients", "tiny-participation", "tiny-pre-training", "tiny-layers"),
    2: ("tiny-clients", "tiny-pre-training", "tiny-test", "tiny-layers"),
    3: ("tiny-clients", "tiny-pre-training", "tiny-test", "tiny-layers"),
}
_OF_ROW = {
    "FedProx": ("fedprox-mu",),
    "Scaffold": ("controls",),
    "FedDC": ("controls",),
    "FedAvg + FT": ("fine-tuning",),
    "FedProx + FT": ("fine-tuning", "fedprox-mu"),
    "LG-FedAvg": ("lg-fedavg",),
    "Ours": ("personalisation", "personal-head"),
}
