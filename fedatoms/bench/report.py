"""The page of the contest: a block of Markdown made from the results' file, between two markers."""

import re
from collections.abc import Sequence

from fedatoms.bench.results import Gap, Ratio, Results, Row

FIRST, LAST = "<!-- results: python benchmarks/report.py -->", "<!-- end of results -->"
HEADS = [
    *("contestant", "clients x batch", "ms a round", "ms a step", "client-steps/s", "% of FLOP/s", "% of bytes/s"),
    *("first round, s", "peak, MB"),
]


def block(results: Results, picture: str) -> str:
    """Makes the whole block: where the numbers come from, the picture, the tables and what is missing."""
    alt = "client-steps per second by contestant"
    rows = _table(HEADS, [cells(row) for row in results.rows], align="---:")
    parts = [_origin(results), f"![{alt}]({picture})", rows, _ratios(results.results)]
    return "\n\n".join([*parts, *_remarks(results.rows, results.gaps)])


def fill(page: str, text: str) -> str:
    """Puts a text between the markers of a page.

    >>> old = f"before\\n{FIRST}\\nold\\n{LAST}\\nafter"
    >>> content(fill(old, "new"))
    'new'
    """
    content(page)
    before, after = page.split(FIRST)[0], page.split(LAST)[1]
    return f"{before}{FIRST}\n\n{text}\n\n{LAST}{after}"


def content(page: str) -> str:
    """Returns what stands between the markers of a page.

    >>> content("no markers")
    Traceback (most recent call last):
    ...
    ValueError: the page has no block between '<!-- results: python benchmarks/report.py -->' and
    '<!-- end of results -->'. Add both lines.
    """
    found = re.search(f"{re.escape(FIRST)}(.*?){re.escape(LAST)}", page, flags=re.S)
    if found is None:
        raise ValueError(f"the page has no block between '{FIRST}' and '{LAST}'. Add both lines.")
    return found[1].strip()


def cells(row: Row) -> list[str]:
    """Writes a row as the texts of a table's line, in the order of ``HEADS``."""
    return [
        row.contestant,
        f"{row.clients} x {row.batch}",
        f"{row.ms_round:.1f}",
        f"{row.ms_step:.2f}",
        f"{row.client_steps:,.0f}",
        f"{100 * row.arithmetic:.1f}",
        f"{100 * row.bandwidth:.1f}",
        f"{row.first_round:.1f}",
        "-" if row.memory is None else f"{row.memory:.0f}",
    ]


def _origin(results: Results) -> str:
    origin, settings = results.provenance, results.settings
    versions = [f"{name} {origin[name]}" for name in ("torch", "triton", "cuda", "driver", "jax") if origin.get(name)]
    return (
        f"{origin['device']}, {settings['precision']}, {', '.join(versions)}; fedatoms {origin['fedatoms']}, commit "
        f"{origin['commit']}, {str(origin['time'])[:10]}. Medians of {settings['repeats']} rounds, of 3 for the loops."
    )


def _ratios(ratios: Sequence[Ratio]) -> str:
    lines = [[ratio.name, f"{ratio.value:.2f}", _bar(ratio), ratio.verdict, ratio.detail] for ratio in ratios]
    return _table(("measured", "value", "bar", "", "detail"), lines)


def _bar(ratio: Ratio) -> str:
    return "" if ratio.bar is None else f"{'at least' if ratio.at_least else 'at most'} {ratio.bar:g}"


def _remarks(rows: Sequence[Row], gaps: Sequence[Gap]) -> list[str]:
    notes = [f"* {row.contestant}, {row.clients} x {row.batch}: {row.detail}" for row in rows if row.detail]
    notes += [f"* {gap.name}: not measured ({gap.reason})" for gap in gaps]
    return ["\n".join(notes)] if notes else []


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]], align: str = "---") -> str:
    rule = ["---"] + [align] * (len(heads) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *lines))
