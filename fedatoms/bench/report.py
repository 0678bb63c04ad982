"""Pages generated from files: a block of Markdown between two markers, and the block of the contest."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fedatoms.bench.line_up import EXPERT, OURS, REDUCED
from fedatoms.bench.results import LENET, Ratio, Results, Row, find_row, numbers
from fedatoms.bench.settings import Bench

MAKER = "benchmarks/report.py"
PARTS = {  # and what a name has in which its result, or its gap, is reported
    "JAX": "JAX",
    "pfl-research": "pfl",
    "the cost of algorithms": "/ fedavg",
    "the cost of local atoms": "local atoms",
    "several seeds in one block": "seeds in one block",
    "deterministic": "deterministic",
    "start to end of first round": "start to end",
}
HEADS = [
    *("contestant", "clients x batch", "ms a round", "ms a step", "client-steps/s", "% of FLOP/s", "% of bytes/s"),
    *("first round, s", "peak, MB"),
]


def block(results: Results, picture: str) -> str:
    """Makes the whole block: provenance, the picture, the tables and what is missing."""
    alt = "client-steps per second by contestant, on a logarithmic axis"
    rows = table(HEADS, [cells(row) for row in results.rows])
    parts = [_origin(results), f"![{alt}]({picture})", rows, _ratios(results.results)]
    return "\n\n".join([*parts, *_remarks(results)])


def fill(page: str, text: str, name: str = "results", maker: str = MAKER) -> str:
    """Replaces the text between the markers of a page.

    >>> content(fill("<!-- cells: python a.py -->old<!-- end of cells -->", "new", "cells", "a.py"), "cells", "a.py")
    'new'
    """
    content(page, name, maker)
    first, last = _markers(name, maker)
    before, after = page.split(first)[0], page.split(last)[1]
    return f"{before}{first}\n\n{text}\n\n{last}{after}"


def content(page: str, name: str = "results", maker: str = MAKER) -> str:
    """Returns the text between the markers of a page.

    >>> content("no markers")
    Traceback (most recent call last):
    ...
    ValueError: the page has no block between '<!-- results: python benchmarks/report.py -->' and
    '<!-- end of results -->'. Add both lines.
    """
    first, last = _markers(name, maker)
    found = re.search(f"{re.escape(first)}(.*?){re.escape(last)}", page, flags=re.S)
    if found is None:
        raise ValueError(f"the page has no block between '{first}' and '{last}'. Add both lines.")
    return found[1].strip()


def table(heads: Sequence[str], lines: Sequence[Sequence[str]], align: str = "---:") -> str:
    """Writes a table; ``align`` is that of all columns but the first.

    >>> print(table(["a", "b"], [["x", "1"]]))
    | a | b |
    | --- | ---: |
    | x | 1 |
    """
    rule = ["---"] + [align] * (len(heads) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *lines))


def cells(row: Row) -> list[str]:
    """Writes a row as the texts of a table's line, in the order of ``HEADS``."""
    return [
        row.contestant if row.network == LENET else f"{row.contestant}, {row.network}",
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
    """Names the machine and what ran on it; of other runs that were joined, their parts, and what differs."""
    settings, origin, others = results.settings, results.provenance, results.provenance.get("joined") or []
    assert isinstance(others, list)
    also = "".join(f" Parts {each['parts']}: {_machine(each, origin)}." for each in others)
    turns = f"Medians of {settings['repeats']} turns, of 3 for the slower loops."
    return f"{_machine(origin)}; {settings['precision']}. {turns}{also}"


def _machine(origin: dict[str, object], known: Mapping[str, object] = MappingProxyType({})) -> str:
    """Describes a machine and its software as far as they are not known."""
    names = ("device", "torch", "triton", "cuda", "driver", "jax", "pfl", "fedatoms")
    said = [f"{name} {origin[name]}" for name in names if origin.get(name) and origin[name] != known.get(name)]
    words = [*said, f"commit {origin['commit']}", str(origin["time"])[:10]]
    return ", ".join(words).removeprefix("device ")


def _ratios(ratios: Sequence[Ratio]) -> str:
    lines = [[ratio.name, f"{ratio.value:.3f}", _bar(ratio), ratio.verdict, ratio.detail] for ratio in ratios]
    return table(("measured", "value", "bar", "", "detail"), lines, align="---")


def _bar(ratio: Ratio) -> str:
    return "" if ratio.bar is None else f"{'at least' if ratio.at_least else 'at most'} {ratio.bar:g}"


def _remarks(results: Results) -> list[str]:
    notes = [f"* {row.contestant}, {row.clients} x {row.batch}: {row.detail}" for row in results.rows if row.detail]
    notes += [f"* {gap.name}: not measured ({gap.reason})" for gap in results.gaps]
    if left := _left_out(results):
        notes.append(f"* Not measured yet: {'; '.join(left)}.")
    return ["\n".join(notes)] if notes else []


def _left_out(results: Results) -> list[str]:
    """Lists what `fedatoms bench --device cuda` measures by default and these results lack."""
    usual, names = Bench(), [ratio.name for ratio in results.results]
    grid = [(clients, batch) for clients in numbers(usual.clients, "") for batch in numbers(usual.batch, "")]
    cells = [f"{clients} x {batch}" for clients, batch in grid if not find_row(results.rows, OURS, clients, batch)]
    rounds = [name for name in (f"round with evaluation, ms, {each}" for each in ("tf32", "bf16")) if name not in names]
    present = {row.contestant for row in results.rows}
    known = " ".join([*names, *present, *(gap.name for gap in results.gaps)])
    parts = [label for label, sign in PARTS.items() if sign not in known]
    loops = [name for name in (EXPERT, REDUCED) if name not in present]
    return ([f"{', '.join(cells)} (clients x batch)"] if cells else []) + loops + rounds + parts


def _markers(name: str, maker: str) -> tuple[str, str]:
    return f"<!-- {name}: python {maker} -->", f"<!-- end of {name} -->"
