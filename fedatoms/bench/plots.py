"""The contest as a chart."""

from collections.abc import Sequence
from pathlib import Path

from fedatoms.bench.results import Row
from fedatoms.runs.plots import COLOURS, GREYS


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
