"""Files that are never changed: written at once, named with a checksum, read as memory maps."""

import hashlib
import json
import os
import secrets
import zlib
from pathlib import Path
from typing import NamedTuple, NoReturn

from fedatoms.core.lookup import one_line
from fedatoms.core.trees import Params


class Stored(NamedTuple):
    """A file of tensors, and its checksum."""

    path: Path
    checksum: int


def write_file(path: Path, tree: Params) -> Stored:
    """Writes a tree to a new file at once: readers see the whole file or none."""
    from safetensors.torch import save

    data = save({name: leaf.detach().cpu().contiguous() for name, leaf in tree.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, sync=False)  # the checksum tells if a power cut lost it
    return Stored(path, zlib.crc32(data))


def read_file(stored: Stored) -> Params:
    """Reads a file that ``write_file`` wrote, as a memory map."""
    from safetensors.torch import load_file

    return load_file(stored.path)


class Written(NamedTuple):
    """What a file of tensors holds: the tensors, its metadata, and the checksum of all its bytes."""

    tree: Params
    about: dict[str, str]
    sha256: str


def read_tensors(path: Path, remedy: str) -> Written:
    """Reads a safetensors file whole; one that is none, or is cut off, is a mistake of one line with a ``remedy``."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        data = path.read_bytes()
        tree, size = load(data), int.from_bytes(data[:8], "little")
        about = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} is not a safetensors file, or is cut off ({one_line(error)}). {remedy}") from None
    return Written(tree, about, hashlib.sha256(data).hexdigest())


def strict_json(text: str) -> object:
    """Reads JSON that is JSON: without NaN and infinity, which Python would let in.

    >>> strict_json("[NaN]")
    Traceback (most recent call last):
    ...
    ValueError: it holds NaN, which is no number
    """
    return json.loads(text, parse_constant=_refuse)


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Puts ``data`` at ``path`` in one step; a failure leaves what was there and no rest."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")  # another process may write the same file
    try:
        with partial.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}, which is no number")
