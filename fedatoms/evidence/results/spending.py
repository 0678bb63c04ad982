"""What a group of runs sends until it reaches an accuracy, and the same as a share of another group's."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from fedatoms.evidence.results.find import Run
from fedatoms.evidence.results.groups import Group
from fedatoms.runs.results import Row

FLOAT = 4  # bytes of a parameter
ROUNDING = 1e-9  # points: a mean of equal accuracies may come out this much above them
Targets = Mapping[int, float]  # accuracies by seed


class Spent(NamedTuple):
    """Rounds until an accuracy, and millions of parameters up and in both directions, or shares of these.

    They are means over seeds. A seed that never gets there counts with all that it spends.
    """

    rounds: float
    up: float
    both: float
    never: int = 0  # so many seeds
    best: float = 0.0  # accuracy that these have at their best


def last_of(group: Group, model: str) -> dict[int, float]:
    """Returns the mean accuracy of a model over the last rounds, by seed."""
    return {run.result.experiment.seed: run.result.accuracy[model].headline for run in group.runs}


def spent(targets: Targets, group: Group, model: str) -> Spent:
    """Counts what a group spends until a model of it reaches, with each seed, the accuracy for that seed."""
    return _mean([_spent(targets, run, model) for run in group.runs])


def share(targets: Targets, mine: Group, base: Group, model: str) -> Spent | None:
    """Returns the same as a share of what another group with the same seeds spends, seed by seed.

    None if that one does not get there, which takes rounds that are not those of the result, or sends nothing.
    """
    pairs = zip(mine.runs, base.runs, strict=True)
    found = [(_spent(targets, one, model), _spent(targets, other, model)) for one, other in pairs]
    if any(other.never or not other.up for _, other in found):
        return None
    return _mean([_ratio(one, other) for one, other in found])


def factors(part: Spent) -> str:
    """Says of what two factors a share of parameters up is the product.

    >>> factors(Spent(rounds=1.25, up=0.25, both=0.3))
    '0.20 as much in a round, 1.25 times the rounds'
    """
    return f"{part.up / part.rounds:.2f} as much in a round, {part.rounds:.2f} times the rounds"


def never(found: Spent, group: Group) -> str:
    """Says how many seeds never get there, and nothing if all do.

    >>> never(Spent(600, 100, 200), Group([]))
    ''
    """
    of_many = f"{found.never} of {len(group.runs)} seeds " if len(group.runs) > 1 else ""
    return f"{of_many}never" if found.never else ""


def sums(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Adds up the millions of parameters that were sent up, and in both directions, after each round."""
    up = [sum(row["up"].values()) / FLOAT / 1e6 for row in rows]
    down = [sum(row["down"].values()) / FLOAT / 1e6 for row in rows]
    return list(accumulate(up)), list(accumulate(a + b for a, b in zip(up, down, strict=True)))


def _spent(targets: Targets, run: Run, model: str) -> Spent:
    up, both = sums(run.rows)
    target = targets[run.result.experiment.seed] - ROUNDING
    found = [row["scores"].get(model, {}).get("accuracy", -1.0) for row in run.rows]
    for t, accuracy in enumerate(found):
        if accuracy >= target:
            return Spent(t + 1, up[t], both[t])
    return Spent(len(run.rows), up[-1], both[-1], never=1, best=max(found))


def _ratio(one: Spent, other: Spent) -> Spent:
    return Spent(one.rounds / other.rounds, one.up / other.up, one.both / other.both, one.never, one.best)


def _mean(found: Sequence[Spent]) -> Spent:
    rounds, up, both = (statistics.mean(column) for column in list(zip(*found, strict=True))[:3])
    missed = [each for each in found if each.never]
    best = statistics.mean(each.best for each in missed) if missed else 0.0
    return Spent(rounds, up, both, len(missed), best)
