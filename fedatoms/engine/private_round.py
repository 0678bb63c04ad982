"""One differentially private round: a Poisson sample of the clients, clipped updates, noise on their sum.

Nothing of a client leaves but through that sum: losses are withheld, and what a round sends is counted for the mean
size of a cohort, as its true one is a secret. An empty cohort is a round of noise.
"""

import math
import time
from collections.abc import Mapping
from functools import partial

import torch

from fedatoms.core import ledger, trees
from fedatoms.core.accounting import epsilon_of
from fedatoms.core.ledger import Bytes
from fedatoms.core.options import Group, View
from fedatoms.core.trees import NUMBERS, Memory, Params
from fedatoms.engine import server
from fedatoms.engine.client_round import Reply
from fedatoms.engine.privacy import Privacy, clipped, cohort, next_clip, noise_of, noised
from fedatoms.engine.round import Rows, message_to, train_phases, travelling
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.server import NOTHING_YET, Total
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import Record, State

PRIVACY = "privacy"  # the column of a round's record that says what was spent
CLIP = "clip"  # what the server remembers of an adaptive clip


def advance_privately(runtime: Runtime, state: State) -> tuple[State, Record]:
    """Runs one private round."""
    began = time.perf_counter()
    new, record = settled(runtime, state, summed(runtime, state, drawn(runtime.sim)))
    trace = server.trace_of(new.server)
    if runtime.pause is not None:
        runtime.pause()
    server.check_finite(state.server, new.server, trace, state.round)
    return new, record._replace(seconds=time.perf_counter() - began)


def drawn(sim: Simulation) -> list[int]:
    """Draws who takes part in a round; nothing that is known beforehand says who."""
    return cohort(_privacy(sim), len(sim.data.parts), sim.fraction)


def settled(runtime: Runtime, state: State, total: Total) -> tuple[State, Record]:
    """Ends a round with the sum of its clipped updates: noise, the algorithm's step, and what may be told of it."""
    names, clip = travelling(runtime, state.round), clip_of(runtime.sim, state)
    new, (up, down) = _aggregated(runtime, state, total, names, clip), _expected_bytes(runtime, state, names)
    record = Record(state.round, math.nan, round(expected_cohort(runtime.sim)), 0, up, down, 0.0)
    return new, told(runtime.sim, record, state.round + 1, clip)


def summed(runtime: Runtime, state: State, clients: list[int]) -> Total:
    """Trains some clients and sums their clipped updates: before noise, each moves the sum by at most the clip."""
    collect = partial(_collect, clip_of(runtime.sim, state))
    return train_phases(runtime, state, clients, collect, NOTHING_YET)[1]


def added(total: Total, uploads: Params, start: Params, clip: float) -> Total:
    """Adds the clipped updates of a block of models, with a leading client axis, to a total: all weigh the same.

    >>> added(NOTHING_YET, {"w": torch.tensor([[3.0, 4.0], [0.0, 2.0]])}, {"w": torch.zeros(2)}, clip=1.0).weight
    2.0
    """
    moves = clipped(uploads, start, clip)
    return server.gather(total, moves, torch.ones(len(moves[NUMBERS]["within"]), device="cpu"))


def expected_cohort(sim: Simulation) -> float:
    """Returns the mean number of clients in a round."""
    return sim.fraction * len(sim.data.parts)


def clip_of(sim: Simulation, state: State) -> float:
    """Returns the largest norm of an update in the next round."""
    return float(state.common[CLIP]) if CLIP in state.common else _privacy(sim).clip


def memory_of(sim: Simulation) -> Params:
    """Returns what the server remembers from round to round beside the model, before the first."""
    adaptive = sim.privacy is not None and sim.privacy.adaptive
    return {CLIP: torch.tensor(_privacy(sim).clip, dtype=torch.float64, device=sim.device)} if adaptive else {}


def cost_of(sim: Simulation, spent: int) -> dict[str, object]:
    """Returns what so many private rounds have cost."""
    privacy = _privacy(sim)
    epsilon = epsilon_of(sim.fraction, privacy.noise, spent, privacy.delta)
    return {"epsilon": epsilon, "delta": privacy.delta, "rounds": spent, "noise": privacy.noise}


def told(sim: Simulation, record: Record, spent: int, clip: object) -> Record:
    """Adds to the record of a round what the run has spent by then."""
    column: Mapping[str, object] = {**cost_of(sim, spent), CLIP: clip}
    return record._replace(extra={**record.extra, PRIVACY: column})


def _collect(clip: float, got: Total, state: State, block: list[int], reply: Reply, view: View) -> tuple[Total, Rows]:
    return added(got, reply.upload["params"], state.server.params, clip), {}


def _aggregated(runtime: Runtime, state: State, total: Total, names: frozenset[str], clip: float) -> State:
    """Returns the next state: the noised sum over the mean size of a cohort is the update that the algorithm sees."""
    sim, privacy, expected = runtime.sim, _privacy(runtime.sim), expected_cohort(runtime.sim)
    start = trees.restrict(state.server.params, names)
    sums = total.uploads["params"] if total.weight else trees.apply(lambda leaf: torch.zeros_like(leaf).double(), start)
    moves = noised(privacy, sums, clip * noise_of(privacy, expected).of_sum)
    mean: Memory = {
        "params": trees.apply(lambda old, move: (old + move / expected).to(old.dtype), start, moves),
        "statistics": {},
    }
    return state._replace(
        round=state.round + 1,
        server=server.aggregate(state.server, sim.algorithm, mean, sim.fraction),
        versions={**state.versions, **{runtime.layout.labels[name]: state.round + 1 for name in names}},
        common=_remembered(sim, total, clip),
    )


def _remembered(sim: Simulation, total: Total, clip: float) -> Params:
    privacy = _privacy(sim)
    if not privacy.adaptive:
        return {}
    votes = float(total.uploads[NUMBERS]["within"]) if total.weight else 0.0
    following = next_clip(privacy, clip, votes, expected_cohort(sim))
    return {CLIP: torch.tensor(following, dtype=torch.float64, device=sim.device)}


def _expected_bytes(runtime: Runtime, state: State, names: frozenset[str]) -> tuple[Bytes, Bytes]:
    """Counts what a round sends up and down on average, by group."""
    labels, sim, params = runtime.layout.labels, runtime.sim, state.server.params
    up = ledger.bytes_of({"params": trees.restrict(params, names)}, labels)
    whole = ledger.bytes_of({"params": trees.restrict(params, labels)}, labels)
    # A client lacks a group if it took part in no round since the group changed.
    lacking = {group: (1 - sim.fraction) ** (state.round - state.versions[group]) for group in whole}
    beside = ledger.bytes_of(message_to(runtime, state, frozenset()), labels)
    down = {group: size * lacking[group] + beside.get(group, 0) for group, size in whole.items()}
    return _times(expected_cohort(sim), up), _times(expected_cohort(sim), down)


def _times(clients: float, sizes: Mapping[Group, float]) -> Bytes:
    return {group: total for group, size in sizes.items() if (total := round(clients * size))}


def _privacy(sim: Simulation) -> Privacy:
    assert sim.privacy is not None, "a private round of a run without privacy"
    return sim.privacy
