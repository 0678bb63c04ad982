"""Measures on the page: each with a heading, its sentence, figures, a table, and where it comes from."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import size_of
from fedatoms.evidence.measures.files import Measure
from fedatoms.evidence.page.plotly import Columns, Drawing, Json, Plot
from fedatoms.evidence.page.table import number, table
from fedatoms.evidence.results.names import setting

SIZES = {"full": "", "quick": "quick, smaller than the paper's", "other": "other settings than the paper's"}


class Measured(NamedTuple):
    """A measure that was found, and what it says."""

    folder: Path
    measure: Measure
    drawing: Drawing


def section(found: Sequence[Measured]) -> str:
    """Shows measures, in the order of their table.

    >>> section([])
    '<p>No <code>measure.json</code> below these folders.</p>'
    """
    articles = [_article(n, each) for n, each in enumerate(_ordered(found))]
    return "".join(articles) or "<p>No <code>measure.json</code> below these folders.</p>"


def plots(found: Sequence[Measured]) -> list[Json]:
    """Returns the figures of all measures, for the page's script.

    >>> plots([])
    []
    """
    return [box for n, each in enumerate(_ordered(found)) for box in boxed(f"measure-{n}", each.drawing.plots)]


def _ordered(found: Sequence[Measured]) -> list[Measured]:
    kinds = list(MEASURES)
    return sorted(found, key=lambda each: kinds.index(each.measure.name))


def _article(n: int, each: Measured) -> str:
    kind, drawing = MEASURES[each.measure.name], each.drawing
    tag, shown = SIZES[size_of(kind, each.measure)], _table(n, drawing.columns)
    return article(f"measure-{n}", kind.title, tag, [drawing.sentence], drawing.plots, shown, _origin(each))


def article(
    name: str, title: str, tag: str, said: Sequence[str], plots: Sequence[Plot], shown: str, origin: str = ""
) -> str:
    """Writes a figure: its heading with a tag, what it says, boxes for its plots, and the same as a table.

    >>> article("a", "Loss", "quick", ["It falls."], [], "<table></table>")[:74]
    '<article class="measure"><h3>Loss <span class="tag">quick</span></h3><p>It'
    """
    tagged = f' <span class="tag">{escape(tag)}</span>' if tag else ""
    boxes = "".join(
        f'<div class="figure" id="{name}-{k}" role="group" aria-label="{escape(plot.label)}"></div>'
        for k, plot in enumerate(plots)
    )
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in said)
    quiet = f'<p class="quiet">{escape(origin)}</p>' if origin else ""
    return (
        f'<article class="measure"><h3>{escape(title)}{tagged}</h3>{sentences}'
        f'<div class="plots">{boxes}</div><details><summary>The same as a table</summary>{shown}</details>'
        f"{quiet}</article>"
    )


def boxed(name: str, plots: Sequence[Plot]) -> list[Json]:
    """Returns an article's plots for the page's script, each with the name of its box.

    >>> boxed("a", [Plot("loss", [], {})])
    [{'id': 'a-0', 'traces': [], 'layout': {}}]
    """
    return [{"id": f"{name}-{k}", "traces": plot.traces, "layout": plot.layout} for k, plot in enumerate(plots)]


def _table(n: int, columns: Columns) -> str:
    lines = zip(columns.rounds, *columns.values.values(), strict=True)
    rows = [[number(t, "g"), *(number(value, ".4g") for value in line)] for t, *line in lines]
    return table(f"measure-{n}-table", columns.caption, ("round", *columns.values), rows)


def _origin(each: Measured) -> str:
    """Says of what a measure is, with which settings, and where and when it was taken."""
    settings = [f"{name.replace('_', ' ')} {_said(value)}" for name, value in each.measure.settings.items()]
    what = [*(setting(one) for one in each.measure.experiments[:1]), ", ".join(settings)]
    return f"{'; '.join(what)}. {taken(each.measure.provenance, each.folder)}"


def taken(provenance: Mapping[str, object], folder: Path) -> str:
    """Says when, where and of which code something was measured.

    >>> taken({"time": "2026-01-02T03:04:05+00:00", "device": "a CPU"}, Path("runs/mine"))
    'Measured 2026-01-02 03:04 on a CPU, commit not said, in runs/mine.'
    """
    time, device, commit = (str(provenance.get(key) or "not said") for key in ("time", "device", "commit"))
    return f"Measured {time[:16].replace('T', ' ')} on {device}, commit {commit}, in {folder.as_posix()}."


def _said(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
