"""A command never writes over a run's own files, nor over what is no file: it says so before it works."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedatoms import Experiment, adapt, load_model, run
from fedatoms.cli import main
from fedatoms.core.border import open_regular
from fedatoms.core.outputs import check_output
from fedatoms.nn import build, load_weights
from fedatoms.runs.results import read_result

TINY = Experiment(
    clients=5, fraction=0.4, rounds=2, epochs=1, last_epochs=1, batch_size=50, threads=1, parametrisation="atoms"
)
EXPLAIN = ["explain", "runs/a", "--rounds", "1", "--crossed", "0", "--out"]
BENCH = ["bench", "--repeats", "1", "--steps", "1", "--out"]
EXPORT = ["export", "runs/p", "--to", "safetensors", "-o"]
COMPARE = ["compare", "--clients", "5", "--rounds", "1", "--batch-size", "50", "--plot"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("home")
    run(replace(TINY, name="a", out=str(place / "runs")))
    run(replace(TINY, name="p", out=str(place / "runs"), personal="local-atoms"))
    (place / "runs" / "a" / "checkpoint" / "plot.png").touch()
    return place


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (EXPLAIN, "runs/a/experiment.json"),
        (EXPLAIN, "runs/a/result.json"),
        (EXPLAIN, "runs/a/checkpoint/000002.json"),
        (EXPLAIN, "runs/p/explain.json"),
        (BENCH, "runs/a/result.json"),
        (BENCH, "runs/a/explain.json"),
        (BENCH, "runs/a/rounds.jsonl"),
        (BENCH, "runs/a/lock"),
        (EXPORT, "runs/a/model.safetensors"),
        (EXPORT, "runs/p/personal/000000.safetensors"),
        (EXPORT, "runs/p/personal/000099.safetensors"),
        (EXPORT, "runs/a/checkpoint/../model.safetensors"),
        (COMPARE, "runs/a/checkpoint/plot.png"),
        (["report", "runs", "-o"], "runs/a/checkpoint/r.html"),
        (["personalize", "runs/a", "--images", "i.npz", "--out"], "runs/p/personal/000099.safetensors"),
    ],
)
def test_a_run_keeps_its_own_files(
    words: list[str], own: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    before = contents(home)
    assert main([*words, own]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert own in line and "for the run in" in line and "Choose another file" in line
    assert contents(home) == before


def test_a_run_keeps_its_own_files_from_python_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    model = load_model("runs/a")
    own = {name: leaf for name, leaf in model.named_parameters() if name.endswith("atoms")}
    with pytest.raises(ValueError, match=r"model.safetensors is for the run in .*a itself, which would lose it"):
        adapt.save_personal("runs/a/model.safetensors", own, of=model)


def test_an_explanation_has_its_place_in_its_run_and_other_files_have_room(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    check_output(home / "runs" / "a" / "explain.json", place=home / "runs" / "a" / "explain.json")
    for free in ("runs/a/plot.png", "runs/result.json", "runs/a/more/result.json"):
        check_output(home / free)
    link = home / "link.json"
    link.symlink_to(home / "runs" / "a" / "result.json")
    check_output(link)  # the link is replaced, not the file


@pytest.mark.parametrize(
    "words", [EXPLAIN, BENCH, EXPORT, COMPARE, ["report", "runs", "-o"]], ids=lambda words: words[0]
)
@pytest.mark.parametrize(("kind", "make"), [("pipe", os.mkfifo), ("folder", Path.mkdir)])
def test_a_pipe_or_a_folder_is_refused_before_the_work(
    words: list[str],
    kind: str,
    make: object,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(home)
    suffix = {"export": ".safetensors", "compare": ".png", "report": ".html"}.get(words[0], ".json")
    target = Path(f"{kind}-of-{words[0]}{suffix}")
    make(target)
    began = time.monotonic()
    assert main([*words, str(target)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"{target} is a {kind}, not a file that can be written. Choose another file." in line
    assert time.monotonic() - began < 4 and not target.is_file()


def test_a_csv_file_beside_the_page_is_checked_too(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    os.mkfifo("page.csv")
    assert main(["report", "runs", "-o", "page.html"]) == 2
    assert "page.csv is a pipe" in capsys.readouterr().err and not Path("page.html").exists()


PATHS = (
    ["run", "--weights", "a\0b.pth"],
    ["run", "a\0b.json"],
    ["run", "--resume", "a\0b"],
    ["run", "--data-dir", "a\0b"],
    ["run", "--out", "a\0b"],
    ["runs", "a\0b"],
    ["report", "a\0b"],
    ["report", "runs", "-o", "a\0b.html"],
    ["compare", "--plot=a\0b.png"],
    ["export", "a\0b"],
    ["export", "runs/a", "-o", "a\0b.onnx"],
    ["explain", "runs/a", "--plain", "a\0b"],
    ["explain", "runs/a", "--out", "a\0b.json"],
    ["personalize", "runs/a", "--images", "a\0b", "--out", "a.safetensors"],
    ["inspect", "lenet", "--weights", "a\0b.pth"],
    ["bench", "--out", "a\0b.json"],
    ["flower", "keys", "a\0b"],
)


@pytest.mark.parametrize("words", PATHS, ids=lambda words: " ".join(words[:2]))
def test_no_path_has_a_null_byte(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "a\\x00b" in line and "has a null byte in it. Leave it out." in line


def test_no_file_that_is_read_has_a_null_byte_in_its_name() -> None:
    for call in (
        read_result,
        lambda path: open_regular(Path(path)).__enter__(),
        lambda path: load_weights(build("lenet", classes=10), path),
    ):
        with pytest.raises(ValueError, match=r"null byte in it, which no path can have"):
            call("a\0b")
