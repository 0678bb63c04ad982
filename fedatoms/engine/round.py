"""A federation on one machine: its state before the first round, and one round after the other."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedatoms.algorithms.base import Server
from fedatoms.core import ledger, trees
from fedatoms.core.files import Stored
from fedatoms.core.ledger import Bytes
from fedatoms.core.options import Group
from fedatoms.core.trees import Memory, Params
from fedatoms.data.batches import normalise
from fedatoms.engine import feature_exchange
from fedatoms.engine import server as server_side
from fedatoms.engine.client_round import Job, Reply, Traces, check_finite, traces_of
from fedatoms.engine.client_states import Client, Clients, flatten
from fedatoms.engine.spec import (
    Record,
    Simulation,
    State,
    learner_of,
    look_ahead,
    placed,
    select,
    sharing,
    travelling,
    weights_of,
)
from fedatoms.personal.base import Phase, View

_LAST = 1_000  # tells the batches of a last pass from those of a round's phases


def begin(sim: Simulation) -> State:
    """Returns the state before the first round."""
    net = sim.network
    params = {**net.parameters, **net.statistics, **net.constants}
    _check_outputs(sim, params)
    clients = Clients({}, sim.client_state, sim.folder, torch.device(sim.device))
    last_sum = None
    if "all" in sim.score:
        last_sum = trees.apply(lambda leaf: leaf.double() * len(sim.data.parts), trees.restrict(params, sim.labels))
    versions = dict.fromkeys(sim.labels.values(), 0)
    server = server_side.start(params, sim.algorithm, net.parameters)
    return State(0, server, clients, versions, {}, last_sum, feature_exchange.common_of(sim, params))


def advance(sim: Simulation, state: State) -> tuple[State, Record]:
    """Runs one round."""
    began = time.perf_counter()
    chosen, present = select(sim, state.round)
    now, got, traces = state, _NOTHING._replace(last_sum=state.last_sum), []
    before = feature_exchange.before_training(sim, state, present)
    for place, phase in placed(sim):
        if phase.moves == "own":
            now, seen = train_own(sim, now, present, phase, place)
            traces += seen
        else:
            for block, reply in _train_shared(sim, now, present, phase, before):
                got = _collect(sim, now, got, block, reply, phase.view)
            now = _with_rows(now, got.rows)
    told = feature_exchange.told_by(sim, now, before, got.after)
    new = settle(sim, now, present, got.total)._replace(last_sum=got.last_sum)
    new = feature_exchange.settle(sim, new, told)
    up = ledger.add(got.up, feature_exchange.bytes_up(sim, told))
    down = ledger.add(_bytes_down(sim, state, chosen), feature_exchange.bytes_down(sim, state, chosen, told))
    trace = server_side.trace_of(new.server)
    look_ahead(sim, state.round + 1)
    # But for a collaboration, nothing above waits for a GPU: it works on while the host does its part of the round.
    own, shared = ([mean for each in seen for mean in check_finite(each, state.round)] for seen in (traces, got.traces))
    if what := server_side.not_finite(state.server, new.server, trace):  # there already: no further wait
        raise FloatingPointError(
            f"round {state.round}: the server's '{what}' is not finite, although its clients' models were. Lower --lr, "
            f"set --clip 10, or use another --algorithm or --strength."
        )
    losses = shared or own
    loss = sum(losses) / len(losses) if losses else float("nan")
    record = Record(state.round, loss, len(present), len(chosen) - len(present), up, down, 0.0)
    return new, record._replace(seconds=time.perf_counter() - began)


def train_own(
    sim: Simulation, state: State, clients: list[int], phase: Phase, place: int
) -> tuple[State, list[Traces]]:
    """Trains what some clients have of their own, each on its own data, and returns the state in which they have it."""
    learner = learner_of(sim, state.round, phase)
    heard = Server(trees.restrict(state.server.params, learner.travelling), {})
    jobs = (_job(sim, state, client, phase, place) for client in clients)
    waiting, rows, traces = iter(clients), {}, []
    for reply in sim.map_clients(learner, heard, (job._replace(memory={}) for job in jobs)):
        block = [next(waiting) for _ in reply.steps]
        traces.append(traces_of(reply, block))
        for i, client in enumerate(block):
            old = _row(sim, state, client)
            own = {**old.own, **trees.unstack(trees.restrict(reply.params, sim.own), i)}
            rows[client] = state.clients.keep(client, old._replace(own=own), state.round + 1)
    return _with_rows(state, rows), traces


def last_pass(sim: Simulation, state: State, epochs: int, clients: list[int] | None = None) -> tuple[Simulation, State]:
    """Trains on every client, sampled or not, what the method says is its own in the end, and all else stays.

    ``clients`` are those to train, by default all. Returns the simulation in which that part is the clients' own, for
    scoring, and the state.
    """
    last = own_at_the_end(sim, epochs)
    (phase,) = last.personal.phases
    everyone = list(range(len(sim.data.parts)))
    state, traces = train_own(last, state, everyone if clients is None else clients, phase, place=_LAST)
    for each in traces:
        check_finite(each, state.round)
    return last, state


def own_at_the_end(sim: Simulation, epochs: int) -> Simulation:
    """Returns the simulation in which what a last pass of so many epochs trains is the clients' own."""
    own, phase = sim.personal.final or sim.personal.own, Phase("own", epochs=epochs)
    return sharing(replace(sim, personal=sim.personal._replace(own=own, phases=(phase,))), sim)


class Contribution(NamedTuple):
    """What one client gives to a round and keeps of it; no tensor has an axis of clients."""

    upload: Memory  # nothing if all of it stays
    row: Client
    loss: float  # mean over its steps


def take_part(sim: Simulation, state: State, client: int) -> Contribution:
    """Does one client's part of a round, elsewhere than the server: ``state`` is what this client knows of it."""
    now, own, shared = state, list[Traces](), list[Traces]()
    upload: Memory = {}
    for place, phase in placed(sim):
        if phase.moves == "own":
            now, seen = train_own(sim, now, [client], phase, place)
            own += seen
            continue
        for block, reply in _train_shared(sim, now, [client], phase, {}):
            upload = {kind: trees.unstack(tree, 0) for kind, tree in reply.upload.items()}
            shared.append(traces_of(reply, block))
            row = _kept(sim, now, _row(sim, now, client), reply, 0, phase.view)
            now = _with_rows(now, {client: now.clients.keep(client, row, state.round + 1)})
    losses = [mean for each in shared or own for mean in check_finite(each, state.round)]
    return Contribution(upload, _row(sim, now, client), sum(losses) / len(losses))


def settle(sim: Simulation, state: State, present: list[int], total: server_side.Total) -> State:
    """Takes the uploads of a round in; without any the model stays as it is."""
    if not total.weight:
        return state._replace(round=state.round + 1, selected=None)
    mean = server_side.mean_of(total, like=state.server.params)
    changed = {sim.labels[name] for name in travelling(sim, state.round)}
    return state._replace(
        round=state.round + 1,
        server=server_side.settle(state.server, sim.algorithm, mean, len(present) / len(sim.data.parts)),
        versions={**state.versions, **dict.fromkeys(changed, state.round + 1)},
        held={**state.held, **dict.fromkeys(present, state.versions)},
        selected={**state.server.params, **mean["params"], **mean["statistics"]},
    )


@torch.no_grad()
def _check_outputs(sim: Simulation, params: Params) -> None:
    data = sim.pool
    if not len(data.test_x):  # a server that has no images
        return
    logits = sim.network.predict(params, normalise(data.test_x[:2], data.recipe, sim.network.dtype))
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < data.classes:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"the model returns {got} for {len(data.test_x[:2])} images, but labels go up to {data.classes - 1}. "
            f"Let it return one row of {data.classes} logits per image."
        )


def _train_shared(
    sim: Simulation, state: State, present: list[int], phase: Phase, before: Mapping[int, Params]
) -> Iterator[tuple[list[int], Reply]]:
    """Trains what is uploaded, and gives the clients of each block with their replies."""
    learner = learner_of(sim, state.round, phase)
    heard = server_side.heard(state.server, sim.algorithm, learner.travelling)
    jobs = (_job(sim, state, client, phase, place=0) for client in present)
    if learner.align is not None:
        targets = (feature_exchange.targets_of(sim, state, before[client]) for client in present)
        jobs = (job._replace(memory={**job.memory, **those}) for job, those in zip(jobs, targets, strict=True))
    waiting = iter(present)
    for reply in sim.map_clients(learner, heard, jobs):
        yield [next(waiting) for _ in reply.steps], reply


class _Collected(NamedTuple):
    """What a round has so far."""

    total: server_side.Total
    rows: Mapping[int, Client | Stored]
    last_sum: Params | None
    up: Bytes
    traces: list[Traces]  # of each block
    after: Mapping[int, Params]  # what clients say of their features, if there is a collaboration


_NOTHING = _Collected(server_side.NOTHING_YET, {}, None, {}, [], {})


def _with_rows(state: State, rows: Mapping[int, Client | Stored]) -> State:
    return state._replace(clients=state.clients._replace(rows={**state.clients.rows, **rows}))


def misfit_of(sim: Simulation, row: Client) -> str:
    """Says what a client's state from a file lacks, has too much or in another shape; nothing if it fits."""
    model = trees.restrict({**sim.network.parameters, **sim.network.statistics}, sim.labels)
    kept = row.own.keys() if sim.exchange.slow_local == "keep" else frozenset[str]()  # the slow part, if there is one
    own, last = trees.restrict(model, sim.own | kept), model if row.last else {}
    return trees.misfit(flatten(row), flatten(Client(_first_memory(sim), own, last)))


def _row(sim: Simulation, state: State, client: int) -> Client:
    row = state.clients.read(client)
    return Client(_first_memory(sim), {}, {}) if row is None else row


def _first_memory(sim: Simulation) -> Memory:
    shared = {name: leaf for name, leaf in sim.network.parameters.items() if name not in sim.private}
    return sim.algorithm.client_memory(shared)


def lost_by(sim: Simulation, state: State, client: int) -> frozenset[Group]:
    """Returns the groups that a client must be sent."""
    return server_side.lacking(state.versions, state.held.get(client, {})) - sim.exchange.personal


def message_to(sim: Simulation, state: State, lost: frozenset[Group], *, training: bool = True) -> Memory:
    """Returns what crosses to a client that lacks some groups; what an algorithm sends along only if it trains."""
    names = {name for name, group in sim.labels.items() if group in lost and name not in sim.private}
    memory = travelling(sim, state.round) & sim.network.parameters.keys() if training else frozenset[str]()
    return server_side.message(state.server, sim.algorithm, names, memory)


def _job(sim: Simulation, state: State, client: int, phase: Phase, place: int) -> Job:
    row = _row(sim, state, client)
    lost = lost_by(sim, state, client)
    sent = travelling(sim, state.round)
    names = [name for name in sim.network.parameters if name in sent]  # in one order: files have another
    memory = {kind: {name: row.memory[kind][name] for name in names} for kind in sorted(row.memory)}
    slow = {name: leaf for name, leaf in row.own.items() if name not in sim.own and sim.labels[name] not in lost}
    own = trees.restrict(row.own, sim.own) if phase.view == "personal" else {}
    return Job({**state.server.params, **slow, **own}, memory, sim.batches(client, state.round, phase, place))


def _collect(sim: Simulation, state: State, got: _Collected, block: list[int], reply: Reply, view: View) -> _Collected:
    total = server_side.gather(got.total, reply.upload, weights_of(sim, block))
    up = ledger.add(got.up, ledger.bytes_of(reply.upload, sim.labels))
    before = [_row(sim, state, client) for client in block]
    after = [_kept(sim, state, old, reply, i, view) for i, old in enumerate(before)]
    rows = {
        client: state.clients.keep(client, new, state.round + 1)
        for client, new in zip(block, after, strict=True)
        if any(new)
    }
    last_sum = got.last_sum
    if last_sum is not None:
        old, new = (
            {name: torch.stack([_last(sim, row, name) for row in kept]) for name in last_sum}
            for kept in (before, after)
        )
        last_sum = trees.apply(lambda total, new, old: total + (new.double() - old).sum(0), last_sum, new, old)
    said = {**got.after, **feature_exchange.after_training(sim, reply.params, block)}
    return _Collected(total, {**got.rows, **rows}, last_sum, up, [*got.traces, traces_of(reply, block)], said)


def _kept(sim: Simulation, state: State, old: Client, reply: Reply, i: int, view: View) -> Client:
    """Returns what client number ``i`` of a block keeps."""
    memory = {kind: {**tree, **trees.unstack(reply.memory[kind], i)} for kind, tree in old.memory.items()}
    stays = sim.private if view == "personal" else frozenset()
    if sim.exchange.slow_local == "keep":
        stays |= sim.labels.keys() - travelling(sim, state.round)
    own = {**trees.restrict(old.own, sim.own), **trees.unstack(trees.restrict(reply.params, stays), i)}
    if "all" not in sim.score:
        return Client(memory, own, {})
    reported = {**reply.upload["params"], **reply.upload["statistics"]}
    before = {name: _last(sim, old, name) for name in sim.labels if name not in reported}
    return Client(memory, own, {**before, **trees.unstack(reported, i)})


def _last(sim: Simulation, row: Client, name: str) -> Tensor:
    """Returns a leaf of a client's last model; one that never reported counts as the initial model."""
    initial = sim.network.parameters if name in sim.network.parameters else sim.network.statistics
    return row.last.get(name, initial[name])


def _bytes_down(sim: Simulation, state: State, chosen: list[int]) -> Bytes:
    """Counts what is sent to all sampled clients, those included that fail to report."""
    alike = Counter(lost_by(sim, state, client) for client in chosen).items()
    sizes = ((ledger.bytes_of(message_to(sim, state, lost), sim.labels), clients) for lost, clients in alike)
    return ledger.add(*(ledger.scale(size, clients) for size, clients in sizes))
