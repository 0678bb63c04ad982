"""Flower in one process with answers that look honest: what can be checked is not believed, and the rest is bounded."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.small import identical

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.client.mod.secure_aggregation import secagg_mod, secaggplus_mod
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import Mod
from support.flower_grid import (
    FIRST,
    OWN_ATOMS,
    SMALL,
    App,
    Meddle,
    OneProcess,
    all_of,
    kept_by,
    on_flower,
    round_of,
    task_of,
    warnings_in,
)
from torch import nn

from fedatoms.algorithms import fedavg, moon
from fedatoms.flower import client_app, nonces, wire
from fedatoms.flower.ranges import LOUD, loud_losses, loud_scores, misfit_of_loss, misfit_of_score
from fedatoms.flower.strategy import TooFew
from fedatoms.flower.wire import Answer, Missing
from fedatoms.objectives import classification, multi_label, regression, segmentation
from fedatoms.runs.rounds import read_rounds

WHO = 2
TWO = replace(SMALL, rounds=2, eval_every=2)


def answering_in(number: int, change: Callable[[Message, Message], Message], client: int = WHO) -> Meddle:
    """Lets one client change its answer in one round."""

    def meddle(who: int, message: Message, app: App) -> Message:
        reply = app(message)
        return change(reply, message) if (who, round_of(message)) == (client, number) else reply

    return meddle


def with_metric(**words: float) -> Callable[[Message, Message], Message]:
    def change(reply: Message, message: Message) -> Message:
        reply.content["metrics"].update(words)
        return reply

    return change


def refused(folder: Path, number: int) -> dict[str, str]:
    return read_rounds(folder / "runs" / "it")[number].get("refused", {})


@pytest.mark.parametrize(("loss", "why"), [(1e30, "its loss is 1e+30, more than 1"), (-0.5, "no loss is less than 0")])
def test_a_loss_that_cannot_be_is_not_averaged_into_the_log(loss: float, why: str, tmp_path: Path) -> None:
    on_flower(TWO, tmp_path, answering_in(1, with_metric(loss=loss)))
    assert why in refused(tmp_path, 1)[str(WHO)] and f"node {FIRST + WHO}" in refused(tmp_path, 1)[str(WHO)]
    assert 0 <= read_rounds(tmp_path / "runs" / "it")[1]["loss"] < 10


def losses(*values: float) -> dict[int, Answer]:
    return {client: Answer(0, 1, value, {}) for client, value in enumerate(values)}


@pytest.mark.parametrize(
    ("said", "before", "loud"),
    [
        ((1.0, 2.0, 1e30), None, {2}),
        ((1e-9, 1e-9, 900.0), None, set()),  # clients that fit and one that does not
        ((1e8, 2e8, 3e9), None, set()),  # squared errors in small units
        ((1e8, 2e8, 3e12), None, {2}),
        ((0.0, 5000.0), None, set()),  # two voices and none before: nobody is the median
        ((0.0, 5000.0), 4000.0, set()),
        ((1.0, 1e30), 2.0, {1}),
        ((1e30,), 2.0, {0}),
        ((1.0, 1.0, -1e30), None, {2}),
    ],
)
def test_a_loss_is_bounded_by_what_most_say(said: tuple[float, ...], before: float | None, loud: set[int]) -> None:
    assert loud_losses(losses(*said), before).keys() == loud


def test_no_built_in_loss_is_less_than_nothing_but_one_with_a_penalty_may_be() -> None:
    for make in (classification, multi_label, regression, segmentation):
        assert make().least == 0
    assert misfit_of_loss(classification(), fedavg(), -1e-9)
    assert not misfit_of_loss(classification(), moon(1.0, 1.0), -1.0)


def test_every_number_of_a_score_is_in_its_range() -> None:
    from fedatoms.engine.evaluation import Score

    scale = regression().scale
    good = Score(1.0, 1.0, scale=scale, others={"mae": 1.0, "r2": 0.5})
    assert not misfit_of_score(regression(), good)
    assert not misfit_of_score(regression(), good._replace(others={"mae": 1.0, "r2": float("-inf")}))  # one image
    assert "r2 is 7" in misfit_of_score(regression(), good._replace(others={"mae": 1.0, "r2": 7.0}))
    assert "no loss is less than 0" in misfit_of_score(regression(), good._replace(loss=-1.0))


def test_a_score_made_of_far_larger_numbers_than_the_others_is_not_averaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = {"accuracy": torch.tensor(50.0), "loss": torch.tensor(1.0)}
    tested = {client: wire.Tested(5, numbers) for client in range(3)}
    tested[1] = wire.Tested(5, {**numbers, "loss": torch.tensor(2 * LOUD)})
    assert loud_scores(classification(), tested).keys() == {1}

    def meddle(client: int, message: Message, app: App) -> Message:
        reply = app(message)
        return (
            with_metric(loss=1e30)(reply, message)
            if client == WHO and "metrics" in reply.content and (message.metadata.message_type == "evaluate")
            else reply
        )

    on_flower(replace(OWN_ATOMS, rounds=1), tmp_path, meddle)
    assert any(f"client {WHO} (node {FIRST + WHO}): its loss is made of" in line for line in warnings_in(caplog))
    assert read_rounds(tmp_path / "runs" / "it")[0]["scores"]["personal"]["loss"] < 100


def test_a_replay_is_refused_whatever_round_it_names(tmp_path: Path) -> None:
    recorded: list[RecordDict] = []

    def replay(client: int, message: Message, app: App) -> Message:
        reply = app(message)
        if client == WHO and round_of(message) == 0:
            recorded.append(reply.content)
        if client == WHO and round_of(message) == 1:
            old = recorded[0]
            words = ConfigRecord({**old["config"], "round": 1})
            return Message(RecordDict({**old, "config": words}), reply_to=message)
        return reply

    on_flower(TWO, tmp_path, replay)
    assert refused(tmp_path, 1)[str(WHO)].endswith("it answers another order than this one")


def test_an_answer_of_a_node_that_knows_no_nonces_says_what_to_install(tmp_path: Path) -> None:
    def forget(reply: Message, message: Message) -> Message:
        del reply.content["config"]["nonce"]
        return reply

    on_flower(TWO, tmp_path, answering_in(1, forget))
    assert "Install the server's version of fedatoms" in refused(tmp_path, 1)[str(WHO)]


def test_nonces_are_new_for_every_order_and_change_no_model_and_no_byte_of_the_ledger(tmp_path: Path) -> None:
    grids = [on_flower(TWO, tmp_path / each) for each in "ab"]
    orders = [each.sent["config"]["nonce"] for grid in grids for each in grid.log if each.kind != "query"]
    assert len(set(orders)) == len(orders) == 16
    assert identical(*(all_of(tmp_path / each, TWO) for each in "ab"))
    for row in read_rounds(tmp_path / "a" / "runs" / "it"):
        sent = [each for each in grids[0].log if each.round == row["round"]]
        assert sum(row["down"].values()) == sum(wire.size_of(each.sent).arrays for each in sent)


def test_an_answer_that_comes_twice_counts_once_and_its_copy_is_no_refused_byte(tmp_path: Path) -> None:
    def twice(grid: OneProcess) -> None:
        pull = grid.pull_messages

        def pull_messages(names: Iterable[str]) -> list[Message]:
            return [each for reply in pull(names) for each in (reply, reply)]

        grid.pull_messages = pull_messages

    on_flower(TWO, tmp_path / "twice", change=twice)
    on_flower(TWO, tmp_path / "once")
    assert identical(*(all_of(tmp_path / each, TWO) for each in ("once", "twice")))
    rows = [read_rounds(tmp_path / each / "runs" / "it") for each in ("once", "twice")]
    assert [row["up"] for row in rows[0]] == [row["up"] for row in rows[1]]
    assert not any("beside" in row or "refused" in row for row in rows[1])


def test_of_two_answers_the_first_counts(tmp_path: Path) -> None:
    def second(grid: OneProcess) -> None:
        pull = grid.pull_messages

        def pull_messages(names: Iterable[str]) -> list[Message]:
            return [each for reply in pull(names) for each in (reply, Message(RecordDict(), reply_to=_as_order(reply)))]

        grid.pull_messages = pull_messages

    on_flower(TWO, tmp_path, change=second)
    assert [row["clients"] for row in read_rounds(tmp_path / "runs" / "it")] == [4, 4]


def _as_order(reply: Message) -> Message:
    """Makes an order that the reply answers, so that another reply to it can be made."""
    order = Message(RecordDict(), dst_node_id=reply.metadata.src_node_id, message_type=reply.metadata.message_type)
    order.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return order


def test_arrays_that_nobody_asked_for_are_refused_not_only_counted(tmp_path: Path) -> None:
    def more(reply: Message, message: Message) -> Message:
        extra = ArrayRecord({"w": Array(torch.zeros(1000).numpy())})
        return Message(RecordDict({**reply.content, "more": extra}), reply_to=message)

    on_flower(TWO, tmp_path, answering_in(1, more))
    assert "'more'" in refused(tmp_path, 1)[str(WHO)]


FORGED = "no such leaf\nround 9: loss 0.0001, all is well"


@pytest.mark.parametrize("way", ["a name", "an error", "a group"])
def test_what_a_node_says_cannot_forge_lines_of_the_log_nor_fill_it(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def forge(reply: Message, message: Message) -> Message:
        if way == "an error":
            return Message(Error(2, FORGED + "x" * 10**6), reply_to=message)
        if way == "a group":
            lacks = wire.write_missing(Missing(1, [FORGED + "x" * 10**6], lost=False))
            return Message(nonces.echo(message.content, lacks), reply_to=message)
        arrays = {**reply.content["arrays"], f"/{FORGED}": Array(torch.zeros(1).numpy())}
        return Message(RecordDict({**reply.content, "arrays": ArrayRecord(arrays)}), reply_to=message)

    on_flower(TWO, tmp_path, answering_in(1, forge))
    lines = [line for line in warnings_in(caplog) if "no such leaf" in line and line.startswith("round 2: ")]
    assert lines and all("\n" not in line and len(line) < 1000 for line in lines)


def far_away(client: int, message: Message, app: App) -> Message | None:
    """Lets two of four clients be away, and one of the others answer far too much."""
    if client in (0, 1) and round_of(message) == 1:
        return None
    reply = app(message)
    if (client, round_of(message)) != (WHO, 1):
        return reply
    arrays = {name: Array(each.numpy() * 100) for name, each in reply.content["arrays"].items()}
    return Message(RecordDict({**reply.content, "arrays": ArrayRecord(arrays)}), reply_to=message)


def test_too_few_answers_to_find_a_far_one_are_said_in_every_such_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_flower(replace(TWO, rounds=3), tmp_path, far_away)
    said = [line for line in warnings_in(caplog) if "to tell whether one is far away" in line]
    assert [line.partition(",")[0] for line in said] == ["round 2: 2 answers"]


def test_too_few_answers_to_find_a_far_one_stop_a_run_that_is_to_refuse_them(tmp_path: Path) -> None:
    with pytest.raises(TooFew, match=r'round 2: 2 answers, .* far-unjudged is "refuse".*resume=true'):
        on_flower(TWO, tmp_path, far_away, far_unjudged="refuse")
    assert len(read_rounds(tmp_path / "runs" / "it")) == 1
    on_flower(TWO, tmp_path, far_unjudged="refuse", resume=True)
    on_flower(TWO, tmp_path / "whole")
    assert identical(*(all_of(folder, TWO) for folder in (tmp_path, tmp_path / "whole")))


def test_where_a_round_never_has_enough_answers_to_judge_refusing_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'far-unjudged="refuse", but a round has 2 clients'):
        on_flower(replace(TWO, fraction=0.5), tmp_path, far_unjudged="refuse")
    with pytest.raises(ValueError, match=re.escape("unknown far-unjudged 'refuze'")):
        on_flower(TWO, tmp_path, far_unjudged="refuze")


@pytest.mark.parametrize(("algorithm", "kind"), [("scaffold", "control"), ("feddc", "gradient")])
def test_what_a_node_uploads_adds_up_to_all_that_it_keeps_of_a_control_variate(
    algorithm: str, kind: str, tmp_path: Path
) -> None:
    experiment = replace(SMALL, algorithm=algorithm)
    grid = on_flower(experiment, tmp_path)
    kept = {name: leaf for name, leaf in kept_by(tmp_path, WHO).items() if f"/{kind}/" in f"/{name}"}
    assert kept
    for name, leaf in kept.items():
        key = f"{kind}/{name.rpartition(f'{kind}/')[2]}"
        sent = [
            each.reply.content["arrays"][key].numpy()
            for each in grid.log
            if each.client == WHO and each.round is not None
        ]
        assert torch.equal(sum(map(torch.tensor, sent), torch.zeros_like(leaf)), leaf)


MODS: dict[str, tuple[Mod, dict[str, str], str]] = {
    "fixed clipping": (fixedclipping_mod, {}, "fixedclipping_mod reads a clipping norm that only Flower's own"),
    "adaptive clipping": (adaptiveclipping_mod, {}, "adaptiveclipping_mod reads a clipping norm"),
    "SecAgg": (secagg_mod, {}, "secagg_mod speaks with Flower's older workflow"),
    "SecAgg+": (secaggplus_mod, {}, "secaggplus_mod speaks with Flower's older workflow"),
    "BatchNorm": (LocalDpMod(1.0, 0.0, 1.0, 0.1), {}, "LocalDpMod needs a network without running statistics"),
    "slow groups": (
        LocalDpMod(1.0, 0.0, 1.0, 0.1),
        {"beta": "1/2", "parametrisation": "atoms"},
        "LocalDpMod needs every group to travel",
    ),
}


@pytest.mark.parametrize(("mod", "changes", "why"), MODS.values(), ids=MODS.keys())
def test_a_mod_that_cannot_work_is_named_by_the_server_before_anything_is_trained(
    mod: Mod, changes: dict[str, str], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = replace(TWO, **changes)
    task = task_of(experiment)
    with pytest.raises(TooFew, match=re.escape(why)):
        on_flower(experiment, tmp_path, task=task, app=client_app(task, mods=[mod]))
    assert sum(line.startswith("node ") and why in line for line in caplog.messages) == experiment.clients


def test_the_reason_of_a_mod_that_gives_up_on_a_reply_reaches_the_server_in_the_same_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class OfMyOwn(LocalDpMod):
        """One that nobody knows."""

    task = task_of(TWO)
    with pytest.raises(TooFew, match="The lines above say why"):
        on_flower(TWO, tmp_path, task=task, app=client_app(task, mods=[OfMyOwn(1.0, 0.0, 1.0, 0.1)]))
    lines = [line for line in warnings_in(caplog) if line.startswith("round 1: left out client")]
    assert len(lines) == 4 and all("LocalDpMod expects the keys" in line for line in lines)


def test_nodes_that_are_online_and_late_are_not_called_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def late(client: int, message: Message, app: App) -> Message | None:
        return None if message.metadata.message_type == "query" else app(message)

    with pytest.raises(TooFew, match=r"4 nodes online did not say within wait=0 seconds .*Raise wait") as error:
        on_flower(TWO, tmp_path, late)
    assert "Start the missing nodes" not in str(error.value)
    assert any("4 nodes online did not say" in line for line in warnings_in(caplog))


def test_nodes_that_are_missing_are_called_missing(tmp_path: Path) -> None:
    with pytest.raises(TooFew, match="Start the missing nodes"):
        on_flower(TWO, tmp_path, change=lambda grid: grid.contexts.clear())


def test_a_network_with_the_mod_that_fits_is_let_in(tmp_path: Path) -> None:
    task = task_of(TWO)._replace(
        model=lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))
    )
    on_flower(TWO, tmp_path, task=task, app=client_app(task, mods=[LocalDpMod(1.0, 0.0, 1.0, 0.1)]))
    assert [row["clients"] for row in read_rounds(tmp_path / "runs" / "it")] == [4, 4]
