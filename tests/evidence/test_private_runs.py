"""What tables and pages show of private and attacked runs: what is withheld is said to be so, what differs is named."""

import csv
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from support.results import a_private_run, a_run, page_of

from fedatoms.cli.result_tables import costs
from fedatoms.cli.run_table import states_table
from fedatoms.evidence.page.export import to_csv
from fedatoms.evidence.page.live import runs_now
from fedatoms.evidence.reproduce.budget import took
from fedatoms.evidence.results.finding import find
from fedatoms.evidence.results.groups import group
from fedatoms.evidence.results.standings import all_standings
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import run_name
from fedatoms.runs.comparison import compare, labels
from fedatoms.runs.results import read_result
from fedatoms.runs.states import state_of


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


def test_private_runs_are_compared_with_those_of_the_same_privacy_alone(tmp_path: Path) -> None:
    for seed in range(2):
        a_run(tmp_path / f"open-{seed}", seed=seed)
        for epsilon in (2.0, 8.0):
            a_private_run(tmp_path / f"{epsilon}-{seed}", epsilon, seed=seed)
    places = all_standings(group(find([tmp_path]).runs))
    assert [(len(place.entries), len(place.entries[0].group.runs)) for place in places] == [(1, 2)] * 3
    assert sorted(place.setting.partition(" (")[2] for place in places) == [
        "",
        "epsilon 2, delta 1e-05)",
        "epsilon 8, delta 1e-05)",
    ]


def test_the_file_of_all_results_says_what_was_spent(private: Path) -> None:
    a_run(private.parent / "open")
    lines = csv.DictReader(StringIO(to_csv(find([private.parent]).runs)))
    assert {Path(line["folder"]).name: line["epsilon spent"] for line in lines} == {"private": "7.5", "open": ""}


def test_rule_attack_uploads_and_epsilon_are_named_where_they_are_not_the_default(tmp_path: Path) -> None:
    fields = {"aggregation": "krum:1", "attack": "noise:0.2", "uploads": "8-bit"}
    a_run(tmp_path / "runs" / "attacked", **fields)  # type: ignore[arg-type]
    a_private_run(tmp_path / "runs" / "private")
    console = Console(width=200, file=(file := StringIO()))
    console.print(states_table([state_of(path) for path in sorted((tmp_path / "runs").iterdir())]))
    assert all(words in file.getvalue() for words in ("krum:1, attack noise:0.2, 8-bit uploads", "epsilon 8"))
    cards = {(run["name"], run["where"]) for run in runs_now([tmp_path / "runs"])["runs"]}  # type: ignore[attr-defined,index,union-attr]
    setting = "digits, 20 clients with 2 classes each"
    assert cards == {
        ("fedavg, krum:1, 8-bit uploads", f"{setting} (attack noise:0.2), seed 0"),
        ("fedavg", f"{setting} (epsilon 8, delta 1e-05), seed 0"),
    }
    assert run_name(Experiment(**fields)).startswith("fedavg-krum.1-attack-noise.0.2-8-bit-uploads-digits-s0-")  # type: ignore[arg-type]
    assert labels([Experiment(**fields)]) == ["fedavg plain krum:1 noise:0.2 8-bit"]  # type: ignore[arg-type]
