"""The server state between rounds: the run's own, and which state and versions each client holds."""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypedDict

import torch

from fedatoms.core import ledger, trees
from fedatoms.core.files import replace_file
from fedatoms.core.ledger import Bytes
from fedatoms.core.records import FORMAT, fit, read_record, sealed
from fedatoms.core.trees import Memory
from fedatoms.engine import server as server_side
from fedatoms.engine.round import aggregate, lacked_by, leaves_clients_unchanged, message_to
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.state import State
from fedatoms.engine.uploads import keep
from fedatoms.flower.membership import Holder
from fedatoms.flower.wire import Answer, Missing, Order
from fedatoms.runs.checkpoints import KEPT, ClientNumber

HOLDERS = "holders.json"


class ServerState(NamedTuple):
    """The state of a run, its id and experiment, and for each client the number of its last accepted state."""

    state: State
    run: str
    trajectory: str
    base: Mapping[int, int] = {}  # the round after its last accepted answer
    holders: Mapping[int, Holder] = {}  # the key that owns each client that ever joined


def order_for(runtime: Runtime, known: ServerState, client: int, *, score: bool = False, last_epochs: int = 0) -> Order:
    """Makes a client's order for the round: the groups whose version it lacks, and the algorithm's memory."""
    state = known.state
    down = message_to(runtime, state, lacked_by(runtime, state, client), training=not score)
    base = known.base.get(client, 0)
    return Order(known.run, state.round, base, state.versions, down, last_epochs)


def take_in(runtime: Runtime, known: ServerState, answers: Mapping[int, Answer]) -> ServerState:
    """Aggregates accepted answers in the order of the clients, and ends the round; too few of them change nobody."""
    present, total, uniform = sorted(answers), server_side.NOTHING_YET, runtime.sim.algorithm.weighting == "uniform"
    for client in present:
        block = {kind: trees.lead(tree) for kind, tree in answers[client].upload.items()}
        gather = partial(keep, [client]) if runtime.sim.keeps_uploads else server_side.gather
        total = gather(total, block, torch.tensor([1.0 if uniform else float(answers[client].samples)]))
    after = aggregate(runtime, known.state, present, total)
    return with_answers(known, after, [] if leaves_clients_unchanged(runtime.sim, total) else present)


def with_answers(known: ServerState, after: State, present: Iterable[int]) -> ServerState:
    """Ends a round: the clients whose answers were accepted start the next one from their states after this one."""
    return known._replace(state=after, base={**known.base, **dict.fromkeys(present, after.round)})


def note_missing(known: ServerState, client: int, missing: Missing) -> ServerState:
    """Records that a client holds less than assumed; one whose own state is lost starts from nothing."""
    before = known.state.held.get(client, {})
    held = {group: version for group, version in before.items() if group not in missing.groups}
    base = {**known.base, client: 0} if missing.lost else known.base
    return known._replace(state=known.state._replace(held=known.state.held.updated({client: held})), base=base)


def bytes_in(runtime: Runtime, messages: list[Memory]) -> Bytes:
    """Counts the bytes of messages by group."""
    return ledger.add(*(ledger.bytes_of(message, runtime.layout.labels) for message in messages))


def save_state(folder: Path, known: ServerState) -> None:
    """Writes what no checkpoint has, before the checkpoint of the same round."""
    folder.mkdir(parents=True, exist_ok=True)
    base = {str(client): number for client, number in known.base.items()}
    replace_file(
        _path(folder, known.state.round), json.dumps(sealed({FORMAT: 2, "run": known.run, "base": base})).encode()
    )
    for old in sorted(folder.glob("[0-9]*.json"))[: -KEPT - 1]:
        old.unlink()


def save_holders(folder: Path, holders: Mapping[int, Holder]) -> None:
    """Writes which key owns each client: at once and not by round, so that a kill does not undo it."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {str(client): list(each) for client, each in holders.items()}
    replace_file(folder / HOLDERS, json.dumps(sealed(values)).encode())


def load_holders(folder: Path) -> dict[int, Holder]:
    """Reads what ``save_holders`` wrote, if it did."""
    path = folder / HOLDERS
    if not path.exists():
        return {}
    found = fit(read_record(path), dict[ClientNumber, Holder], str(path))
    return {int(client): each for client, each in found.items()}


def load_state(folder: Path, state: State, trajectory: str) -> ServerState:
    """Reads what ``save_state`` wrote for a state."""
    path = _path(folder, state.round)
    if not path.exists():
        raise ValueError(f"{folder} has nothing about round {state.round}. Restore it, or start a new run.")
    found = fit(read_record(path), _File, str(path))
    base = {int(client): number for client, number in found["base"].items()}
    return ServerState(state, found["run"], trajectory, base)


class _File(TypedDict):
    run: str
    base: dict[ClientNumber, int]


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.json"
