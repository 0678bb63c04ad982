"""Rounds and parameters that a group of runs needs to reach an accuracy, also relative to a baseline."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from fedatoms.core.ledger import total
from fedatoms.evidence.results.finding import Run
from fedatoms.evidence.results.groups import Group
from fedatoms.runs.rounds import Row

FLOAT = 4  # bytes of a parameter
ROUNDING = 1e-9  # points: a mean of equal accuracies may come out this much above them
Targets = Mapping[int, float]  # accuracies by seed


class Cost(NamedTuple):
    """Rounds, and millions of parameters up and both ways, to reach a target: means over seeds, or ratios of two costs.

    A seed that never reaches its target counts with its whole run.
    """

    rounds: float
    up: float
    both: float
    never: int = 0  # seeds that do not reach their target
    best: float = 0.0  # their best accuracy


def cost_to_reach(targets: Targets, group: Group, model: str) -> Cost:
    """Returns what a group needs until its model reaches the target of each seed."""
    return mean_cost([_cost(targets, run, model) for run in group.runs])


def relative_cost(targets: Targets, mine: Group, base: Group, model: str) -> Cost | None:
    """Returns the ratio of two groups' costs, mean over seeds; None where ``relative_costs`` has none."""
    found = relative_costs(targets, mine, base, model)
    return mean_cost(found) if found else None


def relative_costs(targets: Targets, mine: Group, base: Group, model: str) -> list[Cost]:
    """Returns the ratio of two groups' costs, seed by seed.

    Empty if the baseline never reaches the target, or sends nothing until then.
    """
    pairs = zip(mine.runs, base.runs, strict=True)
    found = [(_cost(targets, one, model), _cost(targets, other, model)) for one, other in pairs]
    if any(other.never or not other.up for _, other in found):
        return []
    return [_ratio(one, other) for one, other in found]


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """Returns the mean of costs over seeds, how many never reach their target, and the mean of those ones' best.

    >>> mean_cost([Cost(1, 2, 4), Cost(3, 4, 6, never=1, best=50.0)])
    Cost(rounds=2, up=3, both=5, never=1, best=50.0)
    """
    rounds, up, both = (statistics.mean(column) for column in list(zip(*costs, strict=True))[:3])
    missed = [each for each in costs if each.never]
    best = statistics.mean(each.best for each in missed) if missed else 0.0
    return Cost(rounds, up, both, len(missed), best)


def factors(ratio: Cost) -> str:
    """Writes a ratio of parameters up as the product that it is.

    >>> factors(Cost(rounds=1.25, up=0.25, both=0.3))
    '0.20 as much in a round, 1.25 times the rounds'
    """
    return f"{ratio.up / ratio.rounds:.2f} as much in a round, {ratio.rounds:.2f} times the rounds"


def never_reached(cost: Cost, group: Group) -> str:
    """Writes how many seeds never reach the target; empty if all do.

    >>> never_reached(Cost(600, 100, 200), Group([]))
    ''
    """
    of_many = f"{cost.never} of {len(group.runs)} seeds " if len(group.runs) > 1 else ""
    return f"{of_many}never" if cost.never else ""


def cumulative(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Returns the millions of parameters sent until the end of each round: up, and both ways.

    >>> cumulative([{"up": {"head": 4_000_000}, "down": {"head": 8_000_000}}] * 2)
    ([1.0, 2.0], [3.0, 6.0])
    """
    up = [total(row["up"]) / FLOAT / 1e6 for row in rows]
    down = [total(row["down"]) / FLOAT / 1e6 for row in rows]
    return list(accumulate(up)), list(accumulate(a + b for a, b in zip(up, down, strict=True)))


def _cost(targets: Targets, run: Run, model: str) -> Cost:
    up, both = cumulative(run.rows)
    target = targets[run.result.experiment.seed] - ROUNDING
    accuracies = [row["scores"][model]["accuracy"] if model in row["scores"] else -1.0 for row in run.rows]
    for t, accuracy in enumerate(accuracies):
        if accuracy >= target:
            return Cost(t + 1, up[t], both[t])
    return Cost(len(run.rows), up[-1], both[-1], never=1, best=max(accuracies))


def _ratio(one: Cost, other: Cost) -> Cost:
    return Cost(one.rounds / other.rounds, one.up / other.up, one.both / other.both, one.never, one.best)
