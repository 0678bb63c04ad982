"""Losses and scores in their range: what a node says of itself may be wrong, but not absurd.

Nobody can check a node's loss without its data. What can be known is that it is finite, not below the least that the
objective can be, and not more than ``LOUD`` times what most of the round's nodes say, or the round before.
"""

import math
from collections.abc import Iterable, Mapping

import torch

from fedatoms.algorithms.base import Algorithm
from fedatoms.engine.evaluation import Score, from_numbers
from fedatoms.flower.wire import Answer, Tested
from fedatoms.objectives.base import Objective

LARGEST = torch.finfo(torch.float32).max  # the sum of any number of them is finite
LOUD = 1000.0  # honest losses of one round differ by less, also where clients' data have little in common
VOTES = 3  # so that one of them cannot be the median


def misfit_of_loss(objective: Objective, algorithm: Algorithm, loss: float) -> str:
    """Says what is wrong with a training loss by itself; empty if nothing. A penalty in it may be less than 0.

    >>> from fedatoms.algorithms import fedavg
    >>> from fedatoms.objectives import classification
    >>> misfit_of_loss(classification(), fedavg(), -1.0), misfit_of_loss(classification(), fedavg(), 2.3)
    ('its loss is -1, and no loss is less than 0', '')
    """
    least = objective.least if algorithm.penalty is None else -math.inf
    if not abs(loss) <= LARGEST:
        return f"its loss is {loss}"
    return f"its loss is {loss:g}, and no loss is less than {least:g}" if loss < least else ""


def misfit_of_score(objective: Objective, score: Score) -> str:
    """Says which number of a score is out of its range; empty if none.

    The headline must be finite. Another metric of few images may not be, as r2 of a single one.
    """
    values = [score.others[metric.name] for metric in objective.metrics[1:]]
    outside = [
        f"its {metric.name} is {value:g}"
        for metric, value in zip(objective.metrics[1:], values, strict=True)
        if math.isfinite(value) and not metric.scale.holds(value)
    ]
    if not objective.scale.holds(score.value):
        return f"{score} is no score"
    if not score.loss >= objective.least:
        return f"its loss is {score.loss:g}, and no loss is less than {objective.least:g}"
    return outside[0] if outside else ""


def loud_losses(answers: Mapping[int, Answer], before: float | None) -> dict[int, str]:
    """Finds clients whose loss is far above the median of the round's, with the mean ``before`` as one more voice."""
    losses = {client: answer.loss for client, answer in answers.items()}
    most = _limit(losses.values(), before)
    return {
        client: f"its loss is {loss:.3g}, more than {most:.3g}: {LOUD:g} times the round's median, or 1 if that is more"
        for client, loss in losses.items()
        if abs(loss) > most
    }


def loud_scores(objective: Objective, tested: Mapping[int, Tested]) -> dict[int, str]:
    """Finds clients with a number in their score that is far above the median of all."""
    found: dict[int, str] = {}
    means = {client: from_numbers(objective, each.numbers) for client, each in tested.items() if each.samples}
    for column, name in enumerate([*(metric.name for metric in objective.metrics), "loss"]):
        sizes = {client: float(each[column].abs().max()) for client, each in means.items()}
        most = _limit(sizes.values(), None)
        for client, size in sizes.items():
            if size > most:
                found.setdefault(client, f"its {name} is made of {size:.3g}, more than {most:.3g}")
    return found


def _limit(numbers: Iterable[float], before: float | None) -> float:
    """Returns the largest number that is believed; with few voices and nothing known before, that is any."""
    voices = sorted(abs(each) for each in [*numbers, *([] if before is None else [before])])
    if before is None and len(voices) < VOTES:
        return LARGEST
    return LOUD * max(1.0, voices[(len(voices) - 1) // 2])
