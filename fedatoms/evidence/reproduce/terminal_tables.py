"""What a reproduction shows at its end: for each study, the paper's numbers beside ours."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from fedatoms.evidence.claims.measures import LOWER_FROM
from fedatoms.evidence.paper.studies import Study
from fedatoms.evidence.paper.tables import COMPARED, Cell, cells
from fedatoms.evidence.reproduce.plan import Job, taken
from fedatoms.evidence.results.find import Found, FoundMeasure
from fedatoms.evidence.results.groups import (
    Group,
    Ours,
    atoms_beside,
    column_name,
    group,
    groups_of,
    headline,
    match,
    ours_of,
    place,
    reasons,
    row_name,
    score,
)
from fedatoms.evidence.results.measures import summarise
from fedatoms.evidence.results.run_figures import RunFigure, figures
from fedatoms.runs.compare import Spread

QUICK = "Quick: less (digits, few rounds, few repeats) stands in for the paper's setting; compare no number with it."
NOT_RUN = "Not run."
PAPER = {"training-loss": f"The paper: lower from about round {LOWER_FROM} on."}  # the only measure with a number


class Sheet(NamedTuple):
    """A table for the terminal; None is a number that is not there."""

    title: str
    note: str
    heads: tuple[str, ...] = ()
    rows: Sequence[tuple[str | float | Spread | None, ...]] = ()


def sheets(wanted: Sequence[Study], jobs: Sequence[Job], found: Found, *, quick: bool) -> list[Sheet]:
    """Returns a sheet for each study, of the jobs that were asked for."""
    groups, asked = group(found.runs), {job.typed: job for job in jobs}
    drawn = {each.name: each for each in figures(groups) if each.quick == quick}
    made = []
    for study in wanted:
        if study.measure and study.name in asked:
            made.append(_measured(study, taken(asked[study.name], found), quick=quick))
        elif not asked.keys().isdisjoint(study.runs):
            figure = drawn.get(study.name)
            made.append(_drawn(study, figure) if figure else _table(study, asked.keys(), groups, quick=quick))
    return [sheet._replace(note=f"{sheet.note} {QUICK * quick}".strip()) for sheet in made]


def _measured(study: Study, found: Sequence[FoundMeasure], *, quick: bool) -> Sheet:
    if not found:
        return Sheet(study.title, "Not measured.")
    paper = "" if quick else PAPER.get(study.name, "")
    sentence = summarise(found[-1].measure, found[-1].values).sentence
    return Sheet(study.title, f"{sentence} {paper}".strip())


def _drawn(study: Study, figure: RunFigure) -> Sheet:
    return Sheet(study.title, figure.sentence, figure.heads, figure.rows)


def _table(study: Study, asked: Collection[str], groups: Sequence[Group], *, quick: bool) -> Sheet:
    if study.name.startswith("table") and not quick:
        return _beside(study, asked, match(groups))
    shown = groups_of(study.name, groups, quick_ones=quick)
    rows = [(typed, *_score(group)) for typed, group in shown.items() if typed in asked]
    return Sheet(study.title, "", ("run", "model", "accuracy", "seeds"), rows) if rows else Sheet(study.title, NOT_RUN)


def _beside(study: Study, asked: Collection[str], ours: Ours) -> Sheet:
    """Puts the cells that were asked for beside ours; those that nobody can run yet count if all were asked for."""
    number = int(study.name.removeprefix("table"))
    shown = [cell for cell in cells(number) if cell.typed in asked]
    counted = cells(number) if study.runs.keys() <= set(asked) else shown
    known = [mine.mean - cell.value for cell in shown if (mine := ours_of(cell, ours)) is not None]
    mean = f", mean difference {sum(known) / len(known):+.2f} points" if known else ""
    run = {place(cell): ours[place(cell)] for cell in shown if place(cell) in ours}
    said = [f"{len(known)} of {len(counted)} run{mean}.", atoms_beside(number, run), *reasons(counted)]
    if not run:
        return Sheet(study.title, NOT_RUN)
    heads = ("row", "data", "paper", "ours", "diff.", "seeds")
    return Sheet(study.title, " ".join(filter(None, said)), heads, [_row(cell, ours) for cell in shown])


def _row(cell: Cell, ours: Ours) -> tuple[str | Spread | None, ...]:
    mine, group = ours_of(cell, ours), ours.get(place(cell))
    difference = None if mine is None else f"{mine.mean - cell.value:+.2f}"
    return row_name(cell), column_name(cell), cell.printed, mine, difference, _seeds(group) if group else None


def _score(group: Group) -> tuple[str, Spread, str]:
    own = score(group, COMPARED[2])
    model, mine = ("personal", own) if own else headline(group)
    return model, mine, _seeds(group)


def _seeds(group: Group) -> str:
    return " ".join(map(str, group.seeds))
