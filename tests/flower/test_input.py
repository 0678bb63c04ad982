"""Flower in one process with bad input: each refused with the value, the rule and the way out."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.small import identical

pytest.importorskip("flwr")

from flwr.app import Message
from support.flower_grid import FIRST, SCAFFOLD, SMALL, App, OneProcess, all_of, on_flower, task_of

from fedatoms.experiment.fields import Experiment
from fedatoms.flower import Own
from fedatoms.flower.node import Kept, keep, kept_at
from fedatoms.flower.task import built_in, configured, node_simulation, server_simulation
from fedatoms.runs.rounds import read_rounds

WHO = 2  # the client whose node is set up wrongly

CONFIGS: dict[str, tuple[dict[str, object], str]] = {
    "unknown": (
        {"min-train-node": 2},
        "unknown key in the run config 'min-train-node'. Did you mean 'min-train-nodes'",
    ),
    "no number": ({"timeout": "soon"}, "timeout='soon' in the run config is not like 3600.0"),
    "no count": ({"min-train-nodes": True}, "min-train-nodes=True in the run config is not like 1"),
    "no claim": ({"resume": 1}, "resume=1 in the run config is not like False"),
    "no nodes": ({"min-train-nodes": 0}, "min-train-nodes=0 in the run config is too small. Leave it out for 1"),
    "no samples": ({"max-examples": 0}, "max-examples=0 in the run config is too small. Leave it out for 10000000"),
    "half a sample": ({"max-examples": 0.5}, "max-examples=0.5 in the run config is not like 10000000"),
    "no experiment": ({"lr": -1.0}, "lr=-1.0 is not a positive number"),
}


@pytest.mark.parametrize(("config", "reason"), CONFIGS.values(), ids=CONFIGS.keys())
def test_a_bad_run_config_is_refused_with_the_way_out(config: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        configured(task_of(SMALL), config)


NODES: dict[str, tuple[dict[str, object], str]] = {
    "no partition-id": ({"partition-id": "none"}, "this node has no partition-id. Start it with --node-config"),
    "another number of partitions": ({"num-partitions": 7}, "num-partitions=7, but the experiment has 4 clients"),
    "a partition too far": ({"partition-id": 4}, "partition-id=4 is not one of 4 clients. Use 0 to 3"),
}


@pytest.mark.parametrize(("config", "reason"), NODES.values(), ids=NODES.keys())
def test_a_node_that_is_set_up_wrongly_is_left_out_with_the_reason(
    config: dict[str, object], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_flower(SMALL, tmp_path, change=lambda grid: grid.contexts[FIRST + WHO].node_config.update(config))
    line = next(line for line in caplog.messages if f"node {FIRST + WHO}" in line)
    assert reason in line
    assert f"round 1: client {WHO} has no node that answers" in caplog.messages
    assert [row["clients"] for row in read_rounds(tmp_path / "runs" / "it")] == [3, 3, 3]


def test_a_node_with_another_experiment_is_left_out_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_flower(SMALL, tmp_path, change=lambda grid: grid.contexts[FIRST + WHO].run_config.update({"lr": 0.5}))
    assert (
        f"node {FIRST + WHO} runs another experiment than the server. Install the same app on both." in caplog.messages
    )
    assert [row["clients"] for row in read_rounds(tmp_path / "runs" / "it")] == [3, 3, 3]


def test_a_second_node_of_the_same_partition_is_left_out_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def twice(grid: OneProcess) -> None:
        grid.contexts[FIRST + 7] = grid.contexts[FIRST + WHO]

    on_flower(SMALL, tmp_path / "whole")
    on_flower(SMALL, tmp_path / "twice", change=twice)
    assert [line for line in caplog.messages if f"has the partition-id {WHO} of node" in line]
    assert identical(*(all_of(tmp_path / each, SMALL) for each in ("whole", "twice")))


def test_a_node_without_training_samples_is_left_out_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = task_of(SMALL)

    def some(partition: int, partitions: int) -> Own:
        own = task.data(partition, partitions)
        return own._replace(x=own.x[:0], y=own.y[:0]) if partition == WHO else own

    on_flower(SMALL, tmp_path, task=task._replace(data=some))
    line = next(line for line in caplog.messages if f"node {FIRST + WHO} cannot take part" in line)
    assert f"partition {WHO} has no training samples. Leave this node out" in line


OWN: dict[str, tuple[Callable[[Own], Own], str]] = {
    "no labels for some": (lambda own: own._replace(y=own.y[:1]), "partition 2: x of shape (12, 1, 6, 6) and y"),
    "another shape": (lambda own: own._replace(x=own.x[:, 0]), "partition 2: samples have shape (6, 6), but the task"),
    "a class too many": (lambda own: own._replace(y=own.y + 3), "partition 2: label 5 is too large: the task says"),
    "no whole numbers": (
        lambda own: own._replace(y=own.y.float()),
        "partition 2: type torch.float32 is not whole numbers",
    ),
    "not finite": (lambda own: own._replace(x=own.x / 0), "partition 2, sample 0: the data hold"),
    "a test of another shape": (
        lambda own: own._replace(test_x=own.test_x[..., :5]),
        "test images of partition 2: samples have shape (1, 6, 5)",
    ),
}


@pytest.mark.parametrize(("spoil", "reason"), OWN.values(), ids=OWN.keys())
def test_a_node_whose_data_are_not_those_of_the_task_says_what_to_mend(
    spoil: Callable[[Own], Own], reason: str
) -> None:
    task = task_of(SMALL)
    with pytest.raises(ValueError, match=re.escape(reason)):
        node_simulation(task._replace(data=lambda *where: spoil(task.data(*where))), SMALL, WHO)


def test_whole_numbers_of_any_width_are_labels() -> None:
    task = task_of(SMALL)
    narrow = task._replace(data=lambda *where: task.data(*where)._replace(y=task.data(*where).y.short()))
    assert node_simulation(narrow, SMALL, WHO).data.y.equal(task.data(WHO, 4).y)


def test_a_server_whose_test_images_are_not_those_of_the_task_says_what_to_mend() -> None:
    task = task_of(SMALL)
    with pytest.raises(ValueError, match="the server's test images: samples have shape"):
        server_simulation(task._replace(test=lambda: (torch.zeros(2, 9), torch.zeros(2, dtype=torch.int64))), SMALL)


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "failures": ({"failures": 0.1}, "--failures simulates nodes that fail"),
    "privacy of statistics": ({"dp_noise": 1.0}, "differential privacy with the buffer norm1.running_mean"),
    "cohorts of any size": ({"sampling": "poisson"}, "--sampling poisson without --dp-epsilon or --dp-noise"),
    "a step that nodes lack": ({"personal": "fedpac"}, "--personal fedpac needs a step on the server"),
    "a score that nodes lack": ({"score": "server,local"}, "--score local needs each node's last trained model"),
    "an aggregation": ({"aggregation": "medain"}, "unknown aggregation 'medain'"),
    "too few for a rule": ({"aggregation": "krum"}, "a round has 4 clients, and this rule needs 5 to outvote one"),
    "an attack": ({"attack": "sign-flip:0.2"}, "--attack lets simulated clients lie"),
    "an algorithm": ({"algorithm": "scafold"}, "Did you mean 'scaffold'"),
}


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_an_experiment_that_cannot_be_run_is_refused_before_anything_is_written(
    changes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        on_flower(replace(SMALL, **changes), tmp_path, task=task_of(SMALL))
    assert not (tmp_path / "runs").exists()


SETTINGS: dict[str, tuple[dict[str, object], str]] = {
    "keys": ({"node_keys": "fix"}, "unknown node-keys 'fix'. Did you mean 'fixed'"),
    "a client to free that is none": (
        {"free": "4", "resume": True},
        "free='4' in the run config: each must be one of 4 clients. Use free=\"0\"",
    ),
    "a node to free": ({"free": "node 2", "resume": True}, "free='node 2' in the run config: each must be one of"),
    "a client to free in a new run": ({"free": "2"}, "free='2' without resume=true: a new run holds no client."),
}


@pytest.mark.parametrize(("settings", "reason"), SETTINGS.values(), ids=SETTINGS.keys())
def test_settings_that_no_run_can_have_are_refused_before_anything_is_written(
    settings: dict[str, object], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        on_flower(SMALL, tmp_path, **settings)
    assert not (tmp_path / "runs").exists()


def test_a_run_is_not_overwritten_and_not_resumed_as_another_one(tmp_path: Path) -> None:
    on_flower(SMALL, tmp_path)
    with pytest.raises(ValueError, match="already holds a run"):
        on_flower(SMALL, tmp_path)
    with pytest.raises(ValueError, match=r"holds a run with other settings \(lr\)"):
        on_flower(replace(SMALL, lr=0.3), tmp_path, resume=True)
    with pytest.raises(ValueError, match="holds no run"):
        on_flower(SMALL, tmp_path / "elsewhere", resume=True)


def test_a_finished_run_goes_on_for_more_rounds(tmp_path: Path) -> None:
    on_flower(replace(SCAFFOLD, rounds=4), tmp_path / "whole")
    on_flower(replace(SCAFFOLD, rounds=2), tmp_path / "more")
    on_flower(replace(SCAFFOLD, rounds=4), tmp_path / "more", resume=True)
    assert identical(*(all_of(tmp_path / each, SCAFFOLD) for each in ("whole", "more")))


def test_more_nodes_than_a_round_has_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"min-train-nodes=9, but a round has 4 clients. Use 4 or less"):
        on_flower(SMALL, tmp_path, min_train_nodes=9)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("run", ["../../elsewhere", "/elsewhere", "..", "a/b", ""])
def test_a_server_cannot_make_a_node_write_elsewhere(
    run: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lie(client: int, message: Message, answer: App) -> Message | None:
        if "arrays" in message.content and client == WHO:
            _, *rest = json.loads(message.content.config_records["config"]["order"])
            message.content.config_records["config"]["order"] = json.dumps([run, *rest])
        return answer(message)

    on_flower(SMALL, tmp_path, lie)
    assert any("is not a plain name" in line for line in caplog.messages)
    assert not (tmp_path / "nodes" / "it" / f"{WHO:06d}").exists()
    assert not [path for path in tmp_path.rglob("*elsewhere*")]


def test_an_older_order_that_comes_late_leaves_newer_states_alone(tmp_path: Path) -> None:
    for number, before in ((1, 0), (2, 1), (3, 2)):
        keep(tmp_path, number, Kept({"w": torch.zeros(number)}, {}, None), before=before)
    keep(tmp_path, 2, Kept({"w": torch.ones(2)}, {}, None), before=1)
    newest = kept_at(tmp_path, 3)
    assert newest is not None and len(newest.params["w"]) == 3
    assert kept_at(tmp_path, 1) is None  # of old ones only the one before stays


def test_weights_of_the_run_config_are_kept_unless_it_names_a_start() -> None:
    task = built_in(Experiment(clients=3, partition="iid"))
    for start in (task, task._replace(experiment=Experiment(init="dct"))):
        assert configured(start, {"weights": "a"})[0].init == "svd"
        assert configured(start, {"weights": "a", "init": "dct"})[0].init == "dct"
