"""A step of several batches is a step of one that is as large as all of them, in both maps and on padding."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support.cases import some_now
from support.small import clients_of, difference, play, small_net

from fedatoms.algorithms import algorithm, scaffold
from fedatoms.core.options import Map
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.experiment.build import simulation as build
from fedatoms.experiment.build import training_of
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import from_json, to_json
from fedatoms.experiment.identities import identity
from fedatoms.optimisers import OPTIMISERS, cosine, optimiser
from fedatoms.testing import laws
from fedatoms.testing.small import TRAINING, simulation

SMALL = Training(epochs=2, batch_size=3, lr=0.05, lr_decay=0.9, weight_decay=1e-2, clip=0.3, accumulate=3)
LARGE = SMALL._replace(batch_size=9, accumulate=1)


@pytest.mark.parametrize(
    ("map", "name", "method"), some_now(["one_by_one", "vectorised"], OPTIMISERS, ["scaffold", "fedavg"], times=2)
)
def test_accumulated_batches_are_one_large_batch(map: Map, name: str, method: str) -> None:
    """Clients of 1, 7, 23 and 9 samples: with last batches that are short, and last steps that lack batches."""
    if (name, method) == ("adamw", "scaffold"):
        method = "fedprox"
    rule = {"optimiser": optimiser(name), "schedule": cosine(3, steps="cosine")}
    sims = [
        Simulation(small_net(atoms=4), clients_of((1, 7, 23, 9)), algorithm(method), training=each, map=map)
        for each in (SMALL._replace(**rule), LARGE._replace(**rule))
    ]
    few, many = (play(sim, 3) for sim in sims)
    assert difference(few.server.params, many.server.params) < 1e-12
    for k, row in few.clients.rows.items():
        for kind, tree in row.memory.items():
            assert difference(tree, many.clients.rows[k].memory[kind]) < 1e-11


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("law", [laws.vectorised, laws.resumable, laws.repeatable, laws.alone])
def test_every_optimiser_keeps_the_laws_with_accumulation(name: str, law: Callable[[Simulation], None]) -> None:
    """With BatchNorm, whose statistics no batch of padding may touch, and dropout, which differs between batches."""
    law(simulation(training=TRAINING._replace(momentum=0.0, optimiser=optimiser(name), batch_size=2, accumulate=3)))


def test_a_graphs_buffers_take_accumulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    sim = Simulation(small_net(norm=True), clients_of((1, 7, 12)), scaffold(), training=SMALL)
    runtime = prepare(sim)._replace(map_clients=cuda_graph.compiled(2))
    assert difference(play(sim, 2).server.params, play(runtime, 2).server.params) < 1e-10


def test_dropout_differs_between_the_batches_of_a_step() -> None:
    """One sample again and again: with the same masks, more batches of it would change nothing."""
    data = clients_of((8,))
    data = data._replace(x=data.x[:1].expand_as(data.x).clone(), y=data.y[:1].expand_as(data.y).clone())
    training = Training(batch_size=1, lr=0.1, accumulate=4)
    sim = Simulation(small_net(dropout=True), data, training=training)
    one = replace(sim, data=data._replace(parts=[torch.arange(1)]))
    assert difference(play(sim, 1).server.params, play(one, 1).server.params) > 1e-6


def test_an_older_experiment_has_a_step_per_batch_and_keeps_its_identity() -> None:
    fields = {name: value for name, value in to_json(Experiment()).items() if name != "accumulate"}
    assert from_json(fields) == Experiment(beta="1/1") and training_of(Experiment(accumulate=2)).samples == 20
    assert identity(Experiment(accumulate=2)) != identity(Experiment())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accumulate": 0}, "accumulate=0 is less than 1. Use accumulate=1 for a step per batch"),
        (
            {"accumulate": 10**6},
            "^accumulate=1000000 batches of 10 are more than the 1,437 training images. Use 144 or",
        ),
        ({"accumulate": 145}, "^accumulate=145 batches of 10 are more than the 1,437 training images. Use 144 or"),
        ({"warmup_steps": 10**9}, "^warmup_steps=1000000000 is more than 1e6. Use 0 or a whole number above it"),
        ({"warmup_steps": 1441}, "^warmup_steps=1441 is more than the 1,440 steps that a client can take in a round"),
    ],
)
def test_more_batches_than_there_are_images_are_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(Experiment(**changes))
