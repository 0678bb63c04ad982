"""What the campaign found: one table on the terminal, in JSON and on the page of docs/reliability.md."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hostile.verdicts import GOOD, WORDS, Word

FIRST_MARK, LAST_MARK = "<!-- the table, by make hostile -->", "<!-- its end -->"
COLUMNS = ("cases", "real", *WORDS)


class Found(NamedTuple):
    """What became of one case."""

    kind: str
    name: str
    real: bool  # by commands of a fresh interpreter
    word: Word
    why: str
    seconds: float
    log: str


Rows = dict[str, dict[str, int]]  # a line for each kind, a number for each column


def rows_of(found: Sequence[Found]) -> Rows:
    """Counts verdicts by kind.

    >>> rows_of([Found("kills", "a", True, "fine", "", 1.0, "")])["kills"]["fine"]
    1
    """
    rows: Rows = {}
    for kind in dict.fromkeys(one.kind for one in found):
        these = [one for one in found if one.kind == kind]
        counts = Counter(one.word for one in these)
        rows[kind] = {"cases": len(these), "real": sum(one.real for one in these)}
        rows[kind] |= {word: counts[word] for word in WORDS}
    return rows


def show(found: Sequence[Found], seconds: float) -> None:
    """Prints the table, and below it every case that failed with the words that run it again."""
    console, rows = Console(soft_wrap=True), rows_of(found)
    table = Table(title=f"{len(found):,} cases in {seconds / 60:.1f} minutes")
    for title in ("kind", *COLUMNS):
        table.add_column(title, justify="left" if title == "kind" else "right")
    for kind, row in rows.items():
        table.add_row(kind, *(str(row[column] or "") for column in COLUMNS))
    console.print(table)
    for one in sorted(failures(found)):
        console.print(f"{one.word:10} {one.kind} --only {one.name!r}: {escape(one.why[:300])}", highlight=False)


def failures(found: Sequence[Found]) -> list[Found]:
    """Returns what went wrong."""
    return [one for one in found if one.word not in GOOD]


def write(path: Path, found: Sequence[Found], about: Mapping[str, object], parts: Mapping[str, Sequence[str]]) -> None:
    """Writes the table, of what its cases were made, and the cases that failed.

    Kinds that were not run keep what an earlier campaign wrote.
    """
    known = json.loads(path.read_text()) if path.exists() else {"rows": {}, "failed": []}
    minutes = {kind: sum(one.seconds for one in found if one.kind == kind) / 60 for kind in rows_of(found)}
    rows = known["rows"] | {
        kind: {**row, "minutes": minutes[kind], **about, "parts": list(parts[kind])}
        for kind, row in rows_of(found).items()
    }
    failed = [{"kind": one.kind, "name": one.name, "verdict": one.word, "why": one.why} for one in failures(found)]
    kept = [one for one in known["failed"] if one["kind"] not in minutes]
    path.write_text(json.dumps({"rows": rows, "failed": kept + failed}, indent=1) + "\n")


def to_page(path: Path, page: Path, tried: Mapping[str, Sequence[str]]) -> None:
    """Puts the table of a file on the page, between its marks."""
    before, _, rest = page.read_text().partition(FIRST_MARK)
    page.write_text(f"{before}{FIRST_MARK}\n\n{markdown(path, tried)}\n\n{LAST_MARK}{rest.partition(LAST_MARK)[2]}")


def markdown(path: Path, tried: Mapping[str, Sequence[str]]) -> str:
    """Returns the table of a file that ``write`` wrote, as on the page, and what it lacks of what is tried now."""
    rows = json.loads(path.read_text())["rows"]
    lines = [f"| kind | {' | '.join(COLUMNS)} | minutes | commit |", f"|---|{'---:|' * (len(COLUMNS) + 1)}---|"]
    for kind, row in rows.items():
        numbers = [str(row[name]) for name in COLUMNS]
        minutes = "" if row["minutes"] is None else f"{row['minutes']:.1f}"
        lines.append(f"| {kind} | {' | '.join(numbers)} | {minutes} | {row['commit']} |")
    last = list(rows.values())[-1]
    where = f"fedatoms {last['version']}, seed {last['seed']}, {last['date']}; minutes are of one core"
    lacking = {
        kind: [part for part in parts if part not in rows[kind].get("parts", [])] for kind, parts in tried.items()
    }
    news = [f"* `{kind}`: {', '.join(parts)}" for kind, parts in lacking.items() if parts]
    told = ["", "Since that commit the campaign tries these anew, or for the first time:", "", *news] if news else []
    return "\n".join([*lines, "", f"{where}, and {last['cores']} worked at once.", *told])
