"""Arrays of an npz file: what they are is known from their headers, before any of them is decompressed."""

import io
import math
import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from fedatoms.core.border import check_size, open_regular
from fedatoms.core.lookup import one_line
from fedatoms.data.steps import STEP, read_array

_ENCRYPTED = 1  # a flag of a zip entry
_LONGEST = 2**14  # bytes of a header, of which NumPy reads 10,000
_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Header(NamedTuple):
    """What an array says of itself, and where its values begin in its entry of the zip file."""

    entry: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: "np.dtype[np.generic]"
    fortran: bool
    begin: int


class Npz(NamedTuple):
    """An open npz file: the headers of the arrays that were asked for, and their values when they are wanted."""

    path: Path
    headers: Mapping[str, Header]
    file: zipfile.ZipFile

    def read(self, name: str) -> npt.NDArray[np.generic]:
        """Decompresses an array; one that is larger than memory is meant to hold is refused before."""
        header = self.headers[name]
        check_size(math.prod(header.shape) * header.dtype.itemsize, f"{name} of {self.path}")
        with _named(self.path, list(self.headers)), self.file.open(header.entry) as entry:
            entry.read(header.begin)
            shape = header.shape[::-1] if header.fortran else header.shape
            array = read_array(entry.read, header.dtype, shape)
        return array.T if header.fortran else array


@contextmanager
def open_npz(path: Path, *names: str) -> Iterator[Npz]:
    """Opens an npz file and reads the headers of some of its arrays; pickled and encrypted ones are refused.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "ann.npz"
    >>> np.savez(file, x=np.zeros((2, 8, 8), np.uint8), y=np.arange(2))
    >>> with open_npz(file, "x", "y") as arrays:
    ...     arrays.headers["x"].shape, arrays.read("y")
    ((2, 8, 8), array([0, 1]))
    """
    with open_regular(path) as file:
        check_size(os.fstat(file.fileno()).st_size, f"{path}")
        with _named(path, names):
            archive = zipfile.ZipFile(cast(IO[bytes], _Careful(file)))
            headers = {name: _header(archive, _entry(archive, name)) for name in names}
        yield Npz(path, headers, archive)


@contextmanager
def _named(path: Path, names: "tuple[str, ...] | list[str]") -> Iterator[None]:
    try:
        yield
    except Exception as error:  # hostile bytes can raise anything; the user sees one kind of error, on one line
        example = ", ".join(f"{name}=..." for name in names)
        raise ValueError(
            f"{path} is not an npz file with arrays {' and '.join(names)}: {one_line(error)[:200].rstrip('.')}. "
            f"Write one with numpy.savez(file, {example})."
        ) from None


def _entry(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    found = [entry for entry in archive.infolist() if entry.filename in (f"{name}.npy", name)]
    if len(found) != 1:
        raise ValueError(f"it has the array {name} {len(found)} times" if found else f"it has no array {name}")
    if found[0].flag_bits & _ENCRYPTED:
        raise ValueError(f"its array {name} is encrypted")
    if found[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # of others, steps have no bound
        raise ValueError(f"its array {name} is compressed in a way that NumPy does not use")
    return found[0]


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Header:
    with archive.open(info) as entry:
        start = io.BytesIO(entry.read(_LONGEST))
    with warnings.catch_warnings(action="ignore"):  # Python 2 wrote sizes as 1L, which NumPy reads with a warning
        version = npy.read_magic(start)
        if version not in _READERS:
            raise ValueError(f"{info.filename} is not an array of numbers")
        shape, fortran, dtype = _READERS[version](start)
    if dtype.hasobject:  # pickled: it could run code
        raise ValueError("an array holds objects")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{shape} is not the shape of an array")
    promised = start.tell() + math.prod(shape) * dtype.itemsize
    if info.file_size != promised:
        raise ValueError(f"{info.filename} takes {info.file_size:,} bytes, but its header promises {promised:,}")
    return Header(info, shape, dtype, fortran, start.tell())


class _Careful:
    """A file of which nothing is read in large pieces: a list of entries of gigabytes would fill the memory."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self.seekable, self._file = file.seek, file.tell, file.seekable, file

    def read(self, size: int = -1) -> bytes:
        if size > STEP:
            raise ValueError(f"its list of arrays takes {size:,} bytes")
        return self._file.read(size)
