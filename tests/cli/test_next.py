"""What a command says to type next: it can be pasted, and it is of use for the run."""

import re
import shlex
from pathlib import Path

import pytest

from fedatoms.cli import main
from fedatoms.runs.loading import how_to_resume, how_to_rewrite

QUICK = "--clients 10 --rounds 2 --epochs 1 --batch-size 32 --fraction 0.3 --threads 1".split()
PLACE = "ünï 'föld"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def suggested(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Returns the words of the commands that were suggested last, as a shell reads them."""
    shown = capsys.readouterr().out.partition("next:")[2]
    return [shlex.split(line, comments=True)[1:] for line in shown.splitlines()]


def test_what_is_suggested_can_be_pasted_whatever_the_folder_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *QUICK, "--parametrisation", "atoms", "--out", PLACE, "--name", "b é"]) == 0
    report, resume = suggested(capsys)
    assert report == ["report", PLACE] and resume == ["run", "--resume", f"{PLACE}/b é", "--rounds", "4"]
    others = ["runs", "compare --rounds 2", "report", "explain", "export --to safetensors"]
    asked = {"compare": [*QUICK, "--out", PLACE], "explain": [f"{PLACE}/b é"], "export": [f"{PLACE}/b é"]}
    for command, *flags in map(str.split, others):
        assert main([command, *asked.get(command, [PLACE]), *flags]) == 0
        (words,) = suggested(capsys)
        assert words[1] in (PLACE, f"{PLACE}/b é")


def test_what_an_error_says_to_type_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(PLACE, "b é")
    for said in (how_to_resume(folder), how_to_rewrite(folder)):
        assert shlex.split(said.split("`")[1]) == ["fedatoms", "run", "--resume", str(folder)]
    assert main(["run", *QUICK, "--out", PLACE, "--name", "b é"]) == 0
    for words in (["run", str(folder)], ["run", *QUICK, "--rounds", "3", "--out", PLACE, "--name", "b é"]):
        assert main(words) == 2
        (typed,) = re.findall(r"`(fedatoms run --resume [^`]*)`", capsys.readouterr().err)
        assert shlex.split(typed)[3] == str(folder)


@pytest.mark.parametrize("parametrisation", ["plain", "atoms"])
def test_an_export_suggests_to_personalise_what_has_atoms(
    parametrisation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *QUICK, "--parametrisation", parametrisation, "--name", "x"]) == 0
    assert main(["export", "runs/x", "--to", "safetensors"]) == 0
    assert ("next:  fedatoms personalize runs/x" in capsys.readouterr().out) == (parametrisation == "atoms")
