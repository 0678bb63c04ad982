"""Schedules of the learning rate: factors on it over a run's rounds, and over a client's steps within a round."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedatoms.core.lookup import one_line, shown
from fedatoms.core.options import SHAPES, Shape, check_range, one_of
from fedatoms.optimisers.base import Displacement

OfRound = Callable[[int], float]
OfStep = Callable[[Tensor, Tensor], Tensor]


class Schedule(NamedTuple):
    """Factors on the learning rate; a round's and a step's are multiplied, and by ``lr_decay`` too.

    >>> Schedule(of_round=lambda t: 0.5 if t > 9 else 1.0).of_step is None
    True
    """

    of_round: OfRound  # round, from 0 -> factor
    of_step: OfStep | None = None  # step, from 0, and how many the client has in the round -> factor; None: 1


def constant(warmup: int = 0, *, steps: Shape = "constant", warmup_steps: int = 0) -> Schedule:
    """Rises in a line for some rounds, and stays; ``steps`` and ``warmup_steps`` say the same of each round's steps.

    >>> [constant(warmup=3).of_round(t) for t in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return _schedule("constant", 1, warmup, steps, warmup_steps)


def cosine(rounds: int, warmup: int = 0, *, steps: Shape = "constant", warmup_steps: int = 0) -> Schedule:
    """Falls over so many rounds as half a cosine does, after a warm-up; rounds beyond have the factor of the last.

    >>> [round(cosine(rounds=4).of_round(t), 3) for t in range(5)]
    [1.0, 0.854, 0.5, 0.146, 0.146]
    """
    check_range("rounds", rounds)
    return _schedule("cosine", rounds, warmup, steps, warmup_steps)


def schedule(shape: str, rounds: int, warmup: int, steps: str, warmup_steps: int) -> Schedule | None:
    """Returns the schedule of an experiment; None if it is constant.

    >>> schedule("constant", 100, 0, "constant", 0)
    """
    over, within = (one_of(SHAPES, each, name) for each, name in ((shape, "schedule"), (steps, "step_schedule")))
    if (over, warmup, within, warmup_steps) == ("constant", 0, "constant", 0):
        return None
    return _schedule(over, rounds, warmup, within, warmup_steps)


def check_schedule(schedule: object) -> None:
    """Refuses what is no schedule; None is none.

    >>> check_schedule("cosine")
    Traceback (most recent call last):
    ...
    ValueError: schedule='cosine' is not a schedule. Use for example fedatoms.optimisers.cosine(rounds=100).
    """
    if not isinstance(schedule, Schedule | None):
        use = "fedatoms.optimisers.cosine(rounds=100)"
        raise ValueError(f"schedule={shown(schedule)} is not a schedule. Use for example {use}.")


def factor_of(schedule: Schedule, round: int) -> float:
    """Returns the factor of a round, and refuses one that is none.

    >>> factor_of(Schedule(lambda t: 1 - t), 2)
    Traceback (most recent call last):
    ...
    ValueError: round 3: the schedule's factor -1 is negative or not finite. Let of_round return 0 or more.
    """
    found = schedule.of_round(round)
    if not 0 <= found < math.inf:
        what = f"the schedule's factor {shown(found)} is negative or not finite"
        raise ValueError(f"round {round + 1}: {what}. Let of_round return 0 or more.")
    return found


def always_one(round: int) -> float:
    """Returns 1 for every round.

    >>> always_one(3)
    1.0
    """
    return 1.0


def factors_at(of_step: OfStep, place: Tensor, count: Tensor) -> Tensor:
    """Returns the factors at places of so many steps: one for each, also where the function depends on one of the two.

    >>> factors_at(lambda s, n: 0.5**s, torch.tensor([1.0]), torch.tensor([2.0, 3.0]))
    tensor([0.5000, 0.5000])
    """
    return of_step(place, count) + torch.zeros_like(place + count)


def step_factors(of_step: OfStep, steps: int) -> list[float]:
    """Returns the factors of so many steps, and refuses one that is none.

    >>> [round(factor, 2) for factor in step_factors(constant(steps="cosine").of_step, 2)]
    [1.0, 0.5]
    """
    factors = _factors(of_step, steps).tolist()
    for at, factor in enumerate(factors, 1):
        if not 0 <= factor < math.inf:
            what = f"the schedule's factor {factor} is negative or not finite"
            raise ValueError(f"step {at} of {steps}: {what}. Let of_step return 0 or more.")
    return factors


def summed(of_step: OfStep, displacement: Displacement, steps: Tensor, most: int) -> Tensor:
    """Returns how far unit gradients move at the rate 1 in the first ``steps`` of ``most`` steps with a schedule.

    >>> from fedatoms.optimisers import sgd
    >>> summed(constant(steps="cosine").of_step, sgd().displacement, torch.tensor(2.0), most=3)  # 1 + 1/2
    tensor(1.5000)
    """
    place, count = torch.arange(most, device=steps.device).double(), steps.double()
    each = displacement(place + 1, 1.0) - displacement(place, 1.0)  # what a step adds
    return torch.where(place < count, factors_at(of_step, place, count) * each, 0.0).sum().to(steps.dtype)


def _factors(of_step: OfStep, steps: int) -> Tensor:
    place, count = torch.arange(steps).double(), torch.tensor(steps).double()
    use = "Let it compute a factor for each step with tensors, for example lambda step, steps: 0.9**step."
    try:
        found = factors_at(of_step, place, count)
        factors_at(of_step, place[:1], count.expand(steps + 1))  # as for several clients at once
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the schedule's of_step fails on {steps} steps ({one_line(error)[:200]}). {use}") from error
    if found.shape != place.shape:
        raise ValueError(f"the schedule's of_step has the shape {tuple(found.shape)} for {steps} steps. {use}")
    return found


def _schedule(shape: Shape, rounds: int, warmup: int, steps: Shape, warmup_steps: int) -> Schedule:
    check_range("warmup", warmup)
    check_range("warmup_steps", warmup_steps)
    one_of(SHAPES, steps, "steps")
    if shape == "cosine" and warmup >= rounds:
        raise ValueError(f"warmup={warmup} leaves no round of {rounds} to fall in. Use warmup={rounds - 1} or less.")

    def of_round(t: int) -> float:
        place, length = torch.tensor([t if shape == "constant" else min(t, rounds - 1), rounds]).double()
        return float(_factor(place, length, shape, warmup))

    flat = steps == "constant" and not warmup_steps
    return Schedule(of_round, None if flat else partial(_factor, shape=steps, warmup=warmup_steps))


def _factor(place: Tensor, length: Tensor, shape: Shape, warmup: int) -> Tensor:
    """Returns the factor at a place of so many: it rises in a line to 1, and then stays or falls to almost 0."""
    part = (place - warmup) / (length - warmup).clamp(min=1)
    after = torch.ones_like(part) if shape == "constant" else (1 + torch.cos(torch.pi * part)) / 2
    return torch.where(place < warmup, (place + 1) / (warmup + 1), after)
