"""What is said of a run before its rounds, and what `fedatoms runs` suggests after them."""

from pathlib import Path

import pytest
from support.results import a_run

from fedatoms.cli import main
from fedatoms.core.run_files import EXPERIMENT, FAILURE
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import sealed_fields
from fedatoms.runs.results import write_json

SHORT = "--clients 5 --fraction 1 --partition iid --rounds 1 --epochs 1 --batch-size 300 --name x".split()


@pytest.mark.parametrize(("share", "words"), [("0.2", "1 of 5 clients attacks"), ("0.5", "2 of 5 clients attack")])
def test_an_attacked_run_says_how_many_of_its_clients_attack(
    share: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *SHORT, "--attack", f"sign-flip:{share}", "--out", str(tmp_path)]) == 0
    assert f"fedatoms: {words}: sign-flip\n" in capsys.readouterr().err


def begun(folder: Path, *, failed: bool = False) -> Path:
    """Writes a run that stopped or failed before its first round."""
    folder.mkdir(parents=True)
    write_json(folder / EXPERIMENT, sealed_fields(Experiment()))
    if failed:
        write_json(folder / FAILURE, {"error": "no", "time": "2026-01-02T03:04:05+00:00"})
    return folder


def test_a_pipe_folds_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = begun(tmp_path / ("long" * 30))
    assert main(["runs", str(tmp_path)]) == 0
    assert f"  {folder} " in capsys.readouterr().out


def test_the_run_that_needs_it_most_is_suggested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def suggested(*folders: Path) -> str:
        main(["runs", *map(str, folders)])
        return " ".join(capsys.readouterr().out.split()).partition("next: ")[2]

    one, other = tmp_path / "one", tmp_path / "other"
    a_run(one / "a")
    a_run(other / "b")
    assert suggested(one, other).startswith(f"fedatoms report {one} {other} # all")
    failed = begun(one / "c", failed=True)
    assert suggested(one, other).startswith(f"fedatoms run --resume {failed} # tries again")
    stopped = begun(other / "d")
    assert suggested(one, other).startswith(f"fedatoms run --resume {stopped} # goes on")
