"""Files for their owner only, whatever the umask: runs on a server, what nodes keep, databases and logs."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

UMASK = 0o077  # of processes that write for their owner only
FOLDER, FILE = 0o700, 0o600


@contextlib.contextmanager
def private(folder: Path) -> Iterator[None]:
    """Lets this process write for its owner only, until it has done; what a folder has already is shut too.

    The umask is the process's, so other threads write as privately meanwhile.
    """
    before = os.umask(UMASK)
    try:
        shut(folder)
        yield
    finally:
        os.umask(before)


def shut(path: Path) -> None:
    """Takes a file, or a folder with all that is in it, from everybody but its owner; nothing if it is not there."""
    _shut(path)  # first: nobody gets past it while the rest is shut
    for place, folders, files in os.walk(path):
        for name in (*folders, *files):
            _shut(Path(place) / name, follow=False)


def _shut(path: Path, *, follow: bool = True) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):  # gone meanwhile, or somebody else's
        mode = path.stat(follow_symlinks=follow).st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):  # a link may lead elsewhere
            path.chmod(FOLDER if stat.S_ISDIR(mode) else FILE)
