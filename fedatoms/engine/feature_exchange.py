"""A collaboration in a round: clients upload feature statistics, the server returns new personal parameters."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedatoms.core import ledger, trees
from fedatoms.core.inputs import Inputs, copy_of, samples_in, take
from fedatoms.core.ledger import Bytes
from fedatoms.core.options import Group
from fedatoms.core.trees import Memory, Params
from fedatoms.data.batches import cast_inputs
from fedatoms.data.federations import samples_of
from fedatoms.engine.peers import owned, union
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.spec import head_of
from fedatoms.engine.state import State
from fedatoms.personal.base import Collaboration, FeatureReport

Uploads = Mapping[int, FeatureReport]  # of each client that reported
_BATCH = 500  # samples whose features are computed at once
_GROUP: Group = "head"  # under which the bytes of feature statistics are counted: they serve the head


def common_of(runtime: Runtime, params: Params) -> Params:
    """Returns what the server remembers before the first round."""
    one = copy_of(take(runtime.data.test_x, slice(1)))
    return _method(runtime).start(runtime.data.classes, _features(runtime, params, one))


def before_training(runtime: Runtime, state: State, clients: list[int]) -> dict[int, Params]:
    """Computes clients' feature statistics with the received model."""
    method = _method(runtime)
    return {client: method.before(*_of_client(runtime, state.server.params, client)) for client in clients}


def after_training(runtime: Runtime, state: State, params: Params, block: list[int]) -> dict[int, Params]:
    """Computes the feature statistics of a block of clients with their trained models, which are stacked."""
    method = _method(runtime)
    models = ({**state.server.params, **trees.unstack(params, i)} for i in range(len(block)))
    return {
        client: method.after(*_of_client(runtime, model, client)) for client, model in zip(block, models, strict=True)
    }


def targets_of(runtime: Runtime, state: State, before: Params) -> Memory:
    """Returns the targets of a client's features, as a memory for its job."""
    method = _method(runtime)
    return {"targets": {"classes": method.targets(method.sends(state.common), before, runtime.data.classes)}}


def collaborate(runtime: Runtime, state: State, uploads: Uploads, chosen: list[int]) -> tuple[State, Bytes, Bytes]:
    """Applies what clients uploaded, and counts the bytes of a round's collaboration up and down."""
    up, down = bytes_up(runtime, uploads), bytes_down(runtime, state, chosen, uploads)
    return aggregate(runtime, state, uploads), up, down


def aggregate(runtime: Runtime, state: State, uploads: Uploads) -> State:
    """Applies what clients uploaded: to the server's memory, and to the personal parameters of each of them."""
    if not uploads:
        return state
    common, parts = _method(runtime).settle(state.common, list(uploads.values()))
    rows = {}
    parts_of = dict(zip(uploads, parts, strict=True))
    for client in owned(runtime.peers, uploads):
        row = state.clients.read(client)
        assert row is not None, "a client that uploaded has a state"
        rows[client] = state.clients.keep(client, row._replace(own={**row.own, **parts_of[client]}), state.round)
    return state._replace(common=common, clients=state.clients.updated(rows, state.round))


def after_round(
    runtime: Runtime,
    trained: State,
    new: State,
    chosen: list[int],
    before: Mapping[int, Params],
    after: Mapping[int, Params],
) -> tuple[State, Bytes, Bytes]:
    """Applies what the clients of a round upload to the collaboration; counts its bytes up and down."""
    uploads = uploads_of(runtime, trained, before, after)
    if runtime.peers.size > 1:
        uploads = uploads_of_all(runtime, uploads)
    return collaborate(runtime, new, uploads, chosen)


def uploads_of(runtime: Runtime, state: State, before: Mapping[int, Params], after: Mapping[int, Params]) -> Uploads:
    """Returns what each client uploads: its personal parameters as they are now, and its feature statistics."""
    uploads = {}
    for client, features in after.items():
        row = state.clients.read(client)
        assert row is not None, "a client that trained has a state"
        uploads[client] = FeatureReport(trees.restrict(row.own, runtime.layout.own), before[client], features)
    return uploads


def uploads_of_all(runtime: Runtime, uploads: Uploads) -> Uploads:
    """Returns what the clients of all processes upload, on this one's device."""
    plain = {client: tuple(each) for client, each in uploads.items()}
    device, everyone = torch.device(runtime.sim.device), union(runtime.peers, plain)
    return {client: FeatureReport(*(_moved(tree, device) for tree in each)) for client, each in everyone.items()}


def bytes_up(runtime: Runtime, uploads: Uploads) -> Bytes:
    """Counts what clients upload to a collaboration."""
    own = (ledger.bytes_of({"own": each.own}, runtime.layout.labels) for each in uploads.values())
    features = sum(trees.nbytes(each.before) + trees.nbytes(each.after) for each in uploads.values())
    return ledger.add(*own, {_GROUP: features}) if uploads else {}


def bytes_down(runtime: Runtime, state: State, chosen: list[int], uploads: Uploads) -> Bytes:
    """Counts what all sampled clients are sent, and the new personal parameters of those that reported."""
    common: Bytes = {_GROUP: len(chosen) * trees.nbytes(_method(runtime).sends(state.common))}
    own = (ledger.bytes_of({"own": each.own}, runtime.layout.labels) for each in uploads.values())
    return ledger.add(common, *own)


def _moved(tree: Params, device: torch.device) -> Params:
    return trees.apply(lambda leaf: leaf.to(device), tree)


def _method(runtime: Runtime) -> Collaboration:
    method = runtime.sim.personal.collaboration
    assert method is not None, "only called where features are exchanged"
    return method


def _of_client(runtime: Runtime, params: Params, client: int) -> tuple[Tensor, Tensor]:
    rows = runtime.data.parts[client].to(runtime.sim.device)
    x, y = samples_of(runtime.data, rows)
    return _features(runtime, params, x), y


@torch.no_grad()
def _features(runtime: Runtime, params: Params, x: Inputs) -> Tensor:
    net, recipe, layer = runtime.network, runtime.data.recipe, head_of(runtime.sim)
    batches = (take(x, slice(first, first + _BATCH)) for first in range(0, samples_in(x), _BATCH))
    return torch.cat([net.features(layer, params, cast_inputs(some, recipe, net.dtype)) for some in batches])
