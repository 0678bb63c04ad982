"""Figures that need no script: small SVG pictures of Plotly's traces, for paper and for browsers without JavaScript."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple, cast

from fedatoms.evidence.page.plotly import Json, Plot

WIDTH, HEIGHT = 620, 280
LEFT, RIGHT, TOP, BOTTOM = 58, 20, 8, 40
POINTS = 48  # of a line: more are not seen at this size
CELLS = 24  # along each side of a surface
STROKES = {"dash": "6 3", "dot": "2 3"}
MARKED = 7  # places of a line that have its mark
SHAPES = {  # by Plotly's names
    "circle": "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0",
    "square": "m-3-3h6v6h-6z",
    "diamond": "m0-4l4 4l-4 4l-4-4z",
    "triangle-up": "m0-4l4 7h-8z",
    "x": "m-3-3l6 6m0-6l-6 6",
    "cross": "m-4 0h8m-4-4v8",
    "star": "m0-4v8m-4-4h8m-7-3l6 6m0-6l-6 6",
    "triangle-down": "m0 4l4-7h-8z",
    "pentagon": "m0-4l4 3l-1.5 4.5h-5l-1.5-4.5z",
}
Number = float | None


class Axis(NamedTuple):
    """The range of an axis in its own numbers (logarithms if it is logarithmic), its ticks, and its title."""

    low: float
    high: float
    ticks: list[tuple[float, str]]
    title: str
    log: bool = False
    flipped: bool = False

    def share(self, value: float) -> float:
        """Returns where a number lies, from 0 at the axis' start to 1."""
        here = math.log10(value) if self.log else value
        part = (here - self.low) / (self.high - self.low)
        return 1 - part if self.flipped else part


def picture(plot: Plot) -> str:
    """Returns a figure as SVG with its title, and its legend as text.

    >>> one = {"type": "scatter", "name": "a < b", "x": [0, 1], "y": [1.0, 2.0], "line": {"color": "#2378c3"}}
    >>> drawn = picture(Plot("Loss", [one], {}))
    >>> drawn[:62], "a &lt; b" in drawn, "<path d=" in drawn
    ('<figure class="still"><figcaption><b>Loss</b> <span class="key', True, True)
    """
    traces = [trace for trace in plot.traces if trace.get("hoverinfo") != "skip" or trace.get("name")]
    x, y = (_axis(plot, traces, name) for name in ("x", "y"))
    drawn = "".join(_draw(trace, x, y) for trace in traces)
    return (
        f'<figure class="still"><figcaption><b>{escape(plot.label)}</b> {_keys(traces)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot.label)}">'
        f"{_frame(x, y)}{drawn}</svg></figure>"
    )


def _draw(trace: Json, x: Axis, y: Axis) -> str:
    if trace["type"] in ("contour", "heatmap"):
        return _surface(trace, x, y)
    pairs = [
        (x.share(_place(a, n)), y.share(_place(b, n)))
        for n, (a, b) in enumerate(zip(_list(trace, "x"), _list(trace, "y"), strict=True))
        if a is not None and b is not None
    ]
    points = [(_across(a), _down(b)) for a, b in thinned(pairs, POINTS)]
    colour, dash = _line(trace)
    if trace.get("mode") == "markers" or len(points) == 1:
        look = 'class="spot"' if _is_spot(trace) else f'fill="{colour}"'
        return "".join(f'<circle cx="{a:.0f}" cy="{b:.1f}" r="3" {look}/>' for a, b in points)
    path = "M" + "L".join(f"{a:.0f} {b:.1f}" for a, b in points)
    broken = f' stroke-dasharray="{STROKES[dash]}"' if dash in STROKES else ""
    if not points:
        return ""
    line = f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{broken}/>'
    return line + _marks(thinned(points, MARKED), _symbol(trace), colour)


def _marks(points: Sequence[tuple[float, float]], symbol: str, colour: str) -> str:
    """Draws the marks of a line, which tell variants of one method apart; nothing for a line without any."""
    name, opened, _ = symbol.partition("-open")
    shape = SHAPES.get(name.removesuffix("-dot"), "")
    path = "".join(f"M{a:.0f} {b:.1f}{shape}" for a, b in points)
    filled = "none" if opened else colour
    return f'<path d="{path}" fill="{filled}" stroke="{colour}"/>' if shape else ""


def _symbol(trace: Json) -> str:
    return str(cast(Json, trace.get("marker") or {}).get("symbol", ""))


def _surface(trace: Json, x: Axis, y: Axis) -> str:
    """Draws the cells of a surface in five shades, the higher the stronger."""
    rows = cast(Sequence[Sequence[Number]], trace["z"])
    known = [value for row in rows for value in row if value is not None]
    low, high = cast(float, trace.get("zmin", min(known))), max(known)
    down, across = (max(1, math.ceil(n / CELLS)) for n in (len(rows), len(rows[0])))
    size = (WIDTH - LEFT - RIGHT) * across / len(rows[0]), (HEIGHT - TOP - BOTTOM) * down / len(rows)
    shades: dict[int, list[str]] = {}
    for i, row in enumerate(rows[::down]):
        for j, value in enumerate(row[::across]):
            if value is not None:
                top = i * size[1] + TOP if y.flipped else HEIGHT - BOTTOM - (i + 1) * size[1]
                shade = min(4, int(5 * (value - low) / ((high - low) or 1)))
                shades.setdefault(shade, []).append(
                    f"M{LEFT + j * size[0]:.0f} {top:.0f}h{size[0]:.1f}v{size[1]:.1f}h-{size[0]:.1f}z"
                )
    return "".join(
        f'<path d="{"".join(parts)}" class="shade" opacity="{0.12 + 0.2 * n:.2f}"/>' for n, parts in shades.items()
    )


def bars(label: str, names: Sequence[str], parts: Sequence[tuple[str, str, Sequence[float]]], unit: str) -> str:
    """Returns stacked bars as SVG: a row for each name, a part for each (name, fill, sizes).

    >>> 'd="M250.0 3h300.0v12h-300.0z"' in bars("Bytes", ["fedavg"], [("head", "#1a8a5c", [3.0])], "MB")
    True
    """
    totals = [sum(sizes[n] for _, _, sizes in parts) for n in range(len(names))]
    most, step, height = max([*totals, 1e-9]), 17, 17 * len(names) + 4
    rows, starts = list[str](), [250.0] * len(names)
    for _, fill, sizes in parts:
        widths = [300 * size / most for size in sizes]
        rows.append(_stack(fill, starts, widths, step))
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    for n, name in enumerate(names):
        label = f'<text x="244" y="{n * step + 13}" text-anchor="end" font-size="9.5">{escape(_cut(name))}</text>'
        rows.append(label)
        rows.append(f'<text x="{starts[n] + 4:.0f}" y="{n * step + 13}">{totals[n]:,.3g}</text>')
    keys = " ".join(_swatch(name, fill) for name, fill, _ in parts)
    return (
        f'<figure class="still"><figcaption><b>{escape(label)}, {escape(unit)}</b> {keys}</figcaption><svg '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(rows)}</svg></figure>'
    )


def _swatch(name: str, fill: str) -> str:
    """Returns a part's entry in the legend."""
    square = f'<path d="M1 1h22v10h-22z" fill="{fill}" class="edge"/>'
    return f'<span class="key"><svg width="24" height="12" aria-hidden="true">{square}</svg> {escape(name)}</span>'


def _stack(fill: str, starts: Sequence[float], widths: Sequence[float], step: int) -> str:
    """Draws one part of all bars."""
    drawn = (
        f"M{start:.1f} {n * step + 3}h{width:.1f}v12h-{width:.1f}z"
        for n, (start, width) in enumerate(zip(starts, widths, strict=True))
        if width
    )
    return f'<path fill="{fill}" class="edge" d="{"".join(drawn)}"/>'


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Keeps at most so many points, the first and the last among them.

    >>> thinned([(x, 0.0) for x in range(100)], 3)
    [(0, 0.0), (50, 0.0), (99, 0.0)]
    """
    if len(points) <= most:
        return list(points)
    return [points[round(n * (len(points) - 1) / (most - 1))] for n in range(most)]


def _axis(plot: Plot, traces: Sequence[Json], name: str) -> Axis:
    given = cast(Json, plot.layout.get(f"{name}axis", {}))
    title = str(cast(Json, given.get("title", {})).get("text", ""))
    values = [value for trace in traces for value in _list(trace, name)]
    flipped = given.get("autorange") == "reversed"
    if any(isinstance(value, str) for value in values):
        names = list(dict.fromkeys(str(value) for value in values))
        every = max(1, len(names) // 10)
        places = [(float(n), name) for n, name in enumerate(names)]
        return Axis(-0.5, len(names) - 0.5, places[::every], title, flipped=flipped)
    known = [value for value in values if isinstance(value, int | float)] or [0.0, 1.0]
    if given.get("type") == "log":
        return _powers([value for value in known if value > 0], title)
    low, high = min(known), max(known)
    room = 0.03 * (high - low or 1) if name == "y" else 0.0 if high > low else 0.5
    return Axis(low - room, high + room, ticks(low, high), title, flipped=flipped)


def _powers(values: Sequence[float], title: str) -> Axis:
    low, high = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05
    powers = [p for p in range(math.floor(low), math.ceil(high) + 1) if low <= p <= high]
    return Axis(low, high, [(10.0**p, f"1e{p}") for p in powers], title, log=True)


def ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Returns about five round numbers in a range, with their text.

    >>> [text for _, text in ticks(0, 100)], [text for _, text in ticks(1.0, 1.5)][:2]
    (['0', '20', '40', '60', '80', '100'], ['1', '1.1'])
    """
    rough = (high - low) / 6 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [(n * step, f"{n * step:g}") for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _frame(x: Axis, y: Axis) -> str:
    lines = []
    for value, text in y.ticks:
        at = _down(y.share(value))
        lines.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        lines.append(f'<text x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for value, text in x.ticks:
        lines.append(
            f'<text x="{_across(x.share(value)):.0f}" y="{HEIGHT - 24}" text-anchor="middle">{escape(text)}</text>'
        )
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    lines.append(f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x.title)}</text>')
    lines.append(
        f'<text transform="translate(12 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(y.title)}</text>'
    )
    return "".join(lines)


def _keys(traces: Iterable[Json]) -> str:
    lines = {str(each["name"]): each for each in traces if each["type"] == "scatter" and each.get("name")}
    return " ".join(
        _spot(name) if _is_spot(each) else _key(name, *_line(each), _symbol(each)) for name, each in lines.items()
    )


def _is_spot(trace: Json) -> bool:
    """Says whether a trace has the marks with an edge, which are seen on any shade."""
    return "line" in cast(Json, trace.get("marker") or {})


def _spot(name: str) -> str:
    circle = '<circle cx="5" cy="5" r="3.5" class="spot"/>'
    return f'<span class="key"><svg width="10" height="10" aria-hidden="true">{circle}</svg> {escape(name)}</span>'


def _key(name: str, colour: str, dash: str, symbol: str) -> str:
    broken = f' stroke-dasharray="{STROKES[dash]}"' if dash in STROKES else ""
    line = f'<path d="M0 5H24" stroke="{colour}" stroke-width="2.5"{broken}/>{_marks([(12, 5)], symbol, colour)}'
    return f'<span class="key"><svg width="24" height="10" aria-hidden="true">{line}</svg> {escape(name)}</span>'


def _line(trace: Json) -> tuple[str, str]:
    line, marker = (cast(Json, trace.get(part) or {}) for part in ("line", "marker"))
    return str(line.get("color") or marker.get("color") or "currentColor"), str(line.get("dash", ""))


def _list(trace: Json, name: str) -> Sequence[object]:
    return cast(Sequence[object], trace[name])


def _place(value: object, n: int) -> float:
    return float(value) if isinstance(value, int | float) else float(n)


def _across(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _down(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _cut(name: str) -> str:
    return name if len(name) <= 46 else f"{name[:45]}…"
