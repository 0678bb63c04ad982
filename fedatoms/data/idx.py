"""Arrays of idx files, plain or zipped: their header is checked before the rest is read, which it must fit exactly."""

import gzip
import os
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedatoms.core.border import check_size, open_regular
from fedatoms.core.lookup import one_line
from fedatoms.data.safe_pickle import AGAIN
from fedatoms.data.steps import Read, read_array


def read_idx(path: Path, most: int, size: tuple[int, ...] = ()) -> npt.NDArray[np.uint8]:
    """Reads at most ``most`` items of one size from an idx file of uint8, which is zipped if its name ends in .gz.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "labels"
    >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    >>> read_idx(file, most=10)
    array([7, 9], dtype=uint8)
    """
    with open_regular(path) as file:
        check_size(os.fstat(file.fileno()).st_size, f"{path}", _longest(most, size))
        try:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=file) as unzipped:
                    return _array(unzipped.read, most, size)
            return _array(file.read, most, size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is not a complete gzip file ({one_line(error)}). {AGAIN}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}. {AGAIN}") from None


def _array(read: Read, most: int, size: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Reads idx: two zero bytes, the type (8 = uint8), the number of axes, each size as big-endian int32, the data."""
    dims = 1 + len(size)
    header = read(4 + 4 * dims)
    if len(header) < 4 + 4 * dims or header[:4] != bytes((0, 0, 8, dims)):
        raise ValueError(f"it does not begin with the header of a uint8 idx file with {dims} axes")
    shape = tuple(int.from_bytes(header[at : at + 4], "big") for at in range(4, len(header), 4))
    if shape[1:] != size or not 0 < shape[0] <= most:
        wanted = ", ".join(map(str, ("n", *size)))
        raise ValueError(f"shape {shape} is not ({wanted}) with n from 1 to {most:,}")
    return read_array(read, np.dtype(np.uint8), shape).view(np.uint8)


def _longest(most: int, size: tuple[int, ...]) -> int:
    """The bytes of the longest file; deflate adds little to what it cannot compress."""
    return 1000 + int(1.01 * most * int(np.prod(size)))
