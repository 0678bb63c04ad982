"""The compiled map: the same replies as the plain one, from buffers that are filled again in each round."""

import gc
import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.cases import some_of
from support.small import all_scores, clients_of, difference, play, small_net
from torch.fx import GraphModule

from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.engine.exchange import FAST, SLOW, Exchange, fast_slow
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.engine.training import Training

TRAINING = Training(epochs=2, batch_size=10, lr=0.05, lr_decay=0.9, momentum=0.5, weight_decay=1e-3, clip=1.0)


def with_compiled_map(sim: Simulation, block: int) -> Runtime:
    # on a CPU another map would be chosen
    return prepare(sim)._replace(map_clients=cuda_graph.compiled(block))


def agree(one: State, other: State) -> bool:
    memories = all(difference(tree, other.server.memory[kind]) < 1e-10 for kind, tree in one.server.memory.items())
    return memories and difference(one.server.params, other.server.params) < 1e-10


NOW = {("fedavg", 2), ("scaffold", 5)}


@pytest.mark.parametrize(
    ("name", "block"),
    [
        pytest.param(*case, marks=() if case in NOW else pytest.mark.slow)
        for case in itertools.product(ALGORITHMS, (2, 5))
    ],
)
def test_buffers_and_idle_clients_do_not_matter(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler: blocks that are too long or too short, unequal clients, failures, fast and slow rounds."""
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    sim = Simulation(
        small_net(norm=True, dropout=True, atoms=4),
        clients_of((1, 7, 23, 4)),
        algorithm(name),
        exchange=Exchange(fast_slow(FAST, SLOW, 2)),
        training=TRAINING._replace(atoms_lr=2.0, atoms_decay=3.0),
        failures=0.3,
        score=all_scores(algorithm(name)),
    )
    assert agree(play(sim, 4), play(with_compiled_map(sim, block), 4))


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_not_collected_while_a_step_is_compiled(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def look(graph: GraphModule, example: object) -> Callable[..., object]:
        seen.append(gc.isenabled())
        if len(seen) > 1:
            raise torch.OutOfMemoryError
        return graph.forward

    monkeypatch.setattr(cuda_graph, "compile_graph", look)
    try:
        if not enabled:
            gc.disable()
        sim = Simulation(small_net(), clients_of((7, 4)), algorithm("fedavg"), training=TRAINING)
        play(with_compiled_map(sim, 2), 2)
        assert seen == [False] and gc.isenabled() == enabled
        with pytest.raises(torch.OutOfMemoryError):
            play(with_compiled_map(sim, 2), 1)
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


@pytest.mark.parametrize("atoms", [pytest.param(None, marks=pytest.mark.slow), 4])
def test_a_step_is_one_graph_and_is_compiled_once(atoms: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler takes the whole step, and neither a new round, rate nor short block compiles again."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # torch's own
        from torch._inductor.compile_fx import compile_fx
    compiled: list[int] = []

    def run_it(graph: GraphModule, inputs: object, **options: object) -> Callable[..., object]:
        compiled.append(1)
        return graph.forward

    monkeypatch.setattr(
        cuda_graph, "compile_graph", lambda graph, example: compile_fx(graph, example, inner_compile=run_it)
    )
    net = small_net(norm=True, dropout=True, atoms=atoms)
    sim = Simulation(net, clients_of((1, 7, 12)), algorithm("scaffold"), training=TRAINING, score=("server",))
    assert agree(play(sim, 3), play(with_compiled_map(sim, 2), 3))
    assert len(compiled) == 1


@pytest.mark.parametrize("name", some_of(["scaffold", "feddc"], "scaffold"))
def test_states_from_files_and_rounds_that_differ_in_statistics_only(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files give tensors back in another order; and such a round is another program."""
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    sim = Simulation(
        small_net(norm=True, atoms=4),
        clients_of((3, 7, 4)),
        algorithm(name),
        exchange=Exchange(fast_slow({"atoms", "coefficients", "head", "rest"}, {"statistics"}, 2)),
        training=TRAINING,
        client_state="disk",
        folder=tmp_path,
    )
    assert agree(play(sim, 4), play(with_compiled_map(sim, 2), 4))


def test_a_step_that_cannot_be_compiled_is_trained_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(graph: object, example: object) -> object:
        raise NotImplementedError("no compiler here")

    monkeypatch.setattr(cuda_graph, "compile_graph", refuse)
    sim = Simulation(small_net(), clients_of((3, 5)), training=TRAINING)
    with pytest.warns(UserWarning, match="cannot be compiled .no compiler here") as warned:
        assert agree(play(sim, 3), play(with_compiled_map(sim, 2), 3))
    assert len(warned) == 1  # and it is not tried again in each round


def test_a_step_with_another_head_is_another_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    sim = Simulation(small_net(), clients_of((7, 12)), algorithm("moon", 5.0), training=TRAINING, map="vectorised")
    first = with_compiled_map(replace(sim, head="fc2"), 2)
    play(first, 2)
    other = replace(sim, head="fc1")
    again = prepare(other)._replace(map_clients=first.map_clients)
    assert agree(play(other, 2), play(again, 2))
    assert prepare(other, like=first).map_clients is not first.map_clients
