"""Sortable tables: HTML from columns and cells, with all text escaped."""

import re
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from typing import NamedTuple

from fedatoms.core.gains import Gain, beyond, written
from fedatoms.runs.comparison import Spread


class Cell(NamedTuple):
    """The text of a cell, its sort key (an empty key stays last), its style, and HTML in the place of its text."""

    text: str
    key: str = ""
    kind: str = ""  # a class of page.css: number, good, bad, quiet
    html: str = ""  # the text with links in it


POOLED = "pooled: one seed has no spread of its own, so its interval is made of that of the pairs with several seeds"
EQUAL = "pooled, several seeds: a difference that is equal on all of them is chance, and has that interval, too"
TWO_SEEDS = "two seeds know little of their spread (Student's t with one degree of freedom): a third narrows it"


def table(
    name: str,
    caption: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    marks: Sequence[str] = (),
    *,
    stacked: bool = False,
) -> str:
    """Returns a table whose header buttons sort it, in a box that scrolls; ``marks`` are attributes of its rows.

    If it is ``stacked``, its rows are cards on a phone, and the page's style needs its ``labels``. Where a gain is
    "pooled", the caption says what that means, and why two seeds may have a wider interval than one.

    >>> "<td>&lt;1&gt;</td>" in table("t", "Two", ["a & b"], [[text("<1>")]])
    True
    """
    top = "".join(
        f'<th scope="col"{_class(_kind(rows, n))}><button type="button">{escape(head)}<i></i></button></th>'
        for n, head in enumerate(heads)
    )
    named = [f" {mark}" for mark in marks] or [""] * len(rows)
    body = "\n".join(
        f"<tr{mark}>{''.join(_td(cell) for cell in row)}</tr>" for row, mark in zip(rows, named, strict=True)
    )
    label = escape(". ".join([caption, *_notes([cell.text for row in rows for cell in row])]))
    kind = "box stacked" if stacked else "box"
    return (
        f'<div class="{kind}" id="{escape(name)}" role="group" aria-label="{label}" tabindex="0"><table>'
        f"<caption><span>{label}</span></caption><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def typed(words: str) -> str:
    """Returns a command as HTML that breaks before its flags alone or, where these are too long, between words.

    >>> typed("fedatoms run fedavg --lr 0.3"), typed("fedatoms run --atoms-lr 2")
    ('<span>fedatoms run fedavg</span> <span>--lr 0.3</span>', \
'<span>fedatoms run</span> <span><b>--atoms-lr</b> 2</span>')
    """
    parts = words.replace(" --", "\n--").split("\n")
    return " ".join(f"<span>{' '.join(map(_unbroken, part.split(' ')))}</span>" for part in parts)


def command(words: str) -> Cell:
    """Returns a cell of what to type.

    >>> command("").html
    ''
    """
    return Cell(words, words, "path command wide", typed(words) if words else "")


def labels(name: str, heads: Sequence[str]) -> str:
    """Returns the style that writes the heads of a stacked table's columns, but for the first, before their cells.

    >>> labels("best", ["setting", "score"])
    '@media screen and (max-width: 40rem) { #best td:nth-child(2)::before { content: "score"; } }'
    """
    rules = [f'#{name} td:nth-child({n})::before {{ content: "{head}"; }}' for n, head in enumerate(heads, 1) if n > 1]
    return f"@media screen and (max-width: 40rem) {{ {' '.join(rules)} }}"


def text(value: object) -> Cell:
    """Returns a cell of text.

    >>> text(None)[:3]
    ('', '', '')
    """
    shown = "" if value is None else str(value)
    return Cell(shown, shown)


def number(value: float | None, form: str = ".2f", kind: str = "", none: str = "not run") -> Cell:
    """Returns a cell of a number, sorted by its value.

    >>> number(0.125, "+.1f")[:3], number(None).text
    (('+0.1', '0.125', 'number'), 'not run')
    """
    if value is None:
        return Cell(none, kind="number quiet")
    return Cell(format(value, form).replace("-", "\u2212"), number_key(value), f"number {kind}".strip())


def minus(words: str) -> str:
    """Writes negative numbers with the sign that is as wide as a plus; other hyphens stay.

    >>> minus("fedavg-atoms, 1e-05, 2026-01-02 (-0.5)")
    'fedavg-atoms, 1e-05, 2026-01-02 (\u22120.5)'
    """
    return re.sub(r"(?<![\w.)-])-(?=\d)", "\u2212", words)


def number_key(value: float) -> str:
    """Returns what a number is sorted by: more digits than any cell shows.

    >>> number_key(80.0941850369998), number_key(44232700800.0)
    ('80.094185', '4.42327008e+10')
    """
    return f"{value:.9g}"


def spread(value: Spread | None, form: str = ".2f") -> Cell:
    """Returns a cell of a mean over seeds.

    >>> spread(Spread(81.0, 0.25)).text
    '81.00 ± 0.25'
    """
    cell = number(None if value is None else value.mean, form)
    if value is None or value.deviation is None:
        return cell
    return cell._replace(text=f"{cell.text} ± {value.deviation:{form}}")


def change(value: float | None, beyond: float = 0.0) -> Cell:
    """Returns a cell of a difference, marked if it exceeds ``beyond`` at the two decimals shown.

    Its sign has no colour: to be above another's number is no better than to be below it.

    >>> change(-0.5).kind, change(-0.704, beyond=0.7).kind, change(None).text
    ('number mixed', 'number', '')
    """
    kind = "" if value is None or abs(round(value, 2)) <= beyond else "mixed"
    return number(value, "+.2f", kind, none="")


def gain_cell(value: Gain | None, form: str = "+.2f", *, coloured: bool = False, below: bool = False) -> Cell:
    """Returns a cell of a gain with its interval, coloured if the whole interval is on one side of 0.

    ``below`` is asked for where a lower score is the better one.

    >>> one = Gain(3.5, 3.0, 4.0, 3, "seeds")
    >>> gain_cell(one).text, gain_cell(one, coloured=True).kind
    ('+3.50 ± 0.50 (3 seeds)', 'number good bracketed')
    """
    if value is None:
        return number(None, none="")._replace(kind="number quiet bracketed")
    colours = {"supported": "good", "contradicted": "bad", "inconclusive": ""}
    cell = number(value.gain, form, colours[beyond(value, below=below)] if coloured else "")
    return cell._replace(text=written(value, form).replace("-", "\u2212"), kind=f"{cell.kind} bracketed")


def _notes(texts: Sequence[str]) -> list[str]:
    """Returns what the gains of a table need to be understood."""
    pooled, equal, two = (any(mark in each for each in texts) for mark in (", pooled)", "seeds, pooled)", "(2 seeds)"))
    notes = {POOLED: pooled, EQUAL: equal, TWO_SEEDS: pooled and two}
    return [note for note, needed in notes.items() if needed]


def _unbroken(word: str) -> str:
    """Escapes a word, and marks one that a browser would break at a hyphen."""
    return f"<b>{escape(word)}</b>" if re.search(r"\w-\w", word) else escape(word)


def _td(cell: Cell) -> str:
    key = "" if _says_its_key(cell) else f' data-key="{escape(cell.key)}"'
    return f"<td{key}{_class(cell.kind)}>{cell.html or _whole(cell)}</td>"


def _whole(cell: Cell) -> str:
    """Escapes a cell's text; what it has in brackets is not broken (compare.js writes it so, too)."""
    shown = escape(cell.text)
    return re.sub(r"\([^)]*\)", r"<span>\g<0></span>", shown, count=1) if "bracketed" in cell.kind.split() else shown


def _says_its_key(cell: Cell) -> bool:
    """Says whether the text of a cell can be sorted by: it is the key, or the same number."""
    with suppress(ValueError):
        return cell.text == cell.key or float(cell.text) == float(cell.key)
    return False


def _kind(rows: Sequence[Sequence[Cell]], column: int) -> str:
    """Returns the class of a column's head, as that of its first cell: how it is sorted, or where it is hidden."""
    kinds = {*rows[0][column].kind.split()} if rows else set[str]()
    unsorted = ["unsorted"] if kinds & {"command", "path"} else []  # on a phone
    return " ".join([*sorted({"number", "setting"} & kinds), *unsorted])


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
