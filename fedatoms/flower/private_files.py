"""Files that only their owner can read, whatever the umask: runs on a server, nodes' states, databases and logs."""

import contextlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

UMASK = 0o077  # of processes that write for their owner only
FOLDER, FILE = 0o700, 0o600
_LOCK, _BEFORE = threading.Lock(), list[int]()  # a stack: the umask before each ``private``


@contextlib.contextmanager
def private() -> Iterator[None]:
    """Makes all that this process writes readable by its owner only, until the last thread leaves this context."""
    with _LOCK:
        _BEFORE.append(os.umask(UMASK))
    try:
        yield
    finally:
        with _LOCK:
            os.umask(UMASK if len(_BEFORE) > 1 else _BEFORE[0])
            _BEFORE.pop()


def shut(path: Path) -> None:
    """Makes a file, or a folder with all its contents, readable by its owner only, if it exists."""
    shut_door(path)  # first: then nobody reaches the rest while it is changed
    for place, folders, files in os.walk(path):
        for name in (*folders, *files):
            _shut(Path(place) / name, follow=False)


def shut_door(path: Path) -> None:
    """Makes a file or a folder readable by its owner only, and leaves its contents alone."""
    _shut(path, follow=True)


def _shut(path: Path, *, follow: bool) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):  # gone meanwhile, or somebody else's
        mode = path.stat(follow_symlinks=follow).st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):  # a link may lead elsewhere
            path.chmod(FOLDER if stat.S_ISDIR(mode) else FILE)
