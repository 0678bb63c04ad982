"""Searches: trials are ordinary runs on held-out images, and a search that is killed ends as if nobody had."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support.searches import TINY, Killed, plan_of, silent
from support.small import identical

from fedatoms.core.run_files import STUDY
from fedatoms.engine.loop import Progress, Watch
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load_run
from fedatoms.runs.comparison import finish
from fedatoms.runs.execute import run
from fedatoms.runs.lock import locked
from fedatoms.runs.results import read_result
from fedatoms.runs.states import state_of
from fedatoms.tuning import blocks, loop
from fedatoms.tuning.loop import search
from fedatoms.tuning.proposals import propose
from fedatoms.tuning.studies import Plan, Study, Trial


def killed_after(rounds: int):  # noqa: ANN201
    """Returns a watching that ends everything after so many rounds in all."""
    left = rounds

    def watch(progress: Progress) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    @contextmanager
    def watching(label: str, rounds: int) -> Iterator[Watch]:
        yield watch

    return watching


RANGE = plan_of("lr=0.001..1:log", "epochs=1..2", trials=8, prune="median")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Study:
    pytest.importorskip("optuna")
    return search(RANGE, tmp_path_factory.mktemp("tune") / "study", silent)


def models(study: Study) -> dict[str, object]:
    return {path.parent.name: load_file(path) for path in sorted(study.folder.glob("*/model.safetensors"))}


def same(one: Study, other: Study) -> None:
    assert one.trials == other.trials and one.best == other.best
    mine, theirs = models(one), models(other)
    assert mine.keys() == theirs.keys() and all(identical(mine[name], theirs[name]) for name in mine)
    files = [json.loads((study.folder / STUDY).read_text()) for study in (one, other)]
    assert files[0] == files[1]


def test_a_grid_tries_every_point_once_and_scores_held_out_images(tmp_path: Path) -> None:
    study = search(plan_of("lr=0.01,0.1", "epochs=1,2"), tmp_path / "s", silent)
    assert [trial.state for trial in study.trials] == ["finished"] * 4
    for trial in study.trials:
        result = read_result(tmp_path / "s" / f"{trial.number:03d}-s0")
        assert result.experiment.holdout == 0.1 and result.scores["server"].headline == trial.score
        assert {name: getattr(result.experiment, name) for name in trial.settings} == trial.settings
    assert study.best is not None and study.best.score == max(trial.score or 0 for trial in study.trials)


def test_the_score_is_the_mean_over_seeds(tmp_path: Path) -> None:
    study = search(plan_of("lr=0.1", seeds=(0, 3)), tmp_path / "s", silent)
    each = [read_result(tmp_path / "s" / f"000-s{seed}").scores["server"].headline for seed in (0, 3)]
    assert study.trials[0].score == sum(each) / 2 and study.trials[0].rounds == 2 * TINY.rounds


def test_a_metric_whose_small_values_are_good_has_the_smallest_as_best() -> None:
    from fedatoms.core.scales import Scale

    trials = tuple(Trial(n, {"lr": n}, "finished", score, []) for n, score in enumerate((3.0, 1.0, 2.0)))
    for metric, best in ((Scale("rmse", "", higher=False), 1), (Scale(), 0)):
        found = Study(Path("s"), plan_of("lr=0.1"), "server", metric, trials).best
        assert found is not None and found.number == best


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 5, 7, 12, 17])
def test_a_search_that_is_killed_ends_as_if_it_had_not_been(rounds: int, undisturbed: Study, tmp_path: Path) -> None:
    assert {trial.state for trial in undisturbed.trials} >= {"finished", "pruned"}
    with pytest.raises(Killed):
        search(RANGE, tmp_path / "s", killed_after(rounds))
    same(search(RANGE, tmp_path / "s", silent), undisturbed)


@pytest.mark.parametrize("writes", [7, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 8, 9))])
def test_a_search_that_is_killed_before_it_writes_a_trial_down_ends_alike(
    writes: int, undisturbed: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, write = writes, loop.write

    def fails(*what: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        write(*what)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(loop, "write", fails)
        search(RANGE, tmp_path / "s", silent)
    same(search(RANGE, tmp_path / "s", silent), undisturbed)


def test_finished_trials_are_not_repeated_and_more_of_them_go_on(undisturbed: Study, tmp_path: Path) -> None:
    fewer = RANGE._replace(tune=replace(RANGE.tune, trials=3))
    first = search(fewer, tmp_path / "s", silent)
    assert first.trials == undisturbed.trials[:3]
    seen: list[str] = []

    @contextmanager
    def watching(label: str, rounds: int) -> Iterator[Watch]:
        seen.append(label)
        yield lambda progress: None

    same(search(RANGE, tmp_path / "s", watching), undisturbed)
    assert [label.split("-")[0][-3:] for label in seen] == [f"{n:03d}" for n in range(3, 8)]
    seen.clear()
    same(search(RANGE, tmp_path / "s", watching), undisturbed)
    assert seen == []


def test_a_pruned_trial_is_a_stopped_run_with_a_checkpoint_and_no_failure(undisturbed: Study) -> None:
    pruned = next(trial for trial in undisturbed.trials if trial.state == "pruned")
    state = state_of(undisturbed.folder / f"{pruned.number:03d}-s0")
    assert state.state == "stopped" and state.done == pruned.rounds < TINY.rounds and pruned.score is None


def test_no_trial_is_pruned_when_that_is_turned_off(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    study = search(RANGE._replace(tune=replace(RANGE.tune, prune="none")), tmp_path / "s", silent)
    assert {trial.state for trial in study.trials} <= {"finished", "repeated"}


def test_the_next_proposal_depends_on_the_trials_and_the_seed_alone(undisturbed: Study) -> None:
    def at(number: int, seed: int = 0) -> object:
        tune = replace(RANGE.tune, search_seed=seed)
        return propose(
            undisturbed._replace(plan=RANGE._replace(tune=tune), trials=undisturbed.trials[:number])
        ).settings

    assert [at(n) for n in range(8)] == [trial.settings for trial in undisturbed.trials]
    assert at(0) == at(0) != at(0, seed=1)


def test_settings_that_come_again_are_not_run_again(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    study = search(plan_of("epochs=1..2", trials=5, prune="median"), tmp_path / "s", silent)
    again = [trial for trial in study.trials if trial.state == "repeated"]
    assert len(again) >= 3 and len(list((tmp_path / "s").glob("*-s0"))) == 5 - len(again)
    for trial in again:
        assert trial.score == next(one.score for one in study.trials if one.settings == trial.settings)


def test_a_trial_without_enough_memory_fails_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(experiment: Experiment, *rest: object, **more: object) -> object:
        if experiment.lr == 0.1:
            raise MemoryError("out of memory with a single client")
        return finish(experiment, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(blocks, "finish", full)
    study = search(plan_of("lr=0.1,0.2"), tmp_path / "s", silent)
    assert [trial.state for trial in study.trials] == ["failed", "finished"] and "memory" in study.trials[0].why


def test_a_trial_that_diverges_fails_and_the_others_go_on(tmp_path: Path) -> None:
    wild = replace(TINY, clip=0.0, momentum=0.9)
    plan = plan_of("lr=1e6,0.1", experiment=wild)
    study = search(plan, tmp_path / "s", silent)
    assert [trial.state for trial in study.trials] == ["failed", "finished"] and study.trials[0].why
    assert search(plan, tmp_path / "s", silent).trials == study.trials


@pytest.mark.parametrize("prune", ["none", "median"])
def test_a_grid_that_cannot_be_pruned_needs_no_optuna(
    prune: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is, before five trials have finished."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert len(search(plan_of("lr=0.1,0.3", prune=prune), tmp_path / "s", silent).trials) == 2
    many = "lr=0.1,0.2,0.3,0.4,0.5,0.6"
    for plan in (plan_of(many, prune="median"), plan_of("lr=0.1..0.3", trials=2)):
        with pytest.raises(ValueError, match=r'pip install "fedatoms\[tune\]"'):
            search(plan, tmp_path / "t", silent)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (plan_of("lr=0.1", experiment=replace(TINY, holdout=0.0)), "holdout=0 would choose"),
        (plan_of("lr=0.1", experiment=replace(TINY, name="mine")), "`name` cannot name"),
        (plan_of("lr=0.1", trials=3), "a grid of 1 point, "),
        (plan_of("lr=0.1..1", trials=0), "trials=0 is less than 1"),
        (plan_of("lr=0.1", seeds=(1, 1)), "has 1 twice"),
    ],
)
def test_a_search_that_cannot_be_is_refused_and_leaves_nothing(plan: Plan, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason):
        search(plan, tmp_path / "s", silent)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_study_says_what_differs(tmp_path: Path) -> None:
    search(plan_of("lr=0.1"), tmp_path / "s", silent)
    with pytest.raises(ValueError, match=r"momentum=0.0 there and 0.9 here"):
        search(plan_of("lr=0.1", experiment=replace(TINY, momentum=0.9)), tmp_path / "s", silent)
    with pytest.raises(ValueError, match=r"over='lr=0.1' there and 'lr=0.2' here"):
        search(plan_of("lr=0.2"), tmp_path / "s", silent)
    with pytest.raises(ValueError, match=r"seeds=0 there and 0 1 here"):
        search(plan_of("lr=0.1", seeds=(0, 1)), tmp_path / "s", silent)


def test_where_it_is_computed_may_change(tmp_path: Path) -> None:
    first = search(plan_of("lr=0.1"), tmp_path / "s", silent)
    moved = replace(TINY, device="cpu", client_state="host")
    assert search(plan_of("lr=0.1", experiment=moved), tmp_path / "s", silent).trials == first.trials


def test_folders_with_other_things_are_refused(tmp_path: Path) -> None:
    run(replace(TINY, rounds=1, out=str(tmp_path), name="run"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, reason in (
        ("run", "folder of a run"),
        ("run/checkpoint", "lies among the files of the run"),
        ("other", "holds other things"),
        ("file", "is a file"),
    ):
        with pytest.raises(ValueError, match=reason):
            search(plan_of("lr=0.1"), tmp_path / name, silent)


def test_a_study_has_one_writer(tmp_path: Path) -> None:
    code = (
        f"from fedatoms.runs.lock import locked; from pathlib import Path\nwith locked(Path({str(tmp_path / 's')!r})):"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}\n print('here', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None and other.stdout.readline()
        with pytest.raises(ValueError, match=f"is being written by process {other.pid}"):
            search(plan_of("lr=0.1"), tmp_path / "s", silent)
        other.communicate(b"\n")
    with locked(tmp_path / "s"):
        pass


def test_a_damaged_study_is_named_and_nothing_is_run(tmp_path: Path) -> None:
    search(plan_of("lr=0.1"), tmp_path / "s", silent)
    path = tmp_path / "s" / STUDY
    path.write_text(path.read_text().replace('"finished"', '"pruned"'))
    with pytest.raises(ValueError, match=r"does not match its checksum.*Restore .*study.json"):
        search(plan_of("lr=0.1"), tmp_path / "s", silent)


def test_the_trials_are_runs_that_other_commands_know(undisturbed: Study) -> None:
    for trial in undisturbed.trials:
        if trial.state == "finished":
            folder = undisturbed.folder / f"{trial.number:03d}-s0"
            assert state_of(folder, check=True).state == "finished" and load_run(folder).lr == trial.settings["lr"]


@pytest.mark.slow
@pytest.mark.parametrize("map_", ["one_by_one", "vectorised"])
def test_a_search_that_is_killed_by_the_system_goes_on(map_: str, tmp_path: Path) -> None:
    words = (
        "tune --clients 5 --batch-size 50 --epochs 1 --rounds 8 --threads 1 --over lr=0.05,0.1,0.2 --prune none --out"
    )
    for name in ("whole", "killed"):
        command = [sys.executable, "-m", "fedatoms", *words.split(), str(tmp_path / name), "--map", map_]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ})
        while name == "killed" and not (tmp_path / name / "001-s0" / "rounds.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.01)
        if name == "killed":
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert subprocess.run(command, capture_output=True).returncode == 0
        assert process.wait() in (0, -signal.SIGKILL)
    whole, killed = (json.loads((tmp_path / name / STUDY).read_text()) for name in ("whole", "killed"))
    assert whole == killed
