"""The page on robustness shows what was measured, and names every rule and attack."""

import importlib.util
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


def test_its_tables_are_those_of_the_files() -> None:
    made = benchmark()
    assert made.read("digits")
    for dataset in made.SETTINGS:
        if f"<!-- {dataset}:" in PAGE:
            assert f"-->\n{made.tables(dataset)}\n<!-- end of {dataset} -->" in PAGE


def test_it_says_of_what_settings_the_results_are() -> None:
    made = benchmark()
    setting = made.SETTINGS["digits"]
    words = f"{setting.rounds} rounds of one epoch in batches of {setting.batch_size} at a rate of {setting.lr}"
    assert words in " ".join(PAGE.split())


@pytest.mark.parametrize("name", [*RULES, *ATTACKS])
def test_it_names_every_rule_and_every_attack(name: str) -> None:
    assert f"| `{name}" in PAGE
