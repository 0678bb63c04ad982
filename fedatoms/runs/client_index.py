"""The index of a checkpoint: each client's file and what the client holds, in segments of what has changed.

A segment has the entries of the clients that changed since the one before it, and is never changed. A new one takes in
those before it that are at most twice as large, so that there are few, and an entry is written again only as often as
the number of clients can be doubled.
"""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedatoms.core.border import read_bytes
from fedatoms.core.files import replace_file
from fedatoms.core.options import GROUPS
from fedatoms.engine.client_states import longer, nothing

INDEX = "index"
SMALL = 1000  # entries that every checkpoint has in a file of its own, so that one damaged file costs one checkpoint


class Tables(NamedTuple):
    """What an index says: of each client's file version and checksum (C, 2), and the versions that it holds (C, G)."""

    files: Tensor = nothing(2)
    held: Tensor = nothing(len(GROUPS), torch.int32)


class Segment(NamedTuple):
    """A file of the index, its checksum, and the clients that it has entries of."""

    name: str
    checksum: int
    clients: Tensor


class Index(NamedTuple):
    """The tables of a checkpoint, and the segments that they are written in."""

    tables: Tables = Tables()
    segments: tuple[Segment, ...] = ()


def extended(folder: Path, index: Index, tables: Tables, number: int) -> Index:
    """Writes what has changed since an index, as checkpoint ``number`` does, and returns the new index."""
    written, kept = index.tables if index.segments else Tables(), list(index.segments)  # an older one has no segments
    clients = changed(written, tables)
    while kept and len(kept[-1].clients) <= max(2 * len(clients), SMALL):
        clients = torch.cat([clients, kept.pop().clients]).unique()
    if len(clients):
        kept.append(_write(folder, clients, tables, number))
    return Index(tables, tuple(kept))


def is_file_of(versions: Sequence[Sequence[int]], name: str) -> bool:
    """Says whether a file is that of its client in one of some tables, by the versions in them.

    >>> is_file_of([[-1, 4]], "000001-000004.safetensors"), is_file_of([[-1, 4]], "000000-000004.safetensors")
    (True, False)
    """
    parts = re.fullmatch(r"([0-9]+)-([0-9]+)\.safetensors", name)
    if parts is None:
        return False
    client, version = int(parts[1]), int(parts[2])
    return any(client < len(each) and each[client] == version for each in versions)


def changed(before: Tables, after: Tables) -> Tensor:
    """Returns the clients whose entries differ.

    >>> changed(Tables(), Tables(torch.tensor([[-1, -1], [4, 99]])))
    tensor([1])
    """
    count = max(map(len, (*before, *after)))
    pairs = zip(_long(before, count), _long(after, count), strict=True)
    return torch.stack([(one != other).any(1) for one, other in pairs]).any(0).nonzero()[:, 0]


def read_index(folder: Path, listed: Sequence[tuple[str, int]]) -> Index:
    """Reads segments in their order; one that is not as its checksum says is an error."""
    tables, segments = Tables(), list[Segment]()
    for name, checksum in listed:
        data = read_bytes(folder / INDEX / name)
        if zlib.crc32(data) != checksum:
            raise ValueError(f"{name} of its index does not match its checksum")
        part = load(data)
        segments.append(Segment(name, checksum, part["client"]))
        tables = _with(tables, part)
    return Index(tables, tuple(segments))


def _with(tables: Tables, part: dict[str, Tensor]) -> Tables:
    clients = part["client"]
    files, held = (table.clone() for table in _long(tables, int(clients.max()) + 1))
    files[clients] = torch.stack([part["version"], part["checksum"]], 1)
    for column, group in enumerate(GROUPS):
        held[clients, column] = part.get(f"held/{group}", clients.new_full((1,), -1)).to(held.dtype)
    return Tables(files, held)


def _write(folder: Path, clients: Tensor, tables: Tables, number: int) -> Segment:
    files, held = (table[clients] for table in _long(tables, int(clients.max()) + 1))
    part = {"client": clients, "version": files[:, 0], "checksum": files[:, 1]}
    part |= {f"held/{group}": held[:, column] for column, group in enumerate(GROUPS) if (held[:, column] >= 0).any()}
    data = save({name: leaf.contiguous() for name, leaf in part.items()})
    name = f"{number:06d}-{zlib.crc32(data):08x}.safetensors"  # other content has another name: none is overwritten
    (folder / INDEX).mkdir(parents=True, exist_ok=True)
    replace_file(folder / INDEX / name, data)
    return Segment(name, zlib.crc32(data), clients)


def _long(tables: Tables, length: int) -> tuple[Tensor, Tensor]:
    return longer(tables.files, length), longer(tables.held, length)
