"""The variance of a round: the same global model is trained several times, with other clients and batches.

(1/N) sum over i of |theta_i - mean|^2 over N repeats (divided by N), theta all reconstructed filters: raw, divided by
|mean|^2, and divided by the squared move |mean - theta_t|^2.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedatoms.core.randomness import address
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.state import State
from fedatoms.evidence.measures.base import Experiments, Watch, counting
from fedatoms.evidence.measures.files import Values
from fedatoms.evidence.measures.networks import filters, prepared


@dataclass(frozen=True)
class Repeats:
    """After how many rounds the next one is repeated, and how often."""

    rounds: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50)
    repeats: int = 10

    def __post_init__(self) -> None:
        if not self.rounds or min(self.rounds) < 0 or list(self.rounds) != sorted(set(self.rounds)):
            raise ValueError(f"rounds={self.rounds} do not increase from 0 or more. Use for example (0, 1, 10).")
        if self.repeats < 1:
            raise ValueError(f"repeats={self.repeats} is less than 1. Use for example 10.")


class Variance(NamedTuple):
    """A variance: raw, and divided by the mean's squared norm and by its squared move."""

    raw: float
    by_norm: float
    by_move: float


def variance(experiments: Experiments, settings: Repeats, watch: Watch) -> Values:
    """Measures each experiment in some rounds; between them the run continues as if nothing were repeated."""
    trained = settings.rounds[-1] + len(settings.rounds) * settings.repeats
    tick = counting(watch, len(experiments) * trained)
    lines = []
    for experiment in experiments:
        found = list(along(prepared(experiment), settings, lambda: tick("rounds")))
        lines.append({name: [getattr(one, name) for one in found] for name in Variance._fields})
    return {"rounds": list(settings.rounds), "lines": lines}


def along(runtime: Runtime, settings: Repeats, tick: Callable[[], None]) -> Iterator[Variance]:
    """Yields the variance of each round in the settings."""
    others = [other_draws(runtime, number) for number in range(settings.repeats)]
    state = begin(runtime)
    for t in settings.rounds:
        while state.round < t:
            state, _record = advance(runtime, state)
            tick()
        yield spread(repeated(others, state, tick), filters(runtime.sim.model, state.server.params))


def other_draws(runtime: Runtime, number: int) -> Runtime:
    """Returns a simulation that differs only in its draws of clients, failures and batches."""
    sim = runtime.sim
    return prepare(replace(sim, seed=address(sim.seed, "repeat", number)), like=runtime)


def repeated(runtimes: Sequence[Runtime], state: State, tick: Callable[[], None] = lambda: None) -> list[Tensor]:
    """Runs the same round in each simulation and returns the aggregated filters of each."""
    found = []
    for runtime in runtimes:
        found.append(filters(runtime.sim.model, advance(runtime, state)[0].server.params))
        tick()
    return found


def spread(repeats: Sequence[Tensor], before: Tensor) -> Variance:
    """Returns the variance of vectors that started at ``before``.

    >>> spread([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])], torch.tensor([2.0, 0.0]))
    Variance(raw=1.0, by_norm=0.125, by_move=0.25)
    """
    thetas = torch.stack(list(repeats))
    mean = thetas.mean(0)
    raw = float((thetas - mean).square().sum(1).mean())
    norm, move = (float(vector.square().sum()) for vector in (mean, mean - before))
    return Variance(raw, raw / norm if norm else 0.0, raw / move if move else 0.0)
