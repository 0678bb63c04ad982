"""Plots of the scores of runs over rounds."""

import io
import statistics
from collections.abc import Sequence
from pathlib import Path

from fedatoms.core.extras import need
from fedatoms.core.files import write_named
from fedatoms.runs.comparison import Line, compared_model, curve, scored_on

COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#b57a00",
    "#5b6abf",
)  # after Okabe and Ito, safe for colour-blind eyes; their orange and sky blue are too light for lines on white
GREYS = ("#555555", "#777777", "#8c8c8c")


def score_plot(lines: Sequence[Line], path: Path, title: str) -> None:
    """Draws scores over rounds, one line per experiment: the mean over seeds, and their range as a band."""
    need("a plot", "plot", "matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    scored = compared_model([result for line in lines for result in line.results])
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), dpi=150)
    for line, colour in zip(lines, COLOURS * len(lines), strict=False):
        curves = [curve(result, scored) for result in line.results]
        t = [x for x, _ in curves[0]]
        columns = list(zip(*([score for _, score in each] for each in curves), strict=True))
        axes.plot(t, [statistics.mean(column) for column in columns], color=colour, label=line.label, linewidth=1.8)
        axes.fill_between(
            t, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.15, linewidth=0
        )
    metric = lines[0].metric
    unit = f" ({metric.unit})" if metric.unit else ""
    axes.set(xlabel="round", ylabel=f"{scored_on(lines)} {metric.name} of model '{scored}'{unit}", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:])
    write_named(path, drawn.getvalue())
    pyplot.close(figure)
