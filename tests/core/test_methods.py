"""The tables of methods: what help, labels and checks say comes from a method's line, and any module can bring more."""

import ast
import dataclasses
import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import ROOT

import fedatoms
from fedatoms import algorithms, personal
from fedatoms.algorithms.base import Algorithm, Server, Work, replace_params
from fedatoms.core.methods import Method, Table
from fedatoms.evidence.results.names import labels
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load_run
from fedatoms.experiment.identities import run_name
from fedatoms.runs.execute import resume, run
from fedatoms.runs.states import state_of

TABLES = {table.package: table for table in (algorithms.TABLE, personal.TABLE)}
LINES = [(table, name) for table in TABLES.values() for name in table.methods]
QUICK = Experiment(clients=5, rounds=2, epochs=1, batch_size=50, last_epochs=1)
MINE = """
from fedatoms.algorithms import Algorithm
from fedatoms.personal import Personal

def slower(factor=0.5):
    return Algorithm(correct=lambda gradient, *_: {name: factor * leaf for name, leaf in gradient.items()})

def head_of_mine(*, lr=0.1):
    return Personal(own=lambda model, labels: frozenset(n for n, group in labels.items() if group == "head"))

def needs(what):
    return Algorithm()

def number():
    return 7

constant = 7

def boom():
    return 1 / 0

def no_part():
    return Personal(own=lambda model, labels: labels.nothing)

def fails_later():
    def correct(gradient, *_):
        raise KeyError("no such thing")

    return Algorithm(correct=correct)
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("tested.py").write_text(MINE)
    monkeypatch.delitem(sys.modules, "tested", raising=False)


def factory_of(table: Table, name: str) -> object:
    function = table.methods[name].factory.partition(":")[2]
    return getattr(sys.modules[table.package], function)


@pytest.mark.parametrize(("table", "name"), LINES, ids=[name for _, name in LINES])
def test_a_line_fits_its_factory_and_its_file(table: Table, name: str) -> None:
    method, factory = table.methods[name], factory_of(table, name)
    module, _, function = method.factory.partition(":")
    parameters = inspect.signature(factory).parameters
    assert name in ("none", function.replace("_", "-"))
    assert method.strength is None or next(iter(parameters)) == method.strength
    if module != "base":
        about = ast.get_docstring(ast.parse((ROOT / table.package.replace(".", "/") / f"{module}.py").read_text()))
        assert re.search(rf"\b{method.label.split()[0]}", about or ""), "the module names its method as the table does"


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_an_algorithm_has_the_traits_that_its_line_says(name: str) -> None:
    made, table = algorithms.algorithm(name), algorithms.TABLE
    assert table.has(name, "replaces") == (made.aggregate is replace_params)
    params = {"w": torch.ones(2)}
    broadcast = Server(params, made.server_memory(params))
    works = [Work(params, torch.tensor(2), {"w": torch.tensor(far)}) for far in (0.1, 0.2)]
    uploads = [made.report({"w": torch.zeros(2)}, broadcast, made.client_memory(params), work)[0] for work in works]
    same = all(torch.equal(leaf, uploads[1][kind][n]) for kind, tree in uploads[0].items() for n, leaf in tree.items())
    assert table.has(name, "controls") == (not same)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_type_checkers_see_every_factory_of_the_table(table: Table) -> None:
    tree = ast.parse((ROOT / table.package.replace(".", "/") / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname for node in imports for alias in node.names if alias.asname}
    namespace = sys.modules[table.package]
    assert table.homes().keys() <= seen
    assert seen == set(namespace.__all__) - {"ALGORITHMS", "METHODS", "algorithm", "personal"}
    for name in namespace.__all__:
        assert getattr(namespace, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'fedavgg'"):
        namespace.fedavgg  # noqa: B018


def test_a_new_line_is_all_that_help_and_labels_need() -> None:
    code = """
import sys
from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.core.methods import Method
ALGORITHMS["fednew"] = Method("FedNew", "_fedavg:fedavg", strength="xi", traits={"controls"})
from fedatoms.cli import main
try: main(["run", "--help"])
except SystemExit: pass
assert "torch" not in sys.modules
print(algorithm("fednew"))
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    text = " ".join(said.replace("│", " ").split())
    for words in ("moon or fednew; or module:factory", "xi of fednew", "scaffold, feddc and fednew turn a move"):
        assert words in text


NAMING = {  # why these files may name methods
    "__init__.py": "names of 0.1.0 that have moved",
    "bench/gpu.py": "what is measured",
    "evidence/measures/__init__.py": "what is measured",
    "evidence/paper/readings.py": "the paper",
    "evidence/paper/study_list.py": "the paper",
    "evidence/paper/tables.py": "the paper",
    "experiment/fields.py": "the default",
    "experiment/presets.py": "the paper",
}
ALSO = {"feddc", "fedrep", "local", "none", "pfedpara"}  # names of recipes and parametrisations too, or plain words


def test_no_other_file_names_a_method() -> None:
    names = {name for _, name in LINES} - ALSO
    factories = [table.methods[name].factory.split(":") for table, name in LINES]
    functions = {function for module, function in factories if module != "base"}
    for path in (ROOT / "fedatoms").rglob("*.py"):
        file = path.relative_to(ROOT / "fedatoms")
        if file.parts[0] not in ("algorithms", "personal") and str(file) not in NAMING:
            nodes = [*ast.walk(ast.parse(path.read_text()))]
            assert not {node.value for node in nodes if isinstance(node, ast.Constant)} & names, file
            imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
            methods = [node for node in imports if (node.module or "").startswith(tuple(TABLES))]
            assert not {alias.name for node in methods for alias in node.names} & functions, file


def test_names_of_experiments_follow_the_traits() -> None:
    first, other = (Experiment(algorithm=name, controls="first") for name in ("scaffold", "feddyn"))
    assert labels([first, dataclasses.replace(first, controls="current")])[0] == "scaffold, controls first"
    assert labels([other, dataclasses.replace(other, controls="current")])[0] == "feddyn"
    own = Experiment(algorithm="tested:slower", controls="first")
    assert labels([own, dataclasses.replace(own, controls="current")])[0] == "tested:slower, controls first"


def test_a_method_of_your_own_runs_and_resumes_and_its_name_is_kept_as_it_is() -> None:
    experiment = dataclasses.replace(QUICK, algorithm="tested:slower", strength=0.1, personal="tested:head_of_mine")
    whole = run(experiment)
    assert whole.folder.name == run_name(experiment) and ":" not in whole.folder.name
    written = load_run(whole.folder)
    assert (written.algorithm, written.personal) == (experiment.algorithm, experiment.personal)
    run(dataclasses.replace(experiment, name="broken", rounds=1))
    assert resume(Path("runs/broken"), {"rounds": 2}).model_sha256 == whole.model_sha256
    assert run(dataclasses.replace(QUICK, name="fedavg")).model_sha256 != whole.model_sha256
    fedatoms.adapt.personal_model(whole.folder, client=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"algorithm": "tested:nothing"},
            r"^algorithm='tested:nothing': 'tested' has no function or class 'nothing'. Type",
        ),
        ({"algorithm": "tested:constant"}, "has no function or class 'constant'"),
        ({"algorithm": "nobody:fedavg"}, r"importing 'nobody' fails \(ModuleNotFoundError"),
        ({"algorithm": "tested:needs"}, "the factory needs what, but is called without arguments"),
        ({"algorithm": "tested:number"}, "returns int: a factory must return a fedatoms.algorithms.Algorithm"),
        ({"personal": "tested:slower"}, "returns Algorithm: a factory must return a fedatoms.personal.Personal"),
        (
            {"personal": "tested:head_of_mine", "personal_strength": 1.0},
            "personal_strength=1.0, but tested:.* has none",
        ),
        ({"algorithm": "fedavg", "strength": 1.0}, "strength=1.0, but fedavg has none.*mu of fedprox"),
        ({"algorithm": ":"}, "algorithm=':'"),
        (
            {"algorithm": "tested.py:slower"},
            r"^algorithm='tested\.py:slower' names a file\. Use algorithm=tested:slower\.$",
        ),
        (
            {"algorithm": "tested"},
            r"^algorithm='tested' names no factory\. Use algorithm=tested:FACTORY, of tested\.py\.$",
        ),
        ({"personal": "tested.py"}, r"^personal='tested\.py' names no factory\. Use personal=tested:FACTORY"),
        ({"model": "tested"}, r"^model='tested' names no factory\. Use model=tested:FACTORY"),
        (
            {"algorithm": "tested:boom"},
            r"^your algorithm tested:boom failed in line \d+: ZeroDivisionError: division by",
        ),
        (
            {"personal": "tested:no_part"},
            r"^your personalised method tested:no_part failed in line \d+: AttributeError:",
        ),
        ({"model": "tested:boom"}, r"^your model tested:boom failed in line \d+: ZeroDivisionError: division by zero$"),
    ],
)
def test_a_method_that_cannot_be_built_gets_a_line(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run(dataclasses.replace(QUICK, **changes))
    assert not Path("runs").exists()


def test_a_method_of_your_own_that_fails_in_a_round_is_named_there_and_in_the_folder() -> None:
    line = MINE[: MINE.index("raise KeyError")].count("\n") + 1
    with pytest.raises(ValueError, match=f"your algorithm tested:fails_later failed in line {line}: KeyError") as error:
        run(dataclasses.replace(QUICK, algorithm="tested:fails_later", name="x"))
    assert isinstance(error.value.__cause__, KeyError)
    assert state_of(Path("runs/x")).why == str(error.value)


@pytest.mark.parametrize(("example", "name"), [("own_algorithm", "fedadagrad"), ("own_personal", "own_biases")])
def test_the_examples_of_own_methods_run_and_are_short(
    example: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    made = runpy.run_path(str(ROOT / "examples" / f"{example}.py"), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out and load_run(next(Path("runs").iterdir()))
    assert len(inspect.getsource(made[name]).splitlines()) <= 20


def test_methods_are_values() -> None:
    assert Method("FedAvg", "_fedavg:fedavg") == Method("FedAvg", "_fedavg:fedavg")
    assert isinstance(algorithms.fedavg(), Algorithm)
