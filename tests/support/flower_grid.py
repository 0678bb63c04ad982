"""What the tests of Flower share: a grid in one process, a small task, and the simulator's run of the same."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file
from torch import Tensor, nn

from fedatoms.algorithms.base import Server
from fedatoms.data.federations import Federation
from fedatoms.engine.client_states import Client, flatten
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.state import Record, State
from fedatoms.experiment.build import assemble, parametrise
from fedatoms.experiment.fields import Experiment
from fedatoms.flower import Own, Task, client_app
from fedatoms.flower.node import kept_at
from fedatoms.flower.server import federate
from fedatoms.flower.task import Settings, node_simulation
from support.lies import round_of as round_of
from support.small import clients_of, small_net

FIRST = 100  # Flower's id of client 0's node
SMALL = Experiment(
    clients=4, fraction=1.0, epochs=1, batch_size=5, lr=0.05, momentum=0.5, rounds=3, eval_every=3, last_epochs=1,
    threads=1,
)  # fmt: skip
SCAFFOLD = replace(SMALL, algorithm="scaffold", parametrisation="atoms", beta="1/2", rounds=4, eval_every=4)
OWN_ATOMS = replace(SMALL, parametrisation="atoms", personal="local-atoms", rounds=4, eval_every=4)
DATA = clients_of((5, 7, 12, 9))
App = Callable[[Message], Message]
Meddle = Callable[[int, Message, App], Message | None]  # client, message, its app -> its reply, or none


class Crossed(NamedTuple):
    """A message to a client and its reply."""

    client: int
    kind: str
    round: int | None  # of an order
    sent: RecordDict
    reply: Message | None


class OneProcess(Grid):
    """A grid whose nodes answer at once, one after the other; a node that raises answers as Flower's do."""

    def __init__(self, app: ClientApp, experiment: Experiment, home: Path, meddle: Meddle | None = None) -> None:
        self.app, self.meddle, self.replies, self.log = app, meddle, dict[str, Message](), list[Crossed]()
        changed = {name.replace("_", "-"): value for name, value in vars(experiment).items() if value is not None}
        self.contexts = {FIRST + k: _context(k, experiment.clients, home, changed) for k in range(experiment.clients)}

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> object: ...

    def create_message(self, *arguments: object, **more: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(reversed(self.contexts))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            name = str(len(self.log))
            message.metadata.__dict__["_message_id"] = name
            client = message.metadata.dst_node_id - FIRST
            reply = self.answer(message) if self.meddle is None else self.meddle(client, message, self.answer)
            if reply is not None:
                self.replies[name] = reply
            self.log.append(Crossed(client, message.metadata.message_type, round_of(message), message.content, reply))
            yield name

    def answer(self, message: Message) -> Message:
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in [*message_ids] if name in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def task_of(experiment: Experiment, data: Federation = DATA, *, dtype: torch.dtype = torch.float32) -> Task:
    """Makes a task of a small network with statistics and dropout, or of a wide one, and data without a recipe."""

    def own(partition: int, partitions: int) -> Own:
        rows, tested = data.parts[partition], data.test_parts[partition]
        return Own(data.x[rows], data.y[rows], data.test_x[tested], data.test_y[tested])

    def model() -> nn.Module:
        return (wide_net() if "fedpara" in experiment.parametrisation else small_net(norm=True, dropout=True)).to(dtype)

    return Task(
        experiment, model, own, data.classes, tuple(data.x.shape[1:]), lambda: (data.test_x, data.test_y), data.recipe
    )


def wide_net() -> nn.Module:
    """Makes a network whose layers are wide enough to be factorised."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = [nn.Flatten(), nn.Linear(36, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
        return nn.Sequential(*body, nn.Linear(32, 3))


def simulated(experiment: Experiment, task: Task | None = None, data: Federation = DATA) -> tuple[State, list[Record]]:
    """Runs the experiment of a task in the simulator."""
    task = task or task_of(experiment, data)
    sim = assemble(experiment, parametrise(experiment, task.model()), data)
    state, records = begin(prepare(sim)), []
    for _ in range(experiment.rounds):
        state, record = advance(prepare(sim), state)
        records.append(record)
    return state, records


def on_flower(
    experiment: Experiment,
    folder: Path,
    meddle: Meddle | None = None,
    task: Task | None = None,
    app: ClientApp | None = None,
    change: Callable[[OneProcess], object] = lambda grid: None,
    **settings: object,
) -> OneProcess:
    """Runs an experiment on a grid in this process; the run's folder is ``runs/it``, the nodes' is ``nodes``."""
    task, experiment = task or _task_of(experiment), replace(experiment, out=str(folder / "runs"), name="it")
    grid = OneProcess(app or client_app(task), experiment, folder / "nodes", meddle)
    change(grid)
    with in_a_test():
        federate(task, grid, experiment, Settings(wait=0.0, timeout=0.0)._replace(**settings))
    return grid


_task_of = cache(task_of)


@lru_cache(64)
def _built(task: Task, experiment: Experiment, partition: int) -> Runtime:
    return prepare(node_simulation(task, experiment, partition))


def _runtime(task: Task, experiment: Experiment, partition: int) -> Runtime:
    """Builds what a node knows once, not for each message of each run."""
    return _built(task, replace(experiment, out="runs", name=""), partition)


@contextmanager
def in_a_test() -> Iterator[None]:
    """Lets this process make messages, which want to know whose they are, and pytest hear Flower's logger."""
    runtime = patch.multiple(TaskIdentity, _task_id=1, _run_id=1, _node_id=1)
    loud = patch.object(logging.getLogger("flwr"), "propagate", True)
    nodes = patch.multiple("fedatoms.flower.client", node_simulation=_runtime, prepare=lambda built: built)
    with runtime, loud, nodes, patch("os.fsync"):
        yield


def server_of(folder: Path) -> dict[str, Tensor]:
    """Reads all that the server of a run has: its model and what the algorithm remembers."""
    return load_file(max((folder / "runs" / "it" / "checkpoint").glob("*.safetensors")))


def server_as_tree(server: Server) -> dict[str, Tensor]:
    """Writes a server of the simulator in the same form."""
    memory = {f"memory/{kind}/{name}": leaf for kind, tree in server.memory.items() for name, leaf in tree.items()}
    return {**{f"params/{name}": leaf for name, leaf in server.params.items()}, **memory}


def node_folder(folder: Path, client: int) -> Path:
    """Returns where a node keeps its state."""
    return next((folder / "nodes").glob("*")) / f"{client:06d}"


def kept_by(folder: Path, client: int) -> dict[str, Tensor]:
    """Reads what a client has of its own after its last part of a round."""
    newest = max(node_folder(folder, client).glob("0*.safetensors"), default=None)
    kept = None if newest is None else kept_at(newest.parent, int(newest.stem[:6]))
    return {} if kept is None else row_as_tree(kept.row)


def row_as_tree(row: Client | None) -> dict[str, Tensor]:
    """Writes what a client has of its own in one tree, less its last model, which only a simulator scores."""
    return {} if row is None else flatten(row._replace(last={}))


def all_of(folder: Path, experiment: Experiment) -> dict[str, Tensor]:
    """Reads what the server and all clients of a run have in the end."""
    nodes = {
        f"{client}/{name}": leaf
        for client in range(experiment.clients)
        for name, leaf in kept_by(folder, client).items()
    }
    return {**server_of(folder), **nodes}


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the lines that say that something went wrong."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def _context(client: int, clients: int, home: Path, run: dict[str, object]) -> Context:
    node = {"partition-id": client, "num-partitions": clients, "state-dir": str(home)}
    return Context(1, FIRST + client, node, RecordDict(), dict(run))
