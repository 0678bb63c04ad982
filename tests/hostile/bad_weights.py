"""Ways to make files of weights bad: bombs, lies about sizes, evil pickles, tensors of other kinds."""

import io
import pickle
import random
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from hostile.damages import TENSORS
from hostile.evil import Evil

Make = Callable[[], bytes]
Spoil = Callable[[Path, random.Random], None]

BOMB = 1200 << 20  # bytes that a small file unpacks to
TORCH_FILE, SAFE_FILE = "w.pth", "w.safetensors"


@cache
def honest() -> dict[str, Tensor]:
    """Returns the weights of the network that the campaign trains."""
    from fedatoms.nn import build

    return dict(build("digits-cnn", classes=10, channels=1, seed=9).state_dict())


def saved(content: object, *, legacy: bool = False) -> bytes:
    """Returns a file as torch saves it."""
    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


def write_torch(folder: Path) -> None:
    """Writes an honest torch file."""
    (folder / TORCH_FILE).write_bytes(saved(honest()))


def write_safe(folder: Path) -> None:
    """Writes an honest safetensors file."""
    from safetensors.torch import save_file

    save_file(honest(), folder / SAFE_FILE)


def _with(**changes: object) -> Make:
    return lambda: saved({**honest(), **changes})


def _each(change: Callable[[Tensor], Tensor]) -> Make:
    return lambda: saved({name: change(leaf) for name, leaf in honest().items()})


def _packed(how: int) -> bytes:
    """Packs the entries of an honest file anew."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(honest()))) as old, zipfile.ZipFile(made, "w", how) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return made.getvalue()


@cache
def _bomb() -> bytes:
    """Packs a file one of whose entries unpacks to a gigabyte of zeros; once, as it takes seconds."""
    made = io.BytesIO(_packed(zipfile.ZIP_STORED))
    with zipfile.ZipFile(made, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        with file.open("archive/data/99", "w", force_zip64=True) as member:
            for _ in range(BOMB >> 22):
                member.write(bytes(1 << 22))
    return made.getvalue()


def _promising(size: int) -> bytes:
    """Says in the directory of a file that its entries are larger than they are."""
    content = bytearray(saved(honest()))
    place = -1
    while (place := content.find(b"PK\x01\x02", place + 1)) >= 0:
        for at in (20, 24):
            content[place + at : place + at + 4] = size.to_bytes(4, "little")
    return bytes(content)


_MADE: dict[str, Make] = {
    "bomb": lambda: _bomb(),
    "compressed": lambda: _packed(zipfile.ZIP_DEFLATED),
    "lzma": lambda: _packed(zipfile.ZIP_LZMA),
    "promises gigabytes": lambda: _promising(2**32 - 2),
    "promises nothing": lambda: _promising(0),
    "evil": lambda: pickle.dumps(Evil()),
    "evil, protocol 4": lambda: pickle.dumps({"conv1.weight": Evil()}, 4),
    "evil within": _with(**{"conv1.weight": Evil()}),
    "evil beside": lambda: saved({"state_dict": honest(), "optimizer": Evil()}),
    "evil, legacy": lambda: saved({"w": Evil()}, legacy=True),
    "legacy": lambda: saved(honest(), legacy=True),
    "legacy, cut": lambda: saved(honest(), legacy=True)[:-999],
    "a whole network": lambda: saved(torch.nn.Linear(2, 2)),
    "a list": lambda: saved([1, 2]),
    "nothing": lambda: saved({}),
    "numbers": lambda: saved({"conv1.weight": 3}),
    "names of numbers": lambda: saved({3: torch.ones(1)}),
    "a long name": lambda: saved({"a" * 100_000: torch.ones(1)}),
    "lines in a name": lambda: saved({"a\nb\x1b[31m": torch.ones(1)}),
    "many tensors": lambda: saved({f"w{number}": torch.ones(1) for number in range(3000)}),
    "far larger than it is": _with(**{"conv1.weight": torch.zeros(1).expand(10**6, 10**6)}),
    "exabytes": _with(**{"conv1.weight": torch.zeros(1).expand(2**31, 2**31)}),
    "without values": _with(**{"conv1.weight": torch.empty(16, 1, 3, 3, device="meta")}),
    "sparse": _with(**{"fc2.weight": torch.eye(10, 64).to_sparse()}),
    "complex": _each(lambda leaf: leaf.to(torch.complex64)),
    "whole numbers": _each(Tensor.long),
    "float64": _each(Tensor.double),
    "float16": _each(Tensor.half),
    "nan": _each(lambda leaf: leaf * torch.nan),
    "infinite": _each(lambda leaf: leaf / 0),
    "one lost": lambda: saved({name: leaf for name, leaf in honest().items() if name != "conv2.bias"}),
    "one more": _with(more=torch.zeros(3)),
    "another shape": _with(**{"conv1.weight": torch.zeros(16, 3, 3, 3)}),
    "deep": lambda: b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "memo of gigabytes": lambda: b"\x80\x02}r\xff\xff\xff\x7f.",
    "text of exabytes": lambda: b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fa.",
    "nested for ever": lambda: saved({"state_dict": {"model": {"state_dict": {"model": honest()}}}}),
}
TORCH: dict[str, Spoil] = {
    name: lambda folder, draws, make=make: ((folder / TORCH_FILE).write_bytes(make()), None)[1]
    for name, make in _MADE.items()
}
SAFE: dict[str, Spoil] = {
    name: lambda folder, draws, damage=damage: damage(folder / SAFE_FILE, draws, Path("/nothing"))
    for name, damage in TENSORS.items()
    if not name.startswith("metadata") or name == "metadata deep"
}


def prepare() -> None:
    """Makes what takes long to make, so that all processes have it."""
    _bomb()
