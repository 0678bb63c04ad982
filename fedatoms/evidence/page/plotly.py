"""What a measure says on the page, as plain data: a sentence with its numbers, figures for Plotly, columns by round."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedatoms.core.lookup import find
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.files import Measure, list_of, numbers, object_of, objects
from fedatoms.evidence.results.names import labels
from fedatoms.runs.plots import COLOURS

Json = dict[str, object]
LEVELS = 15  # of a contour
LEGEND: Json = {  # of no use to a keyboard, so of none to a mouse
    "orientation": "h",
    "y": 1,
    "yanchor": "bottom",
    "itemclick": False,
    "itemdoubleclick": False,
}


class Plot(NamedTuple):
    """A figure: what it shows in words, and Plotly's traces and layout; the colours of a contour are the page's."""

    label: str
    traces: list[Json]
    layout: Json


class Columns(NamedTuple):
    """The numbers of a measure, a line for each round."""

    caption: str
    rounds: Sequence[float]
    values: dict[str, list[float]]


class Drawing(NamedTuple):
    """All that a measure says."""

    sentence: str
    plots: list[Plot]
    columns: Columns


def draw(measure: Measure) -> Drawing:
    """Makes a drawing of a measure; values that are not those of its kind raise."""
    find(measure.name, MEASURES, "measure")
    drawing = _DRAW[measure.name](measure)
    if any(len(column) != len(drawing.columns.rounds) for column in drawing.columns.values.values()):
        raise ValueError("its lines are not all of one length")
    return drawing


def _variance(measure: Measure) -> Drawing:
    rounds, names = numbers(measure.values["rounds"]), _names(measure)
    titles = {"raw": "variance", "by_norm": "variance / |mean|²", "by_move": "variance / |move|²"}
    lines = _of_each(names, measure.values["lines"])
    found = {key: {name: numbers(line[key]) for name, line in lines.items()} for key in titles}
    plots = [
        Plot(f"{title} over rounds", curves(rounds, found[key]), axes("round", title, log=True))
        for key, title in titles.items()
    ]
    said = _last(found["raw"])
    if len(names) == 2:
        more = [_times(*(line[-1] for line in some.values())) for some in found.values()]
        said += (
            f", {more[0]} as much; as a share of the filters' squared norm {more[1]}, of their squared move {more[2]}"
        )
    sentence = f"Variance of the filters that round {rounds[-1]:g} aggregates: {said}"
    sentence += f" (over {measure.settings['repeats']} repeats of the round)."
    columns = {f"{name}, {title}": found[key][name] for key, title in titles.items() for name in names}
    return Drawing(sentence, plots, Columns("Variance of the aggregated filters", rounds, columns))


def _synthetic(measure: Measure) -> Drawing:
    lines = objects(measure.values["lines"])
    found = {str(line["name"]): numbers(line["variance"])[1:] for line in lines}  # all begin at one point
    for line in lines:
        if "products" in line:
            found["the same without latent clients"] = numbers(line["products"])[1:]
    rounds = list(range(1, 1 + len(next(iter(found.values())))))
    ground, optimum = _contour(object_of(measure.values["landscape"])), numbers(measure.values["optimum"])
    plots = [_trajectories(n, line, ground, optimum) for n, line in enumerate(lines)]
    plots.append(Plot("Variance over rounds", curves(rounds, found), axes("round", "variance", log=True)))
    sentence = f"Variance of the averaged model after round {rounds[-1]}: {_last(found)}"
    sentence += f" (over {measure.settings['repeats']} repeats)."
    return Drawing(sentence, plots, Columns("Variance of the averaged model", rounds, found))


def _trajectories(n: int, line: Json, ground: Json, optimum: list[float]) -> Plot:
    name, traces = str(line["name"]), [ground]
    for k, path in enumerate(list_of(line["paths"])):
        x, y = (list(axis) for axis in zip(*map(numbers, list_of(path)), strict=True))
        thin = {"showlegend": k == 0, "line": {"color": COLOURS[n % len(COLOURS)], "width": 1.5}}
        traces.append(_path(name, n, x, y) | thin)
    star = {"symbol": "star", "size": 13, "color": COLOURS[4]}
    x, y = ([value] for value in optimum)
    traces.append({"type": "scatter", "mode": "markers", "name": "optimum", "x": x, "y": y, "marker": star})
    return Plot(f"Trajectories of the mean of {name}", traces, axes("first weight", "second weight"))


def _training_loss(measure: Measure) -> Drawing:
    names, since = _names(measure), measure.values["lower_from"]
    if since is not None and type(since) is not int:
        raise ValueError(f"lower_from is {str(since)[:40]}, which is neither a round nor null")
    found = {name: numbers(line) for name, line in zip(names, list_of(measure.values["lines"]), strict=True)}
    rounds = list(range(len(found[names[0]])))
    end = "" if since is None else f"{names[-1]} is the lower one from round {since} on"
    sentence = f"Loss of the server's model on all training images after round {rounds[-1]}: {_last(found)}; "
    sentence += f"{end or f'{names[-1]} is not the lower one'}."
    plot = Plot("Training loss over rounds", curves(rounds, found), axes("round", "training loss"))
    return Drawing(sentence, [plot], Columns("Training loss", rounds, found))


def _landscape(measure: Measure) -> Drawing:
    names = _names(measure)
    paths = _of_each(names, measure.values["paths"])
    found = {name: numbers(path["loss"]) for name, path in paths.items()}
    traces = [_contour(measure.values)]
    traces += [_path(name, n, numbers(path["x"]), numbers(path["y"])) for n, (name, path) in enumerate(paths.items())]
    one, two = numbers(measure.values["shares"])
    plane = axes(f"first direction ({one:.0%})", f"second direction ({two:.0%})")
    rounds = list(range(len(found[names[0]])))
    (images,) = numbers([measure.values["images"]])
    sentence = f"Training loss after round {rounds[-1]}: {_last(found)}, from {found[names[0]][0]:.4g} at the common "
    sentence += f"start (over {images:,} images); the plane holds {one + two:.0%} of the trajectories' squared lengths."
    plot = Plot("Training loss around both trajectories", traces, plane | {"height": 480})
    return Drawing(sentence, [plot], Columns("Training loss along the trajectories", rounds, found))


_DRAW: dict[str, Callable[[Measure], Drawing]] = {
    "variance": _variance,
    "synthetic": _synthetic,
    "training_loss": _training_loss,
    "landscape": _landscape,
}


def curves(x: Sequence[float], lines: dict[str, list[float]]) -> list[Json]:
    """Makes lines in the page's colours, one after the other.

    >>> [trace["name"] for trace in curves([0, 1], {"a": [1.0, 2.0], "b": [3.0, 4.0]})]
    ['a', 'b']
    """
    return [curve(name, n, x, line) for n, (name, line) in enumerate(lines.items())]


def curve(name: str, n: int, x: Sequence[float], y: Sequence[float]) -> Json:
    """Makes line number ``n`` of a figure.

    >>> curve("d", 3, [0, 1], [1.0, 2.0])["line"]["dash"]
    'dot'
    """
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) < 20 else "lines",
        "name": name,
        "x": list(x),
        "y": [_short(value) for value in y],
        "line": {"color": COLOURS[n % len(COLOURS)], "width": 2, "dash": ("solid", "dot")[n % 4 == 3]},
    }


def _path(name: str, n: int, x: list[float], y: list[float]) -> Json:
    if len(x) != len(y):
        raise ValueError("a trajectory has more of one coordinate than of the other")
    colour = COLOURS[n % len(COLOURS)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [_short(value) for value in x],
        "y": [_short(value) for value in y],
        "line": {"color": colour, "width": 2.5},
        "marker": {"size": 5, "color": colour},
    }


def _contour(values: Json) -> Json:
    x, y = numbers(values["x"]), numbers(values["y"])
    rows = [
        [None if value is None else _short(*numbers([value])) for value in list_of(row)]
        for row in list_of(values["loss"])
    ]
    if len(rows) != len(y) or any(len(row) != len(x) for row in rows):
        raise ValueError("its grid does not have a loss for each point")
    known = [value for row in rows for value in row if value is not None]
    return {
        "type": "contour",
        "name": "loss",
        "x": [_short(value) for value in x],
        "y": [_short(value) for value in y],
        "z": rows,
        "autocontour": False,  # Plotly loses levels of its own when it draws the same contour again
        "contours": _levels(min(known), max(known)),
    }


def _levels(low: float, high: float) -> Json:
    """Returns round levels between two losses, at most ``LEVELS``.

    >>> _levels(1.43, 2.31)
    {'start': 1.5, 'end': 2.31, 'size': 0.1}
    """
    least = (high - low) / LEVELS or 1.0
    power = 10.0 ** math.floor(math.log10(least))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least * 0.999)
    return {"start": _short(math.ceil(low / step) * step), "end": _short(high), "size": _short(step)}


def axes(x: str, y: str, *, log: bool = False) -> Json:
    """Names the axes of a figure.

    >>> axes("round", "loss")["xaxis"]
    {'title': {'text': 'round'}}
    """
    kind = {"type": "log", "exponentformat": "power"} if log else {}
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y, "standoff": 12}, **kind}, "legend": LEGEND}


def _last(lines: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {line[-1]:.4g}" for name, line in lines.items())


def _names(measure: Measure) -> list[str]:
    """Names the experiments of a measure; they may differ in their seed alone."""
    names = labels(measure.experiments)
    return names if len(set(names)) == len(names) else [f"{n}. {name}" for n, name in enumerate(names, 1)]


def _times(first: float, second: float) -> str:
    return f"{second / first:.2f} times" if first else "not comparable"


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _of_each(names: Sequence[str], values: object) -> dict[str, Json]:
    return dict(zip(names, objects(values), strict=True))
