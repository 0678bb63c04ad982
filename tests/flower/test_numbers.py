"""Numbers on the wire: they cross beside the model, are counted, and one that is far from the others is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message
from support.flower_grid import SMALL, App, on_flower, round_of

from fedatoms.algorithms.base import Server
from fedatoms.core.trees import NUMBERS
from fedatoms.engine.client_states import Clients, Held
from fedatoms.engine.state import State
from fedatoms.flower import nonces, wire
from fedatoms.flower.checks import outliers
from fedatoms.flower.wire import Answer
from fedatoms.runs.rounds import read_rounds


def test_numbers_cross_under_their_own_names() -> None:
    upload = {"params": {"w": torch.ones(2)}, NUMBERS: {"steps": torch.tensor(3.0)}}
    found = wire.read_answer(wire.write_answer(Answer(0, 5, 0.5, upload)))
    assert (
        isinstance(found, Answer) and found.upload[NUMBERS]["steps"] == 3 and not found.upload[NUMBERS]["steps"].shape
    )


def test_numbers_are_counted_as_they_cross(tmp_path: Path) -> None:
    fedavg, fedexp = (replace(SMALL, algorithm=name) for name in ("fedavg", "fedexp"))
    sizes = []
    for experiment in (fedavg, fedexp):
        folder = tmp_path / experiment.algorithm
        grid = on_flower(experiment, folder)
        crossed = sum(wire.size_of(each.reply.content).arrays for each in grid.log if each.round is not None)
        counted = [sum(row["up"].values()) for row in read_rounds(folder / "runs" / "it")]
        assert sum(counted) == crossed
        sizes.append(crossed)
    assert sizes[1] - sizes[0] == 4 * SMALL.clients * SMALL.rounds  # a float32 of each client in each round


def test_a_number_is_refused_by_itself_and_may_be_a_square() -> None:
    """An update ten times as long as the median has a square a hundred times as large, and is taken."""
    model = {"w": torch.zeros(2)}
    state = State(0, Server(model, {}), Clients({}), {}, Held(), None, {})
    answers = {
        client: Answer(
            0, 5, 0.5, {"params": {"w": torch.ones(2)}, NUMBERS: {"a": torch.tensor(a), "b": torch.ones(())}}
        )
        for client, a in enumerate([1.0, 1.0, 1.0, 101.0, -101.0, 99.0, 1.0])
    }
    far = outliers(state, answers, times=10.0)
    assert far.keys() == {3, 4} and "'a'" in far[3]


def test_a_number_that_nobody_asked_for_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def meddle(client: int, message: Message, app: App) -> Message:
        reply = app(message)
        if round_of(message) is not None and client == 1:
            answer = wire.read_answer(reply.content)
            more = answer._replace(
                upload={**answer.upload, NUMBERS: {"squared": torch.ones(()), "more": torch.ones(())}}
            )
            return Message(nonces.echo(message.content, wire.write_answer(more)), reply_to=message)
        return reply

    on_flower(replace(SMALL, algorithm="fedexp", rounds=1), tmp_path, meddle)
    assert "refused the answer of client 1" in caplog.text and "'numbers/more' is not asked for" in caplog.text
