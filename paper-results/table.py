"""Makes the tables of paper-results/README.md and the picture docs/cifar10-5.png from the files next to it."""

import statistics
from collections.abc import Iterator
from pathlib import Path

from fedatoms.bench.report import fill, table
from fedatoms.compare import compare
from fedatoms.experiment import Experiment
from fedatoms.plots import accuracy_plot
from fedatoms.presets import ALGORITHMS, TABLE1
from fedatoms.runs import Result, read_result

ROOT, MAKER = Path(__file__).parent, "paper-results/table.py"
NAMES = dict(zip(ALGORITHMS, ("FedAvg", "FedProx", "SCAFFOLD", "FedDyn", "FedDC"), strict=True))
CLASSES = (2, 5)  # of each client: the paper's (100, 2) and (100, 5)
PAPER = {  # Chen & Qiu, "Extra Clients at No Extra Cost", ICML 2025, Table 1, CIFAR10: the mean of three seeds
    "fedavg": (75.57, 79.44),
    "fedavg-atoms": (77.67, 81.05),
    "fedprox": (75.83, 79.35),
    "fedprox-atoms": (76.98, 80.93),
    "scaffold": (74.96, 81.74),
    "scaffold-atoms": (77.11, 83.30),
    "feddyn": (77.04, 81.81),
    "feddyn-atoms": (77.88, 82.82),
    "feddc": (77.20, 82.49),
    "feddc-atoms": (77.89, 83.45),
}


def cells() -> str:
    """Writes accuracies next to the paper's, a table for each partition."""
    heads = ("preset and folder", "paper", "ours", "difference", "final", "best", "server", "GB up")
    return "\n\n".join(
        f"(100, {classes}): 100 clients with {classes} classes each\n\n"
        + table(heads, [_cell(f"{method}-cifar10-{classes}", PAPER[method][place]) for method in PAPER])
        for place, classes in enumerate(CLASSES)
    )


def gains() -> str:
    """Writes what the decomposition adds to each algorithm, and the means."""
    heads = ("", *(f"(100, {classes}), {who}" for classes in CLASSES for who in ("paper", "ours")))
    columns = [_gains_of(place, who) for place in range(len(CLASSES)) for who in ("paper", "ours")]
    lines = [[NAMES[name], *(f"{column[row]:+.2f}" for column in columns)] for row, name in enumerate(ALGORITHMS)]
    means = ["mean", *(f"{statistics.mean(column):+.2f}" for column in columns)]
    pairs = [columns[who] + columns[who + 2] for who in (0, 1)]
    paper, ours = (statistics.mean(column) for column in pairs)
    off = ALGORITHMS.index("feddc")  # (100, 2): a baseline that is low makes a gain large
    paper_less, ours_less = (statistics.mean(column[:off] + column[off + 1 :]) for column in pairs)
    said = f"Mean over the ten pairs: {paper:+.2f} in the paper, {ours:+.2f} here; without FedDC (100, 2), where our"
    said += f" baseline is low: {paper_less:+.2f} and {ours_less:+.2f}."
    return f"{table(heads, [*lines, means])}\n\n{said}"


def controls() -> str:
    """Writes what changes if control updates divide by the first rate, as FedDC's code does."""
    heads = ("", "paper", "η_t of the round", "η of the first, in `controls/`")
    return table(heads, [_controls(name, place) for name in ("scaffold", "feddc") for place in range(len(CLASSES))])


def _controls(name: str, place: int) -> list[str]:
    cell = f"{name}-cifar10-{CLASSES[place]}"
    ours = [_read(each).accuracy["all"].headline for each in (cell, f"controls/{cell}")]
    return [f"{NAMES[name]} (100, {CLASSES[place]})", *(f"{value:.2f}" for value in (PAPER[name][place], *ours))]


def search() -> str:
    """Writes what was tried on held-out images, the best first."""
    found = [read_result(path.parent) for path in (ROOT / "search").glob("*/result.json")]
    lines = [
        [_flags(result.experiment), *(f"{value:.2f}" for value in result.accuracy["all"]), f"`{result.folder.name}`"]
        for result in sorted(found, key=lambda result: -result.accuracy["all"].headline)
    ]
    return table(("flags", "held-out accuracy", "final", "best", "in `search/`"), lines)


BLOCKS = {"cells": cells, "gains": gains, "controls": controls, "search": search}


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


def _gains_of(place: int, who: str) -> list[float]:
    return [atoms - plain for plain, atoms in _pairs(place, who)]


def _pairs(place: int, who: str) -> Iterator[tuple[float, float]]:
    for name in ALGORITHMS:
        if who == "paper":
            yield PAPER[name][place], PAPER[f"{name}-atoms"][place]
        else:
            plain, atoms = (_read(f"{name}{kind}-cifar10-{CLASSES[place]}") for kind in ("", "-atoms"))
            yield plain.accuracy["all"].headline, atoms.accuracy["all"].headline


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
