"""A federation on one machine: what a run is made of, its state, and one round after the other."""

import copy
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from fedatoms import server as server_side
from fedatoms import trees
from fedatoms.algorithms.base import Algorithm, Server
from fedatoms.blocks import UNMEASURED, even_blocks, in_blocks, room
from fedatoms.clients import PLACES, Client, Clients, Place
from fedatoms.data.batches import Plan, normalise, plan
from fedatoms.data.federation import Federation
from fedatoms.decompose import Group, groups
from fedatoms.exchange import Exchange, bytes_of, check_covers, every_round
from fedatoms.files import Stored
from fedatoms.functional import Network, network, why_not_vectorised
from fedatoms.graphs import compiled
from fedatoms.local import PRECISIONS, Job, Learner, Precision, Reply, Traces, Training, check_finite, traces_of
from fedatoms.maps import MapClients, NotVectorisable, one_by_one, refusing, vectorised
from fedatoms.names import unknown
from fedatoms.randomness import generator
from fedatoms.trees import Params

Scored = Literal["server", "selected", "all"]
Map = Literal["auto", "one_by_one", "vectorised"]
MODELS: tuple[Scored, ...] = get_args(Scored)
MAPS: tuple[Map, ...] = get_args(Map)
Bytes = dict[Group, int]
_AHEAD = 32  # clients whose batches are drawn before their round


@dataclass(frozen=True)
class Simulation:
    """What a run is made of: a model, clients with data, an algorithm, an exchange, and a map over clients."""

    model: nn.Module
    data: Federation
    algorithm: Algorithm = field(default_factory=Algorithm)
    exchange: Exchange = field(default_factory=lambda: Exchange(every_round()))
    training: Training = field(default_factory=Training)
    fraction: float = 1.0
    failures: float = 0.0  # probability that a sampled client does not report
    score: tuple[Scored, ...] = ("server", "selected")
    seed: int = 0
    device: str = "cpu"
    map: Map = "auto"
    block: int = 0  # clients trained at once when vectorised; 0 takes what fits
    precision: Precision = "tf32"  # of products on a GPU
    client_state: Place = "device"
    folder: Path | None = None  # of client states on disk
    head: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, Algorithm):
            raise ValueError(f"algorithm={self.algorithm!r} is not an algorithm. Use for example fedatoms.fedavg().")
        for name, valid in (("map", MAPS), ("client_state", PLACES), ("precision", PRECISIONS)):
            if getattr(self, name) not in valid:
                raise unknown(getattr(self, name), valid, name)
        for which in self.score:
            if which not in MODELS:
                raise unknown(which, MODELS, "model to score")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction={self.fraction} is not in (0, 1]. Use for example 0.1.")
        if not 0 <= self.failures <= 1:
            raise ValueError(f"failures={self.failures} is not in [0, 1]. Use for example 0.1.")
        if not 0 <= self.training.momentum < 1:
            raise ValueError(f"momentum={self.training.momentum} is not in [0, 1). Use for example 0.9.")
        if self.client_state == "disk" and self.folder is None:
            raise ValueError("client_state='disk' needs a folder for the files. Add folder=Path(...).")

    @cached_property
    def network(self) -> Network:
        """The model as pure functions, on the device."""
        return network(copy.deepcopy(self.model).to(self.device))

    @cached_property
    def labels(self) -> dict[str, Group]:
        """The group of each tensor that may travel."""
        may_travel = {**self.network.parameters, **self.network.statistics}
        labels = {name: group for name, group in groups(self.model, self.head).items() if name in may_travel}
        check_covers(self.exchange, labels)
        return labels

    @cached_property
    def pool(self) -> Federation:
        """The data, on the device."""
        data, device = self.data, self.device
        test_x, test_y = data.test_x.to(device), data.test_y.to(device)
        return data._replace(x=data.x.to(device), y=data.y.to(device), test_x=test_x, test_y=test_y)

    @cached_property
    def batches(self) -> Callable[[int, int], Plan]:
        """The batches of a client in a round, on the host; the last ones are remembered."""
        return lru_cache(2 * _AHEAD)(lambda client, t: batches_of(self, client, t))

    @cached_property
    def map_clients(self) -> MapClients:
        """The map that is asked for, or the faster one on the device: on a CPU a plain loop beats vmap."""
        why_not = why_not_vectorised(self.model)
        if self.map == "vectorised" and why_not:
            raise NotVectorisable(why_not)
        if self.map == "one_by_one" or (self.map == "auto" and self.device == "cpu"):
            return one_by_one
        if why_not:
            return in_blocks(lambda size: refusing(why_not), lambda *first: 1, one_by_one)
        make = compiled if self.device.startswith("cuda") else vectorised
        return in_blocks(make, self._size_of_blocks, one_by_one if self.map == "auto" else None)

    def _size_of_blocks(self, learner: Learner, heard: Server, job: Job) -> int:
        if self.block:
            return self.block
        fits = room(learner, heard, job) if self.device.startswith("cuda") else UNMEASURED
        return even_blocks(_sampled(self), fits)


class State(NamedTuple):
    """Everything that a run carries from round to round; a new value each time."""

    round: int
    server: Server
    clients: Clients
    versions: Mapping[Group, int]  # for each group, the round after which the server's part last changed
    held: Mapping[int, Mapping[Group, int]]  # the versions that each client has
    last_sum: Params | None  # sum of all clients' last models in float64, if that is scored
    selected: Params | None = None  # the mean of the last round's models; not part of a checkpoint


class Record(NamedTuple):
    """What happened in a round."""

    round: int
    loss: float  # mean over clients of the mean over their steps; nan if none reported
    clients: int
    failed: int
    up: Bytes
    down: Bytes
    seconds: float


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
    return State(0, server_side.start(params, sim.algorithm, net.parameters), clients, versions, {}, last_sum)


def select(sim: Simulation, t: int) -> tuple[list[int], list[int]]:
    """Draws the clients of round ``t`` without replacement, and those of them that report; both in order."""
    count = len(sim.data.parts)
    wanted = _sampled(sim)
    chosen = torch.randperm(count, generator=generator(sim.seed, "clients", t))[:wanted].sort().values
    reports = torch.rand(wanted, generator=generator(sim.seed, "failures", t)) >= sim.failures
    return chosen.tolist(), chosen[reports].tolist()


def learner_of(sim: Simulation, t: int) -> Learner:
    """Returns what all clients of round ``t`` share."""
    travelling, parameters = _names(sim, _travelling(sim, t)), frozenset(sim.network.parameters)
    trained = parameters
    if sim.exchange.slow_local == "freeze":
        trained &= travelling | _names(sim, sim.exchange.personal)
    if not trained:
        raise ValueError(
            f"round {t} has nothing to train: all that it may change is frozen. Change slow_local or fast."
        )
    return Learner(
        network=sim.network,
        algorithm=sim.algorithm,
        training=sim.training,
        data=sim.pool,
        trained=trained,
        travelling=travelling & parameters,
        statistics=travelling - parameters,
        rate=sim.training.rate(t),
        precision=sim.precision,
        decomposed=_names(sim, {"atoms", "coefficients"}),
    )


def batches_of(sim: Simulation, client: int, t: int) -> Plan:
    """Draws the batches of a client in round ``t``."""
    return plan(
        sim.data.parts[client],
        batch_size=sim.training.batch_size,
        epochs=sim.training.epochs,
        recipe=sim.data.recipe,
        seed=sim.seed,
        client=client,
        round=t,
    )


def advance(sim: Simulation, state: State) -> tuple[State, Record]:
    """Runs one round."""
    began = time.perf_counter()
    chosen, present = select(sim, state.round)
    learner = learner_of(sim, state.round)
    heard = server_side.heard(state.server, sim.algorithm, learner.travelling)
    jobs = (_job(sim, state, learner, client) for client in present)
    waiting, got = iter(present), _Collected(server_side.NOTHING_YET, {}, state.last_sum, {}, [])
    for reply in sim.map_clients(learner, heard, jobs):
        got = _collect(sim, state, got, [next(waiting) for _ in reply.steps], reply)
    new = _settle(sim, state, present, got) if present else state._replace(round=state.round + 1, selected=None)
    down = _bytes_down(sim, state, learner, chosen)
    _look_ahead(sim, state.round + 1)
    # Nothing above waits for a GPU: it works on while the host does its part of the round.
    losses = [mean for traces in got.traces for mean in check_finite(traces, state.round)]
    loss = sum(losses) / len(losses) if losses else float("nan")
    record = Record(state.round, loss, len(present), len(chosen) - len(present), got.up, down, 0.0)
    return new, record._replace(seconds=time.perf_counter() - began)


@torch.no_grad()
def _check_outputs(sim: Simulation, params: Params) -> None:
    data = sim.pool
    logits = sim.network.predict(params, normalise(data.test_x[:2], data.recipe, sim.network.dtype))
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < data.classes:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"the model returns {got} for {len(data.test_x[:2])} images, but labels go up to {data.classes - 1}. "
            f"Let it return one row of {data.classes} logits per image."
        )


def _sampled(sim: Simulation) -> int:
    return max(round(sim.fraction * len(sim.data.parts)), 1)


class _Collected(NamedTuple):
    """What a round has so far."""

    total: server_side.Total
    rows: Mapping[int, Client | Stored]
    last_sum: Params | None
    up: Bytes
    traces: list[Traces]  # of each block


def _travelling(sim: Simulation, t: int) -> frozenset[Group]:
    return sim.exchange.schedule(t) - sim.exchange.personal


def _names(sim: Simulation, wanted: Collection[Group]) -> frozenset[str]:
    return frozenset(name for name, group in sim.labels.items() if group in wanted)


def _row(sim: Simulation, state: State, client: int) -> Client:
    row = state.clients.read(client)
    return Client(sim.algorithm.client_memory(sim.network.parameters), {}, {}) if row is None else row


def _lost(sim: Simulation, state: State, client: int) -> frozenset[Group]:
    """Returns the groups that a client must be sent."""
    return server_side.lacking(state.versions, state.held.get(client, {})) - sim.exchange.personal


def _job(sim: Simulation, state: State, learner: Learner, client: int) -> Job:
    row = _row(sim, state, client)
    lost = _lost(sim, state, client)
    own = {name: leaf for name, leaf in row.own.items() if sim.labels[name] not in lost}
    memory = {kind: trees.restrict(tree, learner.travelling) for kind, tree in row.memory.items()}
    return Job({**state.server.params, **own}, memory, sim.batches(client, state.round))


def _look_ahead(sim: Simulation, t: int) -> None:
    """Draws the first batches of the next round, while a GPU still works on this one."""
    for client in select(sim, t)[1][:_AHEAD]:
        sim.batches(client, t)


def _collect(sim: Simulation, state: State, got: _Collected, block: list[int], reply: Reply) -> _Collected:
    uniform = sim.algorithm.weighting == "uniform"
    weights = torch.tensor([1.0 if uniform else float(len(sim.data.parts[client])) for client in block])
    total = server_side.gather(got.total, reply.upload, weights)
    up = {group: got.up.get(group, 0) + count for group, count in bytes_of(reply.upload, sim.labels).items()}
    before = [_row(sim, state, client) for client in block]
    after = [_kept(sim, state, old, reply, i) for i, old in enumerate(before)]
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
    return _Collected(total, {**got.rows, **rows}, last_sum, up, [*got.traces, traces_of(reply, block)])


def _kept(sim: Simulation, state: State, old: Client, reply: Reply, i: int) -> Client:
    """Returns what client number ``i`` of a block keeps."""
    memory = {kind: {**tree, **trees.unstack(reply.memory[kind], i)} for kind, tree in old.memory.items()}
    travelling, personal = _travelling(sim, state.round), sim.exchange.personal
    stays = set(sim.labels.values()) - travelling if sim.exchange.slow_local == "keep" else personal
    own = trees.unstack(trees.restrict(reply.params, _names(sim, stays)), i)
    if "all" not in sim.score:
        return Client(memory, own, {})
    reported = {**reply.upload["params"], **reply.upload["statistics"]}
    before = {name: _last(sim, old, name) for name in sim.labels if name not in reported}
    return Client(memory, own, {**before, **trees.unstack(reported, i)})


def _last(sim: Simulation, row: Client, name: str) -> Tensor:
    """Returns a leaf of a client's last model; one that never reported counts as the initial model."""
    initial = sim.network.parameters if name in sim.network.parameters else sim.network.statistics
    return row.last.get(name, initial[name])


def _settle(sim: Simulation, state: State, present: list[int], got: _Collected) -> State:
    mean = server_side.mean_of(got.total, like=state.server.params)
    versions = {
        **state.versions,
        **dict.fromkeys(_travelling(sim, state.round) & state.versions.keys(), state.round + 1),
    }
    return State(
        round=state.round + 1,
        server=server_side.settle(state.server, sim.algorithm, mean, len(present) / len(sim.data.parts)),
        clients=state.clients._replace(rows={**state.clients.rows, **got.rows}),
        versions=versions,
        held={**state.held, **dict.fromkeys(present, state.versions)},
        last_sum=got.last_sum,
        selected={**state.server.params, **mean["params"], **mean["statistics"]},
    )


def _bytes_down(sim: Simulation, state: State, learner: Learner, chosen: list[int]) -> Bytes:
    """Counts what is sent to all sampled clients, those included that fail to report."""
    count: Bytes = {}
    for lost, clients in Counter(_lost(sim, state, client) for client in chosen).items():
        sent = server_side.message(state.server, sim.algorithm, _names(sim, lost), learner.travelling)
        for group, size in bytes_of(sent, sim.labels).items():
            count[group] = count.get(group, 0) + size * clients
    return count
