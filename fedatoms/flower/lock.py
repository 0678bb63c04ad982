"""One server for a run: a lock on its folder, which ends with the process that holds it, however that ends."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps others out of a run's folder; who comes second is told so."""
    if sys.platform == "win32":  # which has no such locks
        yield
        return
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder} is being written by another run. Wait for it, or end it (flwr list, flwr stop), or use "
                f"another name."
            ) from None
        yield
