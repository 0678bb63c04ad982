"""Uploads in few bits on Flower: the simulator's bits and bytes, and answers that are no codes are refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.cases import some_of, turns
from support.small import identical

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, RecordDict
from support.flower_grid import (
    FIRST,
    SMALL,
    App,
    Meddle,
    kept_by,
    on_flower,
    round_of,
    row_as_tree,
    server_as_tree,
    server_of,
    simulated,
)

from fedatoms.algorithms import ALGORITHMS
from fedatoms.engine.codes import BITS
from fedatoms.flower import wire
from fedatoms.runs.rounds import read_rounds

FAST_SLOW = {"parametrisation": "atoms", "beta": "1/2", "fraction": 0.5, "rounds": 4}  # half of them miss a slow part
FORMS: dict[str, dict[str, object]] = {
    "plain": {"rounds": 2},
    "fast and slow": FAST_SLOW,
    "kept": {**FAST_SLOW, "slow_local": "keep"},
    "frozen": {**FAST_SLOW, "slow_local": "freeze"},
    "private": {**FAST_SLOW, "personal": "local-atoms"},
}
CASES = [
    pytest.param(*case, marks=() if place % 4 == 0 else pytest.mark.slow)
    for place, case in enumerate(sorted(turns(ALGORITHMS, FORMS, BITS)))
]
STRENGTHS = {"moon": 0.1}  # with 1 a client moves so far that it is refused


@pytest.mark.parametrize(("name", "form", "uploads"), CASES)
def test_flower_has_the_bits_and_the_bytes_of_the_simulator(name: str, form: str, uploads: str, tmp_path: Path) -> None:
    strength = STRENGTHS.get(name)
    experiment = replace(SMALL, algorithm=name, strength=strength, uploads=uploads, map="one_by_one", **FORMS[form])
    grid = on_flower(experiment, tmp_path)
    state, records = simulated(experiment)
    assert identical(server_of(tmp_path), server_as_tree(state.server))
    for client in range(experiment.clients):
        assert identical(kept_by(tmp_path, client), row_as_tree(state.clients.read(client)))
    for row, record in zip(read_rounds(tmp_path / "runs" / "it"), records, strict=True):
        replies = [each.reply.content for each in grid.log if each.round == row["round"]]
        assert (row["up"], row["down"]) == (record.up, record.down)
        assert sum(row["up"].values()) == sum(wire.size_of(each).arrays for each in replies)


def lying(change: Callable[[np.ndarray], np.ndarray]) -> Meddle:
    """Lets client 2 send something else in place of the codes of a bias, in round 2."""

    def meddle(client: int, message: Message, app: App) -> Message:
        reply = app(message)
        if (client, round_of(message)) != (2, 1):
            return reply
        arrays = dict(reply.content.array_records["arrays"])
        arrays["/conv1.bias"] = Array(change(arrays["/conv1.bias"].numpy()))
        return Message(RecordDict({**reply.content, "arrays": ArrayRecord(arrays)}), reply_to=message)

    return meddle


def scaled(value: float) -> Callable[[np.ndarray], np.ndarray]:
    """Puts another scale before codes."""
    return lambda leaf: np.concatenate([np.frombuffer(np.float32(value).tobytes(), np.uint8), leaf[4:]])


LIES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "a wrong type": (lambda leaf: leaf.astype(np.int8), "'params/conv1.bias' is int8 (8,) instead of uint8 (8,)"),
    "numbers instead of codes": (lambda leaf: np.zeros(4, np.float32), "is float32 (4,) instead of uint8 (8,)"),
    "a code less": (lambda leaf: leaf[:-1], "is uint8 (7,) instead of uint8 (8,), codes of 8 bits"),
    "a code more": (lambda leaf: np.append(leaf, leaf[:1]), "is uint8 (9,) instead of uint8 (8,)"),
    "a wrong shape": (lambda leaf: leaf[None], "is uint8 (1, 8) instead of uint8 (8,)"),
    "a scale that is no number": (scaled(np.nan), "has a scale that is negative or not finite"),
    "an infinite scale": (scaled(np.inf), "has a scale that is negative or not finite"),
    "a negative scale": (scaled(-1.0), "has a scale that is negative or not finite"),
    "a code beyond the last": (lambda leaf: np.append(leaf[:-1], np.uint8(255)), "has a code that is none"),
    "a scale that is far too large": (scaled(1e6), "has norm"),
    "a scale whose codes are not finite": (scaled(3e38), "'params/conv1.bias' is not finite"),
}


@pytest.mark.parametrize("name", some_of(LIES, "a code less", "a negative scale"))
def test_codes_that_are_none_are_refused_in_a_line_with_their_bytes(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, why = LIES[name]
    experiment = replace(SMALL, uploads="8-bit", rounds=2)
    grid = on_flower(experiment, tmp_path, lying(change))
    lines = [line for line in caplog.messages if f"round 2: refused the answer of client 2 (node {FIRST + 2})" in line]
    assert len(lines) == 1 and why in lines[0] and "\n" not in lines[0]
    row = read_rounds(tmp_path / "runs" / "it")[1]
    lie = next(each.reply.content for each in grid.log if (each.client, each.round) == (2, 1))
    assert (row["clients"], row["beside"]) == (3, {"refused": wire.size_of(lie).arrays})
