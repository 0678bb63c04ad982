"""Processes with a mark in their environment, which their children inherit: so all can be found and ended.

Flower starts subprocesses of its own, one of them in a new session: no process group reaches it.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedatoms.flower.private_files import FILE, UMASK

MARK = "FEDATOMS_STARTED_AS"
PROC = Path("/proc")
PAUSE = 0.05  # seconds between two polls
PATIENCE = 6.0  # seconds from asking to killing; Flower gives itself 5


def start(
    command: Sequence[str], mark: str, *, env: Mapping[str, str], cwd: Path, log: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts a command in a new session; its output is appended to ``log``, or else goes into a pipe.

    What it writes, its log included, is readable by its owner only.
    """
    check_found()
    output = subprocess.PIPE if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**env, MARK: mark},
            cwd=cwd,
            umask=UMASK,
            start_new_session=True,  # a Ctrl-C is for us: we end them in order
        )
    finally:
        if log is not None:
            os.close(output)


def check_found() -> None:
    """Refuses a system on which processes are not found by their marks."""
    if not (PROC / "self" / "environ").exists():
        raise OSError("processes are found by their environment in /proc, which is not here. Use Linux.")


def marked(mark: str, word: str = "") -> list[int]:
    """Returns the ids of living processes whose mark begins with ``mark`` and whose command has ``word`` in it."""
    entry = f"\0{MARK}={mark}".encode()
    ids = [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]
    return [pid for pid in ids if entry in b"\0" + _read(pid, "environ") and word.encode() in _read(pid, "cmdline")]


def kill(mark: str, word: str = "") -> int:
    """Kills all processes with a mark, and those that they start meanwhile; returns how many."""
    killed: set[int] = set()
    while ids := marked(mark, word):
        send(ids, signal.SIGKILL)
        killed |= set(ids)
        time.sleep(PAUSE)
    return len(killed)


def end(mark: str, patience: float = PATIENCE) -> None:
    """Asks all processes with a mark to end, and kills those that do not."""
    until = time.monotonic() + patience
    try:
        send(marked(mark), signal.SIGTERM)
        while marked(mark) and time.monotonic() < until:
            time.sleep(PAUSE)
    finally:  # a second Ctrl-C ends the patience, not the work
        kill(mark)


def _read(pid: int, name: str) -> bytes:
    try:
        return (PROC / str(pid) / name).read_bytes()
    except OSError:  # it has ended, or belongs to someone else
        return b""


def send(ids: Sequence[int], number: signal.Signals) -> None:
    """Sends a signal to processes; those that have ended are left out."""
    for pid in ids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
