"""After the last round: every client, sampled or not, trains its personal parameters once more."""

from dataclasses import replace

from fedatoms.engine.client_round import check_finite
from fedatoms.engine.round import train_own
from fedatoms.engine.runtime import Runtime, prepare, share_of
from fedatoms.engine.state import State
from fedatoms.personal.base import Phase

_LAST = 1_000  # distinguishes the batches of a last pass from those of a round's phases


def last_pass(runtime: Runtime, state: State, epochs: int, clients: list[int] | None = None) -> tuple[Runtime, State]:
    """Trains the method's personal parameters (or ``final``) on every client or on ``clients``; all else stays.

    Returns the runtime in which these are the personal parameters, for scoring, and the state.
    """
    last = runtime_of_last_pass(runtime, epochs)
    (phase,) = last.sim.personal.phases
    everyone = share_of(last, list(range(len(runtime.sim.data.parts))))
    state, traces = train_own(last, state, everyone if clients is None else clients, phase, place=_LAST)
    for each in traces:
        check_finite(each, state.round)
    return last, state


def runtime_of_last_pass(runtime: Runtime, epochs: int) -> Runtime:
    """Returns the runtime whose personal parameters are those that a last pass of ``epochs`` trains."""
    personal = runtime.sim.personal
    own, phase = personal.final or personal.own, Phase("own", epochs=epochs)
    training, method = runtime.sim.training.after_rounds(), personal._replace(own=own, phases=(phase,))
    return prepare(replace(runtime.sim, personal=method, training=training), like=runtime)
