"""Flower in one process with nodes that claim too much: more samples than there are, or a client that is another's."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.small import identical

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.superlink.grid.http_grid import HttpGrid
from support.flower_grid import (
    FIRST,
    SCAFFOLD,
    SMALL,
    App,
    Meddle,
    OneProcess,
    all_of,
    in_a_test,
    on_flower,
    round_of,
    task_of,
    warnings_in,
)
from torch import Tensor

from fedatoms.flower import client_app, server_app
from fedatoms.flower.membership import Holder, keys_stay
from fedatoms.flower.server_state import load_holders
from fedatoms.flower.strategy import TooFew
from fedatoms.runs.rounds import read_rounds

WHO = 2  # the client that is claimed, of 12 samples and 12 test images
STRANGER = FIRST + 7

Words = dict[str, object]
CLAIMS: dict[str, tuple[Callable[[Words], Words], str]] = {
    "samples that outweigh all others": (
        lambda words: {**words, "num-examples": 10**12},
        "says that it has 1000000000000 samples, but max-examples is 10000000. If it is right, raise that.",
    ),
    "test images that outweigh all others": (
        lambda words: {**words, "num-tests": 10**12},
        "says that it has 1000000000000 test images, but max-examples is 10000000. If it is right, raise that.",
    ),
    "no samples": (lambda words: {**words, "num-examples": 0}, "says that it has 0 samples and 12 test images."),
    "less than no images": (lambda words: {**words, "num-tests": -5}, "says that it has 12 samples and -5 test images"),
    "half a sample": (lambda words: {**words, "num-examples": 11.5}, "does not say how many samples it has"),
    "a word": (lambda words: {**words, "num-examples": "many"}, "does not say how many samples it has"),
    "yes": (lambda words: {**words, "num-examples": True}, "does not say how many samples it has"),
    "an older app": (
        lambda words: {name: words[name] for name in ("partition-id", "trajectory")},
        "does not say how many samples it has. Install the server's version of fedatoms on it.",
    ),
}


def claiming(claim: Callable[[Words], Words]) -> Meddle:
    """Lets one node say something else of itself when it joins."""

    def meddle(client: int, message: Message, app: App) -> Message:
        reply = app(message)
        if client != WHO or message.metadata.message_type != "query":
            return reply
        said = claim(dict(reply.content.config_records["config"]))
        return Message(RecordDict({"config": ConfigRecord(said)}), reply_to=message)

    return meddle


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """What is left of a run without the node that makes claims."""
    folder = tmp_path_factory.mktemp("without")
    on_flower(SMALL, folder, change=lambda grid: grid.contexts.pop(FIRST + WHO))
    return all_of(folder, SMALL)


@pytest.mark.parametrize(("claim", "reason"), CLAIMS.values(), ids=CLAIMS.keys())
def test_a_node_that_joins_with_a_number_of_samples_that_cannot_be_is_not_taken(
    claim: Callable[[Words], Words],
    reason: str,
    without: dict[str, Tensor],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    on_flower(SMALL, tmp_path, claiming(claim))
    about = [line for line in caplog.messages if line.startswith(f"node {FIRST + WHO} ")]
    assert len(about) == 3  # it is asked again in each round
    assert all(reason in line for line in about)
    assert identical(all_of(tmp_path, SMALL), without)


@pytest.mark.parametrize(("said", "clients"), [(12, 4), (13, 3)])
def test_an_operator_says_how_many_samples_a_node_may_have(
    said: int, clients: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_flower(SMALL, tmp_path, claiming(lambda words: {**words, "num-examples": said}), max_examples=12)
    assert [row["clients"] for row in read_rounds(tmp_path / "runs" / "it")] == [clients] * 3
    line = f"node {FIRST + WHO} says that it has 13 samples, but max-examples is 12. If it is right, raise that."
    assert (line in caplog.messages) == (clients == 3)


def test_a_node_that_joins_again_with_more_samples_is_no_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def grow(words: Words) -> Words:
        asked.append(words)
        return {**words, "num-examples": 12 * len(asked)}

    lie = claiming(grow)

    def meddle(client: int, message: Message, app: App) -> Message:
        if (client, round_of(message)) == (3, 0):
            grid[0].contexts[FIRST + 9] = grid[0].contexts.pop(FIRST + WHO)
        return lie(WHO if client == 9 else client, message, app)

    grid: list[OneProcess] = []
    on_flower(SMALL, tmp_path, meddle, change=grid.append)
    line = f"node {FIRST + 9} says that it has 24 samples, more than the 12 with which client {WHO} joined. If it has"
    assert any(said.startswith(line) for said in warnings_in(caplog))
    assert f"round 2: client {WHO} has no node that answers" in warnings_in(caplog)


def key_of(node: int) -> bytes:
    return f"key {node}".encode()


class Keyed:
    """A grid whose nodes have keys; a stranger may come in the place of client 2's node, which may be gone."""

    def __init__(self, *, present: bool = True, stranger: bool = False, keys: dict[int, bytes] | None = None) -> None:
        self.present, self.stranger, self.keys = present, stranger, keys or {}

    def __call__(self, grid: OneProcess) -> None:
        self.grid, self.node = grid, grid.contexts[FIRST + WHO]
        grid.get_nodes = lambda: [
            NodeInfo(node_id=node, public_key=self.keys.get(node, key_of(node))) for node in grid.get_node_ids()
        ]
        self.be(present=self.present, stranger=self.stranger)

    def be(self, *, present: bool, stranger: bool) -> None:
        for node, there in ((FIRST + WHO, present), (STRANGER, stranger)):
            self.grid.contexts.pop(node, None)
            self.grid.contexts |= {node: self.node} if there else {}


def after(acts: dict[int, Callable[[], None]]) -> Meddle:
    """Lets something happen after client 3, the last of a round, has done its part of it."""

    def meddle(client: int, message: Message, app: App) -> Message:
        reply, number = app(message), round_of(message)
        if client == 3 and number in acts:
            acts[number]()
        return reply

    return meddle


def test_a_stranger_does_not_train_as_a_client_whose_node_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keyed = Keyed()
    leave, back = (lambda: keyed.be(present=False, stranger=True)), (lambda: keyed.be(present=True, stranger=True))
    on_flower(SCAFFOLD, tmp_path / "claimed", after({1: leave, 2: back}), change=keyed, node_keys="fixed")

    def silent(client: int, message: Message, app: App) -> Message | None:
        return None if (client, round_of(message)) == (WHO, 2) else app(message)

    line = next(line for line in caplog.messages if line.startswith(f"node {STRANGER} "))
    assert re.fullmatch(
        rf"node {STRANGER} says that it is client {WHO}, which belongs to another key, [0-9a-f]{{16}} of node "
        rf'{FIRST + WHO}\. To accept it, resume with resume=true free="{WHO}" in the run config; if nodes have no '
        r'registered keys, with node-keys="new"\.',
        line,
    )
    on_flower(SCAFFOLD, tmp_path / "without", silent)
    assert identical(*(all_of(tmp_path / each, SCAFFOLD) for each in ("claimed", "without")))


def test_a_client_belongs_to_its_key_in_a_resumed_run_until_an_operator_frees_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fixed, four, five = {"node_keys": "fixed", "resume": True}, replace(SMALL, rounds=4), replace(SMALL, rounds=5)
    on_flower(SMALL, tmp_path, change=Keyed(), node_keys="fixed")
    with pytest.raises(TooFew, match="3 good answers from 4 clients"):
        on_flower(four, tmp_path, change=Keyed(present=False, stranger=True), min_train_nodes=4, **fixed)
    held = load_holders(tmp_path / "runs" / "it" / "nodes")
    on_flower(four, tmp_path, change=Keyed(present=False, stranger=True), free=str(WHO), **fixed)
    assert (
        caplog.messages.count(f"client {WHO} no longer belongs to the key {held[WHO].key} of node {FIRST + WHO}") == 1
    )
    now = load_holders(tmp_path / "runs" / "it" / "nodes")
    assert (held[WHO].node, now[WHO].node) == (FIRST + WHO, STRANGER)
    on_flower(five, tmp_path, change=Keyed(), **fixed)
    assert [row["clients"] for row in read_rounds(tmp_path / "runs" / "it")] == [4, 4, 4, 4, 3]


def test_a_client_belongs_to_its_key_as_soon_as_it_is_known_also_if_the_first_round_never_ends(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        on_flower(SMALL, tmp_path, _interrupted, change=Keyed(), node_keys="fixed")
    assert load_holders(tmp_path / "runs" / "it" / "nodes").keys() == {0, 1, 2, 3}
    with pytest.raises(TooFew, match="3 good answers from 4 clients"):
        strange = Keyed(present=False, stranger=True)
        on_flower(SMALL, tmp_path, change=strange, node_keys="fixed", resume=True, min_train_nodes=4)


def _interrupted(client: int, message: Message, app: App) -> Message:
    if round_of(message) == 0:
        raise KeyboardInterrupt
    return app(message)


def test_a_node_with_the_same_key_and_another_number_is_the_same_client(tmp_path: Path) -> None:
    keyed = Keyed(keys={STRANGER: key_of(FIRST + WHO)})  # as on a SuperLink with a new database
    moved = after({1: lambda: keyed.be(present=False, stranger=True)})
    on_flower(SCAFFOLD, tmp_path / "moved", moved, change=keyed, node_keys="fixed")
    on_flower(SCAFFOLD, tmp_path / "whole")
    assert identical(*(all_of(tmp_path / each, SCAFFOLD) for each in ("moved", "whole")))


@pytest.mark.parametrize(
    ("setting", "insecure", "clients"),
    [
        ("auto", False, 3),
        ("auto", True, 4),
        ("auto", None, 4),
        ("fixed", None, 3),
        ("fixed", True, 3),
        ("new", False, 4),
    ],
)
def test_a_client_belongs_to_a_key_with_tls_and_to_nobody_where_nodes_have_new_ones(
    setting: str, insecure: bool | None, clients: int, tmp_path: Path
) -> None:
    keyed = Keyed()

    def change(grid: OneProcess) -> None:
        keyed(grid)
        if insecure is not None:
            grid._insecure = insecure

    moved = after({0: lambda: keyed.be(present=False, stranger=True)})
    on_flower(SMALL, tmp_path, moved, change=change, node_keys=setting)
    assert [row["clients"] for row in read_rounds(tmp_path / "runs" / "it")] == [4, clients, clients]


def test_flower_s_own_grid_tells_whether_its_superlink_has_tls() -> None:
    assert [keys_stay(HttpGrid(insecure=insecure, token="any"), "auto") for insecure in (False, True)] == [True, False]


def test_the_settings_of_keys_are_read_from_the_run_config(tmp_path: Path) -> None:
    task, out = task_of(SMALL), str(tmp_path / "runs")
    grid = OneProcess(client_app(task), SMALL, tmp_path / "nodes")
    Keyed()(grid)
    config = {"wait": 0.0, "timeout": 0.0, "node-keys": "fixed", "max-examples": 12, "out": out, "name": "it"}
    with in_a_test():
        server_app(task)(grid, Context(1, 1, {}, RecordDict(), config))
    holders = load_holders(tmp_path / "runs" / "it" / "nodes")
    assert [type(each) for each in holders.values()] == [Holder] * 4


@pytest.mark.parametrize("kind", ["query", "train"])
def test_a_node_that_signs_with_another_s_number_does_not_speak_for_it(kind: str, tmp_path: Path) -> None:
    def forge(client: int, message: Message, app: App) -> Message:
        reply = app(message)
        if client == 3 and message.metadata.message_type == kind:
            reply.metadata.__dict__["_src_node_id"] = FIRST + WHO
        return reply

    on_flower(SCAFFOLD, tmp_path / "forged", forge)
    on_flower(SCAFFOLD, tmp_path / "whole")
    assert identical(*(all_of(tmp_path / each, SCAFFOLD) for each in ("forged", "whole")))
