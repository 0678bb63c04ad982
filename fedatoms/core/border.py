"""The border for what is read: regular files only, and no more bytes at once than memory is meant to hold. No torch."""

import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


class TooLarge(ValueError):
    """What is read is larger than the limit, or the limit makes no sense: nothing is wrong with the file itself."""


MAX_GB = "FEDATOMS_MAX_GB"  # the variable that raises the limit on what is read into memory at once
DEFAULT_MAX_GB = 8.0


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Opens a file to read; a pipe would make the reader wait and a device may never end, so both are refused.

    >>> with open_regular(Path("/dev/zero")) as file:
    ...     pass
    Traceback (most recent call last):
    ...
    ValueError: /dev/zero is a device, not a regular file. Put the file itself there.
    """
    as_path(path, "path")
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))  # as Windows has it
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode):
        os.close(file)
        raise ValueError(f"{path} is a {_kind(mode)}, not a regular file. Put the file itself there.")
    with os.fdopen(file, "rb") as opened:
        yield opened


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Reads a regular file of at most ``most`` bytes, by default as many as may be read at once (``limit``)."""
    with open_regular(path) as file:
        check_size(os.fstat(file.fileno()).st_size, f"{path}", most)
        return file.read()


def as_path(given: Path | str, argument: str) -> Path:
    """Returns a path; one with a null byte in it, which no file can have, is refused by the name of its argument.

    >>> as_path("my\\0data", "data_dir")
    Traceback (most recent call last):
    ...
    ValueError: data_dir='my\\x00data' has a null byte in it, which no path can have. Leave it out.
    """
    if "\0" in str(given):
        raise ValueError(f"{argument}={str(given)!r} has a null byte in it, which no path can have. Leave it out.")
    return Path(given)


def limit() -> int:
    """Returns how many bytes may be read into memory at once: FEDATOMS_MAX_GB, or 8 GB.

    >>> limit() == 8 * 10**9
    True
    """
    given = os.environ.get(MAX_GB, "")
    try:
        size = float(given or DEFAULT_MAX_GB)
    except ValueError:
        size = 0.0
    if not 0 < size < 1e6:
        raise TooLarge(f"{MAX_GB}={given} is not a number of gigabytes. Use for example {MAX_GB}=16.")
    return int(size * 1e9)


def check_size(size: int, what: str, most: int | None = None) -> None:
    """Refuses content that is too large to be read, before it is; ``most`` is a limit that nothing raises.

    >>> check_size(9 * 10**9, "x of images.npz")
    Traceback (most recent call last):
    ...
    fedatoms.core.border.TooLarge: x of images.npz takes 9,000,000,000 bytes, more than the 8,000,000,000 that are read
    at once. If that is right, set FEDATOMS_MAX_GB=10.
    """
    if most is not None and size > most:
        raise ValueError(f"{what} takes {size:,} bytes, but such a file has at most {most:,}. Restore the file.")
    if size > limit():
        raise TooLarge(
            f"{what} takes {size:,} bytes, more than the {limit():,} that are read at once. "
            f"If that is right, set {MAX_GB}={math.ceil(size / 1e9 + 0.5)}."
        )


def kind_at(path: Path) -> str:
    """Names what lies at a path, or what a link there leads to; empty if that is nothing.

    >>> kind_at(Path("/")), kind_at(Path("/dev/null")), kind_at(Path("/no/such/file"))
    ('folder', 'device', '')
    """
    try:
        return _kind(os.stat(path).st_mode)
    except FileNotFoundError:
        return ""


def _kind(mode: int) -> str:
    kinds = {stat.S_IFREG: "file", stat.S_IFIFO: "pipe", stat.S_IFDIR: "folder", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")
