"""What a group of runs sends until it reaches an accuracy, and the same as a share of another group's."""

import statistics
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from fedatoms.report.groups import Group, held
from fedatoms.runs import Row

FLOAT = 4  # bytes of a parameter


class Spent(NamedTuple):
    """Rounds until an accuracy is reached, and millions of parameters up and in both directions; or shares of these."""

    rounds: float
    up: float
    both: float


def spent(target: float, group: Group, model: str) -> Spent | None:
    """Counts what a group spends until a model of it reaches an accuracy, mean over seeds; None if one never does."""
    found = [_spent(target, run.rows, model) for run in group.runs]
    reached = [each for each in found if each is not None]
    if len(reached) < len(found):
        return None
    return Spent(*(statistics.mean(column) for column in zip(*reached, strict=True)))


def until(target: float, groups: Sequence[Group]) -> list[tuple[Spent | None, Spent | None]]:
    """Returns what each group spends until its server has an accuracy, and the same as shares of the first group's."""
    found = [spent(target, group, held(group)[0]) for group in groups]
    return [(each, share(each, found[0])) for each in found]


def share(mine: Spent | None, base: Spent | None) -> Spent | None:
    """Returns each number as a share of another group's; None if one of them never got there, or sent nothing.

    >>> share(Spent(500, 25, 60), Spent(400, 100, 200))
    Spent(rounds=1.25, up=0.25, both=0.3)
    """
    if mine is None or base is None or not base.up:
        return None
    return Spent(*(one / other for one, other in zip(mine, base, strict=True)))


def reason(part: Spent) -> str:
    """Says of what two factors a share of parameters up is the product.

    >>> reason(Spent(rounds=1.25, up=0.25, both=0.3))
    '0.20 as much in a round, 1.25 times the rounds'
    """
    return f"{part.up / part.rounds:.2f} as much in a round, {part.rounds:.2f} times the rounds"


def sums(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Adds up the millions of parameters that were sent up, and in both directions, after each round."""
    up = [sum(row["up"].values()) / FLOAT / 1e6 for row in rows]
    down = [sum(row["down"].values()) / FLOAT / 1e6 for row in rows]
    return list(accumulate(up)), list(accumulate(a + b for a, b in zip(up, down, strict=True)))


def _spent(target: float, rows: Sequence[Row], model: str) -> Spent | None:
    up, both = sums(rows)
    for t, row in enumerate(rows):
        if row["scores"].get(model, {}).get("accuracy", -1.0) >= target:
            return Spent(t + 1, up[t], both[t])
    return None
