"""The page on robustness shows what was measured, and names every rule and attack."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from support import ROOT

from fedatoms.aggregation import RULES
from fedatoms.core.options import ATTACKS

PAGE = (ROOT / "docs" / "robustness.md").read_text()


def benchmark() -> ModuleType:
    """Loads the program that measures."""
    spec = importlib.util.spec_from_file_location("attacks", ROOT / "benchmarks" / "attacks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dataset", ["digits", "cifar10"])
def test_its_tables_are_those_of_the_files(dataset: str) -> None:
    made = benchmark()
    assert f"-->\n{made.tables(dataset)}\n<!-- end of {dataset} -->" in PAGE


@pytest.mark.parametrize("dataset", ["digits", "cifar10"])
def test_it_says_of_what_settings_the_results_are(dataset: str) -> None:
    setting = benchmark().SETTINGS[dataset]
    words = f"{setting.rounds} rounds of one epoch in batches of {setting.batch_size} at a rate of {setting.lr}"
    assert words in " ".join(PAGE.split())


def test_files_of_several_processes_become_one(tmp_path: Path) -> None:
    made = benchmark()
    cells = [{"seed": seed, "form": "plain", "case": "clean", "rule": "mean", "accuracy": seed} for seed in range(3)]
    for name, part in (("a", cells[:2]), ("b", cells[1:])):
        (tmp_path / name).write_text(json.dumps({"cells": part, "provenance": {}}))
    made.join([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert made.read(tmp_path / "c") == cells


@pytest.mark.parametrize("name", [*RULES, *ATTACKS])
def test_it_names_every_rule_and_every_attack(name: str) -> None:
    assert f"| `{name}" in PAGE
