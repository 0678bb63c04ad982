"""The part pfl, with canned answers of pfl's processes: who comes first, what a failure leaves, whether seeds agree."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from support import contests

from fedatoms.bench import line_up as who
from fedatoms.bench import pfl_part
from fedatoms.bench.gpu import measure
from fedatoms.bench.line_up import Contestant
from fedatoms.bench.pfl_part import APART, AS_PFL, PFL_BEST, Run, apart
from fedatoms.bench.pfl_task import Task
from fedatoms.bench.report import block
from fedatoms.bench.results import Gap, Ratio, Results, collect, machine
from fedatoms.bench.standings import lead

SETTINGS = replace(contests.TINY, parts="pfl", pfl_processes="1,2,5", data_dir="cifar", pfl_rounds=2, pfl_seeds=3)
FAR, NEAR = [60.0, 60.5, 61.0], [70.0, 71.5, 70.5]
OURS = [70.0, 70.5, 71.0]


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says that pfl is installed, and that fedatoms trains nothing, to certain accuracies."""
    found = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: name))
    monkeypatch.setattr(pfl_part, "importlib", found)
    entered = [Contestant(name, lambda: lambda: None, 2) for name in (who.PLAIN, who.OURS)]
    monkeypatch.setattr(pfl_part, "_our_entries", lambda task: entered)
    monkeypatch.setattr(pfl_part, "_train", lambda task, in_order: Run(OURS[task.seed] - in_order, 1.0))


def measured(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], reached: list[float], seeds: int = 3
) -> Results:
    """Measures the part with processes whose rounds take these seconds; any other number of them fails."""

    def run_pfl(task: Task, processes: int, longest: float = 0.0) -> dict[str, object]:
        if processes not in seconds:
            raise RuntimeError("the card has no room for so many\nand a traceback")
        each = [seconds[processes]] * task.turns
        return {"first": 1.0, "memory": None, "seconds": each, "accuracy": reached[task.seed]}

    monkeypatch.setattr(pfl_part, "run_pfl", run_pfl)
    settings = replace(SETTINGS, pfl_seeds=seeds)
    return collect(settings, measure(settings), machine("cpu"))


def test_processes_that_fail_leave_their_error_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    results = measured(monkeypatch, {1: 400.0, 2: 200.0}, FAR)
    assert results.gaps == [Gap("pfl, 5 processes", "RuntimeError: the card has no room for so many")]
    rows = [row.contestant for row in results.rows]
    assert rows == [who.PLAIN, who.OURS, "pfl, 1 process", "pfl, 2 processes"]
    line = "* pfl, 5 processes: not measured (RuntimeError: the card has no room for so many)"
    assert line in block(results, "picture.png").splitlines()


@pytest.mark.parametrize(
    ("seconds", "best"),
    [({1: 400.0, 2: 200.0}, "pfl, 2 processes"), ({1: 200.0, 2: 400.0, 5: 300.0}, "pfl, 1 process")],
)
def test_the_fastest_of_pfls_processes_comes_first(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], best: str
) -> None:
    results = measured(monkeypatch, seconds, FAR)
    ratios = [ratio for ratio in results.results if ratio.name.startswith("pfl")]
    fastest = sorted(seconds, key=lambda processes: seconds[processes])
    expected = [f"pfl, {n} process{'es' * (n > 1)} / fedatoms" for n in fastest]
    assert [ratio.name for ratio in ratios] == [PFL_BEST, *expected]
    assert ratios[0].detail.endswith(f"; {best}") and ratios[0].value == ratios[1].value < ratios[2].value
    assert f"times as fast as pfl at its best ({ratios[0].detail})" in _words(lead(results))
    reached = [ratio.name for ratio in results.results if ratio.name.startswith("accuracy on")]
    names = ("fedatoms, plain", "fedatoms, plain, images in pfl's order", best)
    assert reached == [f"accuracy on pfl's benchmark, {name}, %" for name in names]


@pytest.mark.parametrize(("reached", "verdict"), [(NEAR, "met"), (FAR, "missed")])
def test_accuracies_that_differ_by_more_than_their_seeds_miss_a_bar(
    monkeypatch: pytest.MonkeyPatch, reached: list[float], verdict: str
) -> None:
    results = measured(monkeypatch, {1: 400.0, 2: 200.0}, reached)
    *_, last, in_order = results.results
    assert last.name == f"{APART}, points" and last.verdict == verdict
    assert in_order.name == f"{APART}, images in pfl's order, points" and in_order.verdict == verdict
    assert in_order.detail != last.detail
    assert (f"{APART}, points, {last.value:.3f} instead of 0 ({last.detail})" in _words(lead(results))) == (
        verdict == "missed"
    )
    assert f"| {last.name} | {last.value:.3f} | at most 0 | {verdict} |" in block(results, "picture.png")


def test_one_seed_of_each_cannot_tell_and_says_how_many_would(monkeypatch: pytest.MonkeyPatch) -> None:
    results = measured(monkeypatch, {1: 400.0, 2: 200.0, 5: 300.0}, FAR, seeds=1)
    assert [gap.name for gap in results.gaps] == [APART, f"{APART}{AS_PFL}"]
    assert "--pfl-seeds 3" in results.gaps[0].reason
    assert not [ratio for ratio in results.results if ratio.name.startswith(APART)]


def test_atoms_with_the_network_of_pfl_have_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    results = measured(monkeypatch, {1: 400.0}, NEAR)
    assert [ratio.bar for ratio in results.results if ratio.name == f"decomposed / plain, {pfl_part.NETWORK}"] == [1.1]


def test_the_interval_of_accuracies_is_that_of_two_samples_with_one_spread() -> None:
    stats = pytest.importorskip("scipy.stats")
    for mine, theirs in (([70.45, 70.14, 71.10], [69.29, 69.23]), ([1.0], [3.0, 2.0, 2.5])):
        low, high = stats.ttest_ind(mine, theirs).confidence_interval()
        half, middle = (high - low) / 2, abs(high + low) / 2
        found = apart(mine, theirs)
        assert isinstance(found, Ratio) and found.value == pytest.approx(max(0.0, middle - half))
        assert f"{middle:.2f} ± {half:.2f} {'higher' if low + high > 0 else 'lower'}" in found.detail


def _words(text: str) -> str:
    return " ".join(text.split())
