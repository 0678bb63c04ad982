"""Makes the tables of paper-results/README.md and the picture docs/cifar10-5.png from the files next to it."""

import statistics
from pathlib import Path

from fedatoms.bench.report import fill, table
from fedatoms.compare import compare
from fedatoms.experiment import Experiment
from fedatoms.paper import tables
from fedatoms.paper.tables import Cell, Pair
from fedatoms.plots import accuracy_plot
from fedatoms.presets import ALGORITHMS, TABLE1
from fedatoms.runs import Result, read_result

ROOT, MAKER = Path(__file__).parent, "paper-results/table.py"
NAMES = dict(zip(ALGORITHMS, ("FedAvg", "FedProx", "SCAFFOLD", "FedDyn", "FedDC"), strict=True))
CLASSES = (2, 5)  # of each client: the paper's (100, 2) and (100, 5)
PAPER = {cell.preset: cell for cell in tables.cells(1, "cifar10")}


def cells() -> str:
    """Writes accuracies next to the paper's, a table for each partition."""
    heads = ("preset and folder", "paper", "ours", "difference", "final", "best", "server", "GB up")
    return "\n\n".join(
        f"(100, {classes}): 100 clients with {classes} classes each\n\n"
        + table(heads, [_cell(name, cell.value) for name, cell in PAPER.items() if cell.column.classes == classes])
        for classes in CLASSES
    )


def gains() -> str:
    """Writes what the decomposition adds to each algorithm, and the means."""
    heads = ("", *(f"(100, {classes}), {who}" for classes in CLASSES for who in ("paper", "ours")))
    columns = [[gain(pair) for pair in _pairs(classes)] for classes in CLASSES for gain in (_printed, _measured)]
    lines = [[NAMES[name], *(f"{column[row]:+.2f}" for column in columns)] for row, name in enumerate(ALGORITHMS)]
    means = ["mean", *(f"{statistics.mean(column):+.2f}" for column in columns)]
    pairs = [columns[who] + columns[who + 2] for who in (0, 1)]
    paper, ours = (statistics.mean(column) for column in pairs)
    return f"{table(heads, [*lines, means])}\n\nMean over the ten pairs: {paper:+.2f} in the paper, {ours:+.2f} here."


def controls() -> str:
    """Writes what changes if control updates divide by the rate of the round, not by the first as FedDC's code does."""
    heads = ("preset", "paper", "η of the first round", "η_t of the round, in `controls/`")
    return table(heads, [_controls(name) for name in PAPER if (ROOT / "controls" / name).exists()])


def _controls(name: str) -> list[str]:
    ours = [_read(each).accuracy["all"].headline for each in (name, f"controls/{name}")]
    return [f"`{name}`", *(f"{value:.2f}" for value in (PAPER[name].value, *ours))]


def personal() -> str:
    """Writes accuracies of clients' own models next to the paper's Table 2, a table for each partition."""
    heads = (
        "preset and folder",
        "paper",
        "ours",
        "difference",
        "mean of the last ten",
        "worst tenth",
        "spread",
        "server",
    )
    return "\n\n".join(
        f"(100, {classes}): 100 clients with {classes} classes each\n\n"
        + table(heads, [_personal(cell) for cell in tables.cells(2, "cifar10") if cell.column.classes == classes])
        for classes in CLASSES
    )


def _personal(cell: Cell) -> list[str]:
    result = _read(cell.preset)
    ours = _own(result)
    values = [ours["mean of the last ten"], ours["worst tenth"], ours["spread"], result.accuracy["server"].headline]
    after = ours["after the last pass"]
    start = [f"`{cell.preset}`", f"{cell.value:.2f}", f"{after:.2f}", f"{after - cell.value:+.2f}"]
    return start + [f"{value:.2f}" for value in values]


def variants() -> str:
    """Writes what local atoms and local training have in other settings."""
    heads = ("in `variants/`", "(100, 2)", "(100, 5)")
    stems = sorted({path.name.rsplit("-", 1)[0] for path in (ROOT / "variants").iterdir()})
    return table(
        heads, [[f"`{stem}-*`", *(_after(f"variants/{stem}-{classes}") for classes in CLASSES)] for stem in stems]
    )


def clipping() -> str:
    """Writes what was tried on held-out images for the personal regime."""
    heads = ("flags", "local atoms, (100, 2)", "local, (100, 5)")
    norms = sorted({int(path.name.split("-")[-1]) for path in (ROOT / "search-personal").iterdir()})
    methods = ("atoms", "local")
    return table(
        heads, [[f"`--clip {norm}`", *(_after(f"search-personal/{each}-{norm}") for each in methods)] for norm in norms]
    )


def _after(folder: str) -> str:
    return f"{_own(_read(folder))['after the last pass']:.2f}"


def _own(result: Result) -> dict[str, float]:
    assert result.personal is not None
    return result.personal


def search() -> str:
    """Writes what was tried on held-out images, the best first."""
    found = [read_result(path.parent) for path in (ROOT / "search").glob("*/result.json")]
    lines = [
        [_flags(result.experiment), *(f"{value:.2f}" for value in result.accuracy["all"]), f"`{result.folder.name}`"]
        for result in sorted(found, key=lambda result: -result.accuracy["all"].headline)
    ]
    return table(("flags", "held-out accuracy", "final", "best", "in `search/`"), lines)


BLOCKS = {
    "cells": cells,
    "gains": gains,
    "controls": controls,
    "personal": personal,
    "variants": variants,
    "search": search,
    "clipping": clipping,
}


def report(page: Path = ROOT / "README.md", picture: Path = ROOT.parent / "docs" / "cifar10-5.png") -> None:
    """Fills the page's blocks and draws FedAvg's curves."""
    for name, block in BLOCKS.items():
        page.write_text(fill(page.read_text(), block(), name, MAKER))
    lines = compare([_read("fedavg-cifar10-5"), _read("fedavg-atoms-cifar10-5")])
    named = [line._replace(label=label) for line, label in zip(lines, ("plain", "with atoms"), strict=True)]
    accuracy_plot(named, picture, "FedAvg on CIFAR-10, 100 clients with 5 classes each")


def _read(preset: str) -> Result:
    return read_result(ROOT / preset)


def _cell(preset: str, paper: float) -> list[str]:
    result = _read(preset)
    ours, server = result.accuracy["all"], result.accuracy["server"].headline
    values = (f"{value:.2f}" for value in (ours.final, ours.best, server))
    sent = f"{sum(result.bytes_up.values()) / 1e9:.2f}"
    return [f"`{preset}`", f"{paper:.2f}", f"{ours.headline:.2f}", f"{ours.headline - paper:+.2f}", *values, sent]


def _pairs(classes: int) -> list[Pair]:
    return [pair for pair in tables.pairs("cifar10") if pair.plain.column.classes == classes]


def _printed(pair: Pair) -> float:
    return pair.gain


def _measured(pair: Pair) -> float:
    plain, atoms = (_read(cell.preset).accuracy["all"].headline for cell in pair)
    return atoms - plain


def _flags(experiment: Experiment) -> str:
    atoms = [f"--parametrisation atoms --atoms {experiment.atoms}"] if experiment.parametrisation == "atoms" else []
    changed = [
        f"--{name.replace('_', '-')} {getattr(experiment, name):g}"
        for name in ("lr", "atoms_lr")
        if getattr(experiment, name) != getattr(TABLE1, name)
    ]
    return f"`{' '.join(atoms + changed)}`"


if __name__ == "__main__":
    report()
