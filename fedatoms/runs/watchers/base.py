"""The interface of watchers: a function that sees the numbers of a round, and one that is told how the run ended."""

import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from fedatoms.core import ledger
from fedatoms.engine.loop import Progress
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import trajectory

Ended = Literal["finished", "stopped", "failed"]


class Watching(NamedTuple):
    """A watcher at work."""

    see: Callable[[int, Mapping[str, float]], None]  # round, and its numbers by name
    close: Callable[[Ended], None]


Open = Callable[[Experiment, Path, int], Watching]  # experiment, the run's folder, rounds that are done already


def address(experiment: Experiment, folder: Path) -> str:
    """Returns what a run is known by elsewhere, also when it is resumed.

    >>> address(Experiment(), Path("runs/mine")) == address(Experiment(rounds=99), Path("runs/mine"))
    True
    """
    return hashlib.sha256(f"{folder.name} {trajectory(experiment)}".encode()).hexdigest()[:16]


def numbers_of(progress: Progress) -> dict[str, float]:
    """Returns the numbers of a round by name, such as ``loss/train`` or ``accuracy/server``; all are finite."""
    record = progress.record
    found = {"loss/train": record.loss, "bytes/up": ledger.total(record.up), "bytes/down": ledger.total(record.down)}
    found |= {"seconds": record.seconds, "clients/failed": record.failed}
    for name, score in progress.scores.items():
        found |= {f"{score.scale.name}/{name}": score.value, f"loss/{name}": score.loss}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}
