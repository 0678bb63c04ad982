"""What the parts of the contest share: its settings and limits, a row from a timing, and a gap from a failure."""

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import nn

from fedatoms.bench.contest import Timing, reason_of
from fedatoms.bench.line_up import Cell, training_of
from fedatoms.bench.machine_limits import Limits, need
from fedatoms.bench.results import LENET, Event, Gap, Row
from fedatoms.bench.settings import Bench
from fedatoms.engine.training import Training


class Contest(NamedTuple):
    """What every part of the contest shares."""

    settings: Bench
    limits: Limits
    cells: list[Cell]
    special: Cell  # where the baselines and the algorithms run
    so_far: Sequence[Event]


class Work(NamedTuple):
    """The work of a row: its cell, how clients train, how many images each has, and what network."""

    cell: Cell
    training: Training
    samples: int
    network: str = LENET
    model: nn.Module | None = None  # None: LeNet


def work_of(settings: Bench, cell: Cell) -> Work:
    """Returns the work of a cell of the grid."""
    return Work(cell, training_of(settings, cell.batch), settings.samples)


def row_of(contest: Contest, work: Work, timing: Timing) -> Row:
    """Makes a row: the median over turns, and the shares of what the card can do."""
    cell = work.cell
    steps = work.training.epochs * -(-work.samples // cell.batch)
    seconds, least = statistics.median(timing.seconds), need(cell, work.training, work.model)
    return Row(
        contestant=timing.name,
        clients=cell.clients,
        batch=cell.batch,
        steps=steps,
        precision=contest.settings.precision,
        ms_round=1e3 * seconds,
        ms_step=1e3 * seconds / steps,
        client_steps=cell.clients * steps / seconds,
        arithmetic=least.flops * steps / seconds / contest.limits.arithmetic,
        bandwidth=least.bytes * steps / seconds / contest.limits.bandwidth,
        first_round=timing.first,
        memory=timing.memory,
        seconds=timing.seconds,
        detail=timing.note,
        network=work.network,
    )


def guarded(name: str, events: Iterator[Event]) -> Iterator[Event]:
    """Passes events on; a failure (out of memory, a process that dies) must not end the benchmark."""
    try:
        yield from events
    except Exception as error:
        yield Gap(name, reason_of(error))


def where(cell: Cell) -> str:
    """Names a cell.

    >>> where(Cell(10, 50))
    '10 clients x 50'
    """
    return f"{cell.clients} clients x {cell.batch}"
