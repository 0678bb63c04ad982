"""Pictures that are decoded once: their pixels lie in an array file beside them, for as long as they stay the same."""

import hashlib
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedatoms.data.npz import open_npz

NAME = "decoded.npz"
Pixels = npt.NDArray[np.uint8]


def decoded_once(folder: Path, files: Sequence[str], decode: Callable[[], Pixels]) -> Pixels:
    """Returns what ``decode`` makes of some files, from the array file in their folder if it was made of these files.

    Files are named as seen from the folder, and the same if their names, sizes and times of change are. An array file
    that is damaged, or of other files, is written anew; where none can be written, the next start decodes again.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "a.JPEG").touch()
    >>> [decoded_once(folder, ["a.JPEG"], lambda: np.full((1, 2), value, np.uint8)).tolist() for value in (3, 4)]
    [[[3, 3]], [[3, 3]]]
    """
    try:
        key = _key(folder, files)
    except OSError:  # one is missing: what decodes it says so
        return decode()
    pixels = _read(folder / NAME, key, len(files))
    if pixels is None:
        pixels = decode()
        _write(folder / NAME, key, pixels)
    return pixels


def _key(folder: Path, files: Sequence[str]) -> Pixels:
    digest, place = hashlib.sha256(), os.path.join(folder, "")
    for file in files:
        known = os.stat(place + file)
        digest.update(f"{file}\0{known.st_size}\0{known.st_mtime_ns}\n".encode())
    return np.frombuffer(digest.digest(), np.uint8)


def _read(path: Path, key: Pixels, count: int) -> Pixels | None:
    """Reads the pixels of an array file that has the key; zip files have a checksum of each array."""
    try:
        with open_npz(path, "key", "pixels") as arrays:
            known, pixels = arrays.headers["key"], arrays.headers["pixels"]
            if known.shape != key.shape or not np.array_equal(arrays.read("key"), key):
                return None
            if pixels.dtype != np.uint8 or pixels.shape[:1] != (count,):
                return None
            return arrays.read("pixels").astype(np.uint8, copy=False)
    except (ValueError, OSError):
        return None


def _write(path: Path, key: Pixels, pixels: Pixels) -> None:
    """Writes an array file in one step, if the folder lets it."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            np.savez(file, key=key, pixels=pixels)
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
