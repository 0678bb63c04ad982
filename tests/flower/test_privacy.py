"""Differential privacy on nodes: the simulator's bits, a bounded liar, a count that no kill undoes, and no names."""

import logging
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from support.cases import some_now, some_of
from support.private import Killed, killing, seeded, still
from support.small import clients_of, difference, identical, small_net

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

from flwr.app import Array, ArrayRecord, Message, RecordDict
from safetensors.torch import load_file
from support.flower_grid import FIRST, App, Meddle, OneProcess, on_flower, round_of, server_as_tree, server_of, task_of
from torch import Tensor

from fedatoms.core import trees
from fedatoms.core.accounting import epsilon_of
from fedatoms.core.run_files import SPENT
from fedatoms.engine.loop import begin
from fedatoms.engine.privacy import Uniforms
from fedatoms.engine.private_round import advance_privately
from fedatoms.engine.runtime import prepare
from fedatoms.engine.state import Record, State
from fedatoms.experiment import privacy as fields
from fedatoms.experiment.build import assemble, parametrise
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import trajectory
from fedatoms.flower import Task
from fedatoms.flower.server_state import ServerState
from fedatoms.flower.strategy import FedAtoms, TooFew
from fedatoms.flower.task import Settings, node_simulation, server_simulation
from fedatoms.runs import execute, spent
from fedatoms.runs.checkpoints import Checkpoints
from fedatoms.runs.results import read_result
from fedatoms.runs.rounds import Writer, read_rounds

PRIVATE = Experiment(
    clients=6, fraction=0.5, sampling="poisson", dp_noise=2.0, dp_clip=0.1, epochs=1, batch_size=5, lr=0.05, rounds=3,
    eval_every=3, parametrisation="atoms", threads=1, device="cpu",
)  # fmt: skip
DATA = clients_of((5, 7, 12, 9, 3, 8))
Generators = Callable[[], Uniforms]


@cache
def task(experiment: Experiment, dtype: torch.dtype = torch.float32) -> Task:
    """Makes a task whose network has no statistics, which no private run may have."""
    return task_of(experiment, DATA)._replace(model=lambda: small_net().to(dtype))


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Generators], None]:
    """Lets every simulation that is built from now on draw from a generator of its own."""

    def draw(generators: Generators) -> None:
        def privacy_of(experiment: Experiment, noise: float | None = None) -> object:
            found = fields.privacy_of(experiment, noise)
            return found and found._replace(uniforms=generators())

        monkeypatch.setattr("fedatoms.experiment.build.privacy_of", privacy_of)

    return draw


def simulated(experiment: Experiment) -> tuple[State, list[Record]]:
    model = parametrise(experiment, task(experiment).model())
    runtime = prepare(assemble(replace(experiment, map="one_by_one"), model, DATA))
    state, records = begin(runtime), []
    for _ in range(experiment.rounds):
        state, record = advance_privately(runtime, state)
        records.append(record)
    return state, records


KINDS: dict[str, dict[str, object]] = {
    "fedavg, fast and slow": {"beta": "1/2"},
    "fedadam, adaptive": {"algorithm": "fedadam", "dp_clip": "adaptive"},
    "fedavgm, freeze": {"algorithm": "fedavgm", "beta": "1/2", "slow_local": "freeze"},
    "fedprox": {"algorithm": "fedprox"},
}


@pytest.mark.parametrize(("kind", "clip"), some_now(KINDS, [0.1, 100.0]))
def test_nodes_and_the_simulator_give_the_same_bits_with_the_same_draws(
    kind: str, clip: float, tmp_path: Path, drawing: Callable[[Generators], None]
) -> None:
    drawing(lambda: seeded(5))
    experiment = replace(PRIVATE, **{"dp_clip": clip, **KINDS[kind]})
    state, records = simulated(experiment)
    on_flower(experiment, tmp_path, task=task(experiment))
    found = {name: leaf for name, leaf in server_of(tmp_path).items() if name.startswith(("params/", "memory/"))}
    assert identical(found, server_as_tree(state.server))
    rows = read_rounds(tmp_path / "runs" / "it")
    assert [row["privacy"] for row in rows] == [record.extra["privacy"] for record in records]  # type: ignore[typeddict-item]
    assert [(row["up"], row["down"], row["clients"]) for row in rows] == [(r.up, r.down, r.clients) for r in records]
    cost = read_result(tmp_path / "runs" / "it").extra["privacy"]
    assert cost["epsilon"] == epsilon_of(0.5, 2.0, 3, 1e-5)  # type: ignore[index]


def sending(change: Callable[[Tensor], Tensor], liar: int = 2) -> Meddle:
    """Lets one client send another model than the one that it trained."""

    def meddle(client: int, message: Message, app: App) -> Message:
        reply = app(message)
        if client != liar or round_of(message) is None:
            return reply
        arrays = {
            name: Array(change(torch.from_numpy(array.numpy().copy())).numpy())
            for name, array in reply.content.array_records["arrays"].items()
        }
        return Message(RecordDict({**reply.content, "arrays": ArrayRecord(arrays)}), reply_to=message)

    return meddle


def silent(client: int, message: Message, app: App) -> Message | None:
    return None if client == 2 and round_of(message) is not None else app(message)


LIES: dict[str, Callable[[Tensor], Tensor]] = {
    "1e9": lambda leaf: torch.full_like(leaf, 1e9),
    "backwards": lambda leaf: -100 * leaf,
    "not finite": lambda leaf: torch.full_like(leaf, math.inf),
    "a shape": lambda leaf: leaf[None],
}


@pytest.mark.parametrize("lie", some_of(LIES, "1e9", "not finite"))
def test_a_node_that_uploads_anything_moves_the_sum_by_at_most_the_clip(
    lie: str, tmp_path: Path, drawing: Callable[[Generators], None]
) -> None:
    drawing(lambda: still)
    experiment, wide = replace(PRIVATE, fraction=1.0, rounds=1, eval_every=1), torch.float64
    for name, meddle in (("lies", sending(LIES[lie])), ("silent", silent)):
        on_flower(experiment, tmp_path / name, meddle, task(experiment, wide))
    lies, without = (_model(tmp_path / name) for name in ("lies", "silent"))
    moved = float(trees.squared(trees.subtract(lies, without)).sqrt()) * experiment.clients
    refused = lie in ("not finite", "a shape")
    assert moved <= 0.1 * (1 + 1e-9) and (moved == 0.0 if refused else moved > 0.05)


def _model(folder: Path) -> dict[str, Tensor]:
    return {name: leaf for name, leaf in server_of(folder).items() if name.startswith("params/")}


def test_whether_one_answer_counts_does_not_depend_on_the_others(
    tmp_path: Path, drawing: Callable[[Generators], None]
) -> None:
    """Far from all others, and the only one: without privacy the first is refused, and the second not."""
    drawing(lambda: still)
    experiment, far = replace(PRIVATE, fraction=1.0, rounds=1, eval_every=1), sending(LIES["1e9"])
    alone: Meddle = lambda client, message, app: (  # noqa: E731
        far(client, message, app) if client == 2 or round_of(message) is None else None
    )
    for name, meddle in (("all", far), ("others", silent), ("alone", alone), ("nobody", nobody)):
        on_flower(experiment, tmp_path / name, meddle, task(experiment, torch.float64))
    models = [_model(tmp_path / name) for name in ("all", "others", "alone", "nobody")]
    among, by_itself = trees.subtract(*models[:2]), trees.subtract(*models[2:])
    assert difference(among, by_itself) < 1e-12


def nobody(client: int, message: Message, app: App) -> Message | None:
    return None if round_of(message) is not None else app(message)


def drawn(lowest: float) -> Generators:
    """Returns generators that draw everyone, or nobody, and then the same noise."""

    def generators() -> Uniforms:
        noise = seeded(5)
        return lambda count: torch.full((count,), lowest) if count == PRIVATE.clients else noise(count)

    return generators


def test_a_round_that_nobody_answers_is_one_that_asks_nobody_a_round_of_noise(
    tmp_path: Path, drawing: Callable[[Generators], None]
) -> None:
    experiment = replace(PRIVATE, rounds=1, eval_every=1)
    for name, lowest in (("all", 0.1), ("none", 0.9)):
        drawing(drawn(lowest))
        on_flower(experiment, tmp_path / name, nobody, task(experiment))
    start = {f"params/{name}": leaf for name, leaf in parametrise(experiment, small_net()).state_dict().items()}
    models = [_model(tmp_path / name) for name in ("all", "none")]
    assert identical(*models) and not identical(models[0], start)


PLACES = {
    "counting": (spent, "write_json"),
    "the line": (Writer, "append"),
    "the checkpoint": (Checkpoints, "save"),
    "the result": (execute, "write_result"),
}


@pytest.mark.parametrize(("place", "at"), some_now([*PLACES, "an answer"], [1, 2]))
def test_a_server_that_is_killed_and_resumed_has_counted_every_round_that_it_drew(
    place: str, at: int, tmp_path: Path, drawing: Callable[[Generators], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = _Counting()
    drawing(counted.generator)
    if place in PLACES:
        with monkeypatch.context() as patched, pytest.raises(Killed):
            owner, name = PLACES[place]
            patched.setattr(owner, name, killing(getattr(owner, name), 1 if place == "the result" else at))
            on_flower(PRIVATE, tmp_path, task=task(PRIVATE))
    else:
        with pytest.raises(Killed):
            on_flower(PRIVATE, tmp_path, _kills(at), task(PRIVATE))
    again = (tmp_path / "runs" / "it" / "experiment.json").exists()
    on_flower(PRIVATE, tmp_path, task=task(PRIVATE), resume=again)
    cost = read_result(tmp_path / "runs" / "it").extra["privacy"]
    assert cost["rounds"] >= counted.cohorts >= 3  # type: ignore[index]
    assert cost["epsilon"] == epsilon_of(0.5, 2.0, cost["rounds"], 1e-5)  # type: ignore[index]
    assert [row["round"] for row in read_rounds(tmp_path / "runs" / "it")] == [0, 1, 2]


class _Counting:
    """Counts the cohorts that are drawn, by all servers that a run has had."""

    def __init__(self) -> None:
        self.cohorts = 0

    def generator(self) -> Uniforms:
        def uniforms(count: int) -> Tensor:
            self.cohorts += count == PRIVATE.clients
            return torch.full((count,), 0.4, dtype=torch.float64)

        return uniforms


def _kills(number: int) -> Meddle:
    def meddle(client: int, message: Message, app: App) -> Message:
        if round_of(message) == number and client == 1:
            raise Killed
        return app(message)

    return meddle


@pytest.mark.parametrize("done", [0, 1])
def test_a_round_for_which_nodes_are_missing_is_not_drawn_and_costs_nothing(
    done: int, tmp_path: Path, drawing: Callable[[Generators], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, run = _Counting(), tmp_path / "runs" / "it"
    drawing(counted.generator)

    def online(grid: OneProcess) -> list[int]:
        return [*grid.contexts][: 1 if len([*run.glob("checkpoint/*.safetensors")]) >= done else None]

    few = rf"^round {done + 1}: 1 node online, but min-train-nodes is 4\. The model so far is"
    with monkeypatch.context() as patched, pytest.raises(TooFew, match=few):
        patched.setattr(OneProcess, "get_node_ids", online)
        on_flower(PRIVATE, tmp_path, task=task(PRIVATE), min_train_nodes=4)
    assert counted.cohorts == done and (run / SPENT).exists() == bool(done)
    if done:
        model = {f"params/{name}": leaf for name, leaf in load_file(run / "model.safetensors").items()}
        assert identical(model, _model(tmp_path))
    on_flower(PRIVATE, tmp_path, task=task(PRIVATE), resume=True, min_train_nodes=4)
    assert read_result(run).extra["privacy"]["rounds"] == 3  # type: ignore[index]


def test_what_is_logged_and_published_is_the_same_whoever_takes_part_and_whatever_they_answer(
    tmp_path: Path, drawing: Callable[[Generators], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    lines, rows = [], []
    for lowest, meddle in ((0.9, None), (0.1, None), (0.1, silent), (0.1, sending(LIES["not finite"]))):
        drawing(drawn(lowest))
        folder = tmp_path / str(len(lines))
        on_flower(PRIVATE, folder, meddle, task(PRIVATE))
        said = [record.getMessage() for record in caplog.records if record.module != "client"]  # nodes have their own
        lines.append([re.sub(rf"{folder}|run [0-9a-f]+,|server .*", "", line) for line in said])
        rows.append([{**row, "scores": None} for row in read_rounds(folder / "runs" / "it")])
        caplog.clear()
    assert all(each == lines[0] for each in lines) and all(each == rows[0] for each in rows)
    assert any("round 3: epsilon 2." in line for line in lines[0])
    secret = (folder / "runs" / "it" / "nodes" / "answers.log").read_text()
    assert "round 1: asking 6 of 6 clients" in secret and f"refused the answer of client 2 (node {FIRST + 2})" in secret
    assert (folder / "runs" / "it" / "nodes" / "answers.log").stat().st_mode & 0o077 == 0


def test_what_a_private_run_cannot_have_is_refused_on_nodes_too(tmp_path: Path) -> None:
    refused: dict[str, dict[str, object]] = {
        "Use fedavg, fedprox": {"algorithm": "scaffold"},
        "Use aggregation=mean": {"aggregation": "median"},
        "Use uploads=exact": {"uploads": "8-bit"},
        "Use score=server": {"score": "selected"},
        "Use personal=none": {"personal": "fedper"},
        "Use sampling=poisson": {"sampling": "fixed"},
        "Leave it out, or add one of them": {"dp_noise": None, "dp_clip": 1.0},
    }
    for line, changes in refused.items():
        with pytest.raises(ValueError, match=line):
            on_flower(replace(PRIVATE, **changes), tmp_path, task=task(PRIVATE))
    with pytest.raises(ValueError, match=r"the buffer norm1\.running_mean"):
        on_flower(PRIVATE, tmp_path, task=task_of(PRIVATE, DATA))
    with pytest.raises(ValueError, match='far-unjudged="refuse" with differential privacy'):
        on_flower(PRIVATE, tmp_path, task=task(PRIVATE), far_unjudged="refuse")
    assert not (tmp_path / "runs").exists()


def test_the_strategy_alone_would_tell_whom_it_asks_and_is_refused(tmp_path: Path) -> None:
    runtime = prepare(server_simulation(task(PRIVATE), PRIVATE))
    known = ServerState(begin(runtime), "0a1b", trajectory(PRIVATE))
    with pytest.raises(ValueError, match=r"Use server_app\(task\), or leave privacy out"):
        FedAtoms(runtime, known, Settings())


def test_a_node_neither_draws_nor_accounts() -> None:
    promised = replace(PRIVATE, dp_noise=None, dp_epsilon=8.0)
    assert node_simulation(task(promised), promised, 0).privacy is None
