"""The contest as a chart."""

import math
from collections.abc import Sequence
from pathlib import Path

from fedatoms.bench.results import LENET, Row
from fedatoms.bench.standings import factor, family
from fedatoms.core.extras import need
from fedatoms.runs.plots import COLOURS, GREYS


def contest_plot(rows: Sequence[Row], path: Path, title: str) -> None:
    """Draws client-steps per second of every contestant in every cell, as bars on a logarithmic axis, with factors."""
    need("a chart", "plot", "matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = dict(zip(dict.fromkeys(family(row) for row in rows), COLOURS + GREYS, strict=False))
    figure, axes = pyplot.subplots(figsize=(7.2, 1.2 + 0.26 * len(rows)), dpi=150)
    places = [place + 0.8 * cell for place, cell in enumerate(_cell_numbers(rows))]
    bars = axes.barh(places, [row.client_steps for row in rows], color=[colours[family(row)] for row in rows])
    axes.bar_label(bars, [_label(rows, row) for row in rows], padding=3, fontsize=7)
    axes.set_yticks(places, [_name(row) for row in rows], fontsize=7)
    axes.set(title=title, xscale="log", xlim=_range([row.client_steps for row in rows]))
    axes.set_xlabel("client-steps per second (more is better)\nin brackets: so many times as fast is fedatoms")
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _label(rows: Sequence[Row], row: Row) -> str:
    times = factor(rows, row)
    return f"{row.client_steps:,.0f}" + (f"  ({times:.1f} x)" if times is not None else "")


def _name(row: Row) -> str:
    network = "" if row.network == LENET else f", {row.network}"
    return f"{row.contestant}{network}, {row.clients} x {row.batch}"


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Returns the ends of a logarithmic axis: a power of ten, as bars have no natural start, and room for labels."""
    return 10.0 ** math.floor(math.log10(min(values) / 1.5)), max(values) * 4


def _cell_numbers(rows: Sequence[Row]) -> list[int]:
    cells = list(dict.fromkeys((row.network, row.clients, row.batch) for row in rows))
    return [cells.index((row.network, row.clients, row.batch)) for row in rows]
