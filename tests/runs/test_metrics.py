"""Results carry the name, unit and direction of their metric; those of classifiers, and older ones, stay."""

import json
import sys
from pathlib import Path

import pytest
from support.results import a_run, page_of

from fedatoms.cli import main
from fedatoms.core.scales import ACCURACY, Scale
from fedatoms.experiment.fields import Experiment
from fedatoms.runs.comparison import compare
from fedatoms.runs.execute import resume, run
from fedatoms.runs.results import Result, metric_of, read_result, summarise
from fedatoms.runs.rounds import read_rounds

MINE = """
import torch.nn as nn
import torch.nn.functional as F
from fedatoms.objectives import Metric, Objective


def far(outputs, y):
    return (outputs[:, 0] - y).abs() / 10


def distance():
    return Objective(lambda o, y: far(o, y) ** 2, (Metric("distance", far, unit="cm", higher=False, low=0.0),))


def net(classes):
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 1))
"""
SMALL = Experiment(
    model="their_task:net", objective="their_task:distance", clients=5, rounds=2, epochs=1, lr=0.01, threads=1,
    device="cpu", name="it", score="server",
)  # fmt: skip


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "their_task.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_task", raising=False)
    return tmp_path


def test_a_run_of_another_metric_says_so_in_all_its_files_and_goes_on(in_a_folder: Path) -> None:
    made = run(SMALL)
    assert made.metric == Scale("distance", "cm", False, -float("inf"), float("inf"))
    assert made.scores["server"].best == min(row["scores"]["server"]["distance"] for row in read_rounds(made.folder))
    with pytest.raises(AttributeError, match=r"this result is of distance, cm, no accuracy. Use its scores."):
        made.accuracy  # noqa: B018
    written = json.loads((made.folder / "result.json").read_text())
    assert written["metric"] == {"name": "distance", "unit": "cm", "higher": False} and "accuracy" not in written
    assert read_result(made.folder).scores == made.scores and read_result(made.folder).metric == made.metric
    longer = resume(made.folder, {"rounds": 3})
    assert longer.metric == made.metric and len(read_rounds(made.folder)) == 3


def test_a_run_of_a_classifier_has_the_fields_that_it_had(tmp_path: Path) -> None:
    made = run(Experiment(clients=5, rounds=1, epochs=1, threads=1, device="cpu", out=str(tmp_path)))
    written, (row,) = json.loads((made.folder / "result.json").read_text()), read_rounds(made.folder)
    assert written["accuracy"]["server"] == made.accuracy["server"]._asdict() == made.scores["server"]._asdict()
    assert written["metric"] == ACCURACY.record() and "metric" not in row
    assert set(row["scores"]["server"]) == {"accuracy", "loss"}
    older = {name: value for name, value in written.items() if name not in ("metric", "format", "seal")}
    (made.folder / "result.json").write_text(json.dumps(older))
    again = read_result(made.folder)
    assert (again.scores, again.metric, again.files, again.extra) == (made.scores, made.metric, made.files, {})


def test_the_command_line_and_the_page_show_the_metric_by_name_and_unit(
    in_a_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--model their_task:net --objective their_task:distance --clients 5 --rounds 2 --epochs 1 --threads 1"
    assert main([*f"compare {flags} --lr 0.001,0.01 --plot plot.png".split()]) == 0
    out = capsys.readouterr().out
    assert "distance: mean over all 2 rounds, in cm" in out and "accuracy" not in out and " cm" in out
    caption, words = " ".join(out.split()), ("difference to lr=0.001 (lower is better)", "least that all lines reach")
    assert all(each in caption for each in words) and " gain" not in caption and "the most" not in caption
    assert Path("plot.png").exists()
    assert main(["runs"]) == 0
    assert "distance 0." in capsys.readouterr().out
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["metric"]["name"] == "distance"
    page = page_of(Path("runs"))
    assert "Where lower is better, it is the difference: below 0 is better." in page
    assert "classes each, distance, cm: 0." in page and '"axis":"distance (cm)"' in page


def test_the_best_of_errors_is_the_least_and_is_reached_from_above(tmp_path: Path) -> None:
    metric = {"name": "rmse", "unit": "", "higher": False}
    rows = [{"round": t, "scores": {"all": {"rmse": e}}, "metric": metric} for t, e in enumerate([3.0, 1.0, 2.0])]
    assert metric_of(rows).name == "rmse" and summarise(rows)["all"] == (2.0, 2.0, 1.0)
    results = [_a_result(tmp_path / name, errors) for name, errors in {"a": [3.0, 2.0], "b": [2.5, 1.0]}.items()]
    first, second = compare(results)
    assert first.target == 2.0 and (first.rounds_to_target, second.rounds_to_target) == (2, 2)


def test_different_metrics_do_not_compare(tmp_path: Path) -> None:
    results = [_a_result(tmp_path / "a", [1.0]), read_result(a_run(tmp_path / "b"))]
    with pytest.raises(ValueError, match=r"scored by accuracy, % and by rmse, which do not compare. Use one objective"):
        compare(results)


def test_a_line_without_the_score_that_it_names_is_refused(tmp_path: Path) -> None:
    made = _a_result(tmp_path / "a", [1.0])
    path = made.folder / "rounds.jsonl"
    path.write_text(path.read_text().replace('{"rmse": 1.0}', '{"rmsd": 1.0}'))
    with pytest.raises(ValueError, match="line 1: scores of all: rmse is missing"):
        read_rounds(made.folder)


def _a_result(folder: Path, errors: list[float]) -> Result:
    """Makes a result of an error, as an older file's with a metric added."""
    a_run(folder, rounds=len(errors), curves={"all": [50.0] * len(errors)}, lr=float(len(folder.name)) + errors[0])
    metric = {"name": "rmse", "unit": "", "higher": False}
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    rows = [{**row, "scores": {"all": {"rmse": e}}, "metric": metric} for row, e in zip(lines, errors, strict=True)]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = json.loads((folder / "result.json").read_text())
    del result["accuracy"]
    scores = {name: each._asdict() for name, each in summarise(rows).items()}
    (folder / "result.json").write_text(json.dumps({**result, "scores": scores, "metric": metric}))
    return read_result(folder)
