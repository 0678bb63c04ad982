"""What a collaboration adds to a round: clients describe their features, and the server gives them new own parts."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedatoms.core import ledger, trees
from fedatoms.core.ledger import Bytes
from fedatoms.core.options import Group
from fedatoms.core.trees import Memory, Params
from fedatoms.data.batches import normalise
from fedatoms.engine.spec import Simulation, State, head_of
from fedatoms.personal.base import Told

Uploads = Mapping[int, Told]  # of each client that reported
_BATCH = 500  # samples whose features are computed at once
_GROUP: Group = "head"  # under which all that is said of features is counted: it is said for the head's sake


def common_of(sim: Simulation, params: Params) -> Params:
    """Returns what the server remembers before the first round; nothing without a collaboration."""
    method = sim.personal.collaboration
    return {} if method is None else method.start(sim.data.classes, _features(sim, params, sim.pool.test_x[:1]))


def before_training(sim: Simulation, state: State, clients: list[int]) -> dict[int, Params]:
    """Lets clients describe the features that the received model gives their data."""
    method = sim.personal.collaboration
    if method is None:
        return {}
    return {client: method.before(*_of_client(sim, state.server.params, client)) for client in clients}


def after_training(sim: Simulation, params: Params, block: list[int]) -> dict[int, Params]:
    """Lets a block of clients describe the features that their trained models, which are stacked, give their data."""
    method = sim.personal.collaboration
    if method is None:
        return {}
    models = (trees.unstack(params, i) for i in range(len(block)))
    return {client: method.after(*_of_client(sim, model, client)) for client, model in zip(block, models, strict=True)}


def targets_of(sim: Simulation, state: State, before: Params) -> Memory:
    """Returns what a client's features are pulled to, as a memory for its job."""
    method = sim.personal.collaboration
    assert method is not None, "only a collaboration aligns features"
    return {"targets": {"classes": method.targets(method.sends(state.common), before, sim.data.classes)}}


def settle(sim: Simulation, state: State, told: Uploads) -> State:
    """Takes in what clients told: the server remembers, and each of them has a new own part."""
    method = sim.personal.collaboration
    if method is None or not told:
        return state
    common, parts = method.settle(state.common, list(told.values()))
    rows = dict(state.clients.rows)
    for client, part in zip(told, parts, strict=True):
        row = state.clients.read(client)
        assert row is not None, "who told something has a state"
        rows[client] = state.clients.keep(client, row._replace(own={**row.own, **part}), state.round)
    return state._replace(common=common, clients=state.clients._replace(rows=rows))


def told_by(sim: Simulation, state: State, before: Mapping[int, Params], after: Mapping[int, Params]) -> Uploads:
    """Puts together what each client uploads: its own part as it is now, and what it said of its features."""
    told = {}
    for client, said in after.items():
        row = state.clients.read(client)
        assert row is not None, "who trained has a state"
        told[client] = Told(trees.restrict(row.own, sim.own), before[client], said)
    return told


def bytes_up(sim: Simulation, told: Uploads) -> Bytes:
    """Counts what clients upload to a collaboration."""
    own = (ledger.bytes_of({"own": each.own}, sim.labels) for each in told.values())
    features = sum(trees.nbytes(each.before) + trees.nbytes(each.after) for each in told.values())
    return ledger.add(*own, {_GROUP: features}) if told else {}


def bytes_down(sim: Simulation, state: State, chosen: list[int], told: Uploads) -> Bytes:
    """Counts what goes to all sampled clients at the beginning, and the new own parts of those that reported."""
    method = sim.personal.collaboration
    if method is None:
        return {}
    common: Bytes = {_GROUP: len(chosen) * trees.nbytes(method.sends(state.common))}
    return ledger.add(common, *(ledger.bytes_of({"own": each.own}, sim.labels) for each in told.values()))


def _of_client(sim: Simulation, params: Params, client: int) -> tuple[Tensor, Tensor]:
    rows = sim.data.parts[client].to(sim.device)
    return _features(sim, params, sim.pool.x[rows]), sim.pool.y[rows]


@torch.no_grad()
def _features(sim: Simulation, params: Params, x: Tensor) -> Tensor:
    net, recipe, layer = sim.network, sim.data.recipe, head_of(sim)
    return torch.cat([net.features(layer, params, normalise(some, recipe, net.dtype)) for some in x.split(_BATCH)])
