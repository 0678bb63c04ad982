"""One writer for a folder: a lock that ends with the process that holds it, however that ends.

The operating system holds the lock, on a file that names its owner: the file of a killed process locks nothing.
"""

import json
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from fedatoms.core.border import read_bytes
from fedatoms.core.run_files import LOCK

FILE = LOCK
WAY_OUT = "Wait for it, end it, or use another `out`."
PATIENCE = 1.0  # seconds until a lock counts as another's: ``writer`` holds it for an instant, too
_HELD = set[int]()  # open files of this process, which a child that it forks must not keep locked

# Not by filelock, though torch brings it: where the system has no locks it makes do with a file that outlives its
# process, older versions empty the file that says who holds it, and none can look at a folder without writing there.
if sys.platform == "win32":
    import msvcrt

    def _lock(file: int, *, shared: bool) -> bool:
        os.lseek(file, 1 << 30, os.SEEK_SET)  # a byte beyond the text, since others cannot read what is locked
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        os.lseek(file, 0, os.SEEK_SET)
        return True
else:
    import fcntl

    def _lock(file: int, *, shared: bool) -> bool:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # which of the two depends on the file system
            return False
        return True

    def _let_go() -> None:
        for file in _HELD:
            os.close(file)
        _HELD.clear()

    os.register_at_fork(after_in_child=_let_go)  # for a new program Python closes the file itself


@contextmanager
def locked(folder: Path, way_out: str = WAY_OUT) -> Iterator[None]:
    """Makes this process the only writer of a folder; a second one gets an error that names the first.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, locked(Path(place, "run")):
    ...     writer(Path(place, "run")).startswith(f"process {os.getpid()} on ")
    True
    """
    path, process = folder / FILE, os.getpid()
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        file = _wait(path, way_out)
        _HELD.add(file)
        try:
            _sign(file)
            yield
        finally:
            if os.getpid() == process:  # not in a child that was forked within
                _HELD.discard(file)
                _give_back(file, path)
    finally:
        with suppress(OSError):  # ends at the first that holds something
            for each in made:
                each.rmdir()


def writer(folder: Path) -> str | None:
    """Returns which process writes a folder, if one does; writes nothing, so the folder may be read-only."""
    try:
        file = os.open(folder / FILE, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would make it wait
    except OSError:
        return None
    try:
        return None if not _is_regular(file) or _lock(file, shared=True) else _read(folder / FILE)
    except OSError:
        return None  # without locks nobody could begin to write
    finally:
        os.close(file)


def check_free(folder: Path, way_out: str = WAY_OUT) -> None:
    """Refuses a folder that another process writes, before other work begins."""
    if by := writer(folder):
        raise _written(folder, by, way_out)


def _wait(path: Path, way_out: str) -> int:
    until = time.monotonic() + PATIENCE
    while (file := _take(path)) is None:
        if time.monotonic() > until:
            raise _written(path.parent, _read(path), way_out)
        time.sleep(0.02)
    return file


def _take(path: Path) -> int | None:
    """Opens and locks a file; None if another process holds it, or has just removed it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # another process removed the empty folder before this one could see that it is a folder
        if path.parent.is_dir() or not os.path.lexists(path.parent):
            return None
        raise
    new = not path.exists()
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o666)
    except FileNotFoundError:  # another process removed the empty folder
        return None
    if not _is_regular(file):
        os.close(file)
        raise ValueError(f"{path} is not a regular file, which a lock must be. Remove it.")
    try:
        if _lock(file, shared=False) and _is_at(file, path):
            return file
    except OSError as error:
        if new:
            path.unlink(missing_ok=True)
        os.close(file)
        raise ValueError(
            f"{path.parent} cannot be locked ({error.strerror}): its file system has no locks, which keep a second "
            f"process from writing the same run. Use another `out`, on a disk of this machine for example."
        ) from None
    os.close(file)
    return None


def _is_regular(file: int) -> bool:
    return stat.S_ISREG(os.fstat(file).st_mode)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return False


def _sign(file: int) -> None:
    start = datetime.now(UTC).isoformat(timespec="seconds")
    os.ftruncate(file, 0)
    os.write(file, json.dumps({"host": socket.gethostname(), "process": os.getpid(), "start": start}).encode())
    os.fsync(file)  # for other hosts


def _read(path: Path) -> str:
    try:
        by = json.loads(read_bytes(path, 10_000))
        return f"process {by['process']} on {by['host']} since {by['start']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has not signed yet
        return "another process"


def _give_back(file: int, path: Path) -> None:
    """Removes the file while it is still locked: a process that has it open finds it gone, and opens the next."""
    if sys.platform == "win32":  # which cannot remove an open file
        os.close(file)
        with suppress(OSError):
            path.unlink()
        return
    with suppress(OSError):  # the folder may no longer be written
        if _is_at(file, path):
            path.unlink()
    os.close(file)


def _written(folder: Path, by: str, way_out: str) -> ValueError:
    return ValueError(f"{folder} is being written by {by}. {way_out}")
