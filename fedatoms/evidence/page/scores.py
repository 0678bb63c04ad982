"""Scores in cells: the mean over the last rounds and, of a run so short that this is no end, the last score, too."""

import statistics
from collections.abc import Sequence

from fedatoms.evidence.page.html_table import Cell, spread
from fedatoms.evidence.results.groups import Group
from fedatoms.evidence.results.standings import Standings
from fedatoms.runs.comparison import spread_of
from fedatoms.runs.results import WINDOW

WORDS = (
    f"mean over the last {WINDOW} rounds, ± standard deviation over seeds; a shorter run has the mean over all "
    "its scored rounds, the first ones included, and beside it the score at its end"
)


def turned(places: Sequence[Standings]) -> str:
    """Says what a gain is where lower is better, if it is so in one of the settings.

    >>> turned([])
    ''
    """
    words = ". Where lower is better, it is the difference: below 0 is better"
    return "" if all(place.metric.higher for place in places) else words


def score_cell(group: Group, model: str, values: Sequence[float], form: str = ".2f") -> Cell:
    """Returns a cell of a score over seeds, with that at the end in brackets if the run is short."""
    cell, last = spread(spread_of(list(values)), form), at_the_end(group, model)
    return (
        cell if last is None else cell._replace(text=f"{cell.text} (end {last:{form}})", kind=f"{cell.kind} bracketed")
    )


def at_the_end(group: Group, model: str) -> float | None:
    """Returns the score after the last round, a mean over seeds, where the mean over the last rounds has all of them.

    None where a run has more rounds, or one alone, and for a score of no round.
    """
    rounds = group.experiment.rounds
    if not 1 < rounds <= WINDOW or model not in group.models:
        return None
    return statistics.fmean(run.result.scores[model].final for run in group.runs)
