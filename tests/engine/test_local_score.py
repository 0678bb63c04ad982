"""The score `local`: every client's last trained model, before it is averaged, on that client's own test images."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.cases import some_of
from support.small import clients_of, difference, identical, small_net

from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.core.inputs import take
from fedatoms.core.trees import Params, unstack
from fedatoms.engine.evaluation import evaluate, local_score
from fedatoms.engine.exchange import Exchange, every_round, fast_slow
from fedatoms.engine.loop import begin, rounds
from fedatoms.engine.round import advance, train_shared
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation, shared_phase
from fedatoms.engine.training import Training
from fedatoms.experiment.fields import Experiment
from fedatoms.personal import personal
from fedatoms.runs.execute import resume, run
from fedatoms.runs.rounds import read_rounds

TRAINING = Training(epochs=2, batch_size=10, lr=0.1, clip=1.0)
SIZES = (3, 7, 23, 12)
TINY = Experiment(
    clients=10, fraction=0.3, rounds=4, epochs=1, batch_size=32, checkpoint_every=2, failures=0.2, threads=1
)


def simulation(name: str = "fedavg", **changes: object) -> Simulation:
    sim = Simulation(
        small_net(norm=True, atoms=4),
        clients_of(SIZES),
        algorithm(name),
        training=TRAINING,
        fraction=1.0,
        score=("server", "local"),
    )
    return dataclasses.replace(sim, **changes)


MAPS = ("one_by_one", "vectorised")


def accuracy(runtime: Runtime, params: Params, rows: torch.Tensor) -> float:
    outputs = runtime.predict(params, take(runtime.data.test_x, rows))
    return 100 * float((outputs.argmax(1) == runtime.data.test_y[rows]).double().mean())


def trained_alone(runtime: Runtime, client: int) -> Params:
    """Trains one client from the first model, and nobody else."""
    state, phase = begin(runtime), shared_phase(runtime.sim)
    assert phase is not None
    ((_, reply),) = train_shared(runtime, state, [client], phase, {})
    return {**state.server.params, **unstack(reply.params, 0)}


@pytest.mark.parametrize("name", some_of(ALGORITHMS, "fedavg", "scaffold", "fednova", "moon"))
def test_after_one_round_it_is_the_mean_over_clients_of_models_that_each_trained_alone(name: str) -> None:
    runtime = prepare(simulation(name))
    state, _ = advance(runtime, begin(runtime))
    each = [accuracy(runtime, trained_alone(runtime, k), part) for k, part in enumerate(runtime.data.test_parts)]
    assert evaluate(runtime, state)["local"].value == pytest.approx(sum(each) / len(each), abs=1e-9)


def test_only_clients_that_have_trained_count() -> None:
    runtime = prepare(simulation(fraction=0.25))
    state, record = advance(runtime, begin(runtime))
    (client,) = state.clients.rows
    expected = accuracy(runtime, trained_alone(runtime, client), runtime.data.test_parts[client])
    found = local_score(runtime, state)
    assert record.clients == 1 and found is not None and found.value == pytest.approx(expected)


def test_before_any_client_has_trained_there_is_no_such_score() -> None:
    runtime = prepare(simulation())
    assert local_score(runtime, begin(runtime)) is None and set(evaluate(runtime, begin(runtime))) == {"server"}


@pytest.mark.parametrize("beta", ["every round", "discard", "keep"])
def test_it_is_what_the_client_trained_where_some_groups_stay_too(beta: str) -> None:
    slow = fast_slow({"atoms", "head"}, {"coefficients", "rest", "statistics"}, 2)
    exchange = Exchange(every_round()) if beta == "every round" else Exchange(slow, slow_local=beta)  # type: ignore[arg-type]
    runtime = prepare(simulation(exchange=exchange))
    state = begin(runtime)
    for _ in range(2):  # the second round is fast
        phase, before = shared_phase(runtime.sim), state
        assert phase is not None
        state, _record = advance(runtime, state)
        ((_, reply),) = train_shared(runtime, before, [1], phase, {})
        kept = state.clients.read(1)
        assert kept is not None and identical(kept.local, {n: unstack(reply.params, 0)[n] for n in kept.local})
        assert kept.local.keys() == runtime.layout.labels.keys()


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova"])
def test_vectorised_equals_one_by_one(name: str) -> None:
    ran = [[*rounds(prepare(simulation(name, map=map, block=2)), begin(prepare(simulation(name))), 3)] for map in MAPS]
    for loop, fast in zip(*ran, strict=True):
        assert loop.scores["local"].parts() == pytest.approx(fast.scores["local"].parts(), abs=1e-8)
    for client in range(len(SIZES)):
        mine, theirs = (progress[-1].state.clients.read(client) for progress in ran)
        assert mine is not None and theirs is not None and difference(mine.local, theirs.local) < 1e-10


@pytest.mark.parametrize("place", ["host", "disk"])
def test_it_does_not_depend_on_where_clients_keep_their_models(place: str, tmp_path: Path) -> None:
    here, there = (
        [progress.scores for progress in rounds(runtime, begin(runtime), 3)]
        for runtime in map(prepare, (simulation(), simulation(client_state=place, folder=tmp_path / "clients")))
    )
    assert here == there


def test_it_costs_no_bytes_and_changes_no_model() -> None:
    scored, plain = (
        list(rounds(runtime, begin(runtime), 3))
        for runtime in map(prepare, (simulation("scaffold"), simulation("scaffold", score=("server",))))
    )
    for one, other in zip(scored, plain, strict=True):
        assert (one.record.up, one.record.down, one.record.loss) == (
            other.record.up,
            other.record.down,
            other.record.loss,
        )
        assert identical(one.state.server.params, other.state.server.params)


@pytest.mark.parametrize("place", ["device", "disk"])
def test_a_run_that_was_stopped_has_the_scores_of_one_that_was_not(place: str, tmp_path: Path) -> None:
    tiny = replace(TINY, score="server,all,local", client_state=place, out=str(tmp_path))
    run(replace(tiny, name="whole"))
    run(replace(tiny, name="stopped", rounds=2))
    resume(tmp_path / "stopped", {"rounds": 4})
    whole, stopped = (
        [(row["scores"], row["up"], row["loss"]) for row in read_rounds(tmp_path / name)]
        for name in ("whole", "stopped")
    )
    assert whole == stopped and "local" in whole[-1][0]
    assert identical(*(load_file(tmp_path / name / "model.safetensors") for name in ("whole", "stopped")))


def test_personalised_methods_have_their_own_score() -> None:
    for name in ("local", "local-atoms", "finetune"):
        with pytest.raises(ValueError, match=r"score=local: .* Use score=personal"):
            simulation(personal=personal(name))
