"""The evidence of a claim as a small picture: a row for each line, with its name, a dot and its interval."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape

from fedatoms.core.gains import State
from fedatoms.evidence.claims.base import Claim, Evidence
from fedatoms.evidence.page.html_table import gain_cell, minus, number

BARS = {"points": 0.0, "times": 1.0}  # where a unit's dots would say nothing
DOTS = 60  # lines of evidence in a picture
LONG = 24  # with more of them a card is as wide as the page, and has columns
KINDS: dict[State, str] = {"supported": "good", "inconclusive": "quiet", "contradicted": "bad"}
SAID: dict[State, str] = {"supported": "yes", "inconclusive": "open", "contradicted": "no"}
LEGEND = (
    '<p class="quiet">In the small pictures a full dot says yes, an empty one leaves it open, and a cross says no, '
    "each with its 95 % interval where it has one; an upright tick is the paper's number.</p>"
)
CROSS = '<svg x="{x}" y="50%" class="cross"><path d="M-3-3L3 3M-3 3L3-3"/></svg>'
Place = Callable[[float], str]


def dots(claim: Claim) -> str:
    """Draws each line of evidence in a row of its own, and the bar of its unit as a dashed line; empty if there is one.

    A full dot says yes, an empty one leaves it open, a cross says no: the colours say the same. A tick is the paper's.

    >>> from fedatoms.evidence.claims.base import judge
    >>> dots(judge("It helps.", "It adds.", [], (None, None)))
    ''
    """
    lines = claim.evidence[:DOTS]
    if len(lines) < 2:
        return ""
    ends = [end for each in lines if each.gain for end in (each.gain.low, each.gain.high) if end is not None]
    bars = [value for unit, value in BARS.items() if claim.evidence_unit.name.startswith(unit)]
    papers = [each.paper for each in lines if each.paper is not None]
    numbers = [*(each.ours for each in lines), *ends, *bars, *papers]
    low, room = min(numbers), (max(numbers) - min(numbers)) or 1.0

    def at(value: float) -> str:
        return f"{2 + 96 * (value - low) / room:.1f}%"

    rows = "".join(
        f'<li class="where">{escape(name)}</li>'
        if each is None
        else _row(name, each, claim.evidence_unit.form, at, bars)
        for name, each in named(lines)
    )
    unit = claim.evidence_unit.name + "".join(f"; dashed: {bar:g}" for bar in bars)
    first, last = (f"<span>{end:.3g}</span>".replace("-", "\u2212") for end in (low, low + room))
    scale = f'<li class="quiet scale"><span>{escape(unit)}</span><b>{first}{last}</b></li>'
    if len(lines) > LONG:
        scale = f'<li class="quiet where">{escape(unit)}; each row goes from {first} to {last}</li>'
    return f'<ul class="dots">{rows}{scale}</ul>'


def named(lines: Sequence[Evidence]) -> list[tuple[str, Evidence | None]]:
    """Names each line by who it is about; those of one setting stand below its name, which comes without a line.

    >>> one, two = (Evidence(f"{name}; digits", None, 1.0, "supported") for name in ("fedavg", "fedprox"))
    >>> [name for name, _ in named([one, two])]
    ['digits', 'fedavg', 'fedprox']
    >>> [name for name, _ in named([one._replace(about="fedavg, beta 1/2: never; 0.5 of it")])]
    ['fedavg, beta 1/2']
    """
    where = Counter(each.about.partition("; ")[2] for each in lines)
    if "" in where or len(where) == len(lines):
        return [(each.about.split(": ")[0], each) for each in lines]
    found: list[tuple[str, Evidence | None]] = []
    for setting in where:
        some = [each for each in lines if each.about.partition("; ")[2] == setting]
        found += [(setting, None), *((each.about.partition("; ")[0], each) for each in some)]
    return found


def _row(name: str, each: Evidence, form: str, at: Place, bars: Sequence[float]) -> str:
    shown = number(each.ours, form) if each.gain is None else gain_cell(each.gain, form)
    drawn = "".join(f'<line x1="{at(bar)}" x2="{at(bar)}" y1="0" y2="100%" class="bar"/>' for bar in bars)
    if each.paper is not None:
        drawn += f'<line x1="{at(each.paper)}" x2="{at(each.paper)}" y1="15%" y2="85%" class="tick"/>'
    if each.gain and each.gain.low is not None and each.gain.high is not None:
        drawn += f'<line x1="{at(each.gain.low)}" x2="{at(each.gain.high)}" y1="50%" y2="50%"/>'
    drawn += CROSS.format(x=at(each.ours)) if each.state == "contradicted" else _dot(at(each.ours), each.state)
    label = escape(f"{SAID[each.state]}: {shown.text}")
    picture = f'<svg class="{KINDS[each.state]}" role="img" aria-label="{label}">{drawn}</svg>'
    return f"<li><span>{_unbroken(escape(minus(name)))}</span>{picture}</li>"


def _unbroken(name: str) -> str:
    """Keeps what is in short brackets in one line: (100, 2)."""
    return re.sub(r"\((\d+), (\d+)\)", "(\\1,\u00a0\\2)", name)


def _dot(x: str, state: State) -> str:
    empty = ' class="empty-dot"' if state == "inconclusive" else ""
    return f'<circle cx="{x}" cy="50%" r="3"{empty}/>'
