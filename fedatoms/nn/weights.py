"""Weights from a file: safetensors, or a torch file that is read as data alone, for a network that they fit."""

import hashlib
import io
import re
import warnings
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from textwrap import shorten

import torch
from torch import Tensor, nn

from fedatoms.core.border import TooLarge, as_path, open_regular, read_bytes
from fedatoms.core.files import read_tensors
from fedatoms.core.lookup import one_line, some
from fedatoms.core.trees import Params
from fedatoms.nn.layers import copied
from fedatoms.nn.parameter_groups import heads

NESTED = ("state_dict", "model_state_dict", "model")  # where a file of a whole training keeps the network's tensors
PREFIXES = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every name
COUNTERS = "num_batches_tracked"  # of BatchNorm, which old files lack and nothing but a rare option reads
_USE = "Save them with torch.save(model.state_dict(), FILE), or as safetensors."


def load_weights(
    model: nn.Module, file: Path | str, *, head: str | Collection[str] | None = None, sha256: str = ""
) -> nn.Module:
    """Returns a copy of a network with the weights of a file: safetensors, ``.pth`` or ``.pt``, which runs no code.

    Every tensor must be there and fit. Only a head for another number of classes stays fresh, and a warning says so;
    ``head`` as in ``groups``. A file with another ``sha256`` is refused.

    >>> import tempfile
    >>> net, file = nn.Linear(2, 3), Path(tempfile.mkdtemp()) / "net.pth"
    >>> torch.save({"state_dict": net.state_dict()}, file)
    >>> torch.equal(load_weights(nn.Linear(2, 3), file).weight, net.weight)
    True
    """
    path = as_path(file, "weights")
    found, new = read_weights(path, sha256), copied(model)
    held = {name: leaf for name, leaf in new.state_dict().items() if isinstance(leaf, Tensor)}
    fresh = _of_other_classes(found, held, heads(new, head))
    optional = {name for name in held if name.endswith(COUNTERS)} | _tied(new, found) | fresh.keys()
    if wrong := _misfit(found, held, optional, fresh.keys()):
        raise ValueError(f"weights={path} do not fit {type(model).__name__} ({wrong}). Use the file of this network.")
    with torch.no_grad():
        for name in found.keys() - fresh.keys():
            held[name].copy_(found[name])
    _require_finite(new, path)
    if fresh:
        classes = " and ".join(sorted({f"{ours} instead of {theirs}" for theirs, ours in fresh.values()}))
        warnings.warn(f"the head ({some(fresh)}) starts afresh, for {classes} classes in {path}", stacklevel=2)
    return new


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
        content: object = tree
    else:
        data = read_bytes(path)
        found, content = hashlib.sha256(data).hexdigest(), _unpickled(data, path)
    if sha256 not in ("", found):
        raise ValueError(
            f"weights={path} was changed: its SHA-256 is {found[:12]}..., but that of the experiment's file is "
            f"{sha256[:12]}.... Restore the file, or start a new run."
        )
    return _named(_inner(content), path)


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
    except Exception as error:  # whatever a file can make the reader raise
        asked = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it asks for {asked[1]}" if asked else shorten(one_line(error).split(". ")[0], 90)
        raise ValueError(f"weights={path} is no file of weights alone ({reason}). {_USE}") from None


def _check_zip(data: bytes) -> None:
    """Refuses a zip file whose entries take more room than the file: torch does not compress."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        entries = file.infolist()
    if any(each.compress_type != zipfile.ZIP_STORED for each in entries):
        raise ValueError("it is compressed")
    if sum(each.file_size for each in entries) > len(data):
        raise ValueError("its entries overlap")


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
    found = {name: leaf.detach() for name, leaf in content.items()}
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in found):
            found = {name.removeprefix(prefix): leaf for name, leaf in found.items()}
    return found


def _of_other_classes(found: Params, held: Params, heads: Collection[str]) -> dict[str, tuple[int, int]]:
    """Returns the classes, in the file and in the model, of the head's tensors that differ in nothing else."""
    names = [name for name in held if name in found and any(name.startswith(f"{head}.") for head in heads)]
    shapes = {name: (tuple(found[name].shape), tuple(held[name].shape)) for name in names}
    return {n: (a[0], b[0]) for n, (a, b) in shapes.items() if a and b and a[0] != b[0] and a[1:] == b[1:]}


def _misfit(found: Params, held: Params, optional: Collection[str], fresh: Collection[str]) -> str:
    both = {name: (_kind(found[name]), _kind(held[name])) for name in held if name in found and name not in fresh}
    lists = {
        "missing": [name for name in held if name not in found and name not in optional],
        "extra": [name for name in found if name not in held],
        "misshapen": [f"{name} is {this} instead of {that}" for name, (this, that) in both.items() if this != that],
    }
    return "; ".join(f"{len(names)} {what}: {some(names)}" for what, names in lists.items() if names)


def _kind(leaf: Tensor) -> str:
    """Shows a shape, and a type that is not any floating-point number."""
    other = "" if leaf.is_floating_point() else f"{str(leaf.dtype).removeprefix('torch.')} "
    return f"{other}{tuple(leaf.shape)}"


def _tied(model: nn.Module, found: Collection[str]) -> set[str]:
    """Names the parameters that another name in the file stands for."""
    names = dict(model.named_parameters(remove_duplicate=False))
    given = {leaf for name, leaf in names.items() if name in found}
    return {name for name, leaf in names.items() if leaf in given}


def _require_finite(model: nn.Module, path: Path) -> None:
    for name, leaf in model.named_parameters():
        if not torch.isfinite(leaf).all():
            raise ValueError(
                f"weights={path}: '{name}' holds nan or infinity. Use weights that were trained to an end."
            )
