"""Measures on the page: each with a heading, its sentence, figures, a table, and where it comes from."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from fedatoms.measures import MEASURES
from fedatoms.measures.base import size_of
from fedatoms.measures.files import Measure
from fedatoms.report.drawings import Columns, Drawing, Json
from fedatoms.report.names import setting
from fedatoms.report.table import number, table

SIZES = {"full": "", "quick": "quick, smaller than the paper's", "other": "other settings than the paper's"}


class Measured(NamedTuple):
    """A measure that was found, and what it says."""

    folder: Path
    measure: Measure
    drawing: Drawing


def section(found: Sequence[Measured]) -> str:
    """Shows measures, in the order of their table.

    >>> section([])
    '<p>None: there is no <code>measure.json</code> below these folders.</p>'
    """
    articles = [_article(n, each) for n, each in enumerate(_ordered(found))]
    return "".join(articles) or "<p>None: there is no <code>measure.json</code> below these folders.</p>"


def plots(found: Sequence[Measured]) -> list[Json]:
    """Returns the figures of all measures, for the page's script.

    >>> plots([])
    []
    """
    return [
        {"id": _id(n, k), "traces": plot.traces, "layout": plot.layout}
        for n, each in enumerate(_ordered(found))
        for k, plot in enumerate(each.drawing.plots)
    ]


def _ordered(found: Sequence[Measured]) -> list[Measured]:
    kinds = list(MEASURES)
    return sorted(found, key=lambda each: (kinds.index(each.measure.name), each.folder))


def _article(n: int, each: Measured) -> str:
    kind, drawing = MEASURES[each.measure.name], each.drawing
    size = SIZES[size_of(kind, each.measure)]
    tag = f' <span class="tag">{escape(size)}</span>' if size else ""
    figures = "".join(
        f'<div class="figure" id="{_id(n, k)}" role="group" aria-label="{escape(plot.label)}"></div>'
        for k, plot in enumerate(drawing.plots)
    )
    return (
        f'<article class="measure"><h3>{escape(kind.title)}{tag}</h3><p>{escape(drawing.sentence)}</p>'
        f'<div class="plots">{figures}</div><details><summary>The same as a table</summary>'
        f'{_table(n, drawing.columns)}</details><p class="quiet">{escape(_origin(each))}</p></article>'
    )


def _id(n: int, k: int) -> str:
    return f"measure-{n}-{k}"


def _table(n: int, columns: Columns) -> str:
    lines = zip(columns.rounds, *columns.values.values(), strict=True)
    rows = [[number(t, "g"), *(number(value, ".4g") for value in line)] for t, *line in lines]
    return table(f"measure-{n}-table", columns.caption, ("round", *columns.values), rows)


def _origin(each: Measured) -> str:
    """Says of what a measure is, with which settings, and where and when it was taken."""
    settings = [f"{name.replace('_', ' ')} {_said(value)}" for name, value in each.measure.settings.items()]
    what = [*(setting(one) for one in each.measure.experiments[:1]), ", ".join(settings)]
    time, device, commit = (str(each.measure.provenance.get(key) or "not said") for key in ("time", "device", "commit"))
    when = time[:16].replace("T", " ")
    return f"{'; '.join(what)}. Measured {when} on {device}, commit {commit}, in {each.folder.as_posix()}."


def _said(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
