"""A process that outlives the one that started it, whatever ends that: it then ends all that bears a mark.

Run as ``python -m fedatoms.flower.watcher TOKEN [FOLDER]``. Its input is a pipe that only the process that started it
holds open. The system closes it when that process ends, also by kill -9, which no process can answer itself.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fedatoms
from fedatoms.flower.processes import PAUSE, check_found, kill, marked

ALL_IS_WELL = b"."
STARTING = 1.0  # seconds in which a process that was being started gets its mark


@contextmanager
def watched(token: str, folder: Path | None = None) -> Iterator[None]:
    """Sees to it that, if this process dies inside, what it marked with ``token`` ends, and a folder is removed."""
    check_found()
    words = [sys.executable, "-P", "-m", "fedatoms.flower.watcher", token, *([str(folder)] if folder else [])]
    watcher = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,  # a Ctrl-C, or a kill of our group, is not for it
    )
    try:
        yield
    finally:
        left = marked(f"{token}/") or (folder is not None and folder.exists())  # a second Ctrl-C can stop our own end
        watcher.communicate(b"" if left else ALL_IS_WELL)


def watch(token: str, folder: Path | None) -> None:
    """Waits until the input ends; if it ends without a word, ends all that bears the mark, and removes the folder."""
    if sys.stdin.buffer.read() == ALL_IS_WELL:
        return
    until = time.monotonic() + STARTING
    while kill(f"{token}/") or time.monotonic() < until:
        time.sleep(PAUSE)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def environment() -> dict[str, str]:
    """Returns the variables of a process that imports this very package."""
    root = str(Path(fedatoms.__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    watch(sys.argv[1], Path(sys.argv[2]) if sys.argv[2:] else None)
