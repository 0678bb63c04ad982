"""What a run carries from round to round, and what it records of each round."""

from collections.abc import Mapping
from typing import NamedTuple

from fedatoms.algorithms.base import Server
from fedatoms.core.ledger import Bytes
from fedatoms.core.options import Group
from fedatoms.core.trees import Params
from fedatoms.engine.client_states import Clients, Held


class State(NamedTuple):
    """Everything that a run carries from round to round; a new value each time."""

    round: int
    server: Server
    clients: Clients
    versions: Mapping[Group, int]  # for each group, the round after which the server's part last changed
    held: Held  # the versions that each client has
    last_sum: Params | None  # sum of all clients' last models in float64, if that is scored
    common: Params  # what a collaboration remembers on the server
    selected: Params | None = None  # the mean of the last round's models; not part of a checkpoint


class Record(NamedTuple):
    """What happened in a round."""

    round: int
    loss: float  # mean over clients of the mean over their steps; nan if none reported, or it is withheld
    clients: int
    failed: int
    up: Bytes
    down: Bytes
    seconds: float
    extra: Mapping[str, Mapping[str, object]] = {}  # further columns, as from Flower
