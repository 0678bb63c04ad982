"""The benchmark on a CPU compares who takes turns, and does the work that it names; no test here asserts a time."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.contests import TINY

from fedatoms.bench import cpu
from fedatoms.bench.line_up import resnet_clients
from fedatoms.bench.results import Ratio
from fedatoms.engine.spec import Simulation, batches_of
from fedatoms.nn.atoms import is_decomposed

SECONDS = {"by hand": 1.0, "one_by_one": 1.04, "one_by_one, atoms": 1.1, "vectorised": 2.08, "ResNet-18": 1.0}


def ratios(monkeypatch: pytest.MonkeyPatch, atoms: float) -> dict[str, Ratio]:
    """Compares contestants that take these seconds by a clock of the test's own, and longer in their first round."""
    passed, turns = 0.0, list[str]()

    def taking(name: str, seconds: float) -> Callable[[], object]:
        def work() -> None:
            nonlocal passed
            passed += seconds if name in turns else 10 * seconds
            turns.append(name)

        return work

    seconds = {**SECONDS, "ResNet-18, atoms": atoms}
    monkeypatch.setattr(cpu, "_contestants", lambda settings: {name: taking(name, s) for name, s in seconds.items()})
    monkeypatch.setattr(cpu, "time", SimpleNamespace(perf_counter=lambda: passed))
    found = [event for event in cpu._rounds(replace(TINY, repeats=2)) if isinstance(event, Ratio)]
    assert turns == [*seconds] * 3  # after a first round of each, all take turns
    return {ratio.name: ratio for ratio in found}


def test_resnet_takes_turns_with_the_others_and_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    for atoms, verdict in ((1.29, "met"), (1.31, "missed")):
        ratio = ratios(monkeypatch, atoms)["decomposed / plain, ResNet-18"]
        assert ratio.value == pytest.approx(atoms) and ratio.verdict == verdict
        assert ratio.detail.endswith("a round, ResNet-18, 2 clients x 40 images of 64 pixels")


def test_the_bars_of_lenet_are_those_that_were_set(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ratios(monkeypatch, 1.0)
    assert found["round / hand-written loop"].value == pytest.approx(1.04)
    assert found["round / hand-written loop"].verdict == "missed"  # above 1.03
    assert found["decomposed / plain"].verdict == "met"
    assert found["vectorised / one_by_one"].value == pytest.approx(2)


def test_all_that_is_compared_takes_part_and_atoms_where_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_first_round_of", lambda sim: sim)  # trains nothing
    found = cpu._contestants(TINY)
    assert {name for _, over, under, *_ in cpu.COMPARED for name in (over, under)} == set(found)
    for name, sim in found.items():
        if isinstance(sim, Simulation):
            assert is_decomposed(sim.model) == name.endswith("atoms")
            assert sim.map == ("vectorised" if name == "vectorised" else "one_by_one")


def test_the_clients_of_resnet_do_the_work_that_is_named() -> None:
    sim = resnet_clients(cpu.CLIENTS, cpu.IMAGES)
    assert sim.data.x.shape == (80, 3, 64, 64) and len(sim.data.parts) == 2 and sim.fraction == 1
    assert batches_of(sim, 0, 0).rows.shape == (2, 20) and sim.training.momentum > 0
    assert is_decomposed(cpu._with_atoms(sim).model) and not is_decomposed(sim.model)
