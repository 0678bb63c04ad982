"""Runs on disk: files, checkpoints, resumes and comparisons."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.cases import some_now, some_of
from support.sealed import rewrite
from support.small import identical

import fedatoms
from fedatoms.algorithms import ALGORITHMS
from fedatoms.cli.result_tables import comparison, judgement
from fedatoms.engine.client_states import Files
from fedatoms.engine.loop import Progress
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import to_json
from fedatoms.experiment.identities import identity, run_name
from fedatoms.runs.client_index import read_index
from fedatoms.runs.comparison import compare, existing, run_missing
from fedatoms.runs.execute import resume, run
from fedatoms.runs.results import read_result, scored_rounds
from fedatoms.runs.rounds import read_rounds

TINY = Experiment(
    clients=10,
    fraction=0.3,
    rounds=4,
    epochs=1,
    batch_size=32,
    checkpoint_every=2,
    momentum=0.5,
    failures=0.2,
    threads=1,
)


class Stopped(Exception):
    """What a watcher raises to break a run off."""


def stop_after(t: int, error: type[BaseException] = Stopped):  # noqa: ANN201
    def watch(progress: Progress) -> None:
        if progress.state.round == t:
            raise error

    return watch


def result_without_time(folder: Path) -> tuple[object, ...]:
    result = read_result(folder)
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in read_rounds(folder)]
    return result.accuracy, result.bytes_up, result.bytes_down, rows


def test_a_run_leaves_its_files(tmp_path: Path) -> None:
    result = run(replace(TINY, out=str(tmp_path), name="mine", parametrisation="atoms", beta="1/2"))
    folder = tmp_path / "mine"
    found = {path.name for path in folder.iterdir()}
    assert found == {"experiment.json", "rounds.jsonl", "result.json", "model.safetensors", "checkpoint"}
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert all(set(row["scores"]) == {"server", "selected", "all"} for row in rows)
    provenance = json.loads((folder / "result.json").read_text())["provenance"]
    assert {"commit", "torch", "device", "threads", "time"} <= provenance.keys()
    again = read_result(folder)
    assert replace(again, experiment=result.experiment) == result
    assert identity(again.experiment) == identity(result.experiment)
    model = fedatoms.load_model(folder)
    assert identical(dict(model.state_dict()), load_file(folder / "model.safetensors"))
    assert fedatoms.nn.is_decomposed(model)


def test_the_headline_is_the_mean_of_the_last_hundred_rounds() -> None:
    from fedatoms.runs.results import summarise

    rows = [{"round": t, "scores": {"all": {"accuracy": float(t)}} if t % 10 == 9 else {}} for t in range(200)]
    summary = summarise(rows)["all"]
    assert summary.headline == sum(range(109, 200, 10)) / 10
    assert (summary.final, summary.best) == (199.0, 199.0)


def last_files(folder: Path) -> dict[str, bytes]:
    """Reads the model, and what the last checkpoint has of every client."""
    clients = {path.name.split("-")[0]: path for path in sorted((folder / "checkpoint" / "clients").iterdir())}
    return {name: path.read_bytes() for name, path in {"model": folder / "model.safetensors", **clients}.items()}


@pytest.mark.parametrize(("name", "place"), some_now(ALGORITHMS, ["device", "host", "disk"], every=2))
def test_stop_and_resume_equals_no_stop_to_the_bit_wherever_client_states_are_kept(
    name: str, place: str, tmp_path: Path
) -> None:
    experiment = replace(TINY, algorithm=name, parametrisation="atoms", beta="1/3", slow_local="keep")
    experiment = replace(experiment, out=str(tmp_path))
    run(replace(experiment, name="whole", client_state="host"))
    whole = last_files(tmp_path / "whole")
    assert len(whole) > 1
    with pytest.raises(Stopped):
        run(replace(experiment, name="stopped", client_state=place), watch=stop_after(3))
    assert not (tmp_path / "stopped" / "result.json").exists()
    resume(tmp_path / "stopped", {})
    assert last_files(tmp_path / "stopped") == whole
    assert result_without_time(tmp_path / "whole") == result_without_time(tmp_path / "stopped")


def test_ctrl_c_saves_the_last_round(tmp_path: Path) -> None:
    experiment = replace(TINY, out=str(tmp_path), name="run", checkpoint_every=100)
    with pytest.raises(KeyboardInterrupt):
        run(experiment, watch=stop_after(3, KeyboardInterrupt))
    assert [path.stem for path in (tmp_path / "run" / "checkpoint").glob("*.json")] == ["000003"]
    resume(tmp_path / "run", {})
    run(replace(experiment, name="whole"))
    assert result_without_time(tmp_path / "run") == result_without_time(tmp_path / "whole")


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    experiment = replace(TINY, out=str(tmp_path), checkpoint_every=100)
    with pytest.raises(Stopped):
        run(replace(experiment, name="run"), watch=stop_after(2))
    resume(tmp_path / "run", {})
    run(replace(experiment, name="whole"))
    assert result_without_time(tmp_path / "run") == result_without_time(tmp_path / "whole")


def test_a_run_can_be_resumed_for_more_rounds(tmp_path: Path) -> None:
    run(replace(TINY, out=str(tmp_path), name="short", rounds=2))
    resume(tmp_path / "short", {"rounds": 4})
    run(replace(TINY, out=str(tmp_path), name="long"))
    assert identical(*(load_file(tmp_path / each / "model.safetensors") for each in ("short", "long")))
    assert identity(read_result(tmp_path / "short").experiment) == identity(read_result(tmp_path / "long").experiment)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_run_resumed_for_more_rounds_has_the_scores_of_one_that_was_asked_for_them_at_once(
    every: int, tmp_path: Path
) -> None:
    one = replace(TINY, out=str(tmp_path), eval_every=every)
    run(replace(one, name="run", rounds=3))
    resume(tmp_path / "run", {"rounds": 5})
    run(replace(one, name="whole", rounds=5))
    assert result_without_time(tmp_path / "run") == result_without_time(tmp_path / "whole")
    scored = [[row["round"] + 1 for row in read_rounds(tmp_path / name) if row["scores"]] for name in ("run", "whole")]
    assert scored[0] == scored[1] == scored_rounds(replace(one, rounds=5))


@pytest.mark.parametrize(("end", "every", "of"), [(1, 4, 10), (5, 4, 10), (4, 10, 6), (3, 1, 6)])
def test_a_run_resumed_for_as_many_rounds_as_it_has_done_ends_as_one_that_was_asked_for_them_at_once(
    end: int, every: int, of: int, tmp_path: Path
) -> None:
    """Its last round was not scored where it was one of more, so it is run again, from the checkpoint before it."""
    one = replace(TINY, out=str(tmp_path), eval_every=every, score="server,all", personal="ditto")
    run(replace(one, name="whole", rounds=end))
    with pytest.raises(KeyboardInterrupt):
        run(replace(one, name="cut", rounds=of), watch=stop_after(end, KeyboardInterrupt))
    resume(tmp_path / "cut", {"rounds": end})
    assert result_without_time(tmp_path / "cut") == result_without_time(tmp_path / "whole")
    assert last_files(tmp_path / "cut") == last_files(tmp_path / "whole")


def test_a_last_round_that_cannot_be_run_again_costs_a_line_and_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(
            replace(TINY, out=str(tmp_path), name="run", eval_every=8, rounds=9), watch=stop_after(5, KeyboardInterrupt)
        )
    (tmp_path / "run" / "checkpoint" / "000004.json").unlink()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.json*")}
    line = r"^rounds=5: .* has no score after round 5, and no earlier checkpoint .*\. Use 6 or more, or a"
    with pytest.raises(ValueError, match=line):
        resume(tmp_path / "run", {"rounds": 5})
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.json*")} == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, Stopped])
def test_a_run_that_stops_before_it_has_gone_on_keeps_its_last_scores(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished, resumed for more rounds, and broken off before one: it ends where it had ended, or goes on."""
    one = replace(TINY, out=str(tmp_path), eval_every=4, checkpoint_every=100)
    run(replace(one, name="run", rounds=3))
    run(replace(one, name="longer", rounds=5))
    before = result_without_time(tmp_path / "run")

    def stop(*_: object) -> None:
        raise error

    with monkeypatch.context() as stopping, pytest.raises(error):
        stopping.setattr("fedatoms.engine.loop.advance", stop)
        resume(tmp_path / "run", {"rounds": 5})
    resume(tmp_path / "run", {"rounds": 3})
    assert result_without_time(tmp_path / "run") == before
    with monkeypatch.context() as stopping, pytest.raises(error):
        stopping.setattr("fedatoms.engine.loop.advance", stop)
        resume(tmp_path / "run", {"rounds": 5})
    resume(tmp_path / "run", {})
    assert result_without_time(tmp_path / "run") == result_without_time(tmp_path / "longer")


def test_a_resumed_run_may_not_change_what_it_computes(tmp_path: Path) -> None:
    run(replace(TINY, out=str(tmp_path), name="run", rounds=1))
    with pytest.raises(ValueError, match=r"^aggregation=median: a run of two rules is of neither\. Start a run of its"):
        resume(tmp_path / "run", {"aggregation": "median"})
    with pytest.raises(ValueError, match=r"^eval_every=2: .* is scored after every round, and that cannot change in"):
        resume(tmp_path / "run", {"eval_every": 2, "rounds": 3})
    with pytest.raises(ValueError, match="`lr` cannot change in a resumed run"):
        resume(tmp_path / "run", {"lr": 0.5, "rounds": 2})


def test_a_run_does_not_unlearn_rounds(tmp_path: Path) -> None:
    run(replace(TINY, out=str(tmp_path), name="run", rounds=3))
    with pytest.raises(ValueError, match="has run 3 rounds already"):
        resume(tmp_path / "run", {"rounds": 2})


def test_a_round_without_any_report_is_still_valid_json(tmp_path: Path) -> None:
    run(replace(TINY, out=str(tmp_path), name="run", failures=0.8))
    text = (tmp_path / "run" / "rounds.jsonl").read_text()
    assert "NaN" not in text and '"loss": null' in text


@pytest.mark.parametrize(
    "damage", some_of(["manifest", "tensors", "truncated", "client", "index", "missing"], "manifest", "client")
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(damage: str, tmp_path: Path) -> None:
    experiment = replace(TINY, algorithm="scaffold", out=str(tmp_path), rounds=6)
    with pytest.raises(Stopped):
        run(replace(experiment, name="run"), watch=stop_after(5))
    folder = tmp_path / "run" / "checkpoint"
    assert sorted(path.name for path in folder.glob("*.json")) == ["000002.json", "000004.json"]
    tensors = folder / "000004.safetensors"
    if damage == "manifest":
        (folder / "000004.json").write_text("{")
    if damage == "tensors":
        data = bytearray(tensors.read_bytes())
        data[-1] ^= 1
        tensors.write_bytes(data)
    if damage == "truncated":
        tensors.write_bytes(tensors.read_bytes()[:100])
    if damage == "client":
        newest = max((folder / "clients").glob("*-000004.safetensors"))
        newest.write_bytes(newest.read_bytes()[:-1] + b"!")
    if damage == "index":
        (newest,) = (folder / "index").glob("000004-*.safetensors")
        newest.write_bytes(newest.read_bytes()[:-1] + b"!")
    if damage == "missing":
        tensors.unlink()
    said: list[str] = []
    resume(tmp_path / "run", {}, say=said.append)
    assert said[0].startswith("checkpoint 000004 is damaged (") and said[1:] == [
        "continuing from checkpoint 000002 instead"
    ]
    run(replace(experiment, name="whole"))
    assert result_without_time(tmp_path / "run") == result_without_time(tmp_path / "whole")


def test_a_changed_model_leaves_its_checkpoints_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    code = "from torch import nn\ndef net(classes):\n    "
    code += "return nn.Sequential(nn.Flatten(), nn.Linear(64, {}), nn.Linear({}, classes))\n"
    Path("changing.py").write_text(code.format(5, 5))
    run(replace(TINY, model="changing:net", out=str(tmp_path), name="run", rounds=2))
    for width, error in ((6, r"misshapen: 1\.weight is float32 \(5, 64\) instead of float32 \(6, 64\)"), (5, None)):
        Path("changing.py").write_text(code.format(width, width))
        sys.modules.pop("changing", None)
        if error:
            with pytest.raises(ValueError, match=error):
                resume(tmp_path / "run", {"rounds": 3})
        else:
            resume(tmp_path / "run", {"rounds": 3})


def test_shared_and_tied_layers_survive_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tied.py").write_text(
        "from torch import nn\n"
        "def net(classes):\n"
        "    conv = nn.Conv2d(8, 8, 3, padding=1)\n"
        "    return nn.Sequential(nn.Conv2d(1, 8, 3), conv, nn.ReLU(), conv, nn.Flatten(), nn.Linear(288, classes))\n"
    )
    for parametrisation in ("plain", "atoms", "fedpara", "pfedpara"):
        result = run(replace(TINY, model="tied:net", parametrisation=parametrisation, out=str(tmp_path), rounds=2))
        model = fedatoms.load_model(result.folder)
        assert model[1] is model[3]
        assert not any(torch.equal(leaf, torch.zeros_like(leaf)) for leaf in model.state_dict().values())


@pytest.mark.parametrize("what", ["manifest", "rounds"])
def test_a_record_that_was_tampered_with_is_noticed(what: str, tmp_path: Path) -> None:
    run(replace(TINY, out=str(tmp_path), name="run", rounds=4))
    folder = tmp_path / "run"
    if what == "manifest":
        path = folder / "checkpoint" / "000004.json"
        path.write_text(path.read_text().replace('"round": 4', '"round": 3'))
        said: list[str] = []
        resume(folder, {"rounds": 5}, say=said.append)
        assert "manifest does not match" in said[0]
    else:
        lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
        (folder / "rounds.jsonl").write_text("".join(lines[:1] + lines[2:]))
        (folder / "checkpoint" / "rounds" / "000004.jsonl").unlink()
        with pytest.raises(ValueError, match=r"has round 3, but 2 comes next, and .* cannot be rebuilt: the second"):
            resume(folder, {"rounds": 5})


def test_a_result_without_checkpoints_is_not_run_again(tmp_path: Path) -> None:
    import shutil

    run(replace(TINY, out=str(tmp_path), name="run", rounds=1))
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with pytest.raises(ValueError, match="has a result but no checkpoint"):
        resume(tmp_path / "run", {"rounds": 2})


def test_a_checkpoint_of_another_experiment_is_refused(tmp_path: Path) -> None:
    run(replace(TINY, out=str(tmp_path), name="run", rounds=1))
    rewrite(tmp_path / "run" / "experiment.json", lr=0.2)
    with pytest.raises(ValueError, match="belongs to another experiment"):
        resume(tmp_path / "run", {"rounds": 2})


def test_without_any_readable_checkpoint_a_resume_says_so(tmp_path: Path) -> None:
    run(replace(TINY, out=str(tmp_path), name="run", rounds=1))
    for path in (tmp_path / "run" / "checkpoint").glob("*.safetensors"):
        path.write_bytes(b"")
    for _ in range(2):  # and says so again, rather than begin anew in silence
        with pytest.raises(ValueError, match="holds no checkpoint that can be read"):
            resume(tmp_path / "run", {"rounds": 2})


def test_only_two_checkpoints_and_what_they_need_are_kept(tmp_path: Path) -> None:
    run(replace(TINY, algorithm="scaffold", client_state="disk", out=str(tmp_path), name="run", rounds=8))
    folder = tmp_path / "run" / "checkpoint"
    assert sorted(path.stem for path in folder.glob("*.json")) == ["000006", "000008"]
    listed = [json.loads(path.read_text())["index"] for path in folder.glob("*.json")]
    assert {path.name for path in (folder / "index").iterdir()} == {name for each in listed for name, _ in each}
    tables = [read_index(folder, each).tables.files for each in listed]
    needed = {row.path.name for table in tables for row in Files(folder, table).values()}
    assert {path.name for path in (folder / "clients").iterdir()} == needed


def test_no_space_left_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fedatoms.runs.checkpoints as checkpoints

    real = checkpoints.replace_file

    def full(path: Path, data: bytes, *, sync: bool = True) -> None:
        if path.name.startswith("000004"):
            path.with_name(path.name + ".partial").write_bytes(data[:10])
            raise OSError(28, "No space left on device", str(path))
        real(path, data, sync=sync)

    monkeypatch.setattr(checkpoints, "replace_file", full)
    with pytest.raises(OSError, match="No space left"):
        run(replace(TINY, out=str(tmp_path), name="run", rounds=6))
    monkeypatch.undo()
    assert [path.stem for path in (tmp_path / "run" / "checkpoint").glob("*.json")] == ["000002"]
    resume(tmp_path / "run", {})
    run(replace(TINY, out=str(tmp_path), name="whole", rounds=6))
    assert result_without_time(tmp_path / "run") == result_without_time(tmp_path / "whole")


@pytest.mark.slow
def test_kill_minus_nine_at_any_moment_loses_only_rounds_since_the_checkpoint(tmp_path: Path) -> None:
    """A run that writes a checkpoint after every round is killed again and again, and still ends right."""
    experiment = replace(TINY, algorithm="feddc", client_state="disk", rounds=24, checkpoint_every=1, out=str(tmp_path))
    fields = json.dumps(to_json(replace(experiment, name="run")))
    code = (
        "import json, sys, torch; from pathlib import Path; from fedatoms.experiment.files import from_json;"
        "from fedatoms.runs.execute import resume, run; torch.set_num_threads(1);"
        f"e = from_json(json.loads({fields!r})); folder = Path(e.out) / 'run';"
        "resume(folder, {}) if (folder / 'experiment.json').exists() else run(e)"
    )
    folder, kills = tmp_path / "run", 0
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ}, stderr=subprocess.DEVNULL)
        reached = max((int(path.stem) for path in (folder / "checkpoint").glob("*.json")), default=0)
        while process.poll() is None and not (folder / "checkpoint" / f"{reached + 3:06d}.json").exists():
            time.sleep(0.001)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        before = max(int(path.stem) for path in (folder / "checkpoint").glob("*.json"))
        assert before >= min(reached + 3, 24)
    assert kills >= 2
    resume(folder, {})
    run(replace(experiment, name="whole"))
    assert result_without_time(folder) == result_without_time(tmp_path / "whole")


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    experiment = replace(TINY, out=str(tmp_path), name="run", rounds=1)
    run(experiment)
    with pytest.raises(ValueError, match=r"already holds a run\. Continue it with `fedatoms run --resume \S+run`"):
        run(experiment)
    with pytest.raises(ValueError, match=r"Continue it with `fedatoms run --resume \S+run --rounds 3`"):
        run(replace(experiment, rounds=3))
    with pytest.raises(ValueError, match=r"already holds a run with another `algorithm`, `lr`\. Use another `name`"):
        run(replace(experiment, algorithm="scaffold", lr=0.5))


def test_a_comparison_runs_only_what_is_missing(tmp_path: Path) -> None:
    from contextlib import contextmanager

    started: list[str] = []

    @contextmanager
    def watching(label: str, rounds: int):  # noqa: ANN202
        started.append(label)
        yield lambda progress: None

    grid = [replace(TINY, parametrisation=p, seed=s, out=str(tmp_path)) for p in ("plain", "atoms") for s in (0, 1)]
    run_missing(grid[:3], watching)
    assert len(started) == 3
    with pytest.raises(Stopped):  # a broken one is resumed, not run again
        run(grid[3], watch=stop_after(3))
    lines = compare(run_missing(grid, watching))
    assert len(started) == 4
    assert [(line.label, line.seeds) for line in lines] == [("plain", 2), ("atoms", 2)]
    assert all(existing(experiment) is not None for experiment in grid)
    for line in lines:
        assert 1 <= line.rounds_to_target <= 4
        headlines = [result.accuracy["all"].headline for result in line.results]
        assert line.scores["all"].mean == pytest.approx(sum(headlines) / 2)


def test_a_comparison_has_no_gain_of_a_mean_over_other_rounds(tmp_path: Path) -> None:
    one = replace(TINY, out=str(tmp_path), rounds=4)
    results = [run(replace(one, seed=seed, eval_every=every)) for every in (1, 4) for seed in (0, 1)]
    first, second = compare(results)
    assert second.scores["all"].final == first.scores["all"].final  # the models are the same
    assert second.scores["all"].mean != first.scores["all"].mean and second.gains == {}
    assert "no gain, as it is a mean over other rounds than eval-every=1's" in str(
        comparison([first, second], "").caption
    )
    assert "no gain to state, as scores are means over other rounds" in judgement([first, second])


def test_a_comparison_refuses_repeats_and_other_experiments(tmp_path: Path) -> None:
    from contextlib import nullcontext

    def watching(label: str, rounds: int) -> nullcontext:
        return nullcontext(lambda progress: None)

    experiment = replace(TINY, out=str(tmp_path), rounds=1)
    with pytest.raises(ValueError, match="is listed twice"):
        run_missing([experiment, replace(experiment, map="vectorised")], watching)
    run_missing([experiment], watching)
    resume(tmp_path / run_name(experiment), {"rounds": 2})
    with pytest.raises(ValueError, match="holds another experiment"):
        run_missing([experiment], watching)


def test_tensorboard_events_are_written(tmp_path: Path) -> None:
    run(replace(TINY, out=str(tmp_path), name="run", rounds=1, tensorboard=True))
    assert list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))


def test_ten_thousand_clients_keep_their_states_on_disk(tmp_path: Path) -> None:
    from support.small import clients_of, play, small_net

    from fedatoms.algorithms import scaffold
    from fedatoms.core.files import Stored
    from fedatoms.engine.spec import Simulation

    sim = Simulation(
        small_net(),
        clients_of((1,) * 10_000),
        scaffold(),
        fraction=0.003,
        client_state="disk",
        folder=tmp_path,
        score=("server",),
    )
    state = play(sim, 2)
    assert 30 <= len(state.clients.rows) <= 60
    assert all(isinstance(row, Stored) and row.path.exists() for row in state.clients.rows.values())
    assert torch.is_tensor(state.clients.read(next(iter(state.clients.rows))).memory["control"]["conv1.weight"])


@pytest.mark.parametrize(
    ("given", "use"),
    [("fedavg-atoms", "fedatoms.preset('fedavg-atoms')"), ({"rounds": 2}, "fedatoms.Experiment(rounds=40)")],
)
def test_what_is_no_experiment_is_answered_with_how_to_make_one(given: Experiment, use: str) -> None:
    with pytest.raises(ValueError) as error:
        run(given)
    assert str(error.value) == f"experiment={given!r} is not an experiment. Use {use}."
