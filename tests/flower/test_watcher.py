"""What a process started ends with it, also if it is killed: nothing runs on, and no folder is left."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedatoms.flower import processes
from fedatoms.flower.watcher import watched

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
STARTER = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {DEAF!r}], start_new_session=True)
time.sleep(600)
"""
PARENT = f"""
import os, sys
from pathlib import Path
from fedatoms.flower.processes import marked, start
from fedatoms.flower.watcher import watched

token, folder = sys.argv[1], Path(sys.argv[2])
with watched(token, folder):
    folder.mkdir()
    print("watched", flush=True)
    for number in range(3):
        words = [sys.executable, "-c", {STARTER!r}]
        start(words, f"{{token}}/{{number}}/", env=os.environ, cwd=folder, log=folder / "log")
    while len(marked(f"{{token}}/")) < 6:
        pass
    print("started", flush=True)
    sys.stdin.read()
"""


def living(word: str) -> list[int]:
    """All processes, watchers too, that have a word in their command line or environment."""
    ids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in ids if any(word.encode() in processes._read(pid, name) for name in ("cmdline", "environ"))]


def wait_until_nothing_is_left(word: str, folder: Path) -> None:
    until = time.monotonic() + 60
    while (living(word) or folder.exists()) and time.monotonic() < until:
        time.sleep(processes.PAUSE)
    assert living(word) == [] and not folder.exists()


def parent(token: str, folder: Path) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", PARENT, token, str(folder)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_killed_process_takes_all_that_it_started_with_it(tmp_path: Path) -> None:
    token, folder = f"a{os.getpid()}", tmp_path / "folder"
    with parent(token, folder) as started:
        assert started.stdout is not None
        assert list(zip(range(2), started.stdout, strict=False))[-1][1] == "started\n"
        started.kill()
    wait_until_nothing_is_left(token, folder)


@pytest.mark.slow
def test_whenever_it_is_killed(tmp_path: Path) -> None:
    draws = random.Random(0)
    for number in range(20):
        token, folder = f"b{os.getpid()}x{number}", tmp_path / f"folder-{number}"
        with parent(token, folder) as started:
            assert started.stdout is not None
            if number % 4:
                started.stdout.readline()
            time.sleep(draws.uniform(0, 0.3))
            started.kill()
        wait_until_nothing_is_left(token, folder)


def test_nothing_is_left_after_an_error_or_a_normal_end_either(tmp_path: Path) -> None:
    for error in (None, KeyboardInterrupt()):
        token, folder = f"c{os.getpid()}", tmp_path / "folder"
        try:
            with watched(token, folder):
                folder.mkdir()
                words = [sys.executable, "-c", DEAF]
                child = processes.start(words, f"{token}/1/", env=os.environ, cwd=folder, log=folder / "log")
                if error is not None:
                    raise error
        except KeyboardInterrupt:
            assert error is not None
        assert child.wait(timeout=10) != 0
        assert living(token) == [] and not folder.exists()  # also if our own end was stopped, as here


def test_what_bears_another_mark_lives_on_and_no_folder_is_removed_that_was_not_named(tmp_path: Path) -> None:
    token, other = f"d{os.getpid()}", f"d{os.getpid()}e"
    with watched(token):
        dead, alive = (
            processes.start([sys.executable, "-c", DEAF], f"{one}/1/", env=os.environ, cwd=tmp_path, log=tmp_path / one)
            for one in (token, other)
        )
    assert dead.wait(timeout=10) != 0 and alive.poll() is None and (tmp_path / token).exists()
    alive.kill()
    alive.wait()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["starting a SuperLink", "are online", "round 1: loss"])
def test_a_killed_demo_leaves_neither_process_nor_file(when: str, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    words = [sys.executable, "-m", "fedatoms", "flower", "demo", "--nodes", "2", "--rounds", "3"]
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}  # all that it starts has the first
    with subprocess.Popen(words, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None
        next(line for line in command.stdout if when in line)
        while len(living(str(tmp_path))) < 3:  # with the one that watches
            assert command.poll() is None
            time.sleep(processes.PAUSE)
        command.kill()
    until = time.monotonic() + 60
    while (living(str(tmp_path)) or any(tmp_path.iterdir())) and time.monotonic() < until:
        time.sleep(processes.PAUSE)
    assert living(str(tmp_path)) == [] and list(tmp_path.iterdir()) == []
