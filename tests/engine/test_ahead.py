"""Rounds launched before the last one is settled: the same numbers, none of them lost, none of them early."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.cases import some_now
from support.small import all_scores, clients_of, small_net

from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.engine import loop
from fedatoms.engine.exchange import FAST, SLOW, Exchange, fast_slow
from fedatoms.engine.loop import Progress, begin, rounds
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.engine.training import Training

ROUNDS = 6


@pytest.fixture(autouse=True)
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets rounds run ahead on a CPU too; returns the rounds after which the next had been launched."""
    launched, launch = list[int](), loop._launched_if_possible

    def noted(runtime: Runtime, state: State) -> loop.Launched | None:
        launched.append(state.round)
        return launch(runtime, state)

    monkeypatch.setattr(loop, "runs_ahead", lambda runtime: True)
    monkeypatch.setattr(loop, "_launched_if_possible", noted)
    return launched


def simulation(name: str = "fedavg", **changes: object) -> Simulation:
    sim = Simulation(
        small_net(norm=True, dropout=True, atoms=4),
        clients_of((1, 7, 23, 4)),
        algorithm(name),
        exchange=Exchange(fast_slow(FAST, SLOW, 2)),
        training=Training(epochs=2, batch_size=10, lr=0.05),
        fraction=0.5,
        score=all_scores(algorithm(name)),
    )
    return replace(sim, **changes)  # type: ignore[arg-type]


def played(sim: Simulation, eval_every: int = 3) -> Iterator[Progress]:
    runtime = prepare(sim)
    return rounds(runtime, begin(runtime), ROUNDS, eval_every)


def told(progress: Progress) -> tuple[object, ...]:
    record = progress.record._replace(seconds=0.0)
    tensors = {name: leaf.tolist() for name, leaf in progress.state.server.params.items()}
    return record, progress.scores, tensors


@pytest.mark.parametrize("name", some_now(ALGORITHMS, every=2))
def test_every_round_is_that_of_rounds_in_turn(name: str, ahead: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    early = [told(each) for each in played(simulation(name))]
    monkeypatch.setattr(loop, "runs_ahead", lambda runtime: False)
    assert early == [told(each) for each in played(simulation(name))]
    assert ahead == [1, 2, 4, 5]  # not before scores, nor after the last


def test_seconds_are_those_since_the_round_before_was_settled() -> None:
    assert all(each.record.seconds > 0 for each in played(simulation()))


def heard_until_an_error(sim: Simulation) -> tuple[list[int], str]:
    heard = list[int]()
    with pytest.raises(FloatingPointError) as error:
        for each in played(sim, ROUNDS):
            heard.append(each.record.round + 1)
    return heard, str(error.value)


def test_a_round_that_cannot_begin_takes_nothing_from_the_one_before_it() -> None:
    heard, error = heard_until_an_error(simulation(training=Training(batch_size=10, lr=1e-14, lr_decay=1e6)))
    assert heard
    assert error.startswith(f"round {heard[-1] + 1}: lr_decay=1000000.0 has raised the learning rate")


def test_numbers_that_are_not_finite_are_told_of_the_round_that_made_them() -> None:
    wild = Training(epochs=20, batch_size=5, lr=1e-6, lr_decay=1e6)
    heard, error = heard_until_an_error(simulation(model=small_net(atoms=4), training=wild))
    assert heard
    assert f"round {heard[-1] + 1}, step" in error


def test_whoever_stops_listening_loses_only_the_round_ahead(ahead: list[int]) -> None:
    heard = played(simulation(), ROUNDS)
    assert next(heard).record.round == 0
    heard.close()
    assert ahead == [1]


def test_rounds_without_scores_change_nothing_but_the_scores(ahead: list[int]) -> None:
    sim = simulation()
    usual = list(played(sim, eval_every=2))
    ahead.clear()
    runtime = prepare(sim)
    short = list(rounds(runtime, begin(runtime), ROUNDS, 2, unscored=4))
    assert [told(each)[::2] for each in short] == [told(each)[::2] for each in usual]
    assert [bool(each.scores) for each in short] == [False] * 5 + [True] and short[-1].scores == usual[-1].scores
    assert ahead == [1, 2, 3, 4, 5]  # nothing to score, nothing to wait for
