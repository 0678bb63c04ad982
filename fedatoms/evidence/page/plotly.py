"""Figures for Plotly, as plain data: lines, trajectories and contours, and the axes around them."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedatoms.evidence.measures.values import Surface, Trajectory
from fedatoms.runs.plots import COLOURS

Json = dict[str, object]
LEVELS = 15  # of a contour
LEGEND: Json = {  # no clicks: a keyboard could not do the same
    "orientation": "h",
    "y": 1,
    "yanchor": "bottom",
    "itemclick": False,
    "itemdoubleclick": False,
}


class Plot(NamedTuple):
    """A figure: its title, and Plotly's traces and layout; the page sets the colours of a contour."""

    label: str
    traces: list[Json]
    layout: Json


def curves(x: Sequence[float], lines: Mapping[str, Sequence[float]]) -> list[Json]:
    """Returns lines, each in the next colour.

    >>> [trace["name"] for trace in curves([0, 1], {"a": [1.0, 2.0], "b": [3.0, 4.0]})]
    ['a', 'b']
    """
    return [curve(name, n, x, line) for n, (name, line) in enumerate(lines.items())]


def curve(name: str, n: int, x: Sequence[float], y: Sequence[float]) -> Json:
    """Returns line number ``n`` of a figure.

    >>> curve("d", 3, [0, 1], [1.0, 2.0])["line"]["dash"]
    'dot'
    """
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) < 20 else "lines",
        "name": name,
        "x": list(x),
        "y": [short(value) for value in y],
        "line": {"color": COLOURS[n % len(COLOURS)], "width": 2, "dash": ("solid", "dot")[n % 4 == 3]},
    }


def trace_of(name: str, n: int, path: Trajectory) -> Json:
    """Returns trajectory number ``n`` of a figure.

    >>> trace_of("a", 0, Trajectory([0.0], [1.0]))["mode"]
    'lines+markers'
    """
    colour = COLOURS[n % len(COLOURS)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [short(value) for value in path.x],
        "y": [short(value) for value in path.y],
        "line": {"color": colour, "width": 2.5},
        "marker": {"size": 5, "color": colour},
    }


def contour(surface: Surface) -> Json:
    """Returns the contours of a loss.

    >>> contour(Surface([0.0], [0.0, 1.0], [[1.43], [2.31]]))["contours"]
    {'start': 1.5, 'end': 2.31, 'size': 0.1}
    """
    rows = [[None if value is None else short(value) for value in row] for row in surface.loss]
    known = [value for row in rows for value in row if value is not None]
    return {
        "type": "contour",
        "name": "loss",
        "x": [short(value) for value in surface.x],
        "y": [short(value) for value in surface.y],
        "z": rows,
        "autocontour": False,  # Plotly loses levels of its own when it draws the same contour again
        "contours": _levels(min(known), max(known)),
    }


def axes(x: str, y: str, *, log: bool = False) -> Json:
    """Returns the axes of a figure.

    >>> axes("round", "loss")["xaxis"]
    {'title': {'text': 'round'}}
    """
    kind = {"type": "log", "exponentformat": "power"} if log else {}
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y, "standoff": 12}, **kind}, "legend": LEGEND}


def short(value: float) -> float:
    """Rounds to the five digits that a figure needs.

    >>> short(1.23456789)
    1.2346
    """
    return float(f"{value:.5g}")


def _levels(low: float, high: float) -> Json:
    """Returns round levels between two losses, at most ``LEVELS``."""
    least = (high - low) / LEVELS or 1.0
    power = 10.0 ** math.floor(math.log10(least))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least * 0.999)
    return {"start": short(math.ceil(low / step) * step), "end": short(high), "size": short(step)}
