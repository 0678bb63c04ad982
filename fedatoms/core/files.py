"""Files that are written whole or not at all; files of tensors have a checksum."""

import hashlib
import json
import os
import secrets
import zlib
from contextlib import suppress
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fedatoms.core.border import TooLarge, check_size, open_regular, read_bytes
from fedatoms.core.lookup import one_line
from fedatoms.core.outputs import check_output
from fedatoms.core.trees import Params

LONGEST_HEADER = 2**24  # bytes; a tensor takes about a hundred


class Stored(NamedTuple):
    """A file of tensors, and its checksum."""

    path: Path
    checksum: int


def digest_of_code(package: str) -> str:
    """Returns a digest of the code in a package's folder.

    >>> len(digest_of_code("fedatoms.core"))
    64
    """
    code = {path.name: path.read_bytes() for path in resources.files(package).iterdir() if path.name.endswith(".py")}
    return hashlib.sha256(b"".join(code[name] for name in sorted(code))).hexdigest()


def write_file(path: Path, tree: Params) -> Stored:
    """Writes a tree to a new file in one step: readers see the whole file or none."""
    from safetensors.torch import save

    data = save({name: leaf.detach().cpu().contiguous() for name, leaf in tree.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, sync=False)  # the checksum tells if a power cut lost it
    return Stored(path, zlib.crc32(data))


def read_file(stored: Stored) -> Params:
    """Reads a file that ``write_file`` wrote."""
    from safetensors.torch import load_file

    # torch's kernels round by where in memory a tensor begins, and in a map of the file that is elsewhere
    return {name: leaf.clone() for name, leaf in load_file(stored.path).items()}


def remove_file(stored: Stored) -> None:
    """Removes a file that ``write_file`` wrote."""
    stored.path.unlink(missing_ok=True)


class Written(NamedTuple):
    """The content of a file of tensors: the tensors, its metadata, and the checksum of all its bytes."""

    tree: Params
    about: dict[str, str]
    sha256: str


def read_tensors(path: Path, remedy: str, most: int | None = None) -> Written:
    """Reads a safetensors file; another kind of file, or one that is cut off, is an error that ends with ``remedy``.

    A file of more than ``most`` bytes is refused, and one of another size than its header promises, before it is read.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        _check_promise(path, most)
        data = read_bytes(path, most)
        tree, size = load(data), int.from_bytes(data[:8], "little")
        about = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    except TooLarge:
        raise
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path} is not a safetensors file, or is cut off ({one_line(error)}). {remedy}") from None
    return Written(tree, about, hashlib.sha256(data).hexdigest())


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Writes ``data`` to ``path`` in one step; on failure the old file stays and the temporary one is removed."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")  # another process may write the same file
    try:
        with partial.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename:
            error.filename = str(path)  # the name that the user knows
        raise


def sync_folder(folder: Path) -> None:
    """Makes the names of a folder's files last through a power cut, where the system can."""
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def write_named(path: Path, data: bytes) -> None:
    """Writes a file that a user names, in one step; its folder is made if ``check_output`` allows that."""
    check_output(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data)


def remove_partials(folder: Path) -> None:
    """Removes what a process that was killed in ``replace_file`` left, at any depth; only for the one writer."""
    for path in folder.rglob("*.partial"):
        path.unlink(missing_ok=True)


def check_folder(folder: Path) -> None:
    """Refuses a folder in which nothing can be written, before the work whose results it is for; leaves none behind.

    >>> check_folder(Path("/dev/null/runs"))
    Traceback (most recent call last):
    ...
    NotADirectoryError: [Errno 20] Not a directory: '/dev/null/runs'
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryDirectory(dir=folder).cleanup()
    except OSError as error:  # that of the temporary folder names what nobody typed
        raise OSError(error.errno, error.strerror, str(folder)) from None
    finally:
        with suppress(OSError):  # ends at the first that holds something
            for each in made:
                each.rmdir()


def _check_promise(path: Path, most: int | None) -> None:
    """Compares the size of a file with its header: that of a safetensors file has 8 bytes with its own size first."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        check_size(size, f"{path}", most)
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(size - 8, LONGEST_HEADER):
            raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
        tensors = [about for name, about in json.loads(file.read(length)).items() if name != "__metadata__"]
    promised = 8 + length + max((about["data_offsets"][1] for about in tensors), default=0)
    if promised != size:
        raise ValueError(f"it has {size:,} bytes, but its header promises {promised:,}")
