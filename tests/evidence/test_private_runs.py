"""What tables and pages show of private runs: what is withheld is said to be so."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from support.results import a_run, changed, page_of

from fedatoms.cli.result_tables import costs, states_table
from fedatoms.evidence.page.live import runs_now
from fedatoms.evidence.reproduce.budget import took
from fedatoms.runs.comparison import compare
from fedatoms.runs.results import read_result
from fedatoms.runs.states import state_of


def a_private_run(folder: Path, epsilon: float = 8.0, **more: object) -> Path:
    """Writes the result of a private run, without the run."""
    a_run(folder, dp_epsilon=epsilon, sampling="poisson", **more)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    lines = [json.dumps(row | {"seconds": None, "loss": None, "privacy": {"epsilon": 7.5}}) for row in rows]
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    return changed(folder, seconds=None, seconds_per_round=None, privacy={"epsilon": 7.5, "delta": 1e-5})


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """The folder of one private run."""
    return a_private_run(tmp_path / "runs" / "private")


def test_seconds_that_are_withheld_are_no_seconds_in_tables(private: Path) -> None:
    console = Console(width=120, file=(file := StringIO()))
    console.print(states_table([state_of(private)]))
    console.print(costs(compare([read_result(private)])))
    assert file.getvalue().count(" withheld ") == 2


def test_seconds_that_are_withheld_are_no_seconds_on_the_page(private: Path) -> None:
    a_run(private.parent / "open", 60.0)
    assert ">withheld<" in page_of(private.parent)
    states = {Path(run["folder"]).name: run["seconds"] for run in runs_now([private.parent])["runs"]}  # type: ignore[attr-defined,index,union-attr]
    assert states == {"private": None, "open": 1.5}


def test_seconds_that_are_withheld_foretell_nothing(private: Path) -> None:
    assert took([read_result(private)], "a machine") == []
