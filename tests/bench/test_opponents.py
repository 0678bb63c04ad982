"""The opponents do the work that they are said to do: the expert's loop, and pfl-research on its own benchmark."""

import copy
import importlib.util
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import contests
from support.cases import some_now
from support.small import difference

from fedatoms.bench import contest as turns
from fedatoms.bench import fresh
from fedatoms.bench import line_up as who
from fedatoms.bench.expert_loop import LAYOUTS, by_expert, desk_of, expert_round, fastest_step, whole_step
from fedatoms.bench.gpu import measure
from fedatoms.bench.line_up import Cell, by_hand, cell_clients, eager_round
from fedatoms.bench.pfl_part import APART, AS_PFL, NETWORK, PFL_BEST, pfl_clients, task_of
from fedatoms.bench.pfl_task import cnn
from fedatoms.bench.results import Event, Gap, Ratio, Row
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation

TINY = replace(contests.TINY, clients="2", rounds=2, pfl_processes="1,2")
with_pfl = pytest.mark.skipif(importlib.util.find_spec("pfl") is None, reason="pfl is not installed")


def clients(batch: int) -> Simulation:
    """Two clients of two steps: with momentum for a small batch, without for a large one."""
    return cell_clients(replace(TINY, samples=2 * batch), Cell(2, batch))


def eager_model(sim: Simulation, rounds: int) -> dict[str, torch.Tensor]:
    model = copy.deepcopy(sim.model)
    for t in range(rounds):
        eager_round(sim, model, t)
    return dict(model.state_dict())


@pytest.mark.parametrize(("batch", "atoms"), some_now([2, 50], [True, False]))
def test_the_experts_loop_trains_the_model_of_the_eager_loop(batch: int, atoms: bool) -> None:
    sim = clients(batch)
    sim = sim if atoms else replace(sim, model=who.build("lenet", classes=10))
    desk = desk_of(sim)
    step = fastest_step(sim, desk)
    for t in range(2):
        expert_round(sim, desk, step, t)
    expected = eager_model(sim, 2)
    assert difference(expected, dict(sim.model.state_dict())) > 1e-4  # they have learnt
    assert difference(expected, dict(desk.model.state_dict())) < 1e-6


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_experts_memory_layout_does_not_matter(layout: torch.memory_format) -> None:
    sim = clients(2)
    desk = desk_of(sim)
    fastest_step(sim, desk)  # makes the optimiser's momentum
    expert_round(sim, desk, whole_step(sim, desk, layout=layout), 0)
    assert difference(eager_model(sim, 1), dict(desk.model.state_dict())) < 1e-6


def test_setting_the_experts_loop_up_trains_nothing() -> None:
    sim = clients(2)
    desk = desk_of(sim)
    fastest_step(sim, desk)
    assert difference(dict(sim.model.state_dict()), dict(desk.model.state_dict())) == 0


def test_a_learning_rate_that_falls_does_so_in_the_experts_loop() -> None:
    sim = clients(2)
    sim = replace(sim, training=sim.training._replace(lr_decay=0.5))
    desk = desk_of(sim)
    step = fastest_step(sim, desk)
    for t in range(3):
        expert_round(sim, desk, step, t)
    assert difference(eager_model(sim, 3), dict(desk.model.state_dict())) < 1e-6


def test_compiled_loops_run() -> None:
    for work in (by_expert(clients(2), "eager"), by_hand(clients(2), "eager", "reduce-overhead")):
        work()
        work()


def test_the_network_of_pfl_has_its_number_of_parameters() -> None:
    assert sum(leaf.numel() for leaf in cnn().parameters()) == 1_626_442
    assert difference(dict(cnn(1).state_dict()), dict(cnn(1).state_dict())) == 0
    assert difference(dict(cnn(1).state_dict()), dict(cnn(2).state_dict())) > 0


def test_the_clients_of_pfl_share_no_image() -> None:
    sim = pfl_clients(task_of(TINY, rounds=1, turns=1))
    rows = torch.cat(sim.data.parts)
    assert len(sim.data.parts) == 4 and len(rows.unique()) == len(rows) == 200


def test_too_many_clients_for_the_images_are_refused(tmp_path: Path) -> None:
    settings = replace(TINY, pfl_clients=5, data_dir=str(cifar(tmp_path)))
    with pytest.raises(ValueError, match=r"need 250, there are 200\. Use --pfl-clients 4 or fewer"):
        pfl_clients(task_of(settings, rounds=1, turns=1))


def test_without_pfl_the_part_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pfl", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    gaps = [event for event in measure(replace(TINY, parts="pfl")) if isinstance(event, Gap)]
    assert [gap.name for gap in gaps] == ["pfl"] and "pip install --no-deps" in gaps[0].reason


@pytest.fixture
def endless(tmp_path: Path) -> dict[str, str]:
    """Returns the environment of a module that never ends, unless it is to fail."""
    code = "import os, time\nif os.environ['FAILS'] == 'yes':\n    raise ValueError('no card')\ntime.sleep(600)\n"
    (tmp_path / "endless.py").write_text(code)
    return {"PYTHONPATH": str(tmp_path), "FAILS": "no"}


def test_a_process_that_fails_ends_those_beside_it(endless: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="ValueError: no card"):
        fresh.ask_together("endless", envs=[endless, {**endless, "FAILS": "yes"}], longest=60)


def test_a_process_that_takes_too_long_is_ended(endless: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="after 1 seconds"):
        fresh.ask_together("endless", envs=[endless], longest=1)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The part in small, with accuracies after two rounds."""
    folder = cifar(tmp_path_factory.mktemp("cifar"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "WHILE", 0.02)
        return list(measure(replace(TINY, parts="pfl", data_dir=str(folder), pfl_rounds=2)))


@with_pfl
@pytest.mark.slow
def test_pfl_and_fedatoms_take_part_in_pfls_benchmark(events: list[Event]) -> None:
    assert [event.name for event in events if isinstance(event, Gap)] == [APART, f"{APART}{AS_PFL}"]  # of one seed
    rows = [event for event in events if isinstance(event, Row)]
    assert [row.contestant for row in rows] == [who.PLAIN, who.OURS, "pfl, 1 process", "pfl, 2 processes"]
    for row in rows:
        assert row.network == NETWORK and row.steps == 5 and len(row.seconds) == 2


@with_pfl
@pytest.mark.slow
def test_the_best_of_pfls_processes_is_compared_first(events: list[Event]) -> None:
    ratios = [event for event in events if isinstance(event, Ratio)][2:]  # after the limits of the card
    one = next(ratio for ratio in ratios if ratio.name == "pfl, 1 process / fedatoms")
    assert ratios[0].name == PFL_BEST and one.bar == 50
    others = [ratio for ratio in ratios if ratio.name.endswith("es / fedatoms") or ratio is one]
    assert ratios[0].value == others[0].value and len(others) == 2


@with_pfl
@pytest.mark.slow
def test_both_reach_an_accuracy(events: list[Event]) -> None:
    reached = [event for event in events if isinstance(event, Ratio) and event.name.startswith("accuracy on")]
    assert len(reached) == 3  # ours with images in pfl's order, too
    for ratio in reached:
        assert 0 <= ratio.value <= 100 and "2 rounds, 1 seeds" in ratio.detail


@with_pfl
@pytest.mark.slow
def test_pfls_round_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dropout and with one client whose images fill one batch, so that no order is drawn."""
    from fedatoms.bench import pfl_task, pfl_twin

    def calm(seed: int = 0) -> torch.nn.Sequential:
        return torch.nn.Sequential(*[each for each in cnn(seed) if not isinstance(each, torch.nn.Dropout)])

    monkeypatch.setenv("PFL_PYTORCH_DEVICE", "cpu")
    monkeypatch.setattr(torch.distributed, "init_process_group", torch.distributed.init_process_group)
    monkeypatch.setattr(pfl_twin, "BATCH", pfl_task.IMAGES)
    task = task_of(replace(TINY, pfl_clients=1, pfl_cohort=1), rounds=1, turns=1)
    model = pfl_twin.Scored(calm())
    pfl_twin._train(task, model, pfl_twin._backend(task, pfl_task.images_of(task)), pfl_twin._clock(task, 0.0))
    sim = pfl_clients(task)
    sim = replace(sim, model=calm(), training=sim.training._replace(batch_size=pfl_task.IMAGES))
    runtime = prepare(sim)
    state = begin(runtime)
    for _ in range(2):
        state, _ = advance(runtime, state)
    assert difference(dict(calm().state_dict()), state.server.params) > 1e-2  # they have learnt
    assert difference(dict(model.net.state_dict()), state.server.params) < 1e-4


def cifar(folder: Path) -> Path:
    """Writes 200 random images and ten of a test set as CIFAR-10 has them."""
    draws = np.random.default_rng(0)
    for name, count in {**{f"data_batch_{part}": 40 for part in range(1, 6)}, "test_batch": 10}.items():
        content = {
            b"data": draws.integers(0, 256, (count, 3072), dtype=np.uint8),
            b"labels": draws.integers(0, 10, count).tolist(),
        }
        (folder / name).write_bytes(pickle.dumps(content))
    return folder
