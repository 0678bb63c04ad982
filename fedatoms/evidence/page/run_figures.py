"""Figures (a), (c) and (d) on the page."""

from collections.abc import Sequence

from fedatoms.evidence.page.articles import SIZES, article, boxed
from fedatoms.evidence.page.html_table import number, table, text
from fedatoms.evidence.page.plotly import Json, Plot, axes, curve
from fedatoms.evidence.page.styles import looks
from fedatoms.evidence.results.run_figures import RunFigure


def section(found: Sequence[RunFigure]) -> str:
    """Returns the articles of all figures.

    >>> section([])
    ''
    """
    return "".join(_article(n, each) for n, each in enumerate(found))


def plots(found: Sequence[RunFigure]) -> list[Json]:
    """Returns their plots for the page's script.

    >>> plots([])
    []
    """
    return [box for n, each in enumerate(found) for box in boxed(f"study-{n}", [_draw(each)])]


def _draw(figure: RunFigure) -> Plot:
    label, x, y, lines = figure.curves
    drawn = zip(lines, looks([line.name for line in lines]), strict=True)
    return Plot(label, [curve(line.name, look, line.x, line.y) for line, look in drawn], axes(x, y))


def _form(value: float | None) -> str:
    return ",.0f" if value is not None and value >= 1000 else ".4g"


def _article(n: int, each: RunFigure) -> str:
    rows = [
        [text(cell) if isinstance(cell, str) else number(cell, _form(cell), none="never") for cell in row]
        for row in each.rows
    ]
    shown = table(f"study-{n}-table", each.title, each.heads, rows)
    return article(f"study-{n}", each.title, SIZES[each.size], [each.sentence], [_draw(each)], shown)
