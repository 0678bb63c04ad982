"""The compare view: every experiment against a baseline of its setting, and plain filters against atoms."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedatoms.core.gains import Pooled
from fedatoms.evidence.page.answer import amount, duration, form_of
from fedatoms.evidence.page.html_table import Cell, command, gain_cell, number, number_key, table, text
from fedatoms.evidence.page.links import folders_of
from fedatoms.evidence.page.plotly import Json
from fedatoms.evidence.page.scores import WORDS, score_cell, turned
from fedatoms.evidence.paper.tables import cells_of, contrast
from fedatoms.evidence.results.commands import again, command_of, together
from fedatoms.evidence.results.groups import Group, headline_by_seed, stand_in_mark
from fedatoms.evidence.results.names import differences, distinct_names, setting
from fedatoms.evidence.results.pairs import decomposed_pairs, gain_between, spreads_by_owner
from fedatoms.evidence.results.standings import Entry, Reached, Standings, Versus, versus
from fedatoms.experiment.fields import Experiment

HEADS = (
    "method",
    "score",
    "gain",
    "traffic",
    "time",
    "rounds",
    "differs in",
    "seeds",
    "setting",
    "run again",
    "folders",
)
PAIRED = ("with atoms", "plain", "atoms", "gain", "paper's gain", "setting", "run again")
CHANGING = (2, 3, 4, 5, 6)  # columns that depend on the baseline
BASELINES = 40  # of a setting, at most: with more experiments, the best of them
CAPTION = (
    f"Score: {WORDS}. Gain over the baseline, ± 95 % interval, both over the seeds that the two share: where they have "
    "others, too, it is not the difference of the scores, and where they have scores of other rounds, there is none{}. "
    "Traffic (both ways), time and rounds: to reach the baseline's own score for the first time; time as on the "
    "machine of each run"
)


def versus_table(places: Sequence[Standings], beside: Path | None = None) -> str:
    """Returns the table of all experiments, each against the usual baseline of its setting.

    ``beside`` is the folder of the page, from which links to runs are counted.
    """
    rows, marks = [], []
    for n, place in enumerate(places):
        for k, each in enumerate(place.entries):
            rows.append(_row(each, place, beside))
            marks.append(f'data-place="{n}" data-entry="{k}"')
    return table("versus", CAPTION.format(turned(places)), HEADS, rows, marks, stacked=True)


def baselines(places: Sequence[Standings]) -> list[Json]:
    """Returns the names of each setting's experiments that may be the baseline, and which of them is the usual one."""
    return [
        {
            "setting": place.setting,
            "names": [each.name for each in place.entries],
            "base": _at(place),
            "bases": _bases(place),
        }
        for place in places
    ]


def against_all(places: Sequence[Standings]) -> list[list[list[list[list[str]]]]]:
    """Returns the changing cells by setting, baseline and experiment: text, sort key if it differs, and style."""
    return [
        [[_changing(mine, place.entries[n], place) for mine in place.entries] for n in _bases(place)]
        for place in places
    ]


def pairs_table(groups: Sequence[Group]) -> str:
    """Returns a row for each pair of runs with plain filters and with atoms, otherwise alike; empty without one.

    >>> pairs_table([])
    ''
    """
    accuracies = [each for each in groups if each.metric.is_accuracy]
    found = decomposed_pairs(accuracies, accuracies)
    if not found:
        return ""
    spreads, names = spreads_by_owner(accuracies), _named([mine.experiment for mine, _ in found])
    ours = [all(each.published for each in both) for both in found]  # else a run of the reader's is among them
    rows = [_pair(name, *both, spreads[our].of(both[0])) for name, both, our in zip(names, found, ours, strict=True)]
    caption = "Pairs that differ in the atoms alone: accuracy in %, as the scores above; gain ± 95 % interval"
    return f"<h3>Plain filters against atoms</h3>{table('pairs', caption, PAIRED, rows, stacked=True)}"


def _named(experiments: Sequence[Experiment]) -> list[str]:
    """Names experiments by what is unusual among those of their setting."""
    where, names = [setting(one) for one in experiments], [""] * len(experiments)
    for each in set(where):
        places = [n for n, its in enumerate(where) if its == each]
        for n, name in zip(places, distinct_names([experiments[n] for n in places])[1], strict=True):
            names[n] = name
    return names


def _pair(name: str, mine: Group, plain: Group, pooled: Pooled | None) -> list[Cell]:
    one, sides = mine.experiment, (plain, mine)
    return [
        text(name)._replace(kind="wide"),
        *(score_cell(side, side.models[-1], list(headline_by_seed(side, side.models[-1]).values())) for side in sides),
        gain_cell(gain_between(mine, plain, pooled), coloured=True),
        number(_printed(mine), "+.2f", none=""),
        text(setting(one) + stand_in_mark(one))._replace(kind="wide setting"),
        command(again(_typed(mine, plain))),
    ]


def _typed(mine: Group, plain: Group) -> str:
    """Returns one command for both, by their presets if these have the same flags."""
    words = command_of(mine.experiment, mine.seeds).replace("fedatoms run", "fedatoms compare")
    other = f"{words.replace(' --seed ', ' --seeds ')} --parametrisation plain,atoms" if words else ""
    return together([plain.experiment, mine.experiment], mine.seeds) or other


def _printed(mine: Group) -> float | None:
    """Returns the paper's gain of Table 1, if this is a cell of it."""
    cell = next((cell for cell in cells_of(mine.experiment) if cell.table == 1), None)
    both = contrast(cell) if cell else None
    return both[0].value - both[1].value if both else None


def _row(each: Entry, place: Standings, beside: Path | None) -> list[Cell]:
    found = versus(each, place.base, place)
    group = each.group
    return [
        text(each.name)._replace(kind="wide"),
        score_cell(group, each.model, list(each.scores[each.model].values()), form_of(place)[1:]),
        *_cells(each, place.base, place, found),
        number(len(group.seeds), "d"),
        text(place.setting)._replace(kind="wide setting"),
        command(again(command_of(group.experiment, group.seeds))),
        folders_of(group.runs, beside),
    ]


def _changing(mine: Entry, base: Entry, place: Standings) -> list[list[str]]:
    cells = _cells(mine, base, place, versus(mine, base, place))
    return [[cell.text, "" if cell.key == cell.text else cell.key, cell.kind] for cell in cells]


def _cells(mine: Entry, base: Entry, place: Standings, found: Versus) -> list[Cell]:
    cost = found.mine
    gained = gain_cell(found.gain, form_of(place), coloured=True, below=not place.metric.higher)
    return [
        Cell("baseline", "0", "number quiet") if mine is base else gained,
        _reached(cost, cost and cost.sent, amount),
        _reached(cost, cost and cost.seconds, duration),
        _reached(cost, cost and cost.rounds, lambda value: f"{value:.0f}"),
        text(differences(mine.group.experiment, base.group.experiment))._replace(kind="wide"),
    ]


def _reached(cost: Reached | None, value: float | None, write: Callable[[float], str]) -> Cell:
    if cost is None:
        return number(None, none="")
    if cost.never:
        few = f" ({cost.never} of {cost.seeds})" if cost.never < cost.seeds else ""
        return Cell(f"never{few}", "", "number quiet noted")
    if value is None:
        return number(None, none="withheld")
    return Cell(write(value), number_key(value), "number")


def _bases(place: Standings) -> list[int]:
    usual = _at(place)
    return sorted({*range(min(BASELINES, len(place.entries))), usual})


def _at(place: Standings) -> int:
    return next(n for n, each in enumerate(place.entries) if each is place.base)
