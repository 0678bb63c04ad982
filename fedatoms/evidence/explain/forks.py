"""Continues a run twice from one checkpoint: with latent clients, and with a server that averages filters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedatoms.algorithms import ALGORITHMS
from fedatoms.algorithms import algorithm as build
from fedatoms.algorithms.base import replace_params
from fedatoms.core.trees import Params
from fedatoms.engine.evaluation import score
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.evidence.explain.aggregates import Apart, together
from fedatoms.evidence.explain.factors import Layer, factors_of
from fedatoms.evidence.explain.filter_mean import factors, nearest_factors
from fedatoms.evidence.explain.replayed_round import Replay, Tick, replay


@dataclass(frozen=True)
class Forked:
    """Accuracy and loss of the server after each of some rounds, with latent clients and without.

    ``lost`` is the largest share of the difference between the two averages that the atoms could not represent: 0 where
    they span all kernels.
    """

    round: int  # of the checkpoint: rounds done
    accuracy_on: list[float]
    accuracy_off: list[float]
    loss_on: list[float]
    loss_off: list[float]
    lost: float


class Refactored(NamedTuple):
    """A server's model without latent clients, and the share of the difference to the other one that was lost."""

    params: Params
    lost: float


def check_fork(sim: Simulation, algorithm: str) -> None:
    """Refuses algorithms whose server does more than average: its memory is over factors, not filters."""
    if sim.algorithm.aggregate is not replace_params:
        averaging = " or ".join(name for name in ALGORITHMS if build(name).aggregate is replace_params)
        raise ValueError(
            f"--fork: the server of {algorithm} keeps a memory over coefficients and atoms, which a mean of filters "
            f"lacks. Fork a run of {averaging}, or leave --fork out."
        )


def fork(runtime: Runtime, state: State, layers: Sequence[Layer], rounds: int, tick: Tick = lambda *_: None) -> Forked:
    """Continues for some rounds with and without latent clients: the same clients, batches and seeds."""
    with_latent, without = state, _elsewhere(state)
    kept: dict[str, list[float]] = {"accuracy_on": [], "accuracy_off": [], "loss_on": [], "loss_off": []}
    lost = 0.0
    for done in range(rounds):
        tick(done, rounds)
        with_latent, _ = advance(runtime, with_latent)
        without, missed = advance_without(runtime, without, layers)
        lost = max(lost, missed)
        for name, now in (("on", with_latent), ("off", without)):
            result = score(runtime, now.server.params)
            kept[f"accuracy_{name}"].append(result.accuracy)
            kept[f"loss_{name}"].append(result.loss)
    return Forked(state.round, **kept, lost=lost)


def advance_without(runtime: Runtime, state: State, layers: Sequence[Layer]) -> tuple[State, float]:
    """Runs a round whose server averages the clients' filters; returns the share that its atoms cannot represent."""
    done = replay(runtime, state)
    if not done.clients:
        return done.after, 0.0
    params, lost = refactor(done, layers)
    return done.after._replace(server=done.after.server._replace(params=params)), lost


def refactor(done: Replay, layers: Sequence[Layer]) -> Refactored:
    """Writes the mean of the clients' filters as coefficients and atoms, as near to it as so many atoms can come."""
    params, parts = dict(done.after.server.params), []
    for layer in layers:
        clients = factors_of(layer, done)
        filters = clients.a @ clients.d + clients.shift
        found = nearest_factors(filters, factors(params, names := (layer.coefficients, layer.atoms)))
        parts.append(Apart(float((filters - found.coefficients @ found.atoms).norm()), float(clients.shift.norm())))
        for name, matrix in zip(names, found, strict=True):
            params[name] = matrix.reshape(params[name].shape).to(params[name].dtype)
    return Refactored(params, together(parts).ratio)


def _elsewhere(state: State) -> State:
    """Gives client states on disk a folder of their own, since files are named by client and round."""
    folder = state.clients.folder
    return state._replace(clients=state.clients._replace(folder=folder and folder / "without"))
