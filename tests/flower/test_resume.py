"""Flower in one process when a server stops or a node forgets: the run goes on, to the same bits if it can."""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest
from support.cases import some_now
from support.small import identical

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from safetensors.torch import load_file
from support.flower_grid import (
    FIRST,
    OWN_ATOMS,
    SCAFFOLD,
    SMALL,
    App,
    Meddle,
    OneProcess,
    all_of,
    in_a_test,
    node_folder,
    on_flower,
    round_of,
    server_of,
    task_of,
    warnings_in,
)
from torch import Tensor

from fedatoms.experiment.fields import Experiment
from fedatoms.flower import client_app, server_app, wire
from fedatoms.flower.node import keep, kept_at
from fedatoms.flower.server_state import ServerState, save_state
from fedatoms.flower.strategy import NotFinite, TooFew
from fedatoms.runs.execute import resume
from fedatoms.runs.lock import locked
from fedatoms.runs.results import read_result
from fedatoms.runs.rounds import read_rounds

WHO = 2  # the client whose node forgets
Whole = Callable[[Experiment], dict[str, Tensor]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What is left of a run to which nothing happened."""

    @cache
    def run(experiment: Experiment) -> dict[str, Tensor]:
        folder = tmp_path_factory.mktemp("whole")
        on_flower(experiment, folder)
        return all_of(folder, experiment)

    return run


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


KINDS = {"scaffold, fast and slow": SCAFFOLD, "local atoms": OWN_ATOMS}
ENDS = {"in a round that nodes have done": (3, Killed), "between rounds": (0, KeyboardInterrupt)}


@pytest.mark.parametrize(("kind", "end"), some_now(KINDS, ENDS))
def test_a_server_that_stops_and_resumes_gives_the_same_bits_as_one_that_never_stopped(
    kind: str, end: str, whole: Whole, tmp_path: Path
) -> None:
    experiment, (after, how) = KINDS[kind], ENDS[end]
    with pytest.raises(how):
        on_flower(experiment, tmp_path / "cut", dies(2, after=after, how=how))
    on_flower(experiment, tmp_path / "cut", resume=True)
    assert identical(all_of(tmp_path / "cut", experiment), whole(experiment))
    assert [row["round"] for row in read_rounds(tmp_path / "cut" / "runs" / "it")] == [0, 1, 2, 3]


def test_a_server_that_ends_where_it_stopped_has_the_scores_of_one_that_was_asked_for_so_many_rounds(
    whole: Whole, tmp_path: Path
) -> None:
    """The round at which it stopped was not due to be scored: it is run again."""
    ends = replace(SCAFFOLD, rounds=2, eval_every=3)
    with pytest.raises(KeyboardInterrupt):
        on_flower(replace(ends, rounds=4), tmp_path, dies(2, after=0, how=KeyboardInterrupt))
    assert not read_rounds(tmp_path / "runs" / "it")[-1]["scores"]
    on_flower(ends, tmp_path, resume=True)
    assert identical(all_of(tmp_path, ends), whole(ends))
    assert [bool(row["scores"]) for row in read_rounds(tmp_path / "runs" / "it")] == [False, True]


def test_a_server_whose_last_checkpoint_is_damaged_goes_on_from_the_one_before(whole: Whole, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        on_flower(SCAFFOLD, tmp_path, dies(3, after=0, how=Killed))
    newest = max((tmp_path / "runs" / "it" / "checkpoint").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    on_flower(SCAFFOLD, tmp_path, resume=True)
    assert identical(all_of(tmp_path, SCAFFOLD), whole(SCAFFOLD))


def test_a_server_that_stops_after_the_last_answer_of_a_round_asks_for_all_of_them_again(
    whole: Whole, tmp_path: Path
) -> None:
    with pytest.raises(Killed), pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedatoms.flower.server.save_state", _dies_at(3))
        on_flower(SCAFFOLD, tmp_path / "cut")
    grid = on_flower(SCAFFOLD, tmp_path / "cut", resume=True)
    assert [each.client for each in grid.log if each.round == 2] == [0, 1, 2, 3]
    assert identical(all_of(tmp_path / "cut", SCAFFOLD), whole(SCAFFOLD))


def _dies_at(number: int) -> Callable[[Path, ServerState], None]:
    def save(folder: Path, known: ServerState) -> None:
        if known.state.round == number:
            raise Killed
        save_state(folder, known)

    return save


def far_from(clients: set[int]) -> Meddle:
    """Lets some nodes not answer from the second round on."""

    def meddle(client: int, message: Message, app: App) -> Message | None:
        gone = client in clients and (round_of(message) or 0) > 0
        return None if gone else app(message)

    return meddle


def test_too_few_answers_end_the_run_with_a_model_and_it_goes_on_when_nodes_are_back(
    whole: Whole, tmp_path: Path
) -> None:
    with pytest.raises(TooFew, match=r"^round 2: 2 good answers from 4 clients, but min-train-nodes is 3\. The model"):
        on_flower(SCAFFOLD, tmp_path / "cut", far_from({1, 2}), min_train_nodes=3)
    model = load_file(tmp_path / "cut" / "runs" / "it" / "model.safetensors")
    assert identical({f"params/{name}": leaf for name, leaf in model.items()}, params_of(server_of(tmp_path / "cut")))
    on_flower(SCAFFOLD, tmp_path / "cut", min_train_nodes=3, resume=True)
    assert identical(all_of(tmp_path / "cut", SCAFFOLD), whole(SCAFFOLD))


def params_of(server: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: leaf for name, leaf in server.items() if name.startswith("params/")}


def test_too_few_answers_are_one_line_to_the_user_and_no_failure_to_flower(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task, out = task_of(SMALL), str(tmp_path / "runs")
    grid = OneProcess(client_app(task), SMALL, tmp_path / "nodes", lying_or_gone)
    settings = {"wait": 0.0, "timeout": 0.0, "min-train-nodes": 3, "out": out, "name": "it"}
    with in_a_test():
        server_app(task)(grid, Context(1, 1, {}, RecordDict(), settings))  # Flower calls a run failed if this raises
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert lines == [
        f"stopped in round 1: 2 good answers from 4 clients (1 refused), but min-train-nodes is 3. The model so far is "
        f"{out}/it/model.safetensors. The lines above say why answers were refused or did not come: mend that, and "
        f"continue with resume=true in the run config."
    ]


def lying_or_gone(client: int, message: Message, app: App) -> Message | None:
    if round_of(message) is None or client > 1:
        return app(message)
    return Message(RecordDict(), reply_to=message) if client else None


def test_too_few_answers_in_the_first_round_leave_a_run_that_can_go_on(whole: Whole, tmp_path: Path) -> None:
    with pytest.raises(TooFew):
        on_flower(SCAFFOLD, tmp_path / "cut", lambda client, message, app: None)
    on_flower(SCAFFOLD, tmp_path / "cut", resume=True)
    assert identical(all_of(tmp_path / "cut", SCAFFOLD), whole(SCAFFOLD))


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


@pytest.mark.parametrize(("spoil", "kind"), some_now([wipe, damage, cut_off], KINDS))
def test_a_node_that_lost_its_state_starts_afresh_and_is_sent_all(
    spoil: Callable[[Path], None], kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = KINDS[kind]
    grid = on_flower(experiment, tmp_path, before(3, WHO, lambda: spoil(tmp_path)))
    lines = warnings_in(caplog)
    assert lines == [f"round 4: client {WHO} (node {FIRST + WHO}) has lost its state, and starts afresh"]
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
    line = f"round 3: client {WHO} (node {FIRST + WHO}) lacks coefficients, rest, statistics"
    assert line in caplog.messages
    assert identical(*(all_of(tmp_path / each, SCAFFOLD) for each in ("whole", "late")))
    usual, more = (read_rounds(tmp_path / each / "runs" / "it")[2]["down"] for each in ("whole", "late"))
    again = [each for each in grid.log if each.round == 2][-1]
    extra = sum(wire.size_of(again.sent)) - wire.size_of(again.sent).rest
    assert sum(more.values()) == sum(usual.values()) + extra
    assert more["coefficients"] > usual["coefficients"]


def test_a_complete_run_that_is_resumed_scores_its_clients_again(tmp_path: Path) -> None:
    on_flower(OWN_ATOMS, tmp_path)
    before = read_result(tmp_path / "runs" / "it").personal
    on_flower(OWN_ATOMS, tmp_path, resume=True)
    assert before
    assert read_result(tmp_path / "runs" / "it").personal == before


def test_a_run_has_one_server_at_a_time(whole: Whole, tmp_path: Path) -> None:
    refused = []

    def second(client: int, message: Message, app: App) -> Message:
        if (client, round_of(message)) == (0, 1):
            who = rf"it is being written by process {os.getpid()} on .* since 20.*\. Wait for it, or end it \(flwr list"
            for again in (True, False):
                with pytest.raises(ValueError, match=who):
                    on_flower(SCAFFOLD, tmp_path, resume=again)
                refused.append(again)
        return app(message)

    on_flower(SCAFFOLD, tmp_path, second)
    assert refused == [True, False]
    assert identical(all_of(tmp_path, SCAFFOLD), whole(SCAFFOLD))


def test_a_server_and_the_simulator_have_one_lock(tmp_path: Path) -> None:
    on_flower(replace(SMALL, rounds=1), tmp_path)
    folder = tmp_path / "runs" / "it"
    assert not (folder / "lock").exists()
    with locked(folder), pytest.raises(ValueError, match=f"{folder} is being written by process {os.getpid()} on "):
        on_flower(SMALL, tmp_path, resume=True)
    on_flower(SMALL, tmp_path, resume=True)


def test_a_run_on_nodes_is_not_resumed_without_them(tmp_path: Path) -> None:
    on_flower(replace(SMALL, rounds=1), tmp_path)
    with pytest.raises(ValueError, match="is a run on nodes, which hold its clients' states"):
        resume(tmp_path / "runs" / "it", {"rounds": 2})


def at_once(change: Callable[[np.ndarray], np.ndarray], number: int) -> Meddle:
    """Lets all clients send other parameters in a round: finite ones, and none is far from the others."""

    def meddle(client: int, message: Message, app: App) -> Message:
        reply = app(message)
        if round_of(message) != number:
            return reply
        arrays = dict(reply.content.array_records["arrays"])
        arrays |= {name: Array(change(array.numpy())) for name, array in arrays.items() if name.startswith("/")}
        return Message(RecordDict({**reply.content, "arrays": ArrayRecord(arrays)}), reply_to=message)

    return meddle


HUGE = {  # squared, or added to itself, it is infinite
    ("fedadam", "mean"): 1e30,
    ("feddc", "trimmed"): 3e38,
    ("fedadam", "median"): 1e30,
    ("feddc", "mean"): 3e38,
    ("feddyn", "mean"): 3e38,
}
EACH = [pytest.param(*each, marks=pytest.mark.slow if number > 2 else ()) for number, each in enumerate(HUGE)]


@pytest.mark.parametrize(("name", "aggregation"), EACH)
def test_a_server_whose_own_model_is_not_finite_stops_and_goes_on_from_the_round_before(
    name: str, aggregation: str, tmp_path: Path
) -> None:
    experiment = replace(SMALL, algorithm=name, rounds=3, aggregation=aggregation)
    value = HUGE[name, aggregation]
    huge = at_once(lambda leaf: np.where(leaf > 0, value, -value).astype(leaf.dtype), 1)
    words = r"^round 2: the server's '(\S+)' is not finite, although all answers were\. The model so far is \S+it/model"
    with pytest.raises(NotFinite, match=words):
        on_flower(experiment, tmp_path / "cut", huge)
    assert_as_after_round_0(tmp_path / "cut")
    on_flower(experiment, tmp_path / "cut", resume=True)
    on_flower(experiment, tmp_path / "whole")
    assert identical(*(all_of(tmp_path / each, experiment) for each in ("cut", "whole")))


def assert_as_after_round_0(folder: Path) -> None:
    """Sees to it that a run has nothing of a later round, and its model is that of its checkpoint."""
    run = folder / "runs" / "it"
    assert [row["round"] for row in read_rounds(run)] == [0]
    assert [path.stem for path in (run / "checkpoint").glob("*.safetensors")] == ["000001"]
    model = load_file(run / "model.safetensors")
    assert identical({f"params/{name}": leaf for name, leaf in model.items()}, params_of(server_of(folder)))
    assert all(leaf.isfinite().all() for leaf in model.values())


def test_a_server_whose_own_loss_is_not_finite_stops_with_a_line_and_goes_on_from_the_round_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task, experiment, run = task_of(SMALL), replace(SMALL, rounds=2, eval_every=1), tmp_path / "runs" / "it"
    huge = at_once(lambda leaf: np.full_like(leaf, 1e38), 1)
    grid = OneProcess(client_app(task), experiment, tmp_path / "nodes", huge)
    config = {"rounds": 2, "eval-every": 1, "wait": 0.0, "timeout": 0.0, "out": str(run.parent), "name": "it"}
    with in_a_test():
        server_app(task)(grid, Context(1, 1, {}, RecordDict(), config))
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert lines == [
        f"stopped in round 2: the server's loss is nan, although all answers were finite. The model so far is "
        f"{run / 'model.safetensors'}. Nothing of the round is kept: resume=true in the run config tries it again. If "
        f'it stops again, start a new run with a lower lr or, if a node may lie, with aggregation="median".'
    ]
    assert_as_after_round_0(tmp_path)
    on_flower(experiment, tmp_path, resume=True)
    on_flower(experiment, tmp_path / "whole")
    assert identical(*(all_of(each, experiment) for each in (tmp_path, tmp_path / "whole")))
