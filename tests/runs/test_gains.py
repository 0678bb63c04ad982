"""The gain column of a comparison: paired by the seeds that both have, against the first row."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from support.results import a_run

from fedatoms.cli.result_tables import comparison, judgement
from fedatoms.core.gains import over_seeds, student
from fedatoms.runs.comparison import Line, compare
from fedatoms.runs.results import read_result


def compared(folder: Path, *lines: dict[int, float]) -> list[Line]:
    """Compares experiments with accuracies by seed."""
    return compare(
        [
            read_result(a_run(folder / f"{n}-{seed}", accuracy, seed=seed, lr=0.1 * (n + 1)))
            for n, line in enumerate(lines)
            for seed, accuracy in line.items()
        ]
    )


def test_gains_are_paired_by_the_seeds_that_both_have(tmp_path: Path) -> None:
    first, second = compared(tmp_path, {0: 50.0, 1: 52.0, 2: 54.0}, {1: 53.0, 2: 57.0, 3: 99.0})
    assert first.gains == {} and second.gains == dict.fromkeys(("server", "all"), over_seeds([1.0, 3.0]))


def test_a_row_without_a_common_seed_has_a_dash(tmp_path: Path) -> None:
    lines = compared(tmp_path, {0: 50.0}, {1: 60.0}, {0: 60.0})
    assert lines[1].gains == {"server": None, "all": None}
    assert _rows(lines, "all") == [["50.00"], ["60.00", "-"], ["60.00", "+10.00"]]


def test_one_seed_has_the_spread_of_the_other_rows(tmp_path: Path) -> None:
    lines = compared(tmp_path, {0: 50.0, 1: 50.0, 2: 50.0}, {0: 51.0, 1: 52.0, 2: 53.0}, {0: 60.0})
    gain = lines[2].gains["all"]
    assert gain is not None and gain.how == "pooled" and gain.low is not None


def test_rows_over_one_baseline_lend_fewer_degrees_than_others(tmp_path: Path) -> None:
    base = {0: 50.0, 1: 50.0, 2: 50.0}
    lines = compared(tmp_path, base, {0: 51.0, 1: 52.0, 2: 53.0}, {0: 54.0, 1: 56.0, 2: 55.0}, {0: 60.0})
    gain = lines[3].gains["all"]
    assert gain is not None and gain.high is not None and gain.high - gain.gain == pytest.approx(student(3))


def test_the_sentence_says_that_a_side_wins_only_if_the_whole_interval_does(tmp_path: Path) -> None:
    base = {0: 50.0, 1: 50.0, 2: 50.0}
    for n, (gains, word) in enumerate(
        (
            ((3.0, 3.1, 2.9), "(wins)"),
            ((-1.0, 3.0, 1.0), "(may be luck: 0 is in the 95 % interval)"),
            ((-3.0, -3.1, -2.9), "(loses)"),
        )
    ):
        said = judgement(compared(tmp_path / f"{n}", base, {seed: 50.0 + gain for seed, gain in enumerate(gains)}))
        assert word in said and " ± " in said
    alone = judgement(compared(tmp_path / "one", {0: 50.0}, {0: 60.0}))
    assert "all +10.00 points (one seed: no spread to judge by)" in alone


def _rows(lines: list[Line], model: str) -> list[list[str]]:
    """Returns the accuracy and the gain of a model as the table shows them, in 80 columns."""
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(comparison(lines, "it"))
    said = console.export_text().splitlines()
    assert max(map(len, said)) <= 80
    return [line.split()[1:-2] for line in said if line.split()[:1] == [model]]
