"""Pictures of results."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from fedatoms.bench.results import Row
from fedatoms.compare import Line, curve, scored_on
from fedatoms.runs import accuracy_curves, read_rounds

COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
)  # Okabe and Ito: safe for colour-blind eyes
GREYS = ("#555555", "#999999", "#bbbbbb")


def accuracy_plot(lines: Sequence[Line], path: Path, title: str) -> None:
    """Draws accuracy over rounds, one line per experiment: the mean over seeds, and their range as a band."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    scored = list(accuracy_curves(read_rounds(lines[0].results[0].folder)))[-1]
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), dpi=150)
    for line, colour in zip(lines, COLOURS * len(lines), strict=False):
        curves = [curve(result) for result in line.results]
        t = [x for x, _ in curves[0]]
        columns = list(zip(*([accuracy for _, accuracy in each] for each in curves), strict=True))
        axes.plot(t, [statistics.mean(column) for column in columns], color=colour, label=line.label, linewidth=1.8)
        axes.fill_between(
            t, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.15, linewidth=0
        )
    axes.set(xlabel="round", ylabel=f"{scored_on(lines)} accuracy of model '{scored}' (%)", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def contest_plot(rows: Sequence[Row], path: Path, title: str) -> None:
    """Draws client-steps per second of every contestant in every cell of the grid, as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row.contestant for row in rows))
    colours = dict(zip(names, COLOURS + GREYS, strict=False))
    figure, axes = pyplot.subplots(figsize=(7.2, 1.2 + 0.26 * len(rows)), dpi=150)
    places = [place + 0.8 * cell for place, cell in enumerate(_cell_numbers(rows))]
    bars = axes.barh(places, [row.client_steps for row in rows], color=[colours[row.contestant] for row in rows])
    axes.bar_label(bars, [f"{row.client_steps:,.0f}" for row in rows], padding=3, fontsize=7)
    axes.set_yticks(places, [f"{row.contestant}, {row.clients} x {row.batch}" for row in rows], fontsize=7)
    axes.set(xlabel="client-steps per second (more is better)", title=title)
    axes.margins(x=0.12, y=0.01)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _cell_numbers(rows: Sequence[Row]) -> list[int]:
    cells = list(dict.fromkeys((row.clients, row.batch) for row in rows))
    return [cells.index((row.clients, row.batch)) for row in rows]
