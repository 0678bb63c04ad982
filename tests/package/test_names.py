"""A name that is not there is answered with where it is, by attribute and by import alike."""

import ast
import importlib
from pathlib import Path

import pytest

import fedatoms


@pytest.mark.parametrize(
    ("package", "name", "said"),
    [
        ("fedatoms", "scaffold", "fedatoms.scaffold has moved since 0.1.0: use fedatoms.algorithms.scaffold"),
        ("fedatoms", "FedAvg", "Did you mean fedatoms.algorithms.fedavg?"),
        ("fedatoms", "ditto", "Did you mean fedatoms.personal.ditto?"),
        ("fedatoms", "export", "Did you mean fedatoms.nn.export?"),
        ("fedatoms", "summary", "Did you mean fedatoms.nn.summary?"),
        ("fedatoms", "load_weights", "Did you mean fedatoms.nn.load_weights?"),
        ("fedatoms", "check_objective", "Did you mean fedatoms.testing.check_objective?"),
        ("fedatoms", "simulation", "Did you mean fedatoms.Simulation?"),
        ("fedatoms.algorithms", "SCAFFOLD", "Did you mean fedatoms.algorithms.scaffold?"),
        ("fedatoms.algorithms", "scafold", "Did you mean fedatoms.algorithms.scaffold?"),
        ("fedatoms.personal", "Ditto", "Did you mean fedatoms.personal.ditto?"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_where_it_is(package: str, name: str, said: str) -> None:
    for code, kind in ((f"from {package} import {name}", ImportError), (f"{package}.{name}", AttributeError)):
        with pytest.raises(kind) as error:
            exec(code, {"fedatoms": fedatoms})
        assert str(error.value) == f"module '{package}' has no attribute '{name}'. {said}"
    assert not hasattr(importlib.import_module(package), name)


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'qqqq'$"):
        fedatoms.qqqq  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'qqqq'"):
        exec("from fedatoms import qqqq")


def test_a_folder_that_is_not_on_the_surface_is_imported_all_the_same() -> None:
    exec("from fedatoms import core, runs; from fedatoms.algorithms import base")


def test_no_module_has_the_name_of_a_function_in_it() -> None:
    """``from package import name`` would mean one of the two, by what was imported before."""
    for path in Path(fedatoms.__file__).parent.rglob("*.py"):
        functions = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert path.stem not in functions, path
