"""What a simulated run is made of, the state it carries, and what the clients of a round share."""

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from fedatoms.algorithms.base import Algorithm, Server, nothing
from fedatoms.algorithms.fedprox import fedprox
from fedatoms.core.ledger import Bytes
from fedatoms.core.options import CHOICES, MODELS_SCORED, Group, Map, Place, Precision, Scored, check_range, one_of
from fedatoms.core.randomness import generator
from fedatoms.core.trees import Params
from fedatoms.data.batches import Plan, plan
from fedatoms.data.federation import Federation
from fedatoms.engine.client_round import Alignment, Job, Learner, Training
from fedatoms.engine.client_states import Clients
from fedatoms.engine.exchange import Exchange, check_covers, every_round
from fedatoms.engine.execution.blocks import UNMEASURED, even_blocks, in_blocks, room
from fedatoms.engine.execution.cuda_graph import compiled, start_compiler
from fedatoms.engine.execution.vmap import MapClients, NotVectorisable, one_by_one, refusing, vectorised
from fedatoms.engine.gpu.rewrite import Products, traced
from fedatoms.nn.groups import groups, heads
from fedatoms.nn.pure import Network, network, why_not_vectorised
from fedatoms.personal.base import Personal, Phase

Predict = Callable[[Params, Tensor], Tensor]
Made = Literal["network", "pool", "map_clients", "predict"]  # what a simulation makes when it is first used
_AHEAD = 32  # clients whose batches are drawn before their round


@dataclass(frozen=True)
class Simulation:
    """What a run is made of: a model, clients with data, an algorithm, an exchange, and a map over clients."""

    model: nn.Module
    data: Federation
    algorithm: Algorithm = field(default_factory=Algorithm)
    exchange: Exchange = field(default_factory=lambda: Exchange(every_round()))
    personal: Personal = field(default_factory=Personal)
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
        for name in ("map", "client_state", "precision"):
            one_of(CHOICES[name], getattr(self, name), name)
        for which in self.score:
            one_of(MODELS_SCORED, which, "model to score")
        for name in ("fraction", "failures"):
            check_range(name, getattr(self, name))
        check_range("momentum", self.training.momentum)
        if self.client_state == "disk" and self.folder is None:
            raise ValueError("client_state='disk' needs a folder for the files. Add folder=Path(...).")
        if self.personal.collaboration is not None:
            _check_collaboration(self)
        _check_personal(self.personal, self.exchange)

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
    def own(self) -> frozenset[str]:
        """The names of what each client has of its own."""
        return _names(self, self.exchange.personal) | self.personal.own(self.model, self.labels)

    @cached_property
    def private(self) -> frozenset[str]:
        """The names of what never leaves a client."""
        return _names(self, self.exchange.personal) if self.personal.beside else self.own

    @cached_property
    def pool(self) -> Federation:
        """The data, on the device."""
        data, device = self.data, self.device
        test_x, test_y = data.test_x.to(device), data.test_y.to(device)
        return data._replace(x=data.x.to(device), y=data.y.to(device), test_x=test_x, test_y=test_y)

    @property
    def scored_at_once(self) -> int:
        """The images of a batch when scoring: a large one keeps a GPU busy, a small one stays in a CPU's cache."""
        return 2000 if self.device.startswith("cuda") else 500

    @cached_property
    def predict(self) -> Predict:
        """The network's logits; on a GPU full batches run with products for convolutions, as in training."""
        plain = self.network.predict
        if not self.device.startswith("cuda") or self.precision == "float32":
            return plain
        known: dict[torch.Size, Predict] = {}

        def predict(params: Params, x: Tensor) -> Tensor:
            if len(x) != self.scored_at_once:  # tracing takes longer than a small batch
                return plain(params, x)
            if x.shape not in known:
                known[x.shape] = _with_products(plain, params, x)
            return known[x.shape](params, x)

        return predict

    @cached_property
    def batches(self) -> Callable[[int, int, Phase, int], Plan]:
        """The batches of a client in a phase of a round, on the host; the last ones are remembered."""
        remembered = 2 * _AHEAD * len(self.personal.phases)
        return lru_cache(remembered)(lambda *address: batches_of(self, *address))

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
        make = vectorised
        if self.device.startswith("cuda"):
            make = compiled
            start_compiler()
        return in_blocks(make, self._size_of_blocks, one_by_one if self.map == "auto" else None)

    def _size_of_blocks(self, learner: Learner, heard: Server, job: Job) -> int:
        if self.block:
            return self.block
        whole = learner._replace(trained=frozenset(self.network.parameters))  # a later phase may train all of it
        fits = room(whole, heard, job) if self.device.startswith("cuda") else UNMEASURED
        return even_blocks(_sampled(self), fits)


class State(NamedTuple):
    """Everything that a run carries from round to round; a new value each time."""

    round: int
    server: Server
    clients: Clients
    versions: Mapping[Group, int]  # for each group, the round after which the server's part last changed
    held: Mapping[int, Mapping[Group, int]]  # the versions that each client has
    last_sum: Params | None  # sum of all clients' last models in float64, if that is scored
    common: Params  # what a collaboration remembers on the server
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
    extra: Mapping[str, Mapping[str, object]] = {}  # further columns of whoever trains the clients


def sharing(sim: Simulation, built: Simulation, *made: Made) -> Simulation:
    """Gives a simulation what another has built and it would build alike; all of it if nothing is named.

    So ``sharing(replace(sim, seed=1), sim)`` has other clients and batches, and compiles nothing again.
    """
    sim.__dict__.update({name: getattr(built, name) for name in made or get_args(Made)})
    return sim


def select(sim: Simulation, t: int) -> tuple[list[int], list[int]]:
    """Draws the clients of round ``t`` without replacement, and those of them that report; both in order."""
    count = len(sim.data.parts)
    wanted = _sampled(sim)
    chosen = torch.randperm(count, generator=generator(sim.seed, "clients", t))[:wanted].sort().values
    reports = torch.rand(wanted, generator=generator(sim.seed, "failures", t)) >= sim.failures
    return chosen.tolist(), chosen[reports].tolist()


def weights_of(sim: Simulation, clients: list[int]) -> Tensor:
    """Returns what clients weigh in the mean: their samples, or the same for all if the algorithm says so."""
    uniform = sim.algorithm.weighting == "uniform"
    return torch.tensor([1.0 if uniform else float(len(sim.data.parts[client])) for client in clients])


def learner_of(sim: Simulation, t: int, phase: Phase | None = None) -> Learner:
    """Returns what all clients share in a phase of round ``t``: by default the one whose result is uploaded."""
    phase = phase or shared_phase(sim) or Phase("own")
    parameters, algorithm, sent = frozenset(sim.network.parameters), sim.algorithm, travelling(sim, t)
    trained = parameters
    if sim.exchange.slow_local == "freeze":
        trained &= sent | sim.own
    if phase.moves == "own":
        algorithm, sent, trained = _pulled(phase.pull), sim.own & parameters, sim.own
    elif phase.moves == "shared":
        trained -= sim.own if phase.view == "personal" else sim.private
    if not trained & parameters:
        raise ValueError(
            f"round {t} has nothing to train: all that it may change is frozen. Change slow_local, fast or personal."
        )
    training = sim.training._replace(epochs=phase.epochs or sim.training.epochs, lr=phase.lr or sim.training.lr)
    return Learner(
        network=sim.network,
        algorithm=algorithm,
        training=training,
        data=sim.pool,
        trained=trained & parameters,
        travelling=sent & parameters,
        statistics=sent - parameters,
        rate=training.rate(t),
        precision=sim.precision,
        decomposed=_names(sim, {"atoms", "coefficients"}),
        align=Alignment(head_of(sim), phase.align) if phase.align and t else None,
    )


@cache
def _pulled(pull: float) -> Algorithm:
    """Returns what trains an own part; the same value each time, by which a compiled step is found again."""
    return fedprox(pull) if pull else Algorithm()


def shared_phase(sim: Simulation) -> Phase | None:
    """Returns the phase of a round whose result is uploaded, if there is one."""
    return next((phase for phase in sim.personal.phases if phase.moves != "own"), None)


def head_of(sim: Simulation) -> str:
    """Returns the name of the head, the layer whose inputs are the features."""
    found = heads(sim.model, sim.head)
    if not found:
        raise ValueError("the model has no linear layer, so its features are unknown. Name its last layer with --head.")
    return found[0]


def travelling(sim: Simulation, t: int) -> frozenset[str]:
    """Returns the names of what travels in round ``t``."""
    return _names(sim, sim.exchange.schedule(t)) - sim.private


def batches_of(sim: Simulation, client: int, t: int, phase: Phase | None = None, place: int = 0) -> Plan:
    """Draws the batches of a client in round ``t``; ``place`` tells its phases apart, 0 is the one that is uploaded."""
    return plan(
        sim.data.parts[client],
        batch_size=sim.training.batch_size,
        epochs=(phase and phase.epochs) or sim.training.epochs,
        recipe=sim.data.recipe,
        seed=sim.seed,
        client=client,
        round=t,
        phase=place,
    )


def look_ahead(sim: Simulation, t: int) -> None:
    """Draws the first batches of a round before it begins, while a GPU still works on the last one."""
    for client in select(sim, t)[1][:_AHEAD]:
        for place, phase in placed(sim):
            sim.batches(client, t, phase, place)


def placed(sim: Simulation) -> list[tuple[int, Phase]]:
    """Returns the phases of a round, each with the number that tells its batches apart."""
    return [(place if phase.moves == "own" else 0, phase) for place, phase in enumerate(sim.personal.phases, 1)]


def _check_collaboration(sim: Simulation) -> None:
    if sim.algorithm.client_memory is not nothing:
        raise ValueError(
            "an algorithm that keeps a memory on clients, with a personalised method that moves features and combines "
            "heads: its controls would take both for the client's drift. Use fedavg or fedprox."
        )
    if sim.exchange.personal or sim.exchange.slow_local == "keep":
        raise ValueError(
            "a personalised method that compares clients' features, and clients with different bodies: they cannot be "
            "compared. Leave out personal groups, and use slow_local='discard' or 'freeze'."
        )


def _sampled(sim: Simulation) -> int:
    return max(round(sim.fraction * len(sim.data.parts)), 1)


def _with_products(predict: Predict, params: Params, x: Tensor) -> Predict:
    try:
        with Products():
            graph = traced(predict, params, x)
        graph(params, x)
    except Exception:  # a path that depends on the data, or no kernel: as it is, the network runs anywhere
        return predict
    return graph


def _check_personal(personal: Personal, exchange: Exchange) -> None:
    """Refuses what no round could do."""
    if personal == Personal():
        return
    if exchange.slow_local == "keep":
        raise ValueError(
            "slow_local='keep' with a personalised method: a client would keep two versions of a part. "
            "Use slow_local='discard' or 'freeze'."
        )
    shared = [phase for phase in personal.phases if phase.moves != "own"]
    if len(shared) > 1:
        raise ValueError(
            f"{len(shared)} phases of a round move what is shared, but one is uploaded. Leave one of them."
        )
    if personal.beside and exchange.personal:
        raise ValueError("a second version of a part, and personal groups in the exchange. Use one of the two.")
    if personal.beside and any(phase.view == "personal" for phase in shared):
        raise ValueError('beside=True: the server\'s version is trained in the global view. Use Phase(view="global").')


def _names(sim: Simulation, wanted: Collection[Group]) -> frozenset[str]:
    return frozenset(name for name, group in sim.labels.items() if group in wanted)
