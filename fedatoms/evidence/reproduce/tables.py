"""Tables for the terminal: for each study, the paper's numbers beside ours."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from fedatoms.core.gains import Pooled, short
from fedatoms.evidence.claims.measures import LOWER_FROM
from fedatoms.evidence.paper.study_list import Study
from fedatoms.evidence.paper.tables import COMPARED, Cell, cells, contrast
from fedatoms.evidence.reproduce.plan import Job, taken
from fedatoms.evidence.results.cells import (
    GAINS,
    Ours,
    atoms_note,
    column_name,
    lead_of,
    match,
    missing_reasons,
    ours_of,
    place,
    row_name,
    score,
)
from fedatoms.evidence.results.finding import Found
from fedatoms.evidence.results.groups import Group, group, groups_of, headline
from fedatoms.evidence.results.measures import summarise
from fedatoms.evidence.results.names import seeds as named
from fedatoms.evidence.results.pairs import known_spreads
from fedatoms.evidence.results.run_figures import RunFigure, figures
from fedatoms.runs.comparison import Spread

QUICK = "Quick stand-in (digits, few rounds, few repeats): do not compare its numbers with the paper's."
NOT_RUN = "Not run."
PAPER = {"training-loss": f"The paper: lower from about round {LOWER_FROM} on."}  # its only number for a measure


class TerminalTable(NamedTuple):
    """A table for the terminal; None is a missing number."""

    title: str
    note: str
    heads: tuple[str, ...] = ()
    rows: Sequence[tuple[str | float | Spread | None, ...]] = ()


def terminal_tables(wanted: Sequence[Study], jobs: Sequence[Job], found: Found, *, quick: bool) -> list[TerminalTable]:
    """Returns a table for each study, of the jobs that were asked for.

    >>> from fedatoms.evidence.reproduce.plan import chosen, jobs
    >>> from fedatoms.evidence.reproduce.settings import Reproduce
    >>> wanted, nothing = chosen(["table1"]), Found([], [], [], [], [])
    >>> terminal_tables(wanted, jobs(wanted, Reproduce()), nothing, quick=False)[0].note
    'Not run.'
    """
    groups, asked = group(found.runs), {job.typed for job in jobs}
    from_runs = {each.name: each for each in figures(groups) if each.size == ("quick" if quick else "full")}
    made = []
    for study in wanted:
        if study.measure and study.name in asked:
            made.append(_measure(study, [job for job in jobs if job.typed == study.name], found, quick=quick))
        elif not asked.isdisjoint(study.runs):
            figure = from_runs.get(study.name)
            made.append(_figure(study, figure) if figure else _table(study, asked, groups, quick=quick))
    return [table._replace(note=f"{table.note} {QUICK * quick}".strip()) for table in made]


def _measure(study: Study, jobs: Sequence[Job], found: Found, *, quick: bool) -> TerminalTable:
    """Writes the measure of each job; of several seeds each is named, and those that are not there at the end."""
    measured = {job.seed: taken(job, found) for job in jobs}
    if not any(measured.values()):
        return TerminalTable(study.title, "Not measured.")
    said = [
        f"{f'Seed {seed}: ' * (len(jobs) > 1)}{summarise(each.measure, each.values).sentence}"
        for seed, some in measured.items()
        for each in some
    ]
    left = [seed for seed, some in measured.items() if not some]
    said += [f"Not measured: {named(left)}."] if left else []
    said += [PAPER[study.name]] if study.name in PAPER and not quick else []
    return TerminalTable(study.title, " ".join(said))


def _figure(study: Study, figure: RunFigure) -> TerminalTable:
    return TerminalTable(study.title, figure.sentence, figure.heads, figure.rows)


def _table(study: Study, asked: Collection[str], groups: Sequence[Group], *, quick: bool) -> TerminalTable:
    if study.name.startswith("table") and not quick:
        return _compared(study, asked, groups)
    shown = groups_of(study.name, groups, quick_ones=quick)
    rows = [(typed, *_score(group)) for typed, group in shown.items() if typed in asked]
    if not rows:
        return TerminalTable(study.title, NOT_RUN)
    return TerminalTable(study.title, "", ("run", "model", "accuracy", "seeds"), rows)


def _compared(study: Study, asked: Collection[str], groups: Sequence[Group]) -> TerminalTable:
    """Compares the cells that were asked for with ours; if all were, cells that cannot be run yet count too."""
    number, ours = int(study.name.removeprefix("table")), match(groups)
    pooled = known_spreads(groups).of_table(number)
    shown = [cell for cell in cells(number) if cell.typed in asked]
    counted = cells(number) if study.runs.keys() <= set(asked) else shown
    known = [mine.mean - cell.value for cell in shown if (mine := ours_of(cell, ours)) is not None]
    mean = f", mean difference {sum(known) / len(known):+.2f} points" if known else ""
    run = {place(cell): ours[place(cell)] for cell in shown if place(cell) in ours}
    notes = [
        f"{len(known)} of {len(counted)} run{mean}. Gain: {GAINS[number]}, ± 95 %.",
        atoms_note(number, run),
        *missing_reasons(counted),
    ]
    if not run:
        return TerminalTable(study.title, NOT_RUN)
    heads = ("row", "data", "paper", "ours", "diff.", "seeds", "gain")
    rows = [_row(cell, ours, pooled) for cell in shown]
    return TerminalTable(study.title, " ".join(filter(None, notes)), heads, rows)


def _row(cell: Cell, ours: Ours, pooled: Pooled | None) -> tuple[str | Spread | None, ...]:
    mine, group, both = ours_of(cell, ours), ours.get(place(cell)), contrast(cell)
    difference = None if mine is None else f"{mine.mean - cell.value:+.2f}"
    gain = lead_of(*both, ours, pooled) if both else None
    start = (row_name(cell), column_name(cell), cell.printed, mine, difference)
    return *start, _seeds(group) if group else None, short(gain).replace(" ", "") if gain else "-" if both else ""


def _score(group: Group) -> tuple[str, Spread, str]:
    own = score(group, COMPARED[2])
    model, mine = ("personal", own) if own else headline(group)
    return model, mine, _seeds(group)


def _seeds(group: Group) -> str:
    return " ".join(map(str, group.seeds))
