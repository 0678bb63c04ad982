"""The best method of each setting as a table: its gain, what it costs, and what runs it again."""

from collections.abc import Sequence

from fedatoms.evidence.page.answer import amount, duration, form_of
from fedatoms.evidence.page.html_table import Cell, command, gain_cell, number, number_key, table, text
from fedatoms.evidence.page.scores import score_cell, turned
from fedatoms.evidence.results.commands import again, command_of
from fedatoms.evidence.results.finding import PUBLISHED
from fedatoms.evidence.results.standings import Standings, Versus, of_the_project, of_the_reader, versus

HEADS = (
    "setting",
    "best method",
    "score",
    "gain over the baseline",
    "traffic (baseline)",
    "time (baseline)",
    "run again",
)
NAMES = ("best", "best-published")
CAPTION = (
    "The best method of each setting, its score as in Compare, and its gain over the usual baseline with a 95 % "
    "interval, where both have scores of the same rounds{}. Traffic (both ways) and time: to reach the baseline's "
    "score, in brackets the baseline's own; or of the whole run, where said; time as on the machine of each run"
)


def best_tables(places: Sequence[Standings]) -> str:
    """Returns the best method of each of the reader's settings, if there are several, and folded those of the project.

    >>> best_tables([])
    ''
    """
    own, rest = of_the_reader(places), of_the_project(places)
    whose = "your " if rest else ""
    mine = f"<h2>Best in each of {whose}{len(own)} settings</h2>{_table(NAMES[0], own)}" if len(own) > 1 else ""
    which = f"each of {len(rest)} settings" if len(rest) > 1 else "the one setting"
    head = f"<summary><h2>Best in {which} of {PUBLISHED}</h2></summary>"
    return mine + (f"<details>{head}{_table(NAMES[1], rest)}</details>" if rest else "")


def _table(name: str, places: Sequence[Standings]) -> str:
    rows = [_row(each) for each in places]
    return table(name, CAPTION.format(turned(places)), HEADS, rows, stacked=True)


def _row(place: Standings) -> list[Cell]:
    best, base = place.entries[0], place.base
    found = versus(best, base, place)
    gained = gain_cell(found.gain, form_of(place), coloured=True, below=not place.metric.higher)
    over = gained._replace(text=f"{gained.text} over {base.name}") if gained.text else gained
    return [
        text(place.setting)._replace(kind="wide"),
        text(best.name)._replace(kind="wide"),
        score_cell(best.group, best.model, [best.mean], form_of(place)[1:]),
        Cell("it is the baseline", "0", "number quiet") if best is base else over,
        *_costs(place, found),
        command(again(command_of(best.group.experiment, best.group.seeds))),
    ]


def _costs(place: Standings, found: Versus) -> list[Cell]:
    """Returns bytes and seconds to the baseline's score; of the whole run where one of both is unknown."""
    group, mine, base = place.entries[0].group, found.mine, found.base
    if not mine or not base or mine.never or base.never:
        seconds = "withheld" if group.seconds is None else f"{duration(group.seconds)}, whole run"
        sent = group.up + group.down
        return [
            Cell(f"{amount(sent)}, whole run", number_key(sent), "number"),
            Cell(seconds, "" if group.seconds is None else number_key(group.seconds), "number"),
        ]
    alone = place.entries[0] is place.base
    return [
        Cell(amount(mine.sent) + ("" if alone else f" ({amount(base.sent)})"), number_key(mine.sent), "number"),
        _times(mine.seconds, None if alone else base.seconds),
    ]


def _times(mine: float | None, base: float | None) -> Cell:
    if mine is None:
        return number(None, none="withheld")
    return Cell(duration(mine) + ("" if base is None else f" ({duration(base)})"), number_key(mine), "number")
