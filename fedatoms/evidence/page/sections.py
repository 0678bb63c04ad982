"""The sections of the page as HTML: facts, runs by state, the paper's tables, bytes, provenance."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from fedatoms.core.gains import Pooled
from fedatoms.core.options import GROUPS
from fedatoms.evidence.claims.tables import NEAR
from fedatoms.evidence.page.html_table import Cell, change, command, gain_cell, number, spread, table, text
from fedatoms.evidence.page.links import commit_of, folders_of
from fedatoms.evidence.paper.tables import COLUMNS, DECOMPOSED, cells, contrast
from fedatoms.evidence.paper.tables import Cell as Printed
from fedatoms.evidence.results.cells import (
    GAINS,
    Ours,
    atoms_note,
    column_name,
    lead_of,
    missing_reasons,
    ours_of,
    place,
    row_name,
)
from fedatoms.evidence.results.commands import again, with_seeds
from fedatoms.evidence.results.finding import PUBLISHED, Found, Note, Run, how_far
from fedatoms.evidence.results.groups import STAND_IN, Group, is_stand_in, stand_in_mark
from fedatoms.evidence.results.pairs import Spreads
from fedatoms.evidence.results.progress import Progress, in_order, last_scores, sent
from fedatoms.runs.results import WINDOW
from fedatoms.runs.spent import epsilon_in

STATES = ("state", "round", "of", "loss", "scores", "MB sent", "run", "setting", "what to do")
PRINTED = ("method", "data", "paper", "ours", "difference", "seeds", "gain, paper", "gain, ours", "run again", "runs")
MISSING = "number quiet missing"  # page.css can hide such rows
SCORED = {
    1: f"test accuracy of the mean of all clients' last models, averaged over the last {WINDOW} rounds",
    2: "accuracy of the clients' own models on their own test images, after the last local pass",
    3: "as Table 2, for different numbers of atoms",
}
CAVEATS = {  # beside the numbers of a table
    1: "Both sides have the paper's one setting, which was tuned for neither; tuned against tuned is another "
    "comparison, in docs/paper.md.",
    2: "One seed each unless the column says more; a difference of a point may be luck.",
    3: "Only the atoms are local in our runs, and the last layer is global: the paper may mean a local one, as in "
    "its Table 2. What is far from the paper's number is that other reading, not noise.",
}
FAR = 10.0  # points from the paper's: marked as another reading, not as noise


def summary(found: Found, groups: Sequence[Group], folders: Sequence[Path]) -> str:
    """Returns the number of runs, their origin, dates and commits, and lists the files that were left out."""

    def known(name: str) -> list[str]:
        return sorted({str(run.result.provenance[name]) for run in found.runs if run.result.provenance.get(name)})

    times = known("time")
    facts = {
        "runs": _whose(found.runs, groups),
        "below": listed(folder.as_posix() for folder in folders),
        "when": " to ".join(
            dict.fromkeys(time[:16].replace("T", " ") for time in (times or [""])[:: max(1, len(times) - 1)])
        ),
        "commits": listed([*known("commit"), *_nameless(found.runs)]),
        "on": listed(known("device")),
    }
    lines = "".join(f"<div><dt>{name}</dt><dd>{escape(fact or 'unknown')}</dd></div>" for name, fact in facts.items())
    unfinished = {each.folder for each in found.unfinished if each.state != "damaged"}
    rest = [note for note in found.left_out if note.path.parent not in unfinished]
    left_out = _notes("left out", "Left out of this page", rest)
    return f"<dl>{lines}</dl>{left_out}{_notes('notes', 'Used, but with a problem', found.notes)}"


def _whose(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """Counts the reader's runs and those of the project, each apart if there are both."""
    both = [[run for run in runs if run.published == other] for other in (False, True)]
    if not all(both):
        return _finished(runs, groups)
    apart = [[each for each in groups if each.published == other] for other in (False, True)]
    yours, others = map(_finished, both, apart)
    return f"yours: {yours}; of {PUBLISHED}: {others}"


def _finished(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """Counts runs, experiments and quick stand-ins."""
    number = sum(is_stand_in(run.result.experiment) for run in runs)
    quick = f"; {_count(number, STAND_IN)}" if number else ""
    return f"{_count(len(runs), 'finished run')} of {_count(len(groups), 'experiment')}{quick}"


def _nameless(runs: Sequence[Run]) -> list[str]:
    """Counts runs without a commit."""
    number = sum(not run.result.provenance.get("commit") for run in runs)
    return [f"unknown for {_count(number, 'run')}"] if number else []


def _notes(name: str, title: str, notes: Sequence[Note]) -> str:
    if not notes:
        return ""
    lines = "".join(f"<li><code>{escape(note.path.as_posix())}</code>: {escape(note.reason)}</li>" for note in notes)
    return f'<div class="warning" data-notes="{name}"><h3>{title} ({len(notes)})</h3><ul>{lines}</ul></div>'


def unfinished(found: Found) -> str:
    """Returns the runs that have no result yet: running first, with their last scores and what to type.

    >>> unfinished(Found([], [], [], [], []))
    ''
    """
    if not found.unfinished:
        return ""
    rows = [_unfinished(each) for each in in_order(found.unfinished)]
    return table(
        "unfinished", "Runs without a result, as they were when this page was made", STATES, rows, stacked=True
    )


def _unfinished(each: Progress) -> list[Cell]:
    last = each.rows[-1] if each.rows else None
    scores = listed(f"{model} {each.metric.write(score)}" for model, score in last_scores(each.rows).items())
    kinds = {"running": "good", "failed": "bad", "damaged": "bad"}
    return [
        Cell(each.state, each.state, f"state {kinds.get(each.state, 'quiet')}"),
        number(each.done, "d"),
        number(each.rounds, "d", none="?"),
        number(last["loss"] if last else None, ".4g", none=""),
        text(scores),
        number(sum(sent(each.rows)) / 1e6, ",.1f"),
        text(f"{each.name} in {each.folder.as_posix()}")._replace(kind="path wide"),
        text(each.where)._replace(kind="wide"),
        text(how_far(each))._replace(kind="wide"),
    ]


def paper_tables(ours: Ours, spreads: Spreads, beside: Path | None = None) -> str:
    """Returns the tables of the paper of which something was run; the others in a line.

    >>> paper_tables({}, Spreads())
    '<p class="quiet">No cell of Tables 1, 2 or 3 was run.</p>'
    """
    run = [which for which in SCORED if any(ours_of(cell, ours) is not None for cell in cells(which))]
    if not run:
        return '<p class="quiet">No cell of Tables 1, 2 or 3 was run.</p>'
    none = [f"Table {which}: no cell was run." for which in SCORED if which not in run]
    return "\n".join(paper_table(which, ours, spreads.of_table(which), beside) for which in run) + paragraphs(none)


def paper_table(which: int, ours: Ours, pooled: Pooled | None = None, beside: Path | None = None) -> str:
    """Returns a table of the paper, cell by cell, with our numbers beside it; runs are links from the page's folder.

    >>> "0 of 24 cells run" in paper_table(3, {})
    True
    """
    printed = sorted(cells(which), key=_side_by_side)
    run = sum(ours_of(cell, ours) is not None for cell in printed)
    caption = f"{SCORED[which]}, in %. Gain: {GAINS[which]}. {atoms_note(which, ours)}".strip(" .")
    rows = [_paper_row(cell, ours, pooled, beside) for cell in printed]
    shown = table(f"table-{which}", caption, PRINTED, rows, stacked=True)
    caveat = f'<p class="caveat">{escape(CAVEATS[which])}</p>' if run else ""
    only = (
        f'<label class="only"><input type="checkbox" checked> only the {run} cells that were run</label>' if run else ""
    )
    top = f"<summary><h3>Table {which}</h3> {run} of {len(printed)} cells run</summary>{caveat}{only}"
    why = paragraphs(missing_reasons(printed)) if run else ""
    return f'<details class="paper" id="paper-table-{which}"{" open" if run else ""}>{top}{shown}{why}</details>'


def _side_by_side(cell: Printed) -> tuple[int, int]:
    """Puts the two rows of an algorithm in Table 1 side by side, column after column; other tables stay as they are."""
    columns, plain = COLUMNS[cell.table], cell.row.removesuffix(DECOMPOSED)
    rows = list(dict.fromkeys(each.row.removesuffix(DECOMPOSED) for each in cells(cell.table)))
    return rows.index(plain), columns.index(cell.column)


def _paper_row(cell: Printed, ours: Ours, pooled: Pooled | None, beside: Path | None) -> list[Cell]:
    mine, found = ours_of(cell, ours), ours.get(place(cell))
    shown = spread(mine) if mine is not None else Cell("not run", kind=MISSING)
    seeds = number(len(found.seeds), "d") if found else number(None, none="")
    start = [
        text(row_name(cell))._replace(kind="wide"),
        text(column_name(cell)),
        Cell(cell.printed, repr(cell.value), "number"),
        shown,
    ]
    off = change(None if mine is None else mine.mean - cell.value, NEAR)
    if mine is not None and abs(mine.mean - cell.value) > FAR:
        off = off._replace(text=f"{off.text} (see above)", kind=f"{off.kind} noted")
    middle = [off, seeds]
    typed = again(with_seeds(cell.typed, found.seeds if found else [0])) if cell.typed else ""
    return [
        *start,
        *middle,
        *_gains(cell, ours, pooled),
        command(typed),
        folders_of(found.runs if found else [], beside),
    ]


def _gains(cell: Printed, ours: Ours, pooled: Pooled | None) -> list[Cell]:
    both = contrast(cell)
    if both is None:
        return [number(None, none=""), number(None, none="")]
    return [number(both[0].value - both[1].value, "+.2f"), gain_cell(lead_of(*both, ours, pooled), coloured=True)]


def sent_bytes(runs: Sequence[Run]) -> str:
    """Returns the table of bytes of each run, by group of parameters."""
    used = [name for name in GROUPS if any(name in run.result.bytes_up | run.result.bytes_down for run in runs)]
    heads = ("run", *(f"{name}, {way}" for way in ("up", "down") for name in used))
    rows = [
        [
            _run(run),
            *(
                number(way.get(name, 0) / 1e6, ",.1f")
                for way in (run.result.bytes_up, run.result.bytes_down)
                for name in used
            ),
        ]
        for run in runs
    ]
    return table("sent", "Bytes of all clients in all rounds, in MB", heads, rows)


def _run(run: Run) -> Cell:
    return text(run.name + stand_in_mark(run.result.experiment))


def _linked(run: Run, beside: Path | None) -> Cell:
    html, mark = folders_of([run], beside).html, stand_in_mark(run.result.experiment)
    return _run(run)._replace(html=html and html + escape(mark))


def origins(runs: Sequence[Run], beside: Path | None = None) -> str:
    """Returns the table of provenance; runs are links from the page's folder."""
    shown = ("time", "fedatoms", "device", "cores", "torch", "cuda", "numpy", "python", "system")
    spent = [epsilon_in(run.result.extra.get("privacy")) for run in runs]
    private = any(each is not None for each in spent)
    heads = ("run", "seed", "commit", *shown, "seconds", "parameters", *(["epsilon"] if private else []))
    rows = []
    for run, epsilon in zip(runs, spent, strict=True):
        source = [text(run.result.provenance.get(name)) for name in shown]
        costs = [number(run.result.own_seconds, ",.1f", none="withheld"), number(run.result.parameters, ",d")]
        cost = [text(None) if epsilon is None else number(epsilon, ".4g")] if private else []
        seed = number(run.result.experiment.seed, "d")
        rows.append([_linked(run, beside), seed, commit_of(run), *source, *costs, *cost])
    return table("origin", "When, where and at which commit each run was made", heads, rows)


def paragraphs(lines: Iterable[str]) -> str:
    """Returns lines as small paragraphs.

    >>> paragraphs(["a < b"])
    '<p class="quiet">a &lt; b</p>'
    """
    return "".join(f'<p class="quiet">{escape(line)}</p>' for line in lines)


def listed(words: Iterable[str]) -> str:
    """Joins words with commas.

    >>> listed(["a", "b"])
    'a, b'
    """
    return ", ".join(words)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
