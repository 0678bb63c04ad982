"""Measures on the page: each with a heading, its sentence, figures, a table and its provenance."""

from collections.abc import Sequence
from typing import assert_never

from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import size_of
from fedatoms.evidence.measures.files import Measure
from fedatoms.evidence.measures.values import (
    Checked,
    LandscapeValues,
    ModelsLine,
    SyntheticValues,
    TrainingLossValues,
    VarianceValues,
)
from fedatoms.evidence.page.articles import SIZES, article, boxed, measured_at
from fedatoms.evidence.page.html_table import number, table
from fedatoms.evidence.page.plotly import Json, Plot, axes, contour, curves, trace_of
from fedatoms.evidence.page.styles import SPOT, looks
from fedatoms.evidence.results.finding import FoundMeasure
from fedatoms.evidence.results.measures import (
    AFTER,
    VARIANCES,
    Columns,
    names_of,
    setting_text,
    summarise,
    unlike_the_papers,
    variances,
    variances_of_models,
)
from fedatoms.evidence.results.names import setting


def section(found: Sequence[FoundMeasure]) -> str:
    """Returns the articles of all measures, in the order of ``MEASURES``; those that verdicts count come first.

    >>> section([])
    '<p>No <code>measure.json</code> below these folders.</p>'
    """
    articles = [_article(n, each) for n, each in enumerate(_ordered(found))]
    return "".join(articles) or "<p>No <code>measure.json</code> below these folders.</p>"


def plots(found: Sequence[FoundMeasure]) -> list[Json]:
    """Returns the figures of all measures for the page's script.

    >>> plots([])
    []
    """
    ordered = enumerate(_ordered(found))
    return [box for n, each in ordered for box in boxed(f"measure-{n}", draw(each.measure, each.values))]


def draw(measure: Measure, values: Checked) -> list[Plot]:
    """Returns the figures of a measure."""
    names = names_of(measure)
    match values:
        case VarianceValues():
            return [_variance(names, values, kind, title) for kind, title in VARIANCES.items()]
        case SyntheticValues():
            return [*(_trajectories(n, line, values) for n, line in enumerate(values.lines)), _models(values)]
        case TrainingLossValues():
            return [_training_loss(names, values)]
        case LandscapeValues():
            return [_landscape(names, values)]
        case _:
            assert_never(values)


def _ordered(found: Sequence[FoundMeasure]) -> list[FoundMeasure]:
    kinds, sizes = list(MEASURES), list(SIZES)

    def place(each: FoundMeasure) -> tuple[int, int, list[int]]:
        kind = MEASURES[each.measure.name]
        seeds = [one.seed for one in each.measure.experiments]
        return kinds.index(kind.name), sizes.index(size_of(kind, each.measure)), seeds

    return sorted(found, key=place)


def _article(n: int, each: FoundMeasure) -> str:
    kind, summary = MEASURES[each.measure.name], summarise(each.measure, each.values)
    tag, shown = SIZES[size_of(kind, each.measure)], _table(n, summary.columns)
    tags = [*{f"seed {one.seed}": "" for one in each.measure.experiments}, *([tag] if tag else [])]
    drawn = draw(each.measure, each.values)
    return article(f"measure-{n}", kind.title, ", ".join(tags), [summary.sentence], drawn, shown, _origin(each))


def _variance(names: Sequence[str], values: VarianceValues, kind: str, title: str) -> Plot:
    lines = curves(values.rounds, variances(names, values, kind))
    return Plot(f"{title} over rounds", lines, axes(AFTER, title, log=True))


def _models(values: SyntheticValues) -> Plot:
    return Plot("Variance over rounds", curves(*variances_of_models(values)), axes("round", "variance", log=True))


def _trajectories(n: int, line: ModelsLine, values: SyntheticValues) -> Plot:
    traces, look = [contour(values.landscape)], looks([each.name for each in values.lines])[n]
    for k, path in enumerate(line.paths):
        thin = {"showlegend": k == 0, "line": {"color": look["colour"], "width": 1.5}}
        traces.append(trace_of(line.name, look, path) | thin)
    star = {"symbol": "star", "size": 13, **SPOT}
    x, y = ([value] for value in values.optimum)
    traces.append({"type": "scatter", "mode": "markers", "name": "optimum", "x": x, "y": y, "marker": star})
    return Plot(f"Trajectories of the mean of {line.name}", traces, axes("first weight", "second weight"))


def _training_loss(names: Sequence[str], values: TrainingLossValues) -> Plot:
    lines = dict(zip(names, values.lines, strict=True))
    return Plot("Training loss over rounds", curves(range(len(values.lines[0])), lines), axes("round", "training loss"))


def _landscape(names: Sequence[str], values: LandscapeValues) -> Plot:
    paths = zip(names, looks(names), values.paths, strict=True)
    traces = [contour(values.surface), *(trace_of(*each) for each in paths)]
    one, two = values.shares
    plane = axes(f"first direction ({100 * one:.0f} %)", f"second direction ({100 * two:.0f} %)")
    return Plot("Training loss around both trajectories", traces, plane | {"height": 480})


def _table(n: int, columns: Columns) -> str:
    lines = zip(columns.rounds, *columns.values.values(), strict=True)
    rows = [[number(t, "g"), *(number(value, ".4g") for value in line)] for t, *line in lines]
    return table(f"measure-{n}-table", columns.caption, (columns.head, *columns.values), rows)


def _origin(each: FoundMeasure) -> str:
    """Returns the setting and settings of a measure, and where and when it was made."""
    settings = [f"{name.replace('_', ' ')} {setting_text(value)}" for name, value in each.measure.settings.items()]
    what = [*(setting(one) for one in each.measure.experiments[:1]), "; ".join(settings)]
    return f"{'; '.join(what)}. {_unlike(each.measure)}{measured_at(each.measure.provenance, each.folder)}"


def _unlike(measure: Measure) -> str:
    """Says of a measure of another setting all that would have to be as in the one that verdicts count."""
    if size_of(MEASURES[measure.name], measure) != "other":
        return ""
    takes = ", ".join(usual for _, usual in unlike_the_papers(measure))
    return f"It decides no verdict: that takes {takes}. " if takes else "It decides no verdict. "
