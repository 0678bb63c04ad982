"""The ledger of bytes: counted by group from the messages that cross the network, then added and scaled."""

from collections.abc import Mapping
from typing import TypeVar

from fedatoms.core import trees
from fedatoms.core.options import Group
from fedatoms.core.trees import Params

Bytes = dict[Group, int]
Entry = TypeVar("Entry", bound=str)


def bytes_of(message: Mapping[str, Params], labels: Mapping[str, Group]) -> Bytes:
    """Counts the bytes of a message by group; numbers, which belong to no group, with its first tensor.

    >>> from torch import zeros
    >>> message = {"params": {"w": zeros(2)}, "control": {"w": zeros(2)}, "numbers": {"steps": zeros(())}}
    >>> bytes_of(message, {"w": "rest"})
    {'rest': 20}
    """
    groups = [
        {labels[name]: trees.nbytes({name: leaf})}
        for kind, tree in message.items()
        if kind != trees.NUMBERS
        for name, leaf in tree.items()
    ]
    beside = trees.nbytes(message.get(trees.NUMBERS, {}))
    return add(*groups, dict.fromkeys(groups[0], beside) if groups and beside else {})


def add(*counts: Mapping[Entry, int]) -> dict[Entry, int]:
    """Adds counts entry by entry; the entries come in the order in which they first appear.

    >>> add({"head": 1}, {"atoms": 2, "head": 3})
    {'head': 4, 'atoms': 2}
    """
    sums: dict[Entry, int] = {}
    for count in counts:
        for entry, size in count.items():
            sums[entry] = sums.get(entry, 0) + size
    return sums


def total(count: Mapping[Entry, int]) -> int:
    """Adds the entries up.

    >>> total({"atoms": 900, "head": 100})
    1000
    """
    return sum(count.values())


def scale(count: Mapping[Entry, int], times: int) -> dict[Entry, int]:
    """Multiplies all entries, as for a message that goes to several clients.

    >>> scale({"head": 4}, 3)
    {'head': 12}
    """
    return {entry: size * times for entry, size in count.items()}
