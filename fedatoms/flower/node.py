"""What a node keeps on its disk: its state before and after its last round, whole files with a checksum."""

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedatoms.core.border import read_bytes
from fedatoms.core.files import replace_file
from fedatoms.core.options import Group
from fedatoms.core.trees import Params, misfit
from fedatoms.engine.client_states import Client, flatten, unflatten
from fedatoms.engine.remote import initial_model, misfit_of
from fedatoms.engine.runtime import Runtime


class Kept(NamedTuple):
    """A node's copy of the server's model, the version of each group in it, and the client's state."""

    params: Params
    versions: Mapping[Group, int]
    row: Client | None


def keep(folder: Path, number: int, kept: Kept, *, before: int) -> None:
    """Writes the state after a round as ``number``; only the one ``before`` it stays beside it."""
    tree = {f"server/{name}": leaf for name, leaf in kept.params.items()}
    tree |= flatten(kept.row) if kept.row is not None else {}
    tensors = {name: leaf.detach().cpu().contiguous() for name, leaf in tree.items()}
    data = save(tensors, metadata={"versions": json.dumps(kept.versions)})
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in _files(folder, number):
        path.unlink()
    replace_file(folder / f"{number:06d}-{zlib.crc32(data):08x}.safetensors", data)
    for path in folder.glob("[0-9]*-*.safetensors"):
        older = int(path.stem.split("-")[0]) < number  # keep a newer one: orders can overtake each other
        if older and path not in _files(folder, before):
            path.unlink()


def fits(runtime: Runtime, kept: Kept) -> bool:
    """Says whether a kept state has exactly the tensors of this network and method."""
    return not misfit(kept.params, initial_model(runtime)) and (kept.row is None or not misfit_of(runtime, kept.row))


def kept_at(folder: Path, number: int) -> Kept | None:
    """Reads the state ``number``; None if it is missing or damaged."""
    for path in _files(folder, number):
        checksum = re.fullmatch(r"\d{6}-([0-9a-f]{8})", path.stem)
        if checksum and zlib.crc32(read_bytes(path)) == int(checksum[1], 16):
            return _read(path)
    return None


def _read(path: Path) -> Kept | None:
    try:
        with safe_open(path, "pt") as file:
            tree = {name: file.get_tensor(name).clone() for name in file.keys()}  # as core.files.read_file does
            versions = json.loads(file.metadata()["versions"])
        params = {name.removeprefix("server/"): leaf for name, leaf in tree.items() if name.startswith("server/")}
        row = unflatten({name: leaf for name, leaf in tree.items() if name[:7] != "server/"})
    except (SafetensorError, KeyError, ValueError):
        return None
    return Kept(params, versions, row)


def _files(folder: Path, number: int) -> list[Path]:
    return sorted(folder.glob(f"{number:06d}-*.safetensors"))
