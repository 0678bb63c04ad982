"""Flower in one process with nodes that fail or lie: what they say is left out, with a line."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path

import httpx
import pytest
from support.small import identical

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from support.flower_grid import (
    FIRST,
    OWN_ATOMS,
    SCAFFOLD,
    SMALL,
    App,
    Meddle,
    OneProcess,
    all_of,
    node_folder,
    on_flower,
    round_of,
    task_of,
    warnings_in,
)
from support.lies import LIES, with_variance, with_words
from torch import Tensor

from fedatoms.flower import Own, wire
from fedatoms.runs.results import read_result
from fedatoms.runs.rounds import read_rounds

WHEN, WHO = 1, 2  # the round in which something goes wrong, one before it and one after, and with which client
SHORT = replace(SCAFFOLD, epochs=1, rounds=3, eval_every=3, beta="1")


ABSENT = ("no answer", "an error")  # nothing came that could be refused


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
    on_flower(SHORT, folder, silent)
    return all_of(folder, SHORT)


@pytest.mark.parametrize("name", LIES)
def test_a_bad_answer_is_left_out_with_a_line_as_if_the_client_had_not_taken_part(
    name: str,
    without: dict[str, Tensor],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    on_flower(SHORT, tmp_path, lying(LIES[name]))
    assert identical(all_of(tmp_path, SHORT), without)
    lines, rows = warnings_in(caplog), read_rounds(tmp_path / "runs" / "it")
    if name not in ABSENT:
        assert lines.pop().startswith(f"answers that were refused and never averaged: 1 of client {WHO}")
    about = [line for line in lines if f"round {WHEN + 1}: " in line and f"client {WHO} (node {FIRST + WHO})" in line]
    assert about
    assert len(about) == len(lines)
    assert ["refused" in row for row in rows] == [False, name not in ABSENT, False]
    assert [(row["clients"], row["failed"]) for row in rows] == [(4, 0), (3, 1), (4, 0)]


def test_so_it_is_in_a_round_that_sends_only_some_groups(tmp_path: Path) -> None:
    some = replace(SHORT, beta="1/2")
    on_flower(some, tmp_path / "lying", lying(LIES["nan"]))
    on_flower(some, tmp_path / "silent", silent)
    assert identical(*(all_of(tmp_path / each, some) for each in ("lying", "silent")))


REASONS = {
    "a negative variance": "'statistics/norm1.running_var' is a variance and less than 0",
    "samples that outweigh all others": "it says 1000000000000 samples, more than the 12 with which it joined",
}


@pytest.mark.parametrize(("name", "why"), REASONS.items(), ids=REASONS.keys())
def test_a_lie_about_a_variance_or_a_weight_is_recorded_with_its_reason_and_bytes(
    name: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = on_flower(SHORT, tmp_path, lying(LIES[name]))
    assert f"round {WHEN + 1}: refused the answer of client {WHO} (node {FIRST + WHO}): {why}" in caplog.messages
    row = read_rounds(tmp_path / "runs" / "it")[WHEN]
    lie = next(each.reply.content for each in grid.log if (each.client, each.round) == (WHO, WHEN))
    assert row["refused"] == {str(WHO): f"node {FIRST + WHO}: {why}"}
    assert row["beside"] == {"refused": wire.size_of(lie).arrays}


def test_a_variance_of_minus_zero_is_a_variance(tmp_path: Path) -> None:
    on_flower(SHORT, tmp_path, lying(with_variance(-0.0)))
    assert [row["clients"] for row in read_rounds(tmp_path / "runs" / "it")] == [4, 4, 4]


def test_a_score_that_outweighs_all_others_is_refused_with_the_number_that_the_node_joined_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def meddle(client: int, message: Message, app: App) -> Message | None:
        reply, lie = app(message), SCORES["more samples than it has"]
        return lie(reply, message) if client == WHO and message.metadata.message_type == "evaluate" else reply

    on_flower(replace(OWN_ATOMS, rounds=1), tmp_path, meddle)
    why = "it says 1000000000000 samples, more than the 12 with which it joined"
    assert f"round 2: refused the answer of client {WHO} (node {FIRST + WHO}): {why}" in caplog.messages


def test_refused_answers_are_counted_apart_from_absent_ones_with_their_nodes_and_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lie = lying(LIES["nan"])

    def meddle(client: int, message: Message, app: App) -> Message | None:
        return None if (client, round_of(message)) == (1, WHEN) else lie(client, message, app)

    grid = on_flower(SHORT, tmp_path, meddle)
    rows, node = read_rounds(tmp_path / "runs" / "it"), FIRST + WHO
    why = f"node {node}: 'params/conv1.atoms' is not finite"
    assert (rows[WHEN]["clients"], rows[WHEN]["failed"], rows[WHEN]["refused"]) == (2, 2, {str(WHO): why})
    came = [wire.size_of(each.reply.content).arrays for each in grid.log if each.round == WHEN and each.reply]
    assert sum(rows[WHEN]["up"].values()) + rows[WHEN]["beside"]["refused"] == sum(came)
    assert read_result(tmp_path / "runs" / "it").extra["bytes_beside"] == rows[WHEN]["beside"]
    assert caplog.messages[-1].endswith(f"1 of client {WHO}, the last in round {WHEN + 1}, {why}")


def test_bytes_of_an_answer_that_is_no_array_are_counted_too(tmp_path: Path) -> None:
    grid = on_flower(SHORT, tmp_path, lying(LIES["an archive"]))
    row = read_rounds(tmp_path / "runs" / "it")[WHEN]
    lie = next(each.reply.content for each in grid.log if (each.client, each.round) == (WHO, WHEN))
    first, *others = lie.array_records["arrays"].values()
    assert row["beside"]["refused"] == len(first.data) + sum(each.numpy().nbytes for each in others)


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
    assert not warnings_in(caplog)


SCORES: dict[str, Callable[[Message, Message], Message | None]] = {
    "no answer": LIES["no answer"],
    "an error": LIES["an error"],
    "no content": LIES["no content"],
    "nan": with_words("metrics", accuracy=float("nan")),
    "too good": with_words("metrics", accuracy=1e9),
    "less than no samples": with_words("metrics", num_examples=-5),
    "a list": with_words("metrics", num_examples=[1, 2]),
    "more samples than it has": with_words("metrics", num_examples=10**12),
    "a loss that no sum can hold": with_words("metrics", loss=-1e308),
}


@pytest.mark.parametrize("lie", SCORES.values(), ids=SCORES.keys())
def test_a_bad_score_is_left_out_with_a_line(
    lie: Callable[[Message, Message], Message | None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def meddle(client: int, message: Message, app: App) -> Message | None:
        reply = app(message)
        return lie(reply, message) if client == WHO and message.metadata.message_type == "evaluate" else reply

    on_flower(replace(OWN_ATOMS, rounds=1), tmp_path, meddle)
    row = read_rounds(tmp_path / "runs" / "it")[0]
    assert 0 <= row["scores"]["personal"]["accuracy"] <= 100
    assert (row["clients"], "refused" in row) == (4, False)  # its part of the round was good
    assert [line for line in caplog.messages if f"client {WHO} (node {FIRST + WHO})" in line]


def test_a_stranger_that_does_not_say_whose_node_it_is_holds_nobody_up(tmp_path: Path) -> None:
    def meddle(client: int, message: Message, app: App) -> Message | None:
        return None if client == 9 else app(message)

    def invite(grid: OneProcess) -> None:
        grid.contexts[FIRST + 9] = grid.contexts[FIRST]

    grid = on_flower(SMALL, tmp_path, meddle, change=invite, wait=1e6)
    assert [row["clients"] for row in read_rounds(tmp_path / "runs" / "it")] == [4, 4, 4]
    assert len([each for each in grid.log if each.client == 9]) == 1


@pytest.mark.parametrize("content", [RecordDict(), RecordDict({"config": ConfigRecord({"partition-id": "mine"})})])
def test_a_node_that_does_not_know_its_part_is_left_out_with_a_line(
    content: RecordDict, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def meddle(client: int, message: Message, app: App) -> Message:
        return Message(content, reply_to=message) if client == WHO and round_of(message) is None else app(message)

    on_flower(replace(SMALL, rounds=1), tmp_path, meddle)
    assert [line for line in warnings_in(caplog) if f"node {FIRST + WHO} does not say which partition-id" in line]
    assert read_rounds(tmp_path / "runs" / "it")[0]["clients"] == 3


def test_a_node_that_comes_back_with_another_number_is_the_same_client(tmp_path: Path) -> None:
    def move(client: int, message: Message, app: App) -> Message | None:
        if (client, round_of(message)) == (3, 1):
            grid.contexts[FIRST + 9] = grid.contexts.pop(FIRST + WHO)
        return app(message)

    def remember(made: OneProcess) -> None:
        nonlocal grid
        grid = made

    grid: OneProcess
    on_flower(SHORT, tmp_path / "whole")
    on_flower(SHORT, tmp_path / "moved", move, change=remember)
    assert identical(*(all_of(tmp_path / each, SHORT) for each in ("whole", "moved")))


def test_a_superlink_that_fails_to_answer_once_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def falter(grid: OneProcess) -> None:
        pull, answer = grid.pull_messages, httpx.Response(500, request=httpx.Request("POST", "http://link"))
        looks = count()

        def pull_messages(names: Iterable[str]) -> Iterable[Message]:
            if next(looks) in (0, 2):  # when nodes are asked who they are, and when they train
                answer.raise_for_status()
            return pull(names)

        grid.pull_messages = pull_messages

    on_flower(SMALL, tmp_path, change=falter, wait=60.0, timeout=60.0)
    assert [row["clients"] for row in read_rounds(tmp_path / "runs" / "it")] == [4, 4, 4]
    assert len([line for line in warnings_in(caplog) if "the SuperLink failed to answer" in line]) == 2
