"""Flower in one process: the same bits as the simulator, whatever the algorithm, the schedule and the method."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedatoms import trees
from fedatoms.build import simulation
from fedatoms.experiment import Experiment
from fedatoms.flower import Task, built_in, client_app
from fedatoms.flower.server import federate
from fedatoms.flower.task import Settings
from fedatoms.runs import load_model
from fedatoms.simulate import advance, begin
from fedatoms.simulation import State

TINY = Experiment(
    partition="dirichlet",
    unbalanced=0.3,
    own_test="classes",
    clients=3,
    fraction=1.0,
    epochs=1,
    batch_size=30,
    rounds=3,
    threads=1,
    last_epochs=1,
)
Answer = Callable[[Message, Context], Message]
Meddle = Callable[[int, Message, Answer], Message | None]  # node, message, its app -> its reply, or none


class OneProcess(Grid):
    """A grid whose nodes answer at once, one after the other, in the order in which they are asked."""

    def __init__(self, task: Task, experiment: Experiment, home: Path, meddle: Meddle | None = None) -> None:
        self.app, self.meddle, self.replies = client_app(task), meddle, dict[str, Message]()
        config = {"partition-id": 0, "num-partitions": experiment.clients, "state-dir": str(home)}
        changed = {name.replace("_", "-"): value for name, value in vars(experiment).items() if value is not None}
        self.contexts = {
            100 + k: Context(1, 100 + k, {**config, "partition-id": k}, RecordDict(), changed)
            for k in range(experiment.clients)
        }
        self.log: list[tuple[int, Message]] = []

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> object: ...

    def create_message(self, *arguments: object, **more: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(reversed(self.contexts))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            node, name = message.metadata.dst_node_id, str(len(self.log))
            message.metadata.__dict__["_message_id"] = name
            self.log.append((node, message))

            def answer(message: Message, context: Context) -> Message:
                return self.app(message, context)

            context = self.contexts[node]
            reply = (
                self.meddle(node - 100, message, lambda m, c=context: answer(m, c))
                if self.meddle
                else answer(message, context)
            )
            if reply is not None:
                self.replies[name] = reply
            yield name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in [*message_ids] if name in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


@pytest.fixture(autouse=True)
def in_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages want to know whose they are."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


def simulated(experiment: Experiment) -> State:
    sim = simulation(replace(experiment, map="one_by_one"))
    state = begin(sim)
    for _ in range(experiment.rounds):
        state, _ = advance(sim, state)
    return state


def on_flower(experiment: Experiment, folder: Path, meddle: Meddle | None = None, **settings: object) -> OneProcess:
    experiment = replace(experiment, out=str(folder / "runs"), name="it")
    task = built_in(experiment)
    grid = OneProcess(task, experiment, folder / "nodes", meddle)
    federate(task, grid, experiment, Settings(wait=0.0, timeout=0.0)._replace(**settings))
    return grid


def same(one: trees.Params, other: trees.Params) -> bool:
    return one.keys() == other.keys() and all(torch.equal(leaf, other[name]) for name, leaf in one.items())


CASES = {
    "fedavg": {},
    "scaffold, atoms": {"algorithm": "scaffold", "parametrisation": "atoms"},
    "feddc, fast and slow": {"algorithm": "feddc", "parametrisation": "atoms", "beta": "1/2"},
    "local atoms": {"parametrisation": "atoms", "personal": "local-atoms"},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_flower_and_the_simulator_give_the_same_bits(changes: dict[str, str], tmp_path: Path) -> None:
    experiment = replace(TINY, **changes)
    on_flower(experiment, tmp_path)
    assert same(dict(load_model(tmp_path / "runs" / "it").state_dict()), simulated(experiment).server.params)
