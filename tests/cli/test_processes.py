"""torchrun and the command line: a process that ends is named in one line, and its run goes on elsewhere."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import ROOT

from fedatoms.cli import main
from fedatoms.experiment.files import load_run
from fedatoms.runs.rounds import read_rounds

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
RUN = "run --algorithm scaffold --epochs 1 --checkpoint-every 2 --device cpu --threads 1 --name mine"
MINE = """
import os
from fedatoms.algorithms import fedavg

def broken():
    calls = []

    def correct(gradient, *others):
        calls.append(1)
        if os.environ["RANK"] == "1" and len(calls) > 400:
            raise RuntimeError("the disk is on fire")
        return gradient

    return fedavg()._replace(correct=correct)
"""


def torchrun(processes: int, words: str) -> subprocess.Popen[str]:
    about = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*TORCHRUN, str(processes), "-m", "fedatoms", *words.split()], env=about, **pipes)


def ours(said: str) -> list[str]:
    """Finds the lines that are neither torchrun's nor of rounds."""
    return [line for line in said.splitlines() if line.startswith("fedatoms: ")]


def number_of(rank: int) -> int:
    """Finds the process of a rank that was started in this folder."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                about, words = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
                here = Path(os.readlink(folder / "cwd")) == Path.cwd()
            except OSError:
                continue
            if here and b"fedatoms\0run" in words and f"\0RANK={rank}\0".encode() in about:
                return int(folder.name)
        time.sleep(0.1)
    raise AssertionError(f"no process {rank}")


def wait_for_rounds(count: int) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if len(read_rounds(Path("runs/mine"))) >= count:
            return
        time.sleep(0.1)
    raise AssertionError("no rounds")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_others_with_one_line_and_the_run_goes_on(rank: int) -> None:
    started = torchrun(2, f"{RUN} --rounds 1000")
    wait_for_rounds(3)
    os.kill(number_of(rank), signal.SIGKILL)
    began = time.monotonic()
    said, _ = started.communicate(timeout=120)
    assert time.monotonic() - began < 30 and started.returncode != 0
    again = "Continue with: torchrun --nproc-per-node 2 -m fedatoms run --resume runs/mine"
    assert ours(said) == [f"fedatoms: process {rank} of 2 was killed. {again}"]
    done = len(read_rounds(Path("runs/mine")))
    assert main(f"run --resume runs/mine --rounds {done + 2}".split()) == 0
    assert main(f"{RUN} --name whole --rounds {done + 2}".split()) == 0
    rows, whole = read_rounds(Path("runs/mine")), read_rounds(Path("runs/whole"))
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in whole], rel=1e-2)
    assert [row["up"] for row in rows] == [row["up"] for row in whole]


@pytest.mark.slow
def test_an_error_of_one_process_is_said_once_by_the_first() -> None:
    Path("mine.py").write_text(MINE)
    said, _ = torchrun(2, "run --algorithm mine:broken --rounds 1000 --device cpu --name mine").communicate(timeout=180)
    (line,) = ours(said)
    assert "process 1 failed: your algorithm mine:broken failed in line 11: RuntimeError: the disk is on fire" in line


@pytest.mark.slow
def test_a_signal_stops_all_after_the_same_round_and_saves_it() -> None:
    started = torchrun(2, f"{RUN} --rounds 1000 --checkpoint-every 999")
    wait_for_rounds(2)
    started.send_signal(signal.SIGTERM)
    said, _ = started.communicate(timeout=120)
    assert ours(said) == ["fedatoms: stopped. Checkpoint saved. Continue with: fedatoms run --resume runs/mine"]
    done = len(read_rounds(Path("runs/mine")))
    assert [path.stem for path in Path("runs/mine/checkpoint").glob("*.json")] == [f"{done:06d}"]
    assert load_run(Path("runs/mine")).rounds == 1000


def several(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": str(rank)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("fedatoms.cli.processes.PAUSE", 0.0)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("compare --seeds 0,1", "torchrun starts `fedatoms compare` 2 times, but only `fedatoms run` is shared"),
        ("runs", "Leave torchrun out."),
        ("run --name mine", "WORLD_SIZE=2, but MASTER_ADDR is not set"),
        ("run --lrr 1", "unknown option --lrr. Did you mean --lr?"),
    ],
)
def test_misuse_costs_one_line_of_process_0(
    words: str, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    for rank in (0, 1):
        several(monkeypatch, rank)
        assert main(words.split()) == 2
        out, said = capsys.readouterr()
        assert out == "" and (answer in said if rank == 0 else said == "")
        assert said.count("\n") == 1 - rank
    assert not Path("runs").exists()


def test_a_silent_process_that_torchrun_stops_stays_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(seconds: float) -> None:
        raise KeyboardInterrupt  # as the handler of SIGTERM does

    several(monkeypatch, rank=1)
    monkeypatch.setattr("fedatoms.cli.processes.time.sleep", stopped)
    assert main("run --lrr 1".split()) == 2
    assert capsys.readouterr() == ("", "")
