"""Weights in files: safetensors, or a torch file that is read as data alone, without running code."""

import hashlib
import io
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten

import torch
from torch import Tensor

from fedatoms.core.border import TooLarge, open_regular, read_bytes
from fedatoms.core.files import read_tensors
from fedatoms.core.lookup import one_line
from fedatoms.core.trees import Params

NESTED = ("state_dict", "model_state_dict", "model")  # where a file of a whole training keeps the network's tensors
_USE = "Save them with torch.save(model.state_dict(), FILE), or as safetensors."


def read_weights(path: Path, sha256: str = "") -> Params:
    """Reads the tensors of a network from a file, by their names in it."""
    try:
        with open_regular(path) as file:
            start = file.read(9)
    except OSError as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise ValueError(f"weights={path} {reason}. Name a .safetensors, .pth or .pt file.") from None
    if start[8:] == b"{":
        tree, _, found = read_tensors(path, "Use the whole file.")
        _check_sum(path, found, sha256)
        return _named(_inner(tree), path)
    data = read_bytes(path)
    _check_sum(path, hashlib.sha256(data).hexdigest(), sha256)
    return _named(_inner(_unpickled(data, path)), path)


class _Changed(ValueError):
    """A file is not what it was when it was written."""


def _check_sum(path: Path, found: str, sha256: str) -> None:
    if sha256 not in ("", found):
        raise ValueError(
            f"weights={path} was changed: its SHA-256 is {found[:12]}..., but that of the experiment's file is "
            f"{sha256[:12]}.... Restore the file, or start a new run."
        )


def _unpickled(data: bytes, path: Path) -> object:
    """Unpickles with torch's reader for weights, which knows tensors and containers only."""
    try:
        if data[:2] == b"PK":
            _check_zip(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except TooLarge:
        raise
    except _Changed as error:
        raise ValueError(f"weights={path} was changed: {error}. Restore the file.") from None
    except Exception as error:  # whatever a file can make the reader raise
        asked = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it asks for {asked[1]}" if asked else shorten(one_line(error).split(". ")[0], 90)
        raise ValueError(f"weights={path} is no file of weights alone ({reason}). {_USE}") from None


def _check_zip(data: bytes) -> None:
    """Refuses a zip file whose entries take more room than the file, as torch does not compress, or were changed."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        entries = file.infolist()
        if any(each.compress_type != zipfile.ZIP_STORED for each in entries):
            raise ValueError("it is compressed")
        if sum(each.file_size for each in entries) > len(data):
            raise ValueError("its entries overlap")
        if (changed := file.testzip()) is not None:  # torch does not look at its checksums
            raise _Changed(f"{changed} in it does not match its checksum")


def _inner(content: object) -> object:
    """Returns the network's tensors of a file that holds more than them."""
    for _ in NESTED:
        if isinstance(content, Mapping):
            content = next((content[key] for key in NESTED if isinstance(content.get(key), Mapping)), content)
    return content


def _named(content: object, path: Path) -> Params:
    """Returns tensors by name, or refuses what is something else."""
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"weights={path} holds {type(content).__name__} and no named tensors. {_USE}")
    for name, leaf in content.items():
        plain = isinstance(leaf, Tensor) and leaf.layout == torch.strided and leaf.device.type == "cpu"
        if not isinstance(name, str) or not plain or leaf.is_quantized:
            kind = str(leaf.dtype) if isinstance(leaf, Tensor) else type(leaf).__name__
            raise ValueError(f"weights={path}: {shorten(repr(name), 60)} is {kind} and no plain tensor. {_USE}")
    return {name: leaf.detach() for name, leaf in content.items()}
