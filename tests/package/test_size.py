"""What a reader can take in: short files, short functions, and a round that few files tell."""

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from support import ROOT

from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.experiment.build import simulation
from fedatoms.experiment.fields import Experiment

PACKAGE = ROOT / "fedatoms"
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if "template" not in path.parts]  # a project of its own


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_file_has_at_most_350_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350


def test_nine_of_ten_functions_have_at_most_16_lines() -> None:
    """From ``def`` to the last line: with the signature, the docstring and its example."""
    nodes = [node for path in FILES for node in ast.walk(ast.parse(path.read_text()))]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = sorted((node.end_lineno or 0) - node.lineno + 1 for node in functions)
    assert len(lengths) > 1000 and lengths[int(0.9 * len(lengths))] <= 16


@contextmanager
def files_that_run() -> Iterator[set[str]]:
    """Collects the files in which a function is called."""
    found: set[str] = set()

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        yield found
    finally:
        sys.setprofile(before)


def test_a_round_of_the_default_experiment_is_told_by_at_most_12_files() -> None:
    runtime = prepare(simulation(Experiment(device="cpu", epochs=1)))
    state = begin(runtime)
    with files_that_run() as found:
        advance(runtime, state)
    ours = {str(path.relative_to(PACKAGE)) for path in FILES if str(path) in found}
    assert {"engine/round.py", "engine/client_round.py", "engine/server.py"} <= ours
    assert len(ours) <= 12, sorted(ours)
