"""Flower in one process when things go wrong: servers that stop, nodes that fail, lie or forget, and bad input."""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest
from conftest import identical

pytest.importorskip("flwr")

from flower_grid import (
    FIRST,
    SMALL,
    App,
    Meddle,
    OneProcess,
    as_the_runtime,
    kept_by,
    node_folder,
    on_flower,
    round_of,
    server_of,
    task_of,
)  # fmt: skip
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from safetensors.torch import load_file
from torch import Tensor

from fedatoms.experiment import Experiment
from fedatoms.flower import Own, client_app, wire
from fedatoms.flower.node import keep, kept_at
from fedatoms.flower.server import TooFew, federate
from fedatoms.flower.task import Settings, configured
from fedatoms.runs import read_rounds

SCAFFOLD = replace(SMALL, algorithm="scaffold", parametrisation="atoms", beta="1/2", rounds=4, eval_every=4)
OWN_ATOMS = replace(SMALL, parametrisation="atoms", personal="local-atoms", rounds=4, eval_every=4)
WHEN, WHO = 2, 2  # the round in which something goes wrong, and with which client


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets pytest hear Flower's logger."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)


def all_of(folder: Path, experiment: Experiment) -> dict[str, Tensor]:
    """What server and clients have in the end."""
    nodes = {
        f"{client}/{name}": leaf
        for client in range(experiment.clients)
        for name, leaf in kept_by(folder, client).items()
    }
    return {**server_of(folder), **nodes}


class Killed(Exception):
    """The server's end."""


def dies(number: int, *, after: int, how: type[BaseException]) -> Meddle:
    """Lets the server die in a round, after so many nodes have done their part."""
    done = []

    def meddle(client: int, message: Message, app: App) -> Message:
        if round_of(message) == number:
            if len(done) == after:
                raise how
            done.append(client)
        return app(message)

    return meddle


@pytest.mark.parametrize("experiment", [SCAFFOLD, OWN_ATOMS], ids=["scaffold, fast and slow", "local atoms"])
@pytest.mark.parametrize("after", [0, 3], ids=["between rounds", "in a round that nodes have done"])
@pytest.mark.parametrize("how", [KeyboardInterrupt, Killed])
def test_a_server_that_stops_and_resumes_gives_the_same_bits_as_one_that_never_stopped(
    experiment: Experiment, after: int, how: type[BaseException], tmp_path: Path
) -> None:
    on_flower(experiment, tmp_path / "whole")
    with pytest.raises(how):
        on_flower(experiment, tmp_path / "cut", dies(2, after=after, how=how))
    on_flower(experiment, tmp_path / "cut", resume=True)
    assert identical(*(all_of(tmp_path / each, experiment) for each in ("whole", "cut")))
    assert [row["round"] for row in read_rounds(tmp_path / "cut" / "runs" / "it")] == [0, 1, 2, 3]


def test_a_server_that_stops_after_the_last_answer_of_a_round_asks_for_all_of_them_again(tmp_path: Path) -> None:
    on_flower(SCAFFOLD, tmp_path / "whole")
    with pytest.raises(Killed), pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedatoms.flower.server.save_books", _dies_at(3))
        on_flower(SCAFFOLD, tmp_path / "cut")
    grid = on_flower(SCAFFOLD, tmp_path / "cut", resume=True)
    assert [each.client for each in grid.log if each.round == 2] == [0, 1, 2, 3]
    assert identical(*(all_of(tmp_path / each, SCAFFOLD) for each in ("whole", "cut")))


def _dies_at(number: int) -> Callable[..., None]:
    from fedatoms.flower.books import Books, save_books

    def save(folder: Path, books: Books) -> None:
        if books.state.round == number:
            raise Killed
        save_books(folder, books)

    return save


def with_arrays(change: Callable[[dict[str, Array]], dict[str, Array]]) -> Callable[[Message, Message], Message]:
    """Makes a lie about the arrays of an answer."""

    def lie(reply: Message, message: Message) -> Message:
        arrays = change(dict(reply.content.array_records["arrays"]))
        return Message(RecordDict({**reply.content, "arrays": ArrayRecord(arrays)}), reply_to=message)

    return lie


def with_leaf(change: Callable[[np.ndarray], np.ndarray], kind: str = "params") -> Callable[..., Message]:
    """Makes a lie about one array of an answer."""

    def one(arrays: dict[str, Array]) -> dict[str, Array]:
        name = next(name for name in arrays if name.startswith(kind))
        return {**arrays, name: Array(change(arrays[name].numpy()))}

    return with_arrays(one)


def with_words(record: str, **words: object) -> Callable[[Message, Message], Message]:
    """Makes a lie about what an answer says of itself."""

    def lie(reply: Message, message: Message) -> Message:
        old = reply.content[record]
        new = type(old)({**old, **{name.replace("_", "-"): value for name, value in words.items()}})
        return Message(RecordDict({**reply.content, record: new}), reply_to=message)

    return lie


def spoilt(value: float) -> Callable[[np.ndarray], np.ndarray]:
    """Puts a value into an array."""

    def change(leaf: np.ndarray) -> np.ndarray:
        new = leaf.copy()
        new.flat[0] = value
        return new

    return change


def pickled(arrays: dict[str, Array]) -> dict[str, Array]:
    """Puts an array of objects, which only pickle could read, in place of the first."""
    data, name = BytesIO(), next(iter(arrays))
    np.save(data, np.array([{"any": "object"}]), allow_pickle=True)
    return {**arrays, name: Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=data.getvalue())}


def garbled(data: bytes) -> Callable[[dict[str, Array]], dict[str, Array]]:
    """Puts other bytes in place of the first array."""
    raw = {"dtype": "float32", "shape": (1,), "stype": "numpy.ndarray", "data": data}
    return lambda arrays: {**arrays, next(iter(arrays)): Array(**raw)}


LIES: dict[str, Callable[[Message, Message], Message | None]] = {
    "no answer": lambda reply, message: None,
    "an error": lambda reply, message: Message(Error(2, "out of memory"), reply_to=message),
    "no content": lambda reply, message: Message(RecordDict(), reply_to=message),
    "nan": with_leaf(spoilt(float("nan"))),
    "inf": with_leaf(spoilt(float("inf"))),
    "nan in a control": with_leaf(spoilt(float("nan")), "control"),
    "a wrong shape": with_leaf(lambda leaf: leaf[None]),
    "a wrong type": with_leaf(lambda leaf: leaf.astype(np.float64)),
    "a type that torch lacks": with_leaf(lambda leaf: leaf.astype(np.complex256)),
    "words for numbers": with_leaf(lambda leaf: leaf.astype(str)),
    "a missing leaf": with_arrays(lambda arrays: dict([*arrays.items()][1:])),
    "an extra leaf": with_arrays(lambda arrays: {**arrays, "params/more": Array(np.zeros(1, np.float32))}),
    "a kind that nobody asked for": with_arrays(lambda arrays: {**arrays, "odd/w": Array(np.zeros(1, np.float32))}),
    "an object": with_arrays(pickled),
    "no bytes": with_arrays(garbled(b"")),
    "an archive": with_arrays(garbled(b"PK\x03\x04")),
    "a wrong round": with_words("config", round=0),
    "no samples": with_words("metrics", num_examples=0),
    "not a number of samples": with_words("metrics", num_examples=float("nan")),
    "a loss that is not a number": with_words("metrics", loss=float("nan")),
    "an update that is far too long": with_leaf(lambda leaf: leaf + 1000),
    "a control that is far too long": with_leaf(lambda leaf: leaf + 1e6, "control"),
    "statistics that are far away": with_leaf(lambda leaf: leaf + 1e6, "statistics"),
    "a lack that never ends": lambda reply, message: Message(
        RecordDict({"config": ConfigRecord({"round": WHEN, "lacks": ["atoms"], "lost": False})}), reply_to=message
    ),
}


def lying(lie: Callable[[Message, Message], Message | None]) -> Meddle:
    """Lets one client do its part of a round and then answer something else."""

    def meddle(client: int, message: Message, app: App) -> Message | None:
        reply = app(message)
        return lie(reply, message) if (client, round_of(message)) == (WHO, WHEN) else reply

    return meddle


def silent(client: int, message: Message, app: App) -> Message | None:
    """Lets the same client not even begin its part of that round."""
    return None if (client, round_of(message)) == (WHO, WHEN) else app(message)


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """What is left of a run in which a client did not take part in a round."""
    folder = tmp_path_factory.mktemp("without")
    on_flower(SCAFFOLD, folder, silent)
    return all_of(folder, SCAFFOLD)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_bad_answer_is_left_out_with_a_line_as_if_the_client_had_not_taken_part(
    lie: Callable[[Message, Message], Message | None],
    without: dict[str, Tensor],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    on_flower(SCAFFOLD, tmp_path, lying(lie))
    assert identical(all_of(tmp_path, SCAFFOLD), without)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    about = [line for line in lines if f"round {WHEN}: " in line and f"client {WHO} (node {FIRST + WHO})" in line]
    assert about
    assert len(about) == len(lines)
    rows = read_rounds(tmp_path / "runs" / "it")
    assert [(row["clients"], row["failed"]) for row in rows] == [(4, 0), (4, 0), (3, 1), (4, 0)]


def far_from(clients: set[int]) -> Meddle:
    """Lets some nodes not answer from the second round on."""

    def meddle(client: int, message: Message, app: App) -> Message | None:
        gone = client in clients and (round_of(message) or 0) > 0
        return None if gone else app(message)

    return meddle


def test_too_few_answers_end_the_run_with_a_model_and_it_goes_on_when_nodes_are_back(tmp_path: Path) -> None:
    on_flower(SCAFFOLD, tmp_path / "whole")
    with pytest.raises(TooFew, match="round 1: 2 good answers from 4 clients, but min-train-nodes is 3"):
        on_flower(SCAFFOLD, tmp_path / "cut", far_from({1, 2}), min_train_nodes=3)
    model = load_file(tmp_path / "cut" / "runs" / "it" / "model.safetensors")
    assert identical({f"params/{name}": leaf for name, leaf in model.items()}, params_of(server_of(tmp_path / "cut")))
    on_flower(SCAFFOLD, tmp_path / "cut", min_train_nodes=3, resume=True)
    assert identical(*(all_of(tmp_path / each, SCAFFOLD) for each in ("whole", "cut")))


def params_of(server: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: leaf for name, leaf in server.items() if name.startswith("params/")}


def test_too_few_answers_in_the_first_round_leave_a_run_that_can_go_on(tmp_path: Path) -> None:
    on_flower(SCAFFOLD, tmp_path / "whole")
    with pytest.raises(TooFew):
        on_flower(SCAFFOLD, tmp_path / "cut", lambda client, message, app: None)
    on_flower(SCAFFOLD, tmp_path / "cut", resume=True)
    assert identical(server_of(tmp_path / "whole"), server_of(tmp_path / "cut"))


def before(number: int, client: int, spoil: Callable[[], None]) -> Meddle:
    """Lets something happen to a node just before it is asked for its part of a round."""
    waiting = [spoil]

    def meddle(asked: int, message: Message, app: App) -> Message | None:
        if (asked, round_of(message)) == (client, number) and waiting:
            waiting.pop()()
        return app(message)

    return meddle


def wipe(folder: Path) -> None:
    """Deletes a node's folder."""
    rmtree(node_folder(folder, WHO))


def damage(folder: Path) -> None:
    """Flips a bit of each of a node's files."""
    for path in node_folder(folder, WHO).glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)


def cut_off(folder: Path) -> None:
    """Leaves the first half of each of a node's files."""
    for path in node_folder(folder, WHO).glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("spoil", [wipe, damage, cut_off])
@pytest.mark.parametrize("experiment", [SCAFFOLD, OWN_ATOMS], ids=["scaffold, fast and slow", "local atoms"])
def test_a_node_that_lost_its_state_begins_anew_and_is_sent_all(
    spoil: Callable[[Path], None], experiment: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = on_flower(experiment, tmp_path, before(3, WHO, lambda: spoil(tmp_path)))
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == [f"round 3: client {WHO} (node {FIRST + WHO}) has lost its state, and begins anew"]
    rows = read_rounds(tmp_path / "runs" / "it")
    assert rows[3]["clients"] == 4
    assert all(leaf.isfinite().all() for leaf in all_of(tmp_path, experiment).values())
    asked = [wire.size_of(each.sent).arrays for each in grid.log if each.round == 3]
    assert sum(rows[3]["down"].values()) == sum(asked)  # the first order to it counts too
    assert len(asked) == 5


def forget_slow(folder: Path) -> None:
    """Lets a node hold an older version of the slow part than the server thinks."""
    path = max(node_folder(folder, WHO).glob("0*.safetensors"))
    kept = kept_at(path.parent, int(path.stem[:6]))
    versions = {**kept.versions, "coefficients": 99, "rest": 99, "statistics": 99}
    keep(path.parent, int(path.stem[:6]), kept._replace(versions=versions), before=0)


def test_a_node_that_lacks_only_the_slow_part_is_sent_that_and_the_result_is_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_flower(SCAFFOLD, tmp_path / "whole")
    # in round 2 all hold the slow part of round 0, and are sent the fast one only
    grid = on_flower(SCAFFOLD, tmp_path / "late", before(2, WHO, lambda: forget_slow(tmp_path / "late")))
    line = f"round 2: client {WHO} (node {FIRST + WHO}) lacks coefficients, rest, statistics"
    assert line in caplog.messages
    assert identical(*(all_of(tmp_path / each, SCAFFOLD) for each in ("whole", "late")))
    usual, more = (read_rounds(tmp_path / each / "runs" / "it")[2]["down"] for each in ("whole", "late"))
    again = [each for each in grid.log if each.round == 2][-1]
    extra = sum(wire.size_of(again.sent)) - wire.size_of(again.sent).rest
    assert sum(more.values()) == sum(usual.values()) + extra
    assert more["coefficients"] > usual["coefficients"]


def test_a_node_without_test_images_is_not_scored_and_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = task_of(OWN_ATOMS)

    def some(partition: int, partitions: int) -> Own:
        own = task.data(partition, partitions)
        return own._replace(test_x=own.test_x[:0], test_y=own.test_y[:0]) if partition == WHO else own

    on_flower(OWN_ATOMS, tmp_path, task=task._replace(data=some))
    assert read_rounds(tmp_path / "runs" / "it")[-1]["scores"]["personal"]
    assert (node_folder(tmp_path, WHO) / "personal.safetensors").exists()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


MARKS: dict[str, Callable[[Message, Message], Message | None]] = {
    "no answer": LIES["no answer"],
    "an error": LIES["an error"],
    "no content": LIES["no content"],
    "nan": with_words("metrics", accuracy=float("nan")),
    "too good": with_words("metrics", accuracy=1e9),
    "less than no samples": with_words("metrics", num_examples=-5),
    "a list": with_words("metrics", num_examples=[1, 2]),
}


@pytest.mark.parametrize("lie", MARKS.values(), ids=MARKS.keys())
def test_a_bad_score_is_left_out_with_a_line(
    lie: Callable[[Message, Message], Message | None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def meddle(client: int, message: Message, app: App) -> Message | None:
        reply = app(message)
        return lie(reply, message) if client == WHO and message.metadata.message_type == "evaluate" else reply

    on_flower(replace(OWN_ATOMS, rounds=1), tmp_path, meddle)
    score = read_rounds(tmp_path / "runs" / "it")[0]["scores"]["personal"]
    assert 0 <= score["accuracy"] <= 100
    assert [line for line in caplog.messages if f"client {WHO} (node {FIRST + WHO})" in line]


CONFIGS: dict[str, tuple[dict[str, object], str]] = {
    "unknown": (
        {"min-train-node": 2},
        "unknown key in the run config 'min-train-node'. Did you mean 'min-train-nodes'",
    ),
    "no number": ({"timeout": "soon"}, "timeout='soon' in the run config is not like 3600.0"),
    "no nodes": ({"min-train-nodes": 0}, "min-train-nodes=0 in the run config is too small. Leave it out for 1"),
    "no experiment": ({"lr": -1.0}, "--lr -1.0 is not a positive number"),
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
    run_on(SMALL, tmp_path, lambda grid: grid.contexts[FIRST + WHO].node_config.update(config))
    line = next(line for line in caplog.messages if f"node {FIRST + WHO}" in line)
    assert reason in line
    assert f"round 0: client {WHO} has no node" in caplog.messages
    assert [row["clients"] for row in read_rounds(tmp_path / "runs" / "it")] == [3, 3, 3]


def test_a_node_with_another_experiment_is_left_out_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_on(SMALL, tmp_path, lambda grid: grid.contexts[FIRST + WHO].run_config.update({"lr": 0.5}))
    line = next(line for line in caplog.messages if f"client {WHO} (node {FIRST + WHO})" in line)
    assert "the server runs another experiment than this node's app" in line


def test_a_second_node_of_the_same_partition_is_left_out_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def twice(grid: OneProcess) -> None:
        grid.contexts[FIRST + 7] = grid.contexts[FIRST + WHO]

    on_flower(SMALL, tmp_path / "whole")
    run_on(SMALL, tmp_path / "twice", twice)
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
    line = next(line for line in caplog.messages if f"client {WHO} (node {FIRST + WHO})" in line)
    assert f"partition {WHO} has no training samples. Leave this node out" in line


def test_simulated_failures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--failures simulates nodes that fail"):
        on_flower(replace(SMALL, failures=0.1), tmp_path)


def test_an_unknown_aggregation_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown aggregation .medain"):
        on_flower(SMALL, tmp_path, aggregation="medain")
    assert not (tmp_path / "runs").exists()


def test_a_run_is_not_overwritten_and_not_resumed_as_another_one(tmp_path: Path) -> None:
    on_flower(SMALL, tmp_path)
    with pytest.raises(ValueError, match="already holds a run"):
        on_flower(SMALL, tmp_path)
    with pytest.raises(ValueError, match="holds a run of another experiment"):
        on_flower(replace(SMALL, lr=0.3), tmp_path, resume=True)
    with pytest.raises(ValueError, match="holds no run"):
        on_flower(SMALL, tmp_path / "elsewhere", resume=True)


def test_a_finished_run_goes_on_for_more_rounds(tmp_path: Path) -> None:
    on_flower(replace(SCAFFOLD, rounds=4), tmp_path / "whole")
    on_flower(replace(SCAFFOLD, rounds=2), tmp_path / "more")
    on_flower(replace(SCAFFOLD, rounds=4), tmp_path / "more", resume=True)
    assert identical(*(all_of(tmp_path / each, SCAFFOLD) for each in ("whole", "more")))


def run_on(experiment: Experiment, folder: Path, change: Callable[[OneProcess], None]) -> None:
    """Runs an experiment on a grid with some change."""
    experiment = replace(experiment, out=str(folder / "runs"), name="it")
    task = task_of(experiment)
    grid = OneProcess(client_app(task), experiment, folder / "nodes")
    change(grid)
    with as_the_runtime():
        federate(task, grid, experiment, Settings(wait=0.0, timeout=0.0))
