"""The interface of watchers: a function that sees the numbers of a round, and one that is told how the run ended."""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict, cast

from fedatoms.core import ledger
from fedatoms.core.lookup import one_line
from fedatoms.core.records import FORMAT, fit, read_record, sealed
from fedatoms.core.run_files import WATCHED
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import trajectory
from fedatoms.runs.results import metric_of, write_json
from fedatoms.runs.rounds import Row, read_lines

Ended = Literal["finished", "stopped", "failed"]


class Watching(NamedTuple):
    """A watcher at work."""

    see: Callable[[int, Mapping[str, float]], None]  # round, and its numbers by name
    close: Callable[[Ended], None]
    last: int | None = None  # the last round that its store has, if it can tell


Open = Callable[[Experiment, Path, int], Watching]  # experiment, the run's folder, rounds that are done already


def lasting_name(experiment: Experiment, folder: Path) -> str:
    """Returns what a run is known by elsewhere, also when it is resumed: drawn once, so that no other run has it.

    A store may be shared, and a colleague's run of the same experiment has the same name there.
    """
    return hashlib.sha256(f"{_drawn(folder)} {trajectory(experiment)}".encode()).hexdigest()[:16]


def numbers_of(row: Row) -> dict[str, float]:
    """Returns the numbers of a round by name, such as ``loss/train`` or ``accuracy/server``; all are finite.

    >>> row = {"round": 0, "loss": 2.0, "clients": 5, "failed": 0, "up": {"head": 4}, "down": {}, "seconds": None}
    >>> numbers_of({**row, "scores": {"server": {"accuracy": 50.0}}})
    {'loss/train': 2.0, 'bytes/up': 4.0, 'bytes/down': 0.0, 'clients/failed': 0.0, 'accuracy/server': 50.0}
    """
    found: dict[str, float | None] = {"loss/train": row["loss"], "seconds": row["seconds"]}
    found |= {"bytes/up": ledger.total(row["up"]), "bytes/down": ledger.total(row["down"])}
    found |= {"clients/failed": row["failed"]}
    metric = metric_of([row]).name
    for name, parts in row["scores"].items():
        known = cast(Mapping[str, float | None], parts)
        found |= {f"{part}/{name}": known.get(part) for part in (metric, "loss")}
    return {name: float(value) for name, value in found.items() if value is not None}


def missed(watcher: Watching, folder: Path) -> list[tuple[int, Mapping[str, float]]]:
    """Returns the rounds of a resumed run that a store lacks, with their numbers: a kill may have come before them."""
    rows = [] if watcher.last is None else read_lines(folder).rows[watcher.last :]
    return [(row["round"] + 1, numbers_of(row)) for row in rows]


class _Drawn(TypedDict):
    id: str


def _drawn(folder: Path) -> str:
    """Returns the random name of a run's folder, which is drawn when it is first watched."""
    path = folder / WATCHED
    if not path.exists():
        write_json(path, sealed({FORMAT: 2, "id": secrets.token_hex(16)}))
    try:
        return fit(read_record(path, must_be_sealed=True), _Drawn, str(path))["id"]
    except (OSError, ValueError) as error:
        raise ValueError(f"{one_line(error)}; remove that file to begin anew there") from None
