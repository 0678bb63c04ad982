"""What clients keep between rounds: on the training device, in host memory or in files; never overwritten in place."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from fedatoms.core.files import Stored, read_file, write_file
from fedatoms.core.options import Place
from fedatoms.core.trees import Memory, Params


class Client(NamedTuple):
    """One client's state: the algorithm's memory, personal parameters, and its last model (if that is scored)."""

    memory: Memory
    own: Params
    last: Params


class Clients(NamedTuple):
    """The states of all clients that ever took part; an update makes a new value, so older ones stay valid."""

    rows: Mapping[int, Client | Stored] = {}
    place: Place = "device"
    folder: Path | None = None  # for place "disk"
    device: torch.device = torch.device("cpu")

    def read(self, client: int) -> Client | None:
        """Returns a client's state on the training device, or None if it never took part."""
        row = self.rows.get(client)
        if isinstance(row, Stored):
            row = unflatten(read_file(row))
        return None if row is None else _move(row, self.device)

    def keep(self, client: int, row: Client, version: int) -> Client | Stored:
        """Stores a state in its place; ``version`` names the file."""
        if self.place == "disk":
            assert self.folder is not None, "place 'disk' needs a folder"
            return write_file(self.folder / f"{client:06d}-{version:06d}.safetensors", flatten(row))
        return _move(row, torch.device("cpu") if self.place == "host" else self.device)

    def updated(self, rows: Mapping[int, Client | Stored]) -> "Clients":
        """Returns the clients with new states of some of them, as ``keep`` made them."""
        return self._replace(rows={**self.rows, **rows})


def flatten(client: Client) -> Params:
    """Flattens a client's state into one tree with paths as names.

    >>> sorted(flatten(Client({"control": {"w": torch.ones(1)}}, {}, {"w": torch.ones(1)})))
    ['last/w', 'memory/control/w']
    """
    memory = {f"memory/{kind}/{name}": leaf for kind, tree in client.memory.items() for name, leaf in tree.items()}
    own = {f"own/{name}": leaf for name, leaf in client.own.items()}
    return {**memory, **own, **{f"last/{name}": leaf for name, leaf in client.last.items()}}


def unflatten(tree: Params) -> Client:
    """Inverts ``flatten``.

    >>> unflatten({"memory/control/w": torch.ones(1)}).memory
    {'control': {'w': tensor([1.])}}
    """
    client = Client({}, {}, {})
    for path, leaf in tree.items():
        part, _, name = path.partition("/")
        if part == "memory":
            kind, _, name = name.partition("/")
            client.memory.setdefault(kind, {})[name] = leaf
        else:
            {"own": client.own, "last": client.last}[part][name] = leaf
    return client


def _move(row: Client, device: torch.device) -> Client:
    def there(tree: Params) -> Params:
        return {name: leaf.to(device) for name, leaf in tree.items()}

    return Client({kind: there(tree) for kind, tree in row.memory.items()}, there(row.own), there(row.last))
