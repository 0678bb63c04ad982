"""One client's part of a round, run on another machine: the same functions over what that client knows."""

from typing import NamedTuple

from fedatoms.core import trees
from fedatoms.core.options import View
from fedatoms.core.trees import Memory, Params
from fedatoms.engine.client_round import Reply, Traces, check_finite, traces_of
from fedatoms.engine.client_states import Client, flatten
from fedatoms.engine.round import Rows, first_memory, kept_of, row_of, train_phases
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.state import State


class Contribution(NamedTuple):
    """What one client contributes to a round and keeps of it; no tensor has a client axis."""

    upload: Memory  # as it is sent; empty if nothing travels
    row: Client
    loss: float  # mean over its steps


class _Uploaded(NamedTuple):
    upload: Memory
    traces: list[Traces]


def take_part(runtime: Runtime, state: State, client: int) -> Contribution:
    """Does one client's part of a round; ``state`` is what this client knows of the server's."""

    def collect(_: _Uploaded, now: State, block: list[int], reply: Reply, view: View) -> tuple[_Uploaded, Rows]:
        upload = {kind: trees.unstack(tree, 0) for kind, tree in (reply.sent or reply.upload).items()}
        row = kept_of(runtime, now, row_of(runtime, now, client), reply, 0, view)
        return _Uploaded(upload, [traces_of(reply, block)]), {client: now.clients.keep(client, row, now.round + 1)}

    now, got, own = train_phases(runtime, state, [client], collect, _Uploaded({}, []))
    losses = [mean for each in got.traces or own for mean in check_finite(each, state.round)]
    return Contribution(got.upload, row_of(runtime, now, client), sum(losses) / len(losses))


def initial_model(runtime: Runtime) -> Params:
    """Returns what may travel of the model before the first round."""
    return trees.restrict({**runtime.network.parameters, **runtime.network.statistics}, runtime.layout.labels)


def misfit_of(runtime: Runtime, row: Client) -> str:
    """Says which tensors of a client's stored state are missing, extra or misshapen; empty if it fits."""
    layout, model = runtime.layout, initial_model(runtime)
    kept = row.own.keys() if runtime.sim.exchange.slow_local == "keep" else frozenset[str]()  # the slow part, if any
    last, local = (model if each else {} for each in (row.last, row.local))
    expected = Client(first_memory(runtime), trees.restrict(model, layout.own | kept), last, local)
    return trees.misfit(flatten(row), flatten(expected))
