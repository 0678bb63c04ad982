"""Several devices serve many runs: a process for each, the results of runs in turn, and nothing lost by a death."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.jobs import obey
from support.signals import interruptible

from fedatoms.cli import main
from fedatoms.core.run_files import checkpoints
from fedatoms.runs.devices import devices_of, spread
from fedatoms.runs.lock import writer
from fedatoms.runs.rounds import read_rounds

GRID = ["compare", "--seeds", "0,1", "--clients", "10", "--epochs", "1", "--batch-size", "50"]
SHORT = [*GRID, "--rounds", "2"]
LONG = [*GRID, "--rounds", "100000", "--checkpoint-every", "3"]
MORTAL = """
import multiprocessing, os, signal
from pathlib import Path
from fedatoms.nn.models import digits_cnn

def calm(classes):
    return digits_cnn(classes)

def mortal(classes):
    if multiprocessing.parent_process() and Path("armed").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return digits_cnn(classes)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)  # of another test in this process
    return tmp_path


def models(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.glob("*/model.safetensors")}


def until(true: Callable[[], object], process: subprocess.Popen[str]) -> None:
    while not true():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@contextmanager
def going(words: list[str], folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[Path]]]:
    """Types a command in a terminal of its own, and waits until both of its runs have some rounds."""
    command = [sys.executable, "-m", "fedatoms", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with interruptible():  # what it is as it starts, the command is, too
        process = subprocess.Popen(command, cwd=folder, text=True, start_new_session=True, **pipes)
    try:
        until(lambda: len([*folder.glob("runs/*/checkpoint/*.json")]) >= 4, process)
        until(lambda: all(map(checkpoints, folder.glob("runs/*"))), process)
        yield process, sorted(folder.glob("runs/*"))
    finally:
        with process:
            os.killpg(process.pid, signal.SIGKILL)


def test_every_job_ends_with_its_answer_or_its_failure_whatever_became_of_the_others() -> None:
    jobs, heard = ["die", "one", "warn", "fail", "two", "three"], list[tuple[str, object]]()
    left = iter(jobs)
    with pytest.warns(UserWarning, match="beware"):
        over = list(spread(obey, ["a", "b"], lambda: next(left, None), lambda job, said: heard.append((job, said))))
    failures = {ended.job: ended.failure for ended in over if ended.failure}
    died = "its process on a was ended by SIGKILL, as the system does when memory runs out"
    assert failures == {"die": died, "fail": "no such thing"}
    answers = {ended.job: ended.answer for ended in over if not ended.failure}
    assert all(answer[0] in (f"{job} on a", f"{job} on b") for job, answer in answers.items())
    assert sorted(answers) == ["one", "three", "two", "warn"]
    assert os.getpid() not in {answer[1] for answer in answers.values()}  # one of them may be fast enough for all
    assert sorted(heard) == sorted((job, f"{job} begins") for job in jobs)


@pytest.mark.slow
def test_runs_on_two_devices_leave_the_models_of_runs_in_turn_byte_for_byte(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*SHORT, "--devices", "cpu,cpu"]) == 0
    said = capfd.readouterr()
    assert said.err == "" and all(f"[{number}/2] fedavg-digits-s{number - 1}" in said.out for number in (1, 2))
    assert main([*SHORT, "--devices", "cpu", "--out", "turn"]) == 0  # one name is --device
    table = capfd.readouterr().out.partition("comparison")[2]
    assert said.out.partition("comparison")[2].splitlines()[-3] == table.splitlines()[-3]
    assert models(here / "runs") == models(here / "turn") != {}
    assert main([*SHORT, "--devices", "cpu,cpu"]) == 0  # nothing is run again
    assert "[1/2]" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*SHORT, "--devices", "cpu,cuda:77"], "--devices cpu,cuda:77: 'cuda:77' cannot be used here ("),
        ([*SHORT, "--devices", "cpu,"], "--devices cpu,: '' cannot be used here (Device string must not be empty)"),
        (
            [*SHORT, "--devices", "cpu,cpu", "--device", "cpu"],
            "--devices cpu,cpu names all devices. Leave --device out.",
        ),
        (["reproduce", "iid", "--quick", "--devices", "cpu,moon"], "--devices cpu,moon: 'moon' cannot be used here ("),
        (
            ["reproduce", "iid", "--quick", "--devices", "cpu,cpu", "--on", "ray"],
            "--devices cpu,cpu does not go with --on ray, which finds devices itself. Leave one out.",
        ),
        (
            ["reproduce", "iid", "--quick", "--devices", "cpu,cpu", "--device", "cpu"],
            "--devices cpu,cpu names all devices. Leave --device out.",
        ),
    ],
)
def test_devices_that_cannot_be_get_a_line_before_anything_starts(
    words: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedatoms: {said}") and error.count("\n") == 1
    assert not (here / "runs").exists()


def test_no_device_is_none_and_one_may_be_named_twice() -> None:
    assert devices_of("") == [] and devices_of("cpu , cpu") == ["cpu", "cpu"]


@pytest.mark.slow
def test_a_run_whose_process_is_killed_is_said_and_the_same_command_finishes_what_is_missing(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "own.py").write_text(MORTAL)
    (here / "armed").touch()
    words = [*SHORT, "--model", "own:mortal,own:calm", "--devices", "cpu,cpu"]
    assert main(words) == 2
    said = capfd.readouterr()
    lines = said.err.splitlines()
    assert (
        "comparison" in said.out
        and len(lines) == 3
        and all("its process on cpu was ended by SIGKILL" in line for line in lines[:2])
    )
    assert lines[2] == "fedatoms: 2 of 4 runs failed. Type the same again to continue."
    assert len(models(here / "runs")) == 2
    (here / "armed").unlink()
    assert main(words) == 0 and len(models(here / "runs")) == 4


@pytest.mark.slow
def test_a_run_that_diverges_on_a_device_is_named_below_the_table_of_the_others(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main([*SHORT, "--lr", "1e5,0.1", "--clip", "0", "--devices", "cpu,cpu", "--threads", "1"]) == 1
    said = capfd.readouterr()
    assert [line.partition(" failed: client ")[0][:27] for line in sorted(said.err.splitlines())] == [
        f"fedatoms: fedavg-digits-s{seed}-" for seed in (0, 1)
    ]
    assert "comparison" in said.out and "2 of 4 runs failed, not in the table: lr=100000.0 (" in said.out
    assert "again" not in said.out + said.err


@pytest.mark.slow
@pytest.mark.parametrize("to", ["the terminal", "the command"])
def test_ctrl_c_ends_all_in_one_line_and_no_finished_round_is_lost(to: str, here: Path) -> None:
    with going([*LONG, "--devices", "cpu,cpu"], here) as (process, folders):
        (os.killpg if to == "the terminal" else os.kill)(process.pid, signal.SIGINT)
        error = process.communicate(timeout=50)[1]
        assert error == "fedatoms: stopped. Run the same command again to continue.\n" and process.returncode == 130
        assert len(folders) == 2
        for folder in folders:
            assert writer(folder) is None and checkpoints(folder)[-1] == len(read_rounds(folder))


@pytest.mark.slow
def test_if_the_command_itself_is_killed_its_processes_save_their_runs_and_end(here: Path) -> None:
    with going([*LONG, "--devices", "cpu,cpu"], here) as (process, folders):
        process.kill()
        process.wait()
        end = time.monotonic() + 40
        while any(map(writer, folders)) and time.monotonic() < end:
            time.sleep(0.05)
        for folder in folders:
            assert writer(folder) is None and checkpoints(folder)[-1] == len(read_rounds(folder))


@pytest.mark.slow
def test_a_reproduction_on_two_devices_shows_what_one_in_turn_shows(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "iid", "--quick", "--only", "^fedavg-(atoms25-)?cifar10-5 --partition iid"]
    shown = list[str]()
    for more in (["--devices", "cpu,cpu"], ["--device", "cpu", "--out", "turn"]):
        assert main([*words, *more]) == 0
        out = capfd.readouterr().out
        shown.append("\n".join(line for line in out.splitlines() if line.lstrip().startswith("fedavg")))
    assert shown[0] == shown[1] != "" and models(here / "runs" / "quick") == models(here / "turn") != {}
