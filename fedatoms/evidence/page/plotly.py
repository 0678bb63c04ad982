"""Figures for Plotly, as plain data: lines, trajectories and contours, and the axes around them."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedatoms.evidence.measures.values import Surface, Trajectory
from fedatoms.evidence.page.styles import looks

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
    found = zip(looks(list(lines)), lines.items(), strict=True)
    return [curve(name, look, x, line) for look, (name, line) in found]


def curve(name: str, look: Mapping[str, str], x: Sequence[float], y: Sequence[float]) -> Json:
    """Returns a line of a figure in its look.

    >>> curve("fedavg", looks(["fedavg"])[0], [0, 1], [1.0, 2.0])["line"]["dash"]
    'dash'
    """
    few = len(x) < 20
    every = {} if few else {"maxdisplayed": 8}
    return {
        "type": "scatter",
        "mode": "lines+markers" if few or look["mark"] else "lines",
        "name": name,
        "x": list(x),
        "y": [short(value) for value in y],
        "line": {"color": look["colour"], "width": 2, "dash": look["dash"]},
        "marker": {"symbol": look["mark"] or "circle", "size": 7 if look["mark"] else 5, **every},
    }


def trace_of(name: str, look: Mapping[str, str], path: Trajectory) -> Json:
    """Returns a trajectory of a figure in its look.

    >>> trace_of("a", looks(["a"])[0], Trajectory([0.0], [1.0]))["mode"]
    'lines+markers'
    """
    colour = look["colour"]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [short(value) for value in path.x],
        "y": [short(value) for value in path.y],
        "line": {"color": colour, "width": 2.5, "dash": look["dash"]},
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
