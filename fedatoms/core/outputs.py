"""Where a file that a user names may be written: not over a run's own files, nor over what is no file.

Its folder is there, or is a new one below the working folder.
"""

import os
from pathlib import Path

from fedatoms.core.border import as_path, kind_at
from fedatoms.core.run_files import run_of


def check_output(path: Path, place: Path | None = None) -> None:
    """Refuses a file that cannot be written, or should not be; ``place`` is where a run itself keeps such a file.

    >>> check_output(Path("/dev/null"))
    Traceback (most recent call last):
    ...
    ValueError: /dev/null is a device, not a file that can be written. Choose another file.
    """
    as_path(path, "out")
    try:
        _check_parent(path)
        kind, run = kind_at(path), _run_losing(path, place)
    except OSError as error:  # a name that is too long, a link to itself
        raise ValueError(f"{path} cannot be written ({error.strerror}). Choose another file.") from None
    if kind not in ("", "file"):
        raise ValueError(f"{path} is a {kind}, not a file that can be written. Choose another file.")
    if run is not None:
        raise ValueError(f"{path} is for the run in {run} itself, which would lose it. Choose another file.")


def _check_parent(path: Path) -> None:
    """Refuses a folder that is missing, unless it is below the working folder: elsewhere it is a slip."""
    folder = path.parent
    if not folder.is_dir() and not folder.resolve().is_relative_to(Path.cwd().resolve()):
        raise ValueError(f"{path}: there is no folder {folder}. Make it first, or choose another file.")
    there = next(above for above in (folder, *folder.parents) if above.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(f"{path}: {there} is not a folder that can be written. Choose another file.")


def _run_losing(path: Path, place: Path | None) -> Path | None:
    """Returns the run whose own file would be replaced; a link is itself, not what it leads to."""
    whole, own = (None if each is None else each.parent.resolve() / each.name for each in (path, place))
    return None if whole is None or whole == own else run_of(whole)
