"""What a reproduction shows at its end: for each study, the paper's numbers beside ours."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from fedatoms.compare import Spread
from fedatoms.paper.studies import Study
from fedatoms.paper.tables import Cell, cells
from fedatoms.report.find import Found
from fedatoms.report.groups import Group, column_name, group, headline, match, ours_of
from fedatoms.report.studied import Studied, figures, groups_of
from fedatoms.reproduce.plan import Job

QUICK = "Quick: digits and a few rounds stand in for the paper's setting; compare no number with it."


class Sheet(NamedTuple):
    """A table for the terminal; None is a number that is not there."""

    title: str
    note: str
    heads: tuple[str, ...] = ()
    rows: Sequence[tuple[str | float | None, ...]] = ()


def sheets(wanted: Sequence[Study], jobs: Sequence[Job], found: Found, *, quick: bool) -> list[Sheet]:
    """Returns a sheet for each study, of the jobs that were asked for."""
    groups = group(found.runs)
    drawn = {each.name: each for each in figures(groups) if each.quick == quick}
    made = [_sheet(study, {job.name for job in jobs}, found, groups, drawn, quick) for study in wanted]
    return [sheet._replace(note=f"{sheet.note} {QUICK * quick}".strip()) for sheet in made if sheet]


def _sheet(
    study: Study,
    names: Collection[str],
    found: Found,
    groups: Sequence[Group],
    drawn: dict[str, Studied],
    quick: bool,
) -> Sheet | None:
    if study.measure:
        said = [each.drawing.sentence for each in found.measures if each.measure.name == study.measure]
        return Sheet(study.title, said[-1] if said else "Not measured.") if study.name in names else None
    if study.name in drawn and len(drawn[study.name].rows) > 1:
        each = drawn[study.name]
        return Sheet(study.title, each.sentence, each.heads, each.rows)
    if study.name.startswith("table") and not quick:
        return _beside(study, names, match(groups))
    shown = groups_of(study.name, groups, quick_ones=quick)
    rows = [(typed, *_score(group)) for typed, group in shown.items() if typed in names]
    return Sheet(study.title, "", ("run", "model", "accuracy", "seeds"), rows) if rows else None


def _beside(study: Study, names: Collection[str], ours: dict[tuple[int, str, object], Group]) -> Sheet | None:
    printed = [cell for cell in cells(int(study.name.removeprefix("table"))) if cell.typed in names]
    rows = [_row(cell, ours_of(cell, ours)) for cell in printed]
    known = [row[4] for row in rows if isinstance(row[4], float)]
    mean = f", mean difference {sum(known) / len(known):+.2f} points" if known else ""
    note = f"{len(known)} of {len(rows)} run{mean}."
    return Sheet(study.title, note, ("row", "data", "paper", "ours", "difference"), rows) if rows else None


def _row(cell: Cell, mine: Spread | None) -> tuple[str | float | None, ...]:
    difference = None if mine is None else mine.mean - cell.value
    return cell.row, column_name(cell), cell.printed, _said(mine), difference


def _score(group: Group) -> tuple[str, str | None, str]:
    own = [run.result.personal["after the last pass"] for run in group.runs if run.result.personal]
    model, mine = ("personal", Spread(sum(own) / len(own), None)) if own else headline(group)
    return model, _said(mine), " ".join(map(str, group.seeds))


def _said(value: Spread | None) -> str | None:
    if value is None:
        return None
    return f"{value.mean:.2f}" + ("" if value.deviation is None else f" ± {value.deviation:.2f}")
