"""What clients keep between rounds: on the training device, in host memory or in files; never overwritten in place."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedatoms.core import trees
from fedatoms.core.files import Stored, read_file, remove_file, write_file
from fedatoms.core.options import GROUPS, Group, Place
from fedatoms.core.trees import Memory, Params
from fedatoms.nn.pure import Network


class Client(NamedTuple):
    """One client's state: the algorithm's memory, personal parameters, and its last models (if these are scored)."""

    memory: Memory
    own: Params
    last: Params  # what it reported, for the mean of all clients
    local: Params  # what it trained, before it was averaged with others'


class Files(Mapping[int, Stored]):
    """Clients' files, by two numbers each: a client's number and its version name a file. A value, like ``Clients``.

    >>> files = Files(Path("here"), put(nothing(2), {7: (3, 99)}))
    >>> list(files), files[7].path.as_posix()
    ([7], 'here/000007-000003.safetensors')
    """

    def __init__(self, folder: Path, table: Tensor) -> None:
        self.folder, self.table = folder, table  # (C, 2): version and checksum

    def __getitem__(self, client: int) -> Stored:
        version, checksum = row_in(self.table, client)
        return Stored(self.folder / file_name(client, version), checksum)

    def __iter__(self) -> Iterator[int]:
        return iter(clients_in(self.table))

    def __len__(self) -> int:
        return len(clients_in(self.table))


class Held(Mapping[int, Mapping[Group, int]]):
    """For each client the versions of the server's groups that it holds. A value: an update makes a new one.

    >>> held = Held().updated({2: {"head": 5}})
    >>> dict(held), held.get(1)
    ({2: {'head': 5}}, None)
    """

    def __init__(self, table: Tensor | None = None) -> None:
        self.table = nothing(len(GROUPS), torch.int32) if table is None else table

    def __getitem__(self, client: int) -> Mapping[Group, int]:
        row = row_in(self.table, client)
        return {group: version for group, version in zip(GROUPS, row, strict=True) if version >= 0}

    def __iter__(self) -> Iterator[int]:
        return iter(clients_in(self.table))

    def __len__(self) -> int:
        return len(clients_in(self.table))

    def updated(self, rows: Mapping[int, Mapping[Group, int]]) -> "Held":
        """Returns what clients hold after some of them were sent something."""
        return Held(put(self.table, {k: [held.get(group, -1) for group in GROUPS] for k, held in rows.items()}))


class Clients(NamedTuple):
    """The states of all clients that ever took part; an update makes a new value, so older ones stay valid."""

    rows: Mapping[int, Client | Stored] = {}
    place: Place = "device"
    folder: Path | None = None  # for place "disk"
    device: torch.device = torch.device("cpu")
    # (C, 1), for the other places: the round after which a state was made
    versions: Tensor = torch.full((0, 1), -1, device="cpu")

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
            return write_file(self.folder / file_name(client, version), flatten(row))
        return _move(row, torch.device("cpu") if self.place == "host" else self.device)

    def updated(self, rows: Mapping[int, Client | Stored], version: int) -> "Clients":
        """Returns the clients with new states of some of them, as ``keep`` made them of this version."""
        if self.place != "disk":
            versions = put(self.versions, {client: (version,) for client in rows})
            return self._replace(rows={**self.rows, **rows}, versions=versions)
        assert self.folder is not None
        known = self.rows.table if isinstance(self.rows, Files) else nothing(2)
        kept = {client: (version, row.checksum) for client, row in rows.items() if isinstance(row, Stored)}
        return self._replace(rows=Files(self.folder, put(known, kept)))

    def drop(self, newer: "Clients", clients: Iterable[int]) -> None:
        """Removes the files of newer states of some clients, which nobody will read."""
        for client in clients:
            row = newer.rows.get(client)
            if isinstance(row, Stored) and row != self.rows.get(client):
                remove_file(row)


def file_name(client: int, version: int) -> str:
    """Names the file of a client's state after round number ``version``.

    >>> file_name(7, 3)
    '000007-000003.safetensors'
    """
    return f"{client:06d}-{version:06d}.safetensors"


def nothing(columns: int, kind: torch.dtype = torch.int64) -> Tensor:
    """Returns a table without clients: whole numbers (C, columns), a row of -1 for each of whom nothing is known."""
    return torch.full((0, columns), -1, dtype=kind, device="cpu")


def put(table: Tensor, rows: Mapping[int, Sequence[int]]) -> Tensor:
    """Returns a table with new rows of some clients; it is copied, 100,000 clients in a tenth of a millisecond.

    >>> put(nothing(1), {1: [5]}).tolist()
    [[-1], [5]]
    """
    if not rows:
        return table
    return placed(
        table,
        torch.tensor(list(rows), device="cpu"),
        torch.tensor(list(rows.values()), dtype=table.dtype, device="cpu"),
    )


def placed(table: Tensor, clients: Tensor, rows: Tensor) -> Tensor:
    """Returns a table with new rows (K, columns) of clients number (K,)."""
    if not len(clients):
        return table
    new = longer(table, int(clients.max()) + 1).clone()
    new[clients] = rows
    return new


def longer(table: Tensor, length: int) -> Tensor:
    """Returns a table of at least so many clients."""
    missing = length - len(table)
    return table if missing <= 0 else torch.cat([table, table.new_full((missing, table.shape[1]), -1)])


def row_in(table: Tensor, client: int) -> list[int]:
    """Returns the numbers of a client, or raises a KeyError if there are none."""
    row = list[int](table[client].tolist()) if 0 <= client < len(table) else []
    if all(number < 0 for number in row):
        raise KeyError(client)
    return row


def clients_in(table: Tensor) -> list[int]:
    """Returns the clients of whom something is known."""
    return list[int]((table >= 0).any(1).nonzero()[:, 0].tolist())


def flatten(client: Client) -> Params:
    """Flattens a client's state into one tree with paths as names.

    >>> sorted(flatten(Client({"control": {"w": torch.ones(1)}}, {}, {"w": torch.ones(1)}, {})))
    ['last/w', 'memory/control/w']
    """
    memory = {f"memory/{kind}/{name}": leaf for kind, tree in client.memory.items() for name, leaf in tree.items()}
    others = {"own": client.own, "last": client.last, "local": client.local}
    return memory | {f"{part}/{name}": leaf for part, tree in others.items() for name, leaf in tree.items()}


def unflatten(tree: Params) -> Client:
    """Inverts ``flatten``.

    >>> unflatten({"memory/control/w": torch.ones(1)}).memory
    {'control': {'w': tensor([1.])}}
    """
    client = Client({}, {}, {}, {})
    for path, leaf in tree.items():
        part, _, name = path.partition("/")
        if part == "memory":
            kind, _, name = name.partition("/")
            client.memory.setdefault(kind, {})[name] = leaf
        else:
            {"own": client.own, "last": client.last, "local": client.local}[part][name] = leaf
    return client


def last_of(row: Client, net: Network, name: str) -> Tensor:
    """Returns a leaf of a client's last model; one that never reported counts as the initial model."""
    return row.last.get(name, (net.parameters if name in net.parameters else net.statistics)[name])


def moved(last_sum: Params | None, net: Network, before: list[Client], after: list[Client]) -> Params | None:
    """Returns the sum of all clients' last models after those of a block have changed; None if it is not scored."""
    if last_sum is None:
        return None
    was, now = (
        {name: torch.stack([last_of(row, net, name) for row in rows]) for name in last_sum} for rows in (before, after)
    )
    return trees.apply(lambda total, new, old: total + (new.double() - old).sum(0), last_sum, now, was)


def _move(row: Client, device: torch.device) -> Client:
    def there(tree: Params) -> Params:
        return {name: leaf.to(device) for name, leaf in tree.items()}

    memory = {kind: there(tree) for kind, tree in row.memory.items()}
    return Client(memory, there(row.own), there(row.last), there(row.local))
