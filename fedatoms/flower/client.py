"""A node's side: Flower's ClientApp around one client's part of a round."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from fedatoms.algorithms.base import Server
from fedatoms.core import trees
from fedatoms.core.files import write_file
from fedatoms.engine.client_states import Clients, Held
from fedatoms.engine.evaluation import personal_sums, to_numbers
from fedatoms.engine.finetune import last_pass
from fedatoms.engine.remote import take_part
from fedatoms.engine.runtime import Layout, Runtime, prepare
from fedatoms.engine.state import State
from fedatoms.experiment.build import configure
from fedatoms.experiment.identities import run_name, trajectory
from fedatoms.flower import nonces, wire
from fedatoms.flower.mods import answering, misfit_of_mods
from fedatoms.flower.node import Kept, fits, keep, kept_at
from fedatoms.flower.private_files import private, shut, shut_door
from fedatoms.flower.task import Task, configured, node_simulation, own_data
from fedatoms.flower.wire import Answer, Missing, NodeInfo, Order, Tested

log = logging.getLogger("flwr")


def client_app(task: Task, mods: Sequence[Mod] = ()) -> ClientApp:
    """Makes the app that runs on every node; a node's state lies in its ``state-dir``, by run and partition.

    ``mods`` are Flower's and wrap training only: those for privacy assume that every message carries a model.
    """
    app = ClientApp()

    @app.train(mods=[answering, *mods])
    def train(message: Message, context: Context) -> Message:
        return _reply(_train, task, message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _reply(_evaluate, task, message, context)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(_query(task, context, mods), reply_to=message)

    return app


def _reply(work: Callable[[Task, Message, Context], RecordDict], task: Task, order: Message, of: Context) -> Message:
    return Message(nonces.echo(order.content, work(task, order, of)), reply_to=order)


def _train(task: Task, message: Message, context: Context) -> RecordDict:
    """Does the node's part of a round, and keeps what it needs for the next one."""
    opened = _open(task, message, context)
    if isinstance(opened, Missing):
        return wire.write_missing(opened)
    order, runtime, state, me, folder = opened
    log.info("round %d: training as client %d on %d samples", order.round + 1, me, len(runtime.data.parts[me]))
    done = take_part(runtime, state, me)
    after = Kept(trees.restrict(state.server.params, runtime.layout.labels), order.versions, done.row)
    with _for_the_owner(folder):
        keep(folder, order.round + 1, after, before=order.base)
    return wire.write_answer(Answer(order.round, len(runtime.data.parts[me]), done.loss, done.upload))


def _evaluate(task: Task, message: Message, context: Context) -> RecordDict:
    """Scores the node's own model on its own test images, after a last pass if the order says so."""
    opened = _open(task, message, context)
    if isinstance(opened, Missing):
        return wire.write_missing(opened)
    order, runtime, state, me, folder = opened
    if order.last_epochs:
        runtime, state = last_pass(runtime, state, order.last_epochs, [me])
        row = state.clients.read(me)
        own = {} if row is None else trees.restrict(row.own, runtime.layout.own)
        with _for_the_owner(folder):
            write_file(folder / "personal.safetensors", own)
    count = len(runtime.data.test_parts[me])
    means = [sums[me] / count for sums in personal_sums(runtime, state)] if count else []
    return wire.write_score(Tested(count, to_numbers(runtime.sim.objective, means) if count else {}))


def _query(task: Task, context: Context, mods: Sequence[Mod]) -> RecordDict:
    """Says which client the node is, of which experiment, and how many samples it has."""
    experiment, _ = configured(task, context.run_config)
    me = _partition(context, experiment.clients)
    own = own_data(task, experiment, me)
    if mods and (why := misfit_of_mods(mods, prepare(node_simulation(task, experiment, me)))):
        raise ValueError(why)
    return wire.write_node_info(NodeInfo(me, trajectory(experiment), len(own.y), len(own.test_y)))


@contextmanager
def _for_the_owner(folder: Path) -> Iterator[None]:
    """Makes what a node writes into its folder of a run readable by its owner only, and what was there before."""
    shut_door(folder.parent)
    shut(folder)
    with private():
        yield


class _Opened(NamedTuple):
    order: Order
    runtime: Runtime
    state: State
    me: int
    folder: Path


def _open(task: Task, message: Message, context: Context) -> _Opened | Missing:
    """Reads an order and prepares what it needs, or says what is missing."""
    order, (experiment, _) = wire.read_order(message.content), configured(task, context.run_config)
    configure(experiment)
    me = _partition(context, experiment.clients)
    folder = _home(context) / _folder_name(run_name(experiment), order.run) / f"{me:06d}"
    kept = kept_at(folder, order.base) if order.base else Kept({}, {}, None)
    if kept is None:
        return Missing(order.round, sorted(order.versions), lost=True)
    runtime = prepare(node_simulation(task, experiment, me))
    if order.base and not fits(runtime, kept):
        return Missing(order.round, sorted(order.versions), lost=True)
    if (missing := _missing(runtime.layout, order, kept)) is not None:
        return missing
    return _Opened(order, runtime, _state(runtime, order, kept, me), me, folder)


def _missing(layout: Layout, order: Order, kept: Kept) -> Missing | None:
    """Says which groups the node neither was sent nor holds in the server's version."""
    sent = {layout.labels[name] for name in order.down.get("params", {})}
    travel = {layout.labels[name] for name in layout.labels.keys() - layout.private}
    groups = [group for group in travel - sent if kept.versions.get(group) != order.versions[group]]
    return Missing(order.round, sorted(groups), lost=False) if groups else None


def _state(runtime: Runtime, order: Order, kept: Kept, me: int) -> State:
    """Assembles what this client knows of the server, as the state that the engine's functions take."""
    net, device = runtime.network, torch.device(runtime.sim.device)
    there = {kind: {name: trees.move(leaf, device) for name, leaf in tree.items()} for kind, tree in order.down.items()}
    held = {name: trees.move(leaf, device) for name, leaf in kept.params.items()}
    params = {**net.parameters, **net.statistics, **net.constants, **held, **there.pop("params", {})}
    clients = Clients({} if kept.row is None else {me: kept.row}, device=device)
    mine = Held().updated({me: kept.versions})
    return State(order.round, Server(params, there), clients, order.versions, mine, None, {})


def _partition(context: Context, clients: int) -> int:
    try:
        number = int(context.node_config["partition-id"])
        count = int(context.node_config.get("num-partitions", clients))
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"this node has no partition-id. Start it with --node-config 'partition-id=0 num-partitions={clients}'."
        ) from error
    if count != clients:
        raise ValueError(f"num-partitions={count}, but the experiment has {clients} clients. Use the same number.")
    if not 0 <= number < clients:
        raise ValueError(f"partition-id={number} is not one of {clients} clients. Use 0 to {clients - 1}.")
    return number


def _folder_name(name: str, run: str) -> str:
    """Refuses a run that would be written outside of the node's own folder."""
    if not re.fullmatch(r"[^/\\\0]+", name) or not re.fullmatch(r"[0-9a-f]+", run):
        raise ValueError(f"the run {run!r} of {name!r} is not a plain name. This server does not run fedatoms.")
    return f"{name}-{run}"


def _home(context: Context) -> Path:
    place = context.node_config.get("state-dir") or context.run_config.get("state-dir")
    return Path(str(place or Path.home() / ".fedatoms")).expanduser()
