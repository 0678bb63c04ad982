"""What is built once from a simulation and passed along: network and data on the device, the map over clients."""

from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Tensor

from fedatoms.algorithms.base import Server, nothing
from fedatoms.core.inputs import Inputs, each
from fedatoms.core.options import Group
from fedatoms.core.trees import Params
from fedatoms.data.batches import Planner, cast_inputs, planner
from fedatoms.data.federations import Federation, samples_of
from fedatoms.data.samples import are_labels
from fedatoms.engine.attacks import has_false_labels, with_false_labels
from fedatoms.engine.client_round import Job, Learner
from fedatoms.engine.exchange import check_covers
from fedatoms.engine.execution.blocks import UNMEASURED, even_blocks, in_blocks, room
from fedatoms.engine.execution.cuda_graph import compiled
from fedatoms.engine.execution.inductor import start_compiler
from fedatoms.engine.execution.loop import MapClients, one_by_one
from fedatoms.engine.execution.vmap import NotVectorisable, refusing, vectorised
from fedatoms.engine.gpu.rewrite import BatchedKernels, traced
from fedatoms.engine.limits import AHEAD, check_machine, upload_bytes
from fedatoms.engine.peers import ALONE, Peers, even_share, owned
from fedatoms.engine.server import sample_size
from fedatoms.engine.spec import Simulation
from fedatoms.nn.layers import copied
from fedatoms.nn.parameter_groups import groups
from fedatoms.nn.pure import Network, network, tensor_names, why_not_vectorised
from fedatoms.nn.vectorising import MIXES, mixes_rows
from fedatoms.personal.base import Part, names_of

Predict = Callable[[Params, Inputs], Tensor]


class Layout(NamedTuple):
    """The names of a model's tensors by what a round does with them."""

    labels: dict[str, Group]  # the group of each tensor that may travel
    parameters: frozenset[str]  # those of them that are trained, not statistics
    own: frozenset[str]  # personal parameters
    private: frozenset[str]  # those that never leave a client


class Runtime(NamedTuple):
    """A simulation ready to run; ``prepare`` makes it."""

    sim: Simulation
    network: Network  # the model as pure functions, on the device
    data: Federation  # on the device
    layout: Layout
    map_clients: MapClients
    predict: Predict  # outputs, as the objective reads them; on a GPU full batches run with batched kernels
    batches: Planner  # on the host; the last ones are cached
    peers: Peers = ALONE  # the processes that train the run together
    pause: Callable[[], None] | None = None  # lets other runs go on while this one would wait for the device


def prepare(sim: Simulation, like: Runtime | None = None, peers: Peers = ALONE) -> Runtime:
    """Builds all that a simulation needs to run, and reuses what ``like`` has already built alike, with its peers.

    On a GPU this starts the compiler's processes. ``prepare(replace(sim, seed=1), like=runtime)`` has other clients and
    batches, and compiles nothing again.
    """
    if like is None:
        check_machine(sim)
    if sim.privacy is not None and peers.size > 1:
        raise ValueError(
            f"differential privacy in {peers.size} processes: each would draw a cohort and noise of its own. Use one "
            f"process."
        )
    same = _same_fields(sim, like.sim) if like else set()
    net = like.network if like and {"model", "device"} <= same else network(copied(sim.model).to(sim.device))
    false = any(has_false_labels(each.attack) for each in (sim, *([like.sim] if like else [])))
    own = {"data", "attack", "seed"} if false else {"data"}  # who has false labels is drawn
    kept = {*own, "device"} | ({"model", "objective"} if sim.data.lazy else set())  # by which lazy data are checked
    data = like.data if like and kept <= same else on_device(_seen(sim), sim.device)
    predict = like.predict if like and {"model", "device", "precision", "objective"} <= same else _predictor(sim, net)
    mapped = {
        *own,
        "model",
        "device",
        "map",
        "block",
        "precision",
        "fraction",
        "objective",
        "head",
    }  # a compiled step reads the data
    peers = like.peers if like else peers
    as_large = like is not None and like.sim.training.samples == sim.training.samples  # are batches, so padded alike
    map_clients = like.map_clients if like and as_large and mapped <= same else _map_of(sim, net, data, peers.size)
    remembered = 2 * AHEAD * len(sim.personal.phases)
    batches = planner(sim.data.parts, sim.data.recipe, sim.training.samples, sim.seed, remembered)
    return Runtime(sim, net, data, layout_of(sim), map_clients, predict, batches, peers)


def layout_of(sim: Simulation, part: Part | None = None) -> Layout:
    """Says which tensors of a model may travel, which are personal, and which never leave a client.

    ``part`` stands in for the personal parameters of the rounds, as in a last pass.
    """
    parameters, statistics = tensor_names(sim.model)
    may_travel = parameters | statistics
    labels = {name: group for name, group in groups(sim.model, sim.head).items() if name in may_travel}
    check_covers(sim.exchange, labels)
    stays = frozenset(name for name, group in labels.items() if group in sim.exchange.personal)
    own = stays | names_of(part or sim.personal.own, sim.model, labels)
    return Layout(labels, parameters, own, stays if sim.personal.beside else own)


def share_of(runtime: Runtime, clients: list[int]) -> list[int]:
    """Returns which of some clients this process trains: those that it owns, or an even share if they keep nothing.

    A state stays where it is, so the shares of a round are only even on average; without states they always are.
    """
    sim, peers, sizes = runtime.sim, runtime.peers, runtime.sim.data.parts
    if peers.size == 1:
        return clients
    keep = runtime.layout.own or sim.exchange.slow_local == "keep" or {"all", "local"} & {*sim.scored}
    if keep or sim.algorithm.client_memory is not nothing:
        return owned(peers, clients)
    return even_share(peers, clients, lambda client: len(sizes[client]))


def scored_at_once(device: str) -> int:
    """Returns the images of a batch when scoring: a large one keeps a GPU busy, a small one stays in a CPU's cache."""
    return 2000 if device.startswith("cuda") else 500


def check_map(sim: Simulation) -> str | None:
    """Says why the model cannot be vectorised, or None; raises an error if ``vectorised`` was asked for."""
    why_not = why_not_vectorised(sim.model)
    if sim.map == "vectorised" and why_not:
        raise NotVectorisable(why_not)
    return why_not


def is_vectorised(map: str, device: str) -> bool:
    """Returns whether clients are to be trained in blocks: if asked for, or by default on a GPU.

    >>> is_vectorised("auto", "cpu"), is_vectorised("auto", "cuda:1")
    (False, True)
    """
    return map == "vectorised" or (map == "auto" and device != "cpu")


def block_map(sim: Simulation, net: Network, clients: int, otherwise: MapClients | None) -> MapClients:
    """Returns the map in blocks for so many clients of a round, which is ``otherwise`` where torch refuses it."""
    make = vectorised
    if sim.device.startswith("cuda") and sim.data.lazy is None:  # a graph cannot read
        make = compiled
        start_compiler()

    def size_of_blocks(learner: Learner, broadcast: Server, job: Job) -> int:
        if sim.block:
            return sim.block
        whole = learner._replace(trained=frozenset(net.parameters))  # a later phase may train all of it
        beside = clients * upload_bytes(sim)
        fits = room(whole, broadcast, job, beside) if sim.device.startswith("cuda") else UNMEASURED
        return even_blocks(clients, fits)

    return in_blocks(make, size_of_blocks, otherwise)


def on_device(data: Federation, device: str) -> Federation:
    """Moves the images and labels of a federation to a device; what outlines lazy data stays a single row."""

    def outline(leaf: Tensor) -> Tensor:
        return leaf.to(device) if data.lazy is None else leaf[:1].to(device).expand(leaf.shape)

    x, test_x = each(outline, data.x), each(lambda leaf: leaf.to(device), data.test_x)
    y = data.y.to(device) if are_labels(data.y) else outline(data.y)
    lazy = data.lazy and data.lazy.again()
    return data._replace(x=x, y=y, test_x=test_x, test_y=data.test_y.to(device), lazy=lazy)


def would_train_on_padding(sim: Simulation, net: Network, data: Federation) -> bool:
    """Says whether batches are padded, and a network would notice where clients are trained at once."""
    if not any(len(part) % sim.training.samples for part in data.parts):
        return False
    rows = torch.tensor([0, len(data.y) // 2, 0, len(data.y) - 1], device=data.y.device)
    try:
        x, _ = samples_of(data, rows)
    except Exception:  # lazy data may raise anything: the first round says so, and whose they are
        return False
    return mixes_rows(net, cast_inputs(x, data.recipe, net.dtype), sim.objective.read)


def _seen(sim: Simulation) -> Federation:
    return with_false_labels(sim.data, sim.attack, sim.seed)


def _same_fields(one: Simulation, other: Simulation) -> set[str]:
    return {each.name for each in fields(one) if _same(getattr(one, each.name), getattr(other, each.name))}


def _same(one: object, other: object) -> bool:
    plain = isinstance(one, (str, int, float)) and isinstance(other, (str, int, float))
    return one is other or (plain and one == other)


def _predictor(sim: Simulation, net: Network) -> Predict:
    def plain(params: Params, x: Inputs) -> Tensor:
        return sim.objective.read(net.predict(params, x))

    if not sim.device.startswith("cuda") or sim.precision == "float32":
        return plain
    known: dict[torch.Size, Predict] = {}

    def predict(params: Params, x: Inputs) -> Tensor:
        if not isinstance(x, Tensor) or len(x) != scored_at_once(sim.device):  # tracing takes longer than a small batch
            return plain(params, x)
        if x.shape not in known:
            known[x.shape] = _with_batched_kernels(plain, params, x)
        return known[x.shape](params, x)

    return predict


def _with_batched_kernels(predict: Predict, params: Params, x: Tensor) -> Predict:
    try:
        with BatchedKernels():
            graph = traced(predict, params, x)
        graph(params, x)
    except Exception:  # control flow on data, or no kernel: the plain network runs anywhere
        return predict
    return graph


def _map_of(sim: Simulation, net: Network, data: Federation, processes: int) -> MapClients:
    """Returns the requested map, or the faster one on the device: on a CPU a plain loop beats vmap."""
    why_not = check_map(sim)
    if not is_vectorised(sim.map, sim.device):
        return one_by_one
    if not why_not and would_train_on_padding(sim, net, data):
        why_not = MIXES
        if sim.map == "vectorised":
            raise NotVectorisable(why_not)
    if why_not:
        return in_blocks(lambda size: refusing(why_not), lambda *first: 1, one_by_one)
    sampled = -(-sample_size(len(sim.data.parts), sim.fraction) // processes)
    return block_map(sim, net, sampled, one_by_one if sim.map == "auto" else None)
