"""What a run carries from round to round, and what it records of each round."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from fedatoms.algorithms.base import Server
from fedatoms.core.ledger import Bytes
from fedatoms.core.options import Group
from fedatoms.core.trees import Params
from fedatoms.engine.client_round import Traces
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


class Numbers(NamedTuple):
    """What a round is checked by."""

    own: list[Traces]
    shared: list[Traces]
    trace: Tensor  # of the server after the round


class Launched(NamedTuple):
    """A round under way on a device: the state that it leads to, and what is known before it is done."""

    began: float
    before: Server
    state: State
    record: Record  # all but loss and seconds
    numbers: Callable[[], Numbers]  # waits for them
