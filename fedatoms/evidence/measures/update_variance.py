"""The variance of a round: the same global model is trained several times, with other clients and batches.

(1/N) sum over i of |theta_i - mean|^2 over N repeats (divided by N): raw, divided by |mean|^2, and divided by the
squared move |mean - theta_t|^2. Theta is all reconstructed filters; of a decomposed network also its factors as they
are, from the same rounds.
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
from fedatoms.evidence.measures.networks import factors, filters, prepared


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


class Vectors(NamedTuple):
    """A model as vectors: its filters, and its factors as they are if it is decomposed."""

    filters: Tensor
    factors: Tensor | None


class Variances(NamedTuple):
    """The variance of the filters, and that of the factors if there are any."""

    filters: Variance
    factors: Variance | None


def variance(experiments: Experiments, settings: Repeats, watch: Watch) -> Values:
    """Measures each experiment in some rounds; between them the run continues as if nothing were repeated."""
    trained = settings.rounds[-1] + len(settings.rounds) * settings.repeats
    tick = counting(watch, len(experiments) * trained)
    lines = []
    for experiment in experiments:
        found = list(along(prepared(experiment), settings, lambda: tick("rounds")))
        of_factors = [one.factors for one in found if one.factors]
        more = {"factors": _columns(of_factors)} if of_factors else {}
        lines.append(_columns([one.filters for one in found]) | more)
    return {"rounds": list(settings.rounds), "lines": lines}


def along(runtime: Runtime, settings: Repeats, tick: Callable[[], None]) -> Iterator[Variances]:
    """Yields the variances of each round in the settings."""
    others = [other_draws(runtime, number) for number in range(settings.repeats)]
    state = begin(runtime)
    for t in settings.rounds:
        while state.round < t:
            state, _record = advance(runtime, state)
            tick()
        yield spreads(repeated(others, state, tick), vectors(runtime, state))


def other_draws(runtime: Runtime, number: int) -> Runtime:
    """Returns a simulation that differs only in its draws of clients, failures and batches."""
    sim = runtime.sim
    return prepare(replace(sim, seed=address(sim.seed, "repeat", number)), like=runtime)


def repeated(runtimes: Sequence[Runtime], state: State, tick: Callable[[], None] = lambda: None) -> list[Vectors]:
    """Runs the same round in each simulation and returns the aggregated model of each."""
    found = []
    for runtime in runtimes:
        found.append(vectors(runtime, advance(runtime, state)[0]))
        tick()
    return found


def vectors(runtime: Runtime, state: State) -> Vectors:
    """Returns the server's model as vectors."""
    model, params = runtime.sim.model, state.server.params
    return Vectors(filters(model, params), factors(model, params))


def spreads(repeats: Sequence[Vectors], before: Vectors) -> Variances:
    """Returns the variances of models that started at ``before``."""
    of_filters = spread([each.filters for each in repeats], before.filters)
    of_factors = [each.factors for each in repeats if each.factors is not None]
    return Variances(of_filters, None if before.factors is None else spread(of_factors, before.factors))


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


def _columns(found: Sequence[Variance]) -> Values:
    return {name: [getattr(one, name) for one in found] for name in Variance._fields}
