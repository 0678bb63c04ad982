"""Children with limits: a function in a forked child, stopped when its time is over, and what became of it."""

import ctypes
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

ADDRESSES = 6 << 30  # bytes that a child may ask for beyond what it has: the machine survives, whatever the child does
LARGEST = 1 << 30  # bytes of a file that a child may write
DIES_WITH_ITS_PARENT = 1  # PR_SET_PDEATHSIG
GRACE = 10.0  # seconds to react to Ctrl-C

Act = Callable[[], int]  # what a child does; returns its exit status


class Ran(NamedTuple):
    """What became of a child."""

    status: int  # negative: the signal that ended it
    out: str
    err: str
    seconds: float
    memory: float  # MB at its peak above an idle child
    late: bool  # its time was over


class Child(NamedTuple):
    """A child that runs: its process, which leads a group of its own, and where its output goes."""

    process: int
    out: IO[bytes]
    err: IO[bytes]
    began: float


def run(act: Act, folder: Path, seconds: float, stop: signal.Signals = signal.SIGKILL) -> Ran:
    """Runs a function in a child, in a folder.

    >>> run(lambda: os.write(1, b"hello") and 3, Path("."), seconds=10)[:2]
    (3, 'hello')
    """
    return finish(start(act, folder), seconds, stop)


def start(act: Act, folder: Path) -> Child:
    """Forks a child that does something in a folder; it inherits what is imported, so it begins at once."""
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    process = os.fork()
    if process == 0:
        os._exit(_act(act, folder, out.fileno(), err.fileno()))
    return Child(process, out, err, time.monotonic())


def finish(child: Child, seconds: float, stop: signal.Signals = signal.SIGKILL) -> Ran:
    """Waits for a child; when its time is over, ``stop`` is sent, and if that does not end it, SIGKILL."""
    late = not _ended(child, seconds - (time.monotonic() - child.began))
    if late:
        _signal(child, stop)
        if stop != signal.SIGKILL:
            _ended(child, GRACE)
    _signal(child, signal.SIGKILL)  # and whatever it has started
    _, status, used = os.wait4(child.process, 0)
    memory = used.ru_maxrss / 1024 - (_idle() if child.began else 0)
    out, err = _text(child.out), _text(child.err)
    return Ran(os.waitstatus_to_exitcode(status), out, err, time.monotonic() - child.began, memory, late)


def pause(child: Child) -> None:
    """Stops a child in the middle of what it does, until ``go_on``."""
    _signal(child, signal.SIGSTOP)


def go_on(child: Child) -> None:
    """Lets a child that was stopped go on."""
    _signal(child, signal.SIGCONT)


def alive(child: Child) -> bool:
    """Returns whether a child still runs."""
    return not _ended(child, 0)


def _act(act: Act, folder: Path, out: int, err: int) -> int:
    """What the child does between fork and exit: its own group, its own output, its limits, then the act."""
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(DIES_WITH_ITS_PARENT, signal.SIGKILL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.chdir(folder)
        _limit(resource.RLIMIT_AS, _addresses() + ADDRESSES)
        _limit(resource.RLIMIT_FSIZE, LARGEST)
        _limit(resource.RLIMIT_CORE, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return act()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()


def _limit(what: int, most: int) -> None:
    resource.setrlimit(what, (most, most))


def _addresses() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@cache
def _idle() -> float:
    """Returns the memory of a child that does nothing, in MB."""
    return finish(start(lambda: 0, Path("/"))._replace(began=0.0), 1e9).memory


def _ended(child: Child, seconds: float) -> bool:
    file = os.pidfd_open(child.process)
    try:
        return bool(select.select([file], [], [], max(seconds, 0))[0])
    finally:
        os.close(file)


def _signal(child: Child, number: signal.Signals) -> None:
    try:
        os.killpg(child.process, number)
    except (ProcessLookupError, PermissionError):  # it has ended, or has no group yet
        if number == signal.SIGKILL:
            os.kill(child.process, number)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    with file:
        return file.read(1 << 22).decode(errors="replace")
