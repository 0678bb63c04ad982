"""`fedatoms tune`: one table, the command of the best, and mistakes that cost one line."""

import io
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedatoms.cli import main
from fedatoms.cli.args import updated
from fedatoms.cli.console import watching_many
from fedatoms.cli.tune import command_of
from fedatoms.core.run_files import STUDY
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.presets import preset
from fedatoms.runs.results import read_result

SMALL = "--clients 5 --batch-size 50 --fraction 0.4 --epochs 1 --threads 1 --device cpu --rounds 1".split()
SMALL += ["--prune", "none"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def mistake(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("fedatoms: ")
    return said


def test_the_best_is_printed_as_the_command_that_runs_it_on_test_images(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "fedavg-atoms", *SMALL, "--over", "lr=0.1,1e-6", "--out", "study"]) == 0
    said = capsys.readouterr().out
    (command,) = [line for line in said.splitlines() if line.startswith("next:")]
    words = shlex.split(command.removeprefix("next:"), comments=True)
    record = json.loads(Path("study", STUDY).read_text())
    assert words[:3] == ["fedatoms", "run", "fedavg-atoms"] and shlex.join(words) == record["command"]
    assert main([*words[1:], "--name", "best"]) == 0
    found = read_result("runs/best").experiment
    tried = read_result("study/000-s0").experiment
    assert found == replace(tried, name="best", holdout=0.0, out=found.out) and record["best"] == 0


def test_the_same_words_find_their_study_again_without_out(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", *SMALL, "--over", "lr=0.1"]
    for _ in range(2):
        assert main(words) == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("tune-") and capsys.readouterr().out.count("round 1/1") == 1
    assert main([*words, "--momentum", "0.5"]) == 0 and len(list(Path("runs").iterdir())) == 2


@pytest.mark.parametrize(
    "change",
    [{}, {"lr": 0.3, "distinct": True}, {"seed": -1, "strength": 0.5}, {"fixed": "head", "where": "a b"}],
    ids=str,
)
def test_a_command_means_the_experiment_that_it_was_written_for(change: dict[str, object]) -> None:
    from typing import Annotated

    from fedatoms.cli.args import GROUPS, flags
    from fedatoms.cli.parsing import parse

    start = preset("fedprox-atoms")
    wanted = replace(start, **change)  # type: ignore[arg-type]
    words = shlex.split(command_of("fedprox-atoms", start, wanted))[3:]

    def read(*, given: Annotated[object, flags(start, GROUPS)]) -> Experiment:
        return updated(start, given)

    assert parse("read", read, words) == wanted


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "there is nothing to search. Use for example --over 'lr=0.05,0.1'"),
        (["--over", "rl=0.1"], "unknown flag in --over 'rl'. Did you mean 'lr'"),
        (["--over", "lr=0.1,-1"], "--lr -1.0 is not a positive number"),
        (["--over", "lr=1..0.1"], "--over 'lr=1..0.1' does not rise"),
        (
            ["--over", "lr=0.1", "--holdout", "0"],
            "--holdout 0 would choose settings by their scores on the test images",
        ),
        (["--over", "lr=0.1..1", "--trials", "0"], "--trials 0 is less than 1. Use --trials 20"),
        (["--over", "lr=0.1", "--trials", "3"], "--trials 3: these lists are a grid of 1 point"),
        (["--over", "lr=0.1", "--seed", "0", "--seeds", "0,1"], "Leave --seed out"),
        (["--over", "lr=0.1", "--seeds", "0-1"], "'0-1' is not a whole number"),
        (["--over", "lr=0.1", "--seeds", "1,1"], "--seeds 1,1 has 1 twice"),
        (["--over", "lr=0.1", "--prune", "mean"], "'mean' is not one of median, none"),
        (["--over", "lr=0.1", "--name", "x"], "`--name` cannot name the runs of a search"),
        (["--over", "clients=5,0"], "--clients 0 is less than 1"),
        (["--over", "lr=0.1", "lr=0.2"], "comes after flags"),
    ],
    ids=str,
)
def test_a_mistake_costs_one_line_and_leaves_no_folder(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in mistake(["tune", *SMALL, *words], capsys)
    assert list(Path().iterdir()) == []


def test_without_optuna_a_line_says_what_to_type(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = mistake(["tune", *SMALL, "--over", "lr=0.1..1"], capsys)
    assert 'Type: pip install "fedatoms[tune]"' in said


def test_a_search_in_which_nothing_finishes_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", *SMALL, "--over", "lr=1e6", "--momentum", "0.9", "--clip", "0"]
    assert main(words) == 1 and "nothing is best" in capsys.readouterr().out


def test_points_of_a_grid_are_trained_in_one_block_and_the_table_is_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = []
    for out, more in (("block", []), ("turn", ["--together", "1"])):
        assert main(["tune", *SMALL, "--map", "vectorised", "--over", "lr=0.05,0.1", "--out", out, *more]) == 0
        said.append([line for line in capsys.readouterr().out.splitlines() if "0.05" in line or "0.1 " in line])
        together = [read_result(path.parent).provenance["abreast"] for path in Path(out).rglob("result.json")]
        assert together == [1 if more else 2] * 2
    assert said[0] == said[1] and len(said[0]) >= 2


def test_a_terminal_shows_the_runs_that_go_on_however_many_came_before() -> None:
    """A display of all of them would have no line left for the last."""
    text = io.StringIO()
    with watching_many(Console(file=text, force_terminal=True, height=5, width=100)) as shown:
        for number in range(9):
            with shown(f"run {number}", 1):
                pass
            assert f"run {number}" in text.getvalue()
        with shown("one", 1), shown("other", 1):
            pass
        assert "other" in text.getvalue()
