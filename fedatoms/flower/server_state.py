"""What a server knows between rounds: the run's state, and which state and versions each client holds."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from fedatoms.core import ledger
from fedatoms.core.files import replace_file
from fedatoms.core.ledger import Bytes
from fedatoms.core.trees import Memory
from fedatoms.engine import server as server_side
from fedatoms.engine.round import lost_by, message_to, settle
from fedatoms.engine.spec import Simulation, State
from fedatoms.flower.membership import Holder
from fedatoms.flower.wire import Answer, Lacks, Order

KEPT = 2  # as many as there are checkpoints
HOLDERS = "holders.json"


class Books(NamedTuple):
    """The state of a run, its id, which experiment it is, and for each client the number of its state that counts."""

    state: State
    run: str
    trajectory: str
    base: Mapping[int, int] = {}  # after its last answer that was taken in
    holders: Mapping[int, Holder] = {}  # of each client that ever came, the key to which it belongs


def order_for(sim: Simulation, books: Books, client: int, *, score: bool = False, last_epochs: int = 0) -> Order:
    """Writes a client's order for the round: the groups that it lacks, and what the algorithm sends along."""
    state = books.state
    down = message_to(sim, state, lost_by(sim, state, client), training=not score)
    base = books.base.get(client, 0)
    return Order(books.run, state.round, base, state.versions, down, last_epochs)


def take_in(sim: Simulation, books: Books, answers: Mapping[int, Answer], mean: Memory | None = None) -> Books:
    """Averages good answers in the order of the clients and ends the round; ``mean`` stands for another average."""
    present, total, uniform = sorted(answers), server_side.NOTHING_YET, sim.algorithm.weighting == "uniform"
    uploads = [(answers[each].upload, 1.0 if uniform else float(answers[each].samples)) for each in present]
    for upload, weight in uploads if mean is None else [(mean, 1.0)]:
        total = server_side.gather(total, _lead(upload), torch.tensor([weight]))
    state = settle(sim, books.state, present, total)
    return books._replace(state=state, base={**books.base, **dict.fromkeys(present, books.state.round + 1)})


def mend(books: Books, client: int, lacks: Lacks) -> Books:
    """Notes that a client holds less than was thought; one whose own state is lost begins anew."""
    held = {group: version for group, version in books.state.held.get(client, {}).items() if group not in lacks.groups}
    base = {**books.base, client: 0} if lacks.lost else books.base
    return books._replace(state=books.state._replace(held={**books.state.held, client: held}), base=base)


def bytes_in(sim: Simulation, messages: list[Memory]) -> Bytes:
    """Counts the bytes of messages by group."""
    return ledger.add(*(ledger.bytes_of(message, sim.labels) for message in messages))


def save_books(folder: Path, books: Books) -> None:
    """Writes what no checkpoint has; before the checkpoint of the same round, which then finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    base = {str(client): number for client, number in books.base.items()}
    replace_file(_path(folder, books.state.round), json.dumps({"run": books.run, "base": base}).encode())
    for old in sorted(folder.glob("[0-9]*.json"))[: -KEPT - 1]:
        old.unlink()


def save_holders(folder: Path, holders: Mapping[int, Holder]) -> None:
    """Writes to which keys clients belong: as soon as it is known, and for all rounds, so that no kill undoes it."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / HOLDERS, json.dumps({str(client): list(each) for client, each in holders.items()}).encode())


def load_holders(folder: Path) -> dict[int, Holder]:
    """Reads what ``save_holders`` wrote, if there is anything."""
    if not (folder / HOLDERS).exists():
        return {}
    return {int(client): Holder(*each) for client, each in json.loads((folder / HOLDERS).read_text()).items()}


def load_books(folder: Path, state: State, trajectory: str) -> Books:
    """Reads what ``save_books`` wrote for a state."""
    try:
        found = json.loads(_path(folder, state.round).read_text())
    except OSError as error:
        raise ValueError(f"{folder} has nothing about round {state.round}. Restore it, or start a new run.") from error
    return Books(state, found["run"], trajectory, {int(client): number for client, number in found["base"].items()})


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.json"


def _lead(upload: Memory) -> Memory:
    return {kind: {name: leaf[None] for name, leaf in tree.items()} for kind, tree in upload.items()}
