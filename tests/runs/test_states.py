"""The state of a run is what its folder says: running, stopped, finished, failed or damaged, with the reason."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.sealed import as_older, rewrite

from fedatoms.cli import main
from fedatoms.core.run_files import FAILURE
from fedatoms.engine.loop import Progress
from fedatoms.experiment.fields import Experiment
from fedatoms.runs.comparison import compare
from fedatoms.runs.execute import resume, run
from fedatoms.runs.lock import locked
from fedatoms.runs.results import read_result
from fedatoms.runs.states import find_runs, state_of

TINY = Experiment(clients=4, classes_per_client=5, fraction=0.5, epochs=1, batch_size=64, rounds=3, checkpoint_every=1)


def stop(progress: Progress) -> None:
    if progress.state.round == 2:
        raise KeyboardInterrupt


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return run(replace(TINY, out=str(tmp_path), name="finished")).folder


def test_a_run_is_finished_and_with_more_rounds_asked_for_it_is_stopped(finished: Path) -> None:
    assert state_of(finished, check=True)[1:5] == ("finished", 3, 3, "")
    rewrite(finished / "experiment.json", rounds=9)
    assert state_of(finished, check=True)[1:5] == ("stopped", 3, 9, "")


def test_a_run_that_is_interrupted_is_stopped_and_one_that_is_written_is_running(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(replace(TINY, out=str(tmp_path), name="run"), watch=stop)
    assert state_of(tmp_path / "run")[1:5] == ("stopped", 2, 3, "")
    with locked(tmp_path / "run"):
        found = state_of(tmp_path / "run")
    assert (found.state, found.done) == ("running", 2)
    assert found.why.startswith(f"process {os.getpid()} on ") and "last round " in found.why


def test_a_run_that_failed_says_why_and_goes_on_when_the_cause_is_gone(tmp_path: Path) -> None:
    def fail(progress: Progress) -> None:
        if progress.state.round == 2:
            raise OSError("the watcher broke")

    with pytest.raises(OSError, match="broke"):
        run(replace(TINY, out=str(tmp_path), name="run"), watch=fail)
    assert state_of(tmp_path / "run")[1:5] == ("failed", 2, 3, "the watcher broke")
    resume(tmp_path / "run", {})
    assert state_of(tmp_path / "run").state == "finished" and not (tmp_path / "run" / FAILURE).exists()


def test_the_command_of_a_run_that_failed_before_its_first_round_may_be_typed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "--rounds", "1", "--epochs", "1", "--clients", "5", "--name", "it"]
    assert main([*words, "--lr", "1e5", "--clip", "0"]) == 2
    assert "Lower --lr" in capsys.readouterr().err
    assert main(["runs"]) == 0
    assert "failed" in capsys.readouterr().out
    assert main(words) == 0
    assert state_of(Path("runs/it")).state == "finished"
    before = Path("runs/it/result.json").read_bytes()
    assert main(words) == 0  # and once more: it is shown, not run
    assert "holds this run already: nothing is run again" in capsys.readouterr().err
    assert Path("runs/it/result.json").read_bytes() == before


def test_a_refused_experiment_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--personal", "local-atoms", "--out", str(tmp_path / "runs")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["experiment.json", "result.json", "rounds.jsonl", "model.safetensors"])
def test_a_changed_file_makes_a_run_damaged_and_is_named(name: str, finished: Path) -> None:
    data = (finished / name).read_bytes()
    place = data.index(b"3") if name != "model.safetensors" else len(data) - 5
    (finished / name).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    found = state_of(finished, check=True)
    assert found.state == "damaged" and name in found.why


def test_older_runs_are_not_checked_and_the_table_says_so(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_older(finished)
    assert state_of(finished).checked is False
    assert main(["runs", str(finished.parent)]) == 0
    assert "1 not checked: of an older version" in capsys.readouterr().out


def test_runs_are_found_at_any_depth_and_told_as_json(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = finished.parent / "a" / "b"
    deep.mkdir(parents=True)
    finished.rename(deep / "run")
    assert find_runs(finished.parent) == [deep / "run"]
    assert main(["runs", str(finished.parent), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["state"], found["rounds"], found["of"], found["checked"]) == ("finished", 3, 3, True)
    assert found["headline"].keys() == {"server", "selected", "all"}


def test_a_folder_without_runs_or_none_at_all_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 2 and main(["runs", str(tmp_path / "none")]) == 2
    no_run, no_folder = capsys.readouterr().err.splitlines()
    assert no_run.endswith("no run. Make one with `fedatoms run`.") and "none is not a folder" in no_folder


def test_a_report_says_how_many_runs_are_not_checked(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["report", str(finished.parent), "-o", str(finished.parent / "page.html")]
    assert main(words) == 0 and "not checked" not in capsys.readouterr().out
    as_older(finished)
    assert main(words) == 0 and "1 of 1 runs not checked: of an older version" in capsys.readouterr().out


def test_rounds_that_a_checkpoint_knows_and_the_file_lacks_are_damage(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(replace(TINY, out=str(tmp_path), name="run"), watch=stop)
    path = tmp_path / "run" / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    found = state_of(tmp_path / "run")
    assert found.state == "damaged" and "rounds.jsonl has 1 of the 2 rounds that are done" in found.why
    path.unlink()
    assert "rounds.jsonl has 0 of the 2 rounds" in state_of(tmp_path / "run").why


def test_a_comparison_of_a_run_that_lost_its_rounds_names_the_file(finished: Path) -> None:
    (finished / "rounds.jsonl").unlink()
    result = read_result(finished)
    with pytest.raises(ValueError, match=r"rounds.jsonl has 0 rounds, but result.json is of 3"):
        compare([result])
