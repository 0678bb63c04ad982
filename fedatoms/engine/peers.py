"""The processes that train one run together: which clients are whose, what they add up and show each other."""

import heapq
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedatoms.core.trees import Memory

T = TypeVar("T")
Shapes = Mapping[str, Mapping[str, Sequence[int]]]  # of the leaves of named trees


class Lost(ConnectionError):
    """Another process of the run has ended: ``rank`` says which, if that is known, and ``noted`` if it left a note."""

    def __init__(self, message: str, rank: int | None = None, *, noted: bool = False) -> None:
        super().__init__(message)
        self.rank, self.noted = rank, noted


class Peers(NamedTuple):
    """The processes of a run, as one of them sees them; by default it is alone, and nothing is sent.

    The functions are collective: all processes call them in the same order, or all of them wait.
    """

    rank: int = 0  # this process's number; process 0 writes and prints
    size: int = 1
    local: int = 0  # its number on its machine, which is that of its GPU
    add: Callable[[Tensor], Tensor] = lambda here: here  # sums a tensor of the host over all processes
    show: Callable[[bytes], list[bytes]] = lambda here: [here]  # returns the bytes of all processes, in their order
    is_stopped: Callable[[], bool] = lambda: False  # whether this process was asked to stop


ALONE = Peers()


def owned(peers: Peers, clients: Iterable[int]) -> list[int]:
    """Returns the clients whose states this process keeps.

    The rule needs no table, moves no state between rounds, and holds for any number of processes that resume a run.

    >>> owned(Peers(rank=1, size=3), range(8))
    [1, 4, 7]
    """
    return [client for client in clients if client % peers.size == peers.rank]


def own_rows(peers: Peers, table: Tensor) -> Tensor:
    """Returns a table of clients (C, ...) that has a row of -1 for each client of another process.

    >>> own_rows(Peers(rank=1, size=2), torch.tensor([[4], [5], [6], [7]])).tolist()
    [[-1], [5], [-1], [7]]
    """
    if peers.size == 1:
        return table
    mine, rows = torch.full_like(table, -1), owned(peers, range(len(table)))
    mine[rows] = table[rows]
    return mine


def even_share(peers: Peers, clients: Iterable[int], work: Callable[[int], int]) -> list[int]:
    """Returns this process's share of clients without states: the largest first, each to who has least to do so far.

    >>> [even_share(Peers(rank, size=2), range(4), [9, 3, 3, 3].__getitem__) for rank in (0, 1)]
    [[0], [1, 2, 3]]
    """
    loads, mine = [(0, rank) for rank in range(peers.size)], list[int]()
    for client in sorted(clients, key=lambda client: (-work(client), client)):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + work(client), rank))
        if rank == peers.rank:
            mine.append(client)
    return sorted(mine)


def gather(peers: Peers, value: T) -> list[T]:
    """Returns the values of all processes in their order: numbers, texts, tensors, and lists, tuples or dicts of them.

    They are read as data: what a process sends can run no code in another.

    >>> gather(ALONE, {"losses": [0.5]})
    [{'losses': [0.5]}]
    """
    if peers.size == 1:
        return [value]
    data = io.BytesIO()
    torch.save(value, data)
    return [torch.load(io.BytesIO(one), map_location="cpu", weights_only=True) for one in peers.show(data.getvalue())]


def union(peers: Peers, part: Mapping[int, T]) -> dict[int, T]:
    """Returns what all processes know of clients, in the clients' order.

    >>> union(ALONE, {2: "b", 1: "a"})
    {1: 'a', 2: 'b'}
    """
    everyone = {client: value for each in gather(peers, dict(part)) for client, value in each.items()}
    return {client: everyone[client] for client in sorted(everyone)}


def summed(peers: Peers, trees: Memory, shapes: Shapes, device: str) -> Memory:
    """Adds the trees of all processes, in float64 and in one message; a leaf that a process lacks counts as zero.

    >>> summed(ALONE, {"params": {"w": torch.ones(2).double()}}, {"params": {"w": [2], "b": [1]}}, "cpu")
    {'params': {'w': tensor([1., 1.], dtype=torch.float64), 'b': tensor([0.], dtype=torch.float64)}}
    """
    names = [(kind, name) for kind, leaves in shapes.items() for name in leaves]
    sizes = [torch.Size(shapes[kind][name]) for kind, name in names]
    total: Memory = {kind: {} for kind in shapes}
    if not names:
        return total
    here = [trees.get(kind, {}).get(name) for kind, name in names]
    none = (torch.zeros(size, dtype=torch.float64, device=device) for size in sizes)
    flat = torch.cat([(zero if leaf is None else leaf).flatten() for leaf, zero in zip(here, none, strict=True)])
    parts = peers.add(flat.cpu()).to(device).split([size.numel() for size in sizes])
    for (kind, name), size, part in zip(names, sizes, parts, strict=True):
        total[kind][name] = part.reshape(size)
    return total


def shapes_of(trees: Memory) -> dict[str, dict[str, list[int]]]:
    """Returns the shapes of named trees, as ``gather`` can send them.

    >>> shapes_of({"params": {"w": torch.ones(2, 3)}, "statistics": {}})
    {'params': {'w': [2, 3]}, 'statistics': {}}
    """
    return {kind: {name: list(leaf.shape) for name, leaf in tree.items()} for kind, tree in trees.items()}


def will_stop(peers: Peers) -> bool:
    """Returns whether any process was asked to stop: then all of them stop after the same round."""
    return peers.size > 1 and any(gather(peers, peers.is_stopped()))
