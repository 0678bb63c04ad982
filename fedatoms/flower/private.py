"""Files for their owner only, whatever the umask: runs on a server, what nodes keep, databases and logs."""

import contextlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

UMASK = 0o077  # of processes that write for their owner only
FOLDER, FILE = 0o700, 0o600
_LOCK, _BEFORE = threading.Lock(), list[int]()  # the umask outside, once for each that is within


@contextlib.contextmanager
def private() -> Iterator[None]:
    """Lets this process write for its owner only, until the last thread that asked for it has done."""
    with _LOCK:
        _BEFORE.append(os.umask(UMASK))
    try:
        yield
    finally:
        with _LOCK:
            os.umask(UMASK if len(_BEFORE) > 1 else _BEFORE[0])
            _BEFORE.pop()


def shut(path: Path) -> None:
    """Takes a file, or a folder with all that is in it, from everybody but its owner; nothing if it is not there."""
    shut_door(path)  # first: nobody gets past it while the rest is shut
    for place, folders, files in os.walk(path):
        for name in (*folders, *files):
            _shut(Path(place) / name, follow=False)


def shut_door(path: Path) -> None:
    """Takes a file or a folder from everybody but its owner, and leaves what is in it as it is."""
    _shut(path, follow=True)


def _shut(path: Path, *, follow: bool) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):  # gone meanwhile, or somebody else's
        mode = path.stat(follow_symlinks=follow).st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):  # a link may lead elsewhere
            path.chmod(FOLDER if stat.S_ISDIR(mode) else FILE)
