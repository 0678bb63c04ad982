"""One writer for a run's folder: a second one is refused in a line and changes nothing; the dead lock nothing."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
from support.results import a_run

from fedatoms.cli import main
from fedatoms.core.files import replace_file
from fedatoms.engine.loop import Progress
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.files import Measure
from fedatoms.evidence.paper.study_list import quick
from fedatoms.evidence.reproduce import work
from fedatoms.evidence.reproduce.plan import Job, Reproduce, chosen, jobs
from fedatoms.evidence.results.finding import find
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load_run, to_json
from fedatoms.experiment.identities import run_folder
from fedatoms.runs import comparison, execute, lock
from fedatoms.runs.execute import resume, run
from fedatoms.runs.loading import load_model
from fedatoms.runs.lock import check_free, locked, writer
from fedatoms.runs.rounds import read_rounds

ONE = "^fedavg-cifar10-5 --partition iid"
HOLD = """
import sys
from pathlib import Path
from fedatoms.runs.lock import locked
with locked(Path(sys.argv[1])):
    print("mine", flush=True)
    sys.stdin.readline()
"""
RUN = """
import json, sys
from fedatoms.experiment.files import from_json
from fedatoms.runs.execute import run

def wait(progress):
    if progress.state.round == 3:
        print("mine", flush=True)
        sys.stdin.readline()

run(from_json(json.loads(sys.argv[1])), watch=wait)
"""
FORK = """
import os, subprocess, sys
from pathlib import Path
from fedatoms.runs.lock import locked
with locked(Path(sys.argv[1])):
    subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False)
    if not os.fork():
        print("mine", flush=True)
    sys.stdin.readline()
"""
COUNT = """
import sys
from pathlib import Path
from fedatoms.runs.lock import locked
folder, done = Path(sys.argv[1]), 0
while done < 40:
    try:
        with locked(folder / "run"):
            number = int((folder / "count").read_text())
            (folder / "count").write_text(str(number + 1))
            done += 1
    except ValueError:
        pass
"""


@contextmanager
def process(code: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    """Runs a program until it holds a lock, and ends it afterwards by a line of input if it was not ended before."""
    command = [sys.executable, "-c", code, *map(str, words)]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, text=True) as other:
        assert other.stdout is not None and other.stdout.readline().startswith("mine")
        try:
            yield other
        finally:
            if other.poll() is None:
                other.communicate("\n")


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """A short run that `fedatoms reproduce iid --quick` asks for, too."""

    def short(one: Experiment) -> Experiment:
        return replace(quick(one), rounds=5, epochs=1, batch_size=50, checkpoint_every=2, threads=1)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedatoms.runs.lock.PATIENCE", 0.1)
    monkeypatch.setattr("fedatoms.evidence.reproduce.plan.quick", short)
    (job,) = jobs(chosen(["iid"]), Reproduce(quick=True, only=ONE, out="runs"))
    return job.experiments[0]


def text_of(experiment: Experiment) -> str:
    return json.dumps(to_json(experiment))


def files_in(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All files below a folder: when they were written, and what they hold."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.as_posix(): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def told(folder: Path, other: subprocess.Popen[str]) -> str:
    return f"{folder} is being written by process {other.pid} on "


def undisturbed(experiment: Experiment, out: Path) -> tuple[bytes, list[object]]:
    return outcome(run(replace(experiment, out=str(out))).folder)


def outcome(folder: Path) -> tuple[bytes, list[object]]:
    """A run's model, and its rounds without their times."""
    rows: list[object] = [{**row, "seconds": 0.0} for row in read_rounds(folder)]
    return (folder / "model.safetensors").read_bytes(), rows


def second_writers(experiment: Experiment) -> dict[str, tuple[list[str], int]]:
    """Commands that would write an experiment's folder, and the exit status of each."""
    Path("saved.json").write_text(text_of(experiment))
    before = to_json(Experiment())
    changed = {name: value for name, value in to_json(experiment).items() if value != before[name]}
    flags = [word for name, value in changed.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return {
        "resume": (["run", "--resume", str(run_folder(experiment))], 2),
        "more rounds": (["run", "--resume", str(run_folder(experiment)), "--rounds", "9"], 2),
        "run": (["run", "saved.json"], 2),
        "compare": (["compare", *flags, "--seeds", "1,0"], 2),  # seed 1 is free, and is not begun
        "reproduce": (["reproduce", "iid", "--quick", "--only", ONE, "--out", experiment.out], 1),
    }


def test_a_second_writer_is_refused_in_a_line_and_the_first_one_ends_as_if_alone(
    experiment: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(experiment)
    with process(RUN, text_of(experiment)) as first:
        before = files_in(tmp_path / "runs")
        for name, (words, status) in second_writers(experiment).items():
            assert main(words) == status, name
            *notices, line = capsys.readouterr().err.splitlines()
            assert told(folder, first) in line and all("changes nothing" in each for each in notices), name
            assert "Wait for it, end it, or use another `" in line, name
            assert files_in(tmp_path / "runs") == before, name
        assert before[f"{tmp_path / folder}/lock"][1]
    assert first.returncode == 0
    assert outcome(folder) == undisturbed(experiment, tmp_path / "alone")
    assert not (folder / "lock").exists()


def test_the_run_of_a_process_that_was_killed_goes_on(experiment: Experiment, tmp_path: Path) -> None:
    folder = run_folder(experiment)
    with process(RUN, text_of(experiment)) as first:
        first.kill()
    assert (folder / "lock").exists() and writer(folder) is None
    assert main(["run", "--resume", str(folder)]) == 0
    assert outcome(folder) == undisturbed(experiment, tmp_path / "alone")


def test_of_two_runs_of_one_name_that_begin_together_one_is_refused(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes when the first has seen that the folder is free."""
    configure = execute.configure

    def late(one: Experiment) -> None:
        monkeypatch.setattr(execute, "configure", configure)
        with pytest.raises(ValueError, match="is being written by process"):
            run(experiment)
        configure(one)

    monkeypatch.setattr(execute, "configure", late)
    run(experiment)
    assert outcome(run_folder(experiment)) == undisturbed(experiment, tmp_path / "alone")


def test_what_another_process_has_finished_meanwhile_is_not_run_again(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    def load_late(folder: Path) -> Experiment:
        resume(folder, {})
        before.update(files_in(folder))
        return load_run(folder)

    with pytest.raises(KeyboardInterrupt):
        run(experiment, watch=stop)
    before, seen = dict[str, tuple[int, bytes]](), list[Progress]()
    monkeypatch.setattr(comparison, "load_run", load_late)
    result = comparison.finish(experiment, seen.append)
    assert files_in(result.folder) == before and not seen


def test_a_job_that_another_process_did_after_the_jobs_were_listed_is_done(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = jobs(chosen(["iid"]), Reproduce(quick=True, only=ONE, out="runs"))
    run(experiment)
    before = files_in(Path("runs"))
    assert work.perform(job) == work.Done(job)
    assert files_in(Path("runs")) == before


def test_what_another_process_finished_in_the_end_did_not_fail(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(asked: list[Job], *others: object, **more: object) -> Iterator[work.Done]:
        run(experiment)  # the other process ends
        yield work.Done(asked[0], "it is being written by another process")

    monkeypatch.setattr(work, "here", refused)
    assert main(["reproduce", "iid", "--quick", "--only", ONE, "--out", experiment.out]) == 0
    assert "failed" not in capsys.readouterr().err


def test_a_measure_has_one_writer_and_is_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = jobs(chosen(["synthetic"]), Reproduce(quick=True, out=str(tmp_path / "runs")))
    kind, second = MEASURES["synthetic"], list[str]()

    def slow(*arguments: object) -> Measure:
        monkeypatch.setitem(work.MEASURES, "synthetic", kind)
        second.append(work.perform(job).failure)  # comes in the middle of the first
        return kind.measure(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("fedatoms.runs.lock.PATIENCE", 0.1)
    monkeypatch.setitem(work.MEASURES, "synthetic", kind._replace(measure=slow))
    assert not work.perform(job).failure
    assert second[0].startswith(f"{job.folder} is being written by process {os.getpid()} on ")
    assert [path.name for path in job.folder.iterdir()] == ["measure.json"]
    before = files_in(job.folder)
    assert not work.perform(job).failure and files_in(job.folder) == before


def test_a_report_calls_a_run_running_and_advises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    a_run(Path("runs/done"))
    for name in ("going", "stopped"):
        a_run(Path("runs") / name, seed=1).joinpath("result.json").unlink()
        Path("runs", name, "experiment.json").write_text(text_of(Experiment()))
    with process(HOLD, "runs/going") as other:
        by = writer(Path("runs/going"))
        assert by is not None and by.startswith(f"process {other.pid} on ") and " since 20" in by
        assert main(["report", "runs"]) == 0
        line, advice = capsys.readouterr().err.splitlines()
        assert line.startswith(f"fedatoms: runs/going/experiment.json: running after 3 of 40 rounds ({by}, last round ")
        assert "runs/stopped/experiment.json: stopped after 3 of 40 rounds: go on with" in advice
        assert advice.endswith(" `fedatoms run --resume runs/stopped`")
        assert f"running after 3 of 40 rounds ({by}, last round" in Path("report.html").read_text()
        assert main(["report", "runs/going", "-o", "other.html"]) == 0  # a page of what is running
        assert "--resume" not in capsys.readouterr().err
        with pytest.raises(ValueError, match=r"is not finished.*It is running \(process .*\): wait for it\."):
            load_model("runs/going")
    assert "--resume runs/going" in find([Path("runs")]).left_out[0].reason


def test_a_report_says_that_a_finished_run_is_getting_more_rounds(tmp_path: Path) -> None:
    lines = a_run(tmp_path / "run", rounds=4) / "rounds.jsonl"
    lines.write_text("".join(lines.read_text().splitlines(keepends=True)[:3]))
    with locked(tmp_path / "run"):
        (note,) = find([tmp_path]).notes
    assert note.reason.startswith("has 3 of 4 rounds: more are running (process ")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused_with_a_line_and_read_all_the_same(
    number: int, experiment: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(file: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    Path("saved.json").write_text(text_of(experiment))
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", none)
        assert main(["run", "saved.json", "--out", "deep/runs"]) == 2
        line = capsys.readouterr().err
        assert "its file system has no locks" in line and "Use another `--out`" in line and line.count("\n") == 1
        assert not Path("deep").exists()
    folder = run(experiment).folder
    before = files_in(folder)
    monkeypatch.setattr(fcntl, "flock", none)
    assert main(["run", "--resume", str(folder), "--rounds", "6"]) == 2
    assert files_in(folder) == before
    assert load_model(folder) and len(find([folder]).runs) == 1


def test_a_folder_that_can_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opens(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, flags, mode)

    real = os.open
    a_run(tmp_path / "run").joinpath("result.json").unlink()
    (tmp_path / "run" / "experiment.json").write_text(text_of(Experiment()))
    with locked(tmp_path / "run"), monkeypatch.context() as patched:
        patched.setattr(os, "open", opens)
        assert "running" in find([tmp_path]).left_out[0].reason
    (tmp_path / "run" / "lock").write_text("of a process that was killed")
    monkeypatch.setattr(os, "open", opens)
    assert "--resume" in find([tmp_path]).left_out[0].reason


def test_a_killed_process_leaves_its_folder_to_the_next(tmp_path: Path) -> None:
    with process(HOLD, tmp_path) as other:
        with pytest.raises(ValueError, match=f"is being written by process {other.pid} on "), locked(tmp_path):
            raise AssertionError("two have it")
        with pytest.raises(ValueError, match=f"is being written by process {other.pid} on "):
            check_free(tmp_path)
        other.kill()
        other.wait()
        with locked(tmp_path):
            assert json.loads((tmp_path / "lock").read_text())["process"] == os.getpid()


def test_what_a_process_forked_or_started_does_not_keep_its_lock(tmp_path: Path) -> None:
    with process(FORK, tmp_path) as other:  # both read its input, and end with it
        with pytest.raises(ValueError, match=f"is being written by process {other.pid} on "):
            check_free(tmp_path)
        other.kill()
        other.wait()
        assert writer(tmp_path) is None
        with locked(tmp_path):
            assert other.stdin is not None
            other.stdin.close()  # the child ends within its parent's lock
            assert other.stdout is not None and not other.stdout.read()
            assert writer(tmp_path)


def test_only_the_operating_system_says_whether_a_folder_is_locked(tmp_path: Path) -> None:
    for text in (json.dumps({"host": "here", "process": os.getpid(), "start": "now"}), "", "[1]", "\0"):
        (tmp_path / "lock").write_text(text)
        assert writer(tmp_path) is None
        check_free(tmp_path)
        with locked(tmp_path):
            (tmp_path / "lock").write_text(text)
            assert writer(tmp_path)


def test_a_lock_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "a" / "b"):
        raise KeyboardInterrupt
    assert not (tmp_path / "a").exists()
    with locked(tmp_path / "a"):
        (tmp_path / "a" / "result").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["result"]


def test_no_two_hold_a_lock_though_its_file_and_folder_come_and_go(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    others = [subprocess.Popen([sys.executable, "-c", COUNT, str(tmp_path)]) for _ in range(3)]
    assert [other.wait() for other in others] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "120"


def test_who_makes_a_folder_that_its_holder_has_just_removed_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Path.mkdir` finds a folder, and no folder a moment later."""
    real, seen = Path.mkdir, list[Path]()

    def late(path: Path, *words: object, **more: object) -> None:
        seen.append(path)
        if len(seen) == 1:
            raise FileExistsError(17, "File exists", str(path))
        real(path, *words, **more)

    monkeypatch.setattr(Path, "mkdir", late)
    with locked(tmp_path / "run"):
        assert len(seen) == 2


def test_who_locks_a_file_that_its_holder_has_just_removed_looks_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, first, second = lock._lock, ExitStack(), ExitStack()

    def late(file: int, *, shared: bool) -> bool:
        monkeypatch.setattr(lock, "_lock", real)
        first.close()
        second.enter_context(locked(tmp_path))
        return real(file, shared=shared)

    first.enter_context(locked(tmp_path))
    monkeypatch.setattr(lock, "PATIENCE", 0.1)
    monkeypatch.setattr(lock, "_lock", late)
    with second, pytest.raises(ValueError, match="is being written by"), locked(tmp_path):
        raise AssertionError("two have it")


def test_who_only_looks_keeps_nobody_from_beginning(tmp_path: Path) -> None:
    file = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_SH)
    looked = threading.Timer(0.1, os.close, [file])
    looked.start()
    with locked(tmp_path):
        assert writer(tmp_path)
    looked.join()


def test_two_that_write_one_file_at_once_leave_the_whole_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two `reproduce` do with their page, which is made anew from results and so needs no lock."""
    synced = os.fsync

    def late(file: int) -> None:
        monkeypatch.setattr(os, "fsync", synced)
        replace_file(tmp_path / "page", b"a longer second one")
        synced(file)

    monkeypatch.setattr(os, "fsync", late)
    replace_file(tmp_path / "page", b"first")
    assert (tmp_path / "page").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["page"]


@pytest.mark.parametrize("what", ["a pipe", "a device"])
def test_a_lock_that_is_no_file_is_named_at_once(what: str, tmp_path: Path) -> None:
    if what == "a pipe":
        os.mkfifo(tmp_path / "lock")
    else:
        (tmp_path / "lock").symlink_to("/dev/zero")
    assert writer(tmp_path) is None
    with (
        pytest.raises(ValueError, match=r"lock is not a regular file, which a lock must be. Remove it"),
        locked(tmp_path),
    ):
        raise AssertionError("it was locked")
