"""Schedules of the learning rate, over rounds and within them: the same in both maps, on Flower and after a stop."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.cases import some_of
from support.small import clients_of, difference, identical, play, small_net

from fedatoms.adapt.joining import Newcomer, _as_experiment
from fedatoms.algorithms import algorithm, scaffold
from fedatoms.core.options import Map
from fedatoms.engine.client_round import rate_of
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.finetune import last_pass
from fedatoms.engine.loop import begin
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation, batches_of
from fedatoms.engine.training import Training
from fedatoms.experiment.build import simulation as simulate
from fedatoms.experiment.build import training_of
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import from_json, to_json
from fedatoms.experiment.identities import identity, trajectory
from fedatoms.optimisers import OPTIMISERS, Schedule, constant, cosine, optimiser
from fedatoms.personal import finetune
from fedatoms.runs.execute import resume, run
from fedatoms.testing import laws
from fedatoms.testing.small import TRAINING, simulation

BOTH = cosine(rounds=4, warmup=1, steps="cosine", warmup_steps=2)


def factor(place: int, length: int, warmup: int) -> float:
    if place < warmup:
        return (place + 1) / (warmup + 1)
    return (1 + math.cos(math.pi * (place - warmup) / (length - warmup))) / 2


def test_a_cosine_falls_over_the_rounds_after_a_warm_up_and_then_stays() -> None:
    training = Training(lr=0.1, lr_decay=0.9, schedule=cosine(rounds=10, warmup=3))
    rates = [rate_of(training, t) for t in range(12)]
    assert rates[:10] == pytest.approx([0.1 * 0.9**t * factor(t, 10, 3) for t in range(10)])
    assert rates[11] == pytest.approx(rates[9] * 0.81)
    assert [constant().of_round(t) for t in (0, 50)] == [1, 1] and constant().of_step is None


def by_torch(sim: Simulation) -> dict[str, torch.Tensor]:
    """Trains a single client for a round with torch's SGD and a scheduler over its steps."""
    model, training = small_net(), sim.training
    rule = torch.optim.SGD(model.parameters(), rate_of(training, 0), momentum=training.momentum)
    drawn = batches_of(sim, 0, 0)
    steps = torch.optim.lr_scheduler.LambdaLR(rule, lambda s: factor(s, len(drawn.rows), 2))
    for rows, real in zip(drawn.rows, drawn.real, strict=True):
        rule.zero_grad()
        torch.nn.functional.cross_entropy(model(sim.data.x[rows[real]]), sim.data.y[rows[real]]).backward()
        rule.step()
        steps.step()
    return {name: leaf.detach() for name, leaf in model.named_parameters()}


@pytest.mark.parametrize("map", ["one_by_one", "vectorised"])
def test_steps_are_scheduled_as_torchs_schedulers_do(map: Map) -> None:
    training = Training(epochs=2, batch_size=4, lr=0.1, momentum=0.9, schedule=BOTH)
    sim = Simulation(small_net(), clients_of((23,)), training=training, map=map)
    assert difference(play(sim, 1).server.params, by_torch(sim)) < 1e-12


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("law", [laws.vectorised, laws.resumable, laws.repeatable])
def test_every_optimiser_keeps_the_laws_with_a_schedule(name: str, law: Callable[[Simulation], None]) -> None:
    """Clients of unequal numbers of steps, each with its own schedule over them."""
    law(simulation(training=TRAINING._replace(momentum=0.0, optimiser=optimiser(name), schedule=BOTH)))


@pytest.mark.parametrize("map", ["one_by_one", "vectorised"])
@pytest.mark.parametrize("name", ["scaffold", "feddc"])
@pytest.mark.parametrize("controls", ["current", "first"])
def test_a_schedule_within_a_round_measures_moves_by_the_sum_of_its_rates(map: Map, name: str, controls: str) -> None:
    """A loss whose gradient is the same everywhere: the control of a client is that gradient, however it moved.

    By the first rate, too, which the warm-up makes half of `lr`.
    """
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 3)).double()
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([0.0, 0.0, 50.0]))  # probabilities that no small step changes
    data = clients_of((4, 9))
    data = data._replace(x=torch.zeros_like(data.x), y=torch.zeros_like(data.y))
    training = Training(epochs=3, batch_size=2, lr=1e-3, momentum=0.5, controls=controls, schedule=BOTH)
    state = play(Simulation(model, data, algorithm(name), training=training, map=map), 1)
    kind = {"scaffold": "control", "feddc": "gradient"}[name]
    expected = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    for k in range(2):
        found = state.clients.rows[k].memory[kind]["1.bias"]
        assert torch.allclose(found, expected, atol=1e-6 + (name == "feddc") * 1e-3)


@pytest.mark.parametrize("map", ["one_by_one", "vectorised"])
@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_in_the_first_round_controls_by_its_rate_are_controls_by_the_first(map: Map, warmup: int) -> None:
    """However short the warm-up makes its steps."""
    memory = {}
    for controls in ("current", "first"):
        training = Training(batch_size=4, lr=0.05, lr_decay=0.5, controls=controls, schedule=constant(warmup))
        sim = Simulation(small_net(), clients_of((4, 9)), algorithm("scaffold"), training=training, map=map)
        memory[controls] = play(sim, 1).server.memory["control"]
    assert identical(memory["current"], memory["first"])


def test_a_graphs_buffers_take_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    training = Training(epochs=2, batch_size=5, lr=0.05, momentum=0.5, schedule=BOTH)
    sim = Simulation(small_net(norm=True), clients_of((1, 7, 12)), scaffold(), training=training)
    runtime = prepare(sim)._replace(map_clients=cuda_graph.compiled(2))
    assert difference(play(sim, 3).server.params, play(runtime, 3).server.params) < 1e-10


def test_a_schedule_of_your_own_is_two_functions() -> None:
    halved = Schedule(lambda t: 0.5, lambda step, steps: torch.where(step < steps / 2, 1.0, 0.0))
    sim = Simulation(small_net(), clients_of((8,)), training=Training(epochs=2, batch_size=8, lr=0.1, schedule=halved))
    once = replace(sim, training=Training(epochs=1, batch_size=8, lr=0.05))
    assert difference(play(sim, 1).server.params, play(once, 1).server.params) < 1e-12  # its second step rests


OWN = {
    "without steps": lambda step, steps: 0.9**step,
    "without the step": lambda step, steps: 1 / steps,
    "a number": lambda step, steps: 0.5,
}


@pytest.mark.parametrize("name", some_of(OWN, "without steps", "a number"))
def test_factors_may_depend_on_the_step_or_the_steps_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For unequal clients, one after another, at once, and from a graph's buffers."""
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    training = Training(epochs=2, batch_size=4, lr=0.05, schedule=Schedule(lambda t: 1.0, OWN[name]))
    sim = Simulation(small_net(), clients_of((1, 7, 12)), scaffold(), training=training, map="one_by_one")
    loop, fast = (play(replace(sim, map=map), 2).server.params for map in ("one_by_one", "vectorised"))
    graph = play(prepare(sim)._replace(map_clients=cuda_graph.compiled(2)), 2).server.params
    assert difference(loop, fast) < 1e-10 and difference(loop, graph) < 1e-10
    assert difference(loop, play(replace(sim, training=Training(epochs=2, batch_size=4, lr=0.05)), 2).server.params)


@pytest.mark.parametrize(
    ("of_step", "words"),
    [
        (lambda step, steps: 1 - step, "^step 3 of 6: the schedule's factor -1.0 is negative or not finite. Let of_"),
        (lambda step, steps: step / (steps - 2), "^step 1 of 2: the schedule's factor nan is negative or not finite"),
        (lambda step, steps: math.inf, "^step 1 of 2: the schedule's factor inf is negative or not finite"),
        (lambda step, steps: math.cos(step), "^the schedule's of_step fails on 2 steps .* with tensors, for"),
        (lambda step, steps: None, "^the schedule's of_step fails on 2 steps .* with tensors, for"),
        (lambda step, steps: step[:, None], "^the schedule's of_step has the shape .* for 2 steps. Let it compute a"),
    ],
)
def test_a_factor_that_no_step_can_have_is_refused(of_step: Callable[..., torch.Tensor], words: str) -> None:
    training = Training(epochs=2, batch_size=4, schedule=Schedule(lambda t: 1.0, of_step))
    with pytest.raises(ValueError, match=words):
        Simulation(small_net(), clients_of((1, 12)), training=training)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Training(schedule="cosine"), "^schedule='cosine' is not a schedule. Use .*cosine"),
        (lambda: cosine(rounds=0), "rounds=0 is less than 1"),
        (lambda: constant(warmup=-1), "warmup=-1 is less than 0"),
        (lambda: cosine(rounds=3, warmup=3), "warmup=3 leaves no round of 3 to fall in. Use warmup=2 or less"),
        (lambda: simulate(Experiment(rounds=2, schedule="cosine", warmup=5)), "warmup=5 leaves no round of 2"),
        (
            lambda: rate_of(Training(schedule=Schedule(lambda t: -1.0)), 4),
            "^round 5: the schedule's factor -1.0 is",
        ),
        (lambda: rate_of(Training(schedule=Schedule(lambda t: math.nan)), 0), "^round 1: the schedule's factor nan is"),
        (lambda: constant(steps="cosin"), "unknown steps 'cosin'. Did you mean 'cosine'"),
    ],
)
def test_what_is_no_schedule_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


ADDED = ("schedule", "warmup", "step_schedule", "warmup_steps")


def test_an_older_experiment_means_a_constant_rate_and_keeps_its_identity() -> None:
    fields = {name: value for name, value in to_json(Experiment()).items() if name not in ADDED}
    assert from_json(fields) == Experiment(beta="1/1") and training_of(Experiment()).schedule is None
    for changes in ({"schedule": "cosine"}, {"warmup": 1}, {"step_schedule": "cosine"}, {"warmup_steps": 1}):
        assert identity(Experiment(**changes)) != identity(Experiment())


def test_a_run_with_a_cosine_is_resumed_to_its_end_and_not_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = Experiment(clients=5, rounds=3, epochs=1, batch_size=50, schedule="cosine", step_schedule="cosine")
    whole = run(replace(quick, name="whole"))

    def stop(progress: object) -> None:
        if progress.state.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(replace(quick, name="part"), watch=stop)
    assert resume(Path("runs/part"), {}).model_sha256 == whole.model_sha256
    with pytest.raises(ValueError, match="`rounds` cannot change in a resumed run"):
        resume(Path("runs/whole"), {"rounds": 5})
    assert trajectory(replace(quick, rounds=5)) != trajectory(quick)
    assert trajectory(Experiment(rounds=5)) == trajectory(Experiment())


def test_the_last_pass_trains_at_the_rate_without_its_fall_over_rounds() -> None:
    flat = Training(epochs=1, batch_size=4, lr=0.1, lr_decay=0.999, schedule=constant(steps="cosine"))
    own = []
    for training in (flat, replace(flat, schedule=cosine(rounds=1000, warmup=2, steps="cosine"))):
        runtime = prepare(Simulation(small_net(), clients_of((8,)), personal=finetune(), training=training))
        _, state = last_pass(runtime, begin(runtime)._replace(round=1000), 1)
        own.append(state.clients.rows[0].own)
    assert identical(*own)


def test_a_newcomer_trains_at_the_last_rate_without_the_schedule() -> None:
    experiment = Experiment(schedule="cosine", warmup=2, lr=0.1, lr_decay=1.0, rounds=10)
    found = _as_experiment(Newcomer(), experiment)
    assert found.lr == 0.1 == rate_of(training_of(found), 0)
    assert _as_experiment(Newcomer(), replace(experiment, lr_decay=0.5)).lr == 0.1 * 0.5**10


def test_without_a_schedule_nothing_changes() -> None:
    sim = Simulation(small_net(), clients_of((4, 7)), training=Training(lr=0.05))
    same = replace(sim, training=Training(lr=0.05, schedule=constant()))
    assert identical(play(sim, 2).server.params, play(same, 2).server.params)
