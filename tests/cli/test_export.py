"""fedatoms export: a run's network, or a client's, as a file that other tools read."""

import importlib.util
from pathlib import Path

import pytest
import torch

from fedatoms import Experiment, adapt, load_model, run
from fedatoms.cli import main
from fedatoms.data import load

TINY = Experiment(
    clients=10, fraction=0.3, rounds=1, epochs=1, last_epochs=1, batch_size=50, threads=1, parametrisation="atoms"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dataclasses import replace

    place = tmp_path_factory.mktemp("runs")
    return run(replace(TINY, personal="local-atoms", name="mine", out=str(place))).folder


def test_the_network_of_a_run_leaves_as_a_program(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    x = adapt.inputs_of(folder, load("digits").test_x[:5])
    expected = {"mine.pt2": load_model(folder).eval(), "mine-3.pt2": adapt.personal_model(folder, 3)}
    for words, (name, network) in zip(([], ["--client", "3"]), expected.items(), strict=True):
        assert main(["export", str(folder), "--to", "torch-export", *words]) == 0
        told = capsys.readouterr().out
        assert f"file: {name}, 13,706 parameters" in told and "check: outputs lie" in told and "(N, 1, 8, 8)" in told
        torch.testing.assert_close(torch.export.load(name).module()(x), network(x))
    assert main(["export", str(folder), "--to", "torch-export", "-o", "mine.pt2"]) == 0
    assert "(replaces an older file)" in capsys.readouterr().out


def test_onnx_is_the_default(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(folder), "-o", "a/b.onnx"]) == 0
    x = adapt.inputs_of(folder, load("digits").test_x[:5])
    (found,) = runtime.InferenceSession("a/b.onnx").run(None, {"input": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), load_model(folder).eval()(x), rtol=0, atol=1e-5)


def test_without_onnx_a_flag_says_what_else_there_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnx" else find(name))
    assert main(["export", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fedatoms: --to onnx needs onnx") and "use --to torch-export" in error


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--client", "99"], "--client 99 is not a client of"),
        (["--to", "safetensors", "-o", "mine.onnx"], "mine.onnx does not end in .safetensors"),
        (["--to", "tflite"], "invalid choice 'tflite' for argument '--to'"),
    ],
)
def test_slips_cost_one_line(
    folder: Path,
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(folder), *words]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())
