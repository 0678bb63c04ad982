"""One round of a federation, from top to bottom: sample clients, train them, aggregate, record."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import TypeVar

import torch
from torch import Tensor

from fedatoms.algorithms.base import Algorithm, Server, memory_of_client, proximal, require
from fedatoms.core import ledger, trees
from fedatoms.core.files import Stored
from fedatoms.core.ledger import Bytes
from fedatoms.core.options import Group, View
from fedatoms.core.trees import Memory, Params
from fedatoms.engine import codes, feature_exchange, server, uploads
from fedatoms.engine.attacks import attacked
from fedatoms.engine.client_round import Alignment, Job, Learner, Reply, Traces, finite_loss, rate_of, traces_of
from fedatoms.engine.client_states import Client, last_of, moved
from fedatoms.engine.collected import Collected, joined
from fedatoms.engine.limits import AHEAD
from fedatoms.engine.runtime import Layout, Runtime, share_of
from fedatoms.engine.spec import Simulation, head_of, shared_phase
from fedatoms.engine.state import Launched, Numbers, Record, State
from fedatoms.personal.base import Phase

T = TypeVar("T")
Rows = Mapping[int, Client | Stored]
Collect = Callable[[T, State, list[int], Reply, View], tuple[T, Rows]]  # adds a block's reply; what its clients keep


def advance(runtime: Runtime, state: State) -> tuple[State, Record]:
    """Runs one round."""
    launched = launch(runtime, state)
    if runtime.pause is not None:  # other runs go on while a GPU computes
        runtime.pause()
    return settle(launched)


def launch(runtime: Runtime, state: State) -> Launched:
    """Gives a device all the work of a round; except for a feature exchange or a rule, nothing waits for a GPU."""
    began, t = time.perf_counter(), state.round
    chosen, present = select(runtime.sim, t)
    trained, got = _train(runtime, state, trainees := _mine(runtime, present))
    if runtime.peers.size > 1:
        got = joined(runtime.peers, got, runtime.sim.device)
    if (attack := runtime.sim.attack) is not None:
        left = attacked(attack, got.total.each, state.server.params, runtime.sim.seed, t, len(runtime.sim.data.parts))
        got, present = got._replace(total=uploads.of_kept(left)), sorted(left)
    if leaves_clients_unchanged(runtime.sim, got.total):
        state.clients.drop(trained.clients, trainees)
        trained, got = state, got._replace(last_sum=state.last_sum)
    new = aggregate(runtime, trained, present, got.total)._replace(last_sum=got.last_sum)
    up, down = got.up, _bytes_down(runtime, state, chosen)
    if runtime.sim.personal.collaboration is not None:
        new, more_up, more_down = feature_exchange.after_round(runtime, trained, new, chosen, got.before, got.after)
        up, down = ledger.add(up, more_up), ledger.add(down, more_down)
    record = Record(t, math.nan, len(present), len(chosen) - len(present), up, down, 0.0)
    numbers = Numbers(got.own, got.shared, server.trace_of(new.server))
    launched = Launched(began, state.server, new, record, trees.arriving(numbers, numbers.trace.device))
    _look_ahead(runtime, t + 1)
    return launched


def settle(launched: Launched) -> tuple[State, Record]:
    """Waits for a round, refuses numbers that are not finite, and completes its record."""
    own, shared, trace = launched.numbers()
    record, new = launched.record, launched.state
    loss = finite_loss(own, shared, record.round)
    server.check_finite(launched.before, new.server, trace, record.round)
    return new, record._replace(loss=loss, seconds=time.perf_counter() - launched.began)


def select(sim: Simulation, t: int) -> tuple[list[int], list[int]]:
    """Samples the clients of round ``t``, and those of them that report; both in order."""
    if sim.privacy is not None:
        raise ValueError(f"round {t + 1} of a private run: no seed says who takes part. Use a run without privacy.")
    chosen, present = server.drawn(len(sim.data.parts), sim.fraction, sim.failures, sim.seed, t, sim.sampling)
    return list(chosen), list(present)


def weights_of(sim: Simulation, clients: list[int]) -> Tensor:
    """Returns the clients' weights in the mean: their numbers of samples, or uniform if the algorithm says so."""
    uniform = sim.algorithm.weighting == "uniform"
    return torch.tensor([1.0 if uniform else float(len(sim.data.parts[n])) for n in clients], device="cpu")


def phases_of(sim: Simulation) -> list[tuple[int, Phase]]:
    """Returns the phases of a round, each with the number that tells its batches apart."""
    return [(place if phase.moves == "own" else 0, phase) for place, phase in enumerate(sim.personal.phases, 1)]


def train_phases(
    runtime: Runtime,
    state: State,
    clients: list[int],
    collect: Collect[T],
    got: T,
    *,
    before: Mapping[int, Params] = {},
) -> tuple[State, T, list[Traces]]:
    """Trains clients phase by phase, collects what they upload, and returns the traces of the other phases too."""
    own = list[Traces]()
    for place, phase in phases_of(runtime.sim):
        if phase.moves == "own":
            state, traces = train_own(runtime, state, clients, phase, place)
            own += traces
            continue
        kept = dict[int, Client | Stored]()
        for block, reply in train_shared(runtime, state, clients, phase, before):
            got, rows = collect(got, state, block, reply, phase.view)
            kept |= rows
        state = state._replace(clients=state.clients.updated(kept, state.round + 1))
    return state, got, own


def train_own(
    runtime: Runtime, state: State, clients: list[int], phase: Phase, place: int
) -> tuple[State, list[Traces]]:
    """Trains the personal parameters of some clients, each on its own data, and returns the state that has them."""
    learner, own = _learner(runtime, state, phase), runtime.layout.own
    broadcast = Server(trees.restrict(state.server.params, learner.travelling), {})
    jobs = _jobs(runtime, state, clients, phase, place)
    waiting, rows, traces = iter(clients), {}, []
    for reply in runtime.map_clients(learner, broadcast, (job._replace(memory={}) for job in jobs)):
        block = [next(waiting) for _ in reply.steps]
        traces.append(traces_of(reply, block))
        for i, client in enumerate(block):
            old = row_of(runtime, state, client)
            new = {**old.own, **trees.unstack(trees.restrict(reply.params, own), i)}
            rows[client] = state.clients.keep(client, old._replace(own=new), state.round + 1)
    return state._replace(clients=state.clients.updated(rows, state.round + 1)), traces


def train_shared(
    runtime: Runtime, state: State, present: list[int], phase: Phase, before: Mapping[int, Params]
) -> Iterator[tuple[list[int], Reply]]:
    """Trains what is uploaded, and yields the clients of each block with their replies."""
    learner = _learner(runtime, state, phase)
    broadcast = server.broadcast(state.server, runtime.sim.algorithm, learner.travelling)
    jobs: Iterable[Job] = _jobs(runtime, state, present, phase, place=0)
    if learner.align is not None:
        targets = (feature_exchange.targets_of(runtime, state, before[client]) for client in present)
        jobs = (job._replace(memory={**job.memory, **those}) for job, those in zip(jobs, targets, strict=True))
    waiting = iter(present)
    for reply in runtime.map_clients(learner, broadcast, jobs):
        block = [next(waiting) for _ in reply.steps]
        yield block, reply if runtime.sim.uploads == "exact" else codes.rounded(runtime, state, block, reply)


def learner_of(runtime: Runtime, t: int, phase: Phase | None = None) -> Learner:
    """Returns what all clients share in a phase of round ``t``: by default the one whose result is uploaded."""
    sim, layout = runtime.sim, runtime.layout
    phase = phase or shared_phase(sim) or Phase("own")
    algorithm = _pulled(phase.pull) if phase.moves == "own" else sim.algorithm
    aligned = bool(phase.align and t)
    trained, sent = names_in(sim, layout, t, phase)
    training = sim.training
    if phase.epochs or phase.lr:
        training = training._replace(epochs=phase.epochs or training.epochs, lr=phase.lr or training.lr)
    return Learner(
        network=runtime.network,
        algorithm=algorithm,
        training=training,
        data=runtime.data,
        trained=trained,
        travelling=sent & layout.parameters,
        statistics=sent - layout.parameters,
        rate=rate_of(training, t),
        objective=sim.objective,
        precision=sim.precision,
        decomposed=_names_of(layout, {"atoms", "coefficients"}),
        align=Alignment(phase.align) if aligned else None,
        head=head_of(sim) if aligned or algorithm.penalty else None,
        atoms_lr=training.atoms_lr,
    )


def names_in(sim: Simulation, layout: Layout, t: int, phase: Phase) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names of what a phase of round ``t`` trains, and of what its algorithm sees."""
    trained, sent = layout.parameters, _travelling(sim, layout, t)
    own = layout.own if phase.view == "personal" else layout.private  # of a second version it is the server's
    if sim.exchange.slow_local == "freeze":
        trained &= sent | own
    if phase.moves == "own":
        trained, sent = layout.own & layout.parameters, layout.own & layout.parameters
    elif phase.moves == "shared":
        trained -= own
    if not trained:
        why = "all that it may change is frozen. Change slow_local, fast or personal."
        raise ValueError(f"round {t + 1} has nothing to train: {why}")
    return trained, sent


def travelling(runtime: Runtime, t: int) -> frozenset[str]:
    """Returns the names of what travels in round ``t``."""
    return _travelling(runtime.sim, runtime.layout, t)


def leaves_clients_unchanged(sim: Simulation, total: server.Total) -> bool:
    """Says whether a round leaves its clients as they were: they have uploaded, but too few for the rule."""
    return not server.uploads_suffice(total, sim.aggregation.fewest) and shared_phase(sim) is not None


def aggregate(runtime: Runtime, state: State, present: list[int], total: server.Total) -> State:
    """Applies the uploads of a round to the server's model; without any, or too few for the rule, it stays as it is."""
    sim, t = runtime.sim, state.round
    if not server.uploads_suffice(total, sim.aggregation.fewest):
        return state._replace(round=t + 1, selected=None)
    if total.each:
        total = uploads.settled(sim.aggregation, total, state.server.params)
    mean = server.mean_of(total, like=state.server.params)
    changed = {runtime.layout.labels[name] for name in travelling(runtime, t)}
    return state._replace(
        round=t + 1,
        server=server.aggregate(state.server, sim.algorithm, mean, len(present) / len(sim.data.parts)),
        versions={**state.versions, **dict.fromkeys(changed, t + 1)},
        held=state.held.updated(dict.fromkeys(present, state.versions)),
        selected={**state.server.params, **mean["params"], **mean["statistics"]},
    )


def lacked_by(runtime: Runtime, state: State, client: int) -> frozenset[Group]:
    """Returns the groups that a client lacks and must be sent: those of which it does not hold the server's version."""
    return server.lacking(state.versions, state.held.get(client, {})) - runtime.sim.exchange.personal


def message_to(runtime: Runtime, state: State, lacking: frozenset[Group], *, training: bool = True) -> Memory:
    """Returns the message to a client that lacks some groups; the algorithm's memory is in it only if it trains."""
    layout = runtime.layout
    names = {name for name, group in layout.labels.items() if group in lacking and name not in layout.private}
    memory = travelling(runtime, state.round) & layout.parameters if training else frozenset[str]()
    return server.message(state.server, runtime.sim.algorithm, names, memory)


def row_of(runtime: Runtime, state: State, client: int) -> Client:
    """Returns a client's state, or the initial one if it never took part."""
    row = state.clients.read(client)
    return Client(first_memory(runtime), {}, {}, {}) if row is None else row


def first_memory(runtime: Runtime) -> Memory:
    """Returns the algorithm's memory on a client that never took part."""
    private = runtime.layout.private
    shared = {name: leaf for name, leaf in runtime.network.parameters.items() if name not in private}
    return memory_of_client(runtime.sim.algorithm, shared)


def kept_of(runtime: Runtime, state: State, old: Client, reply: Reply, i: int, view: View) -> Client:
    """Returns what client number ``i`` of a block keeps."""
    layout, sim = runtime.layout, runtime.sim
    memory = {kind: {**tree, **trees.unstack(reply.memory[kind], i)} for kind, tree in old.memory.items()}
    stays = layout.private if view == "personal" else frozenset()
    if sim.exchange.slow_local == "keep":
        stays |= layout.labels.keys() - travelling(runtime, state.round)
    own = {**trees.restrict(old.own, layout.own), **trees.unstack(trees.restrict(reply.params, stays), i)}
    local = trees.unstack(trees.restrict(reply.params, layout.labels), i) if "local" in (sim.score or ()) else {}
    if state.last_sum is None:
        return Client(memory, own, {}, local)
    reported = {**reply.upload["params"], **reply.upload["statistics"]}
    before = {name: last_of(old, runtime.network, name) for name in layout.labels if name not in reported}
    return Client(memory, own, {**before, **trees.unstack(reported, i)}, local)


def _mine(runtime: Runtime, clients: list[int]) -> list[int]:
    return share_of(runtime, clients) if runtime.peers.size > 1 else clients


def _train(runtime: Runtime, state: State, present: list[int]) -> tuple[State, Collected]:
    """Trains the clients of a round, and collects what they upload."""
    exchanging = runtime.sim.personal.collaboration is not None
    before = feature_exchange.before_training(runtime, state, present) if exchanging else {}
    last_sum = state.last_sum if runtime.peers.rank == 0 else trees.zeros_like(state.last_sum or {}) or None
    nothing = Collected(server.NOTHING_YET, last_sum, {}, [], [], before, {})
    trained, got, own = train_phases(runtime, state, present, partial(_collect, runtime), nothing, before=before)
    return trained, got._replace(own=own)


def _collect(
    runtime: Runtime, got: Collected, state: State, block: list[int], reply: Reply, view: View
) -> tuple[Collected, Rows]:
    """Adds the replies of a block of clients to what has been collected, and says what these clients keep."""
    before = [row_of(runtime, state, client) for client in block]
    after = [kept_of(runtime, state, old, reply, i, view) for i, old in enumerate(before)]
    new = {client: row for client, row in zip(block, after, strict=True) if any(row)}
    rows = {client: state.clients.keep(client, row, state.round + 1) for client, row in new.items()}
    rule, attack = runtime.sim.aggregation, runtime.sim.attack
    gather = partial(uploads.keep, block) if server.keeps_uploads(rule, attack) else server.gather
    got = got._replace(
        total=gather(got.total, reply.upload, weights_of(runtime.sim, block)),
        last_sum=moved(got.last_sum, runtime.network, before, after),
        up=ledger.add(got.up, ledger.bytes_of(reply.sent or reply.upload, runtime.layout.labels)),
        shared=[*got.shared, traces_of(reply, block)],
    )
    if runtime.sim.personal.collaboration is not None:
        got = got._replace(after={**got.after, **feature_exchange.after_training(runtime, state, reply.params, block)})
    return got, rows


def _travelling(sim: Simulation, layout: Layout, t: int) -> frozenset[str]:
    return _names_of(layout, sim.exchange.schedule(t)) - layout.private


def _names_of(layout: Layout, wanted: Collection[Group]) -> frozenset[str]:
    return frozenset(name for name, group in layout.labels.items() if group in wanted)


@cache
def _pulled(pull: float) -> Algorithm:
    """Returns the algorithm that trains personal parameters; always the same value: compiled steps are keyed by it."""
    require(pull, "pull", or_zero=True)
    return Algorithm(correct=proximal(pull)) if pull else Algorithm()


def _jobs(runtime: Runtime, state: State, clients: list[int], phase: Phase, place: int) -> Iterator[Job]:
    """Yields what each client works on; what is the same for all is worked out once."""
    sim, layout, t = runtime.sim, runtime.layout, state.round
    sent, shared = travelling(runtime, t), runtime.network.split(state.server.params)[0]
    names = [name for name in runtime.network.parameters if name in sent]  # in a fixed order: files have another
    epochs = phase.epochs or sim.training.epochs
    for client in clients:
        row, own = row_of(runtime, state, client), dict[str, Tensor]()
        memory = {kind: {name: row.memory[kind][name] for name in names} for kind in sorted(row.memory)}
        if row.own:
            lacking = lacked_by(runtime, state, client)
            own = {n: leaf for n, leaf in row.own.items() if n not in layout.own and layout.labels[n] not in lacking}
            own |= trees.restrict(row.own, layout.own) if phase.view == "personal" else {}
        yield Job({**shared, **own}, memory, runtime.batches(client, t, epochs, place))


def _learner(runtime: Runtime, state: State, phase: Phase) -> Learner:
    return learner_of(runtime, state.round, phase)._replace(shared=runtime.network.split(state.server.params)[1])


def _bytes_down(runtime: Runtime, state: State, chosen: list[int]) -> Bytes:
    """Counts what is sent to all sampled clients, those included that fail to report."""
    labels, alike = runtime.layout.labels, Counter(lacked_by(runtime, state, client) for client in chosen).items()
    sizes = ((ledger.bytes_of(message_to(runtime, state, lacking), labels), clients) for lacking, clients in alike)
    return ledger.add(*(ledger.scale(size, clients) for size, clients in sizes))


def _look_ahead(runtime: Runtime, t: int) -> None:
    """Draws the first batches of a round before it begins, while a GPU still works on the last one."""
    for client in _mine(runtime, select(runtime.sim, t)[1])[:AHEAD]:
        for place, phase in phases_of(runtime.sim):
            runtime.batches(client, t, phase.epochs or runtime.sim.training.epochs, place)
