"""Where a file that a user names may be written: in a folder that is there, or a new one below the working folder."""

from pathlib import Path


def check_parent(path: Path) -> None:
    """Refuses a file in a folder that is missing, unless it is below the working folder: elsewhere it is a slip.

    >>> check_parent(Path("/no/such/folder/report.html"))
    Traceback (most recent call last):
    ...
    ValueError: /no/such/folder/report.html: there is no folder /no/such/folder. Make it first, or choose another file.
    """
    folder = path.parent
    if not folder.is_dir() and not folder.resolve().is_relative_to(Path.cwd().resolve()):
        raise ValueError(f"{path}: there is no folder {folder}. Make it first, or choose another file.")
