"""Connects the processes that torchrun starts, by torch.distributed: sums and messages of the host, over gloo."""

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fedatoms.core.lookup import one_line
from fedatoms.engine.peers import ALONE, Lost, Peers, gather

T = TypeVar("T")
NEEDED = ("RANK", "MASTER_ADDR", "MASTER_PORT")
PATIENCE = 1800.0  # seconds that a process waits for the slowest one: the time-out where no connection is closed
PAUSE = 2.0  # seconds in which a process that ends can say why, and its number is given back
INLINE = 8192  # bytes of a message that need no second one
_NOTE = "fedatoms/ended"


class Store(Protocol):
    """What torch.distributed keeps for all processes, in process 0 or in torchrun."""

    def check(self, keys: list[str], /) -> bool: ...
    def get(self, key: str, /) -> bytes: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...


class Place(NamedTuple):
    """Where a process is among all."""

    rank: int
    size: int
    local: int


def place_of(environment: Mapping[str, str]) -> Place:
    """Reads what torchrun says of this process; refuses what no torchrun says.

    >>> place_of({}), place_of({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "::1", "MASTER_PORT": "29500"})
    (Place(rank=0, size=1, local=0), Place(rank=1, size=2, local=0))
    """
    size = _whole(environment, "WORLD_SIZE", 1)
    if size < 2:
        return Place(0, 1, 0)
    for name in NEEDED:
        if not environment.get(name):
            raise ValueError(
                f"WORLD_SIZE={size}, but {name} is not set: processes would not find each other. Start them with "
                f"`torchrun --nproc-per-node {size} -m fedatoms run ...`, or unset WORLD_SIZE."
            )
    rank = _whole(environment, "RANK", 0)
    if rank >= size:
        raise ValueError(f"RANK={rank} of WORLD_SIZE={size} processes: they are counted from 0. Use torchrun.")
    return Place(rank, size, _whole(environment, "LOCAL_RANK", 0))


@contextmanager
def connected(
    place: Place, *, is_stopped: Callable[[], bool] = lambda: False, patience: float | None = None
) -> Iterator[tuple[Peers, Callable[[], Lost | None]]]:
    """Connects this process with the others, and yields them with a function that says if one of them has ended.

    If what is done within fails, the others learn why as soon as they wait for this process.
    """
    if place.size == 1:
        yield ALONE, lambda: None
        return
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    limit = timedelta(seconds=_patience() if patience is None else patience)
    try:
        store, rank, size = next(rendezvous("env://", place.rank, place.size, timeout=limit))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError) as error:
        raise ConnectionError(
            f"process {place.rank} of {place.size} cannot reach the others at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} ({one_line(error)[:200]}). Start all of them."
        ) from None
    try:
        yield _peers(store, place, is_stopped)
    except BaseException as error:
        _leave_note(store, error, place.rank)
        raise
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()


def device_here(device: str, local: int) -> str:
    """Returns the device of a process: "cuda" is the card of its number on its machine, shared if there are fewer.

    >>> device_here("cpu", local=3), device_here("cuda:1", local=0)
    ('cpu', 'cuda:1')
    """
    return f"cuda:{local % torch.cuda.device_count()}" if device == "cuda" else device


def _peers(store: Store, place: Place, is_stopped: Callable[[], bool]) -> tuple[Peers, Callable[[], Lost | None]]:
    """Makes the functions of ``Peers``; each raises ``Lost`` where torch only knows of a closed connection."""
    processes: list[tuple[str, int]] = []  # host and number of each, once they are known

    def ended() -> Lost | None:
        return _noted(store, place) or _gone(processes, place)

    def add(here: Tensor) -> Tensor:
        return _or_lost(lambda: _added(here), store, place, ended)

    def show(here: bytes) -> list[bytes]:
        return _or_lost(lambda: _shown(here, place.size), store, place, ended)

    peers = Peers(*place, add, show, is_stopped)
    processes += gather(peers, (socket.gethostname(), os.getpid()))
    return peers, ended


def _added(here: Tensor) -> Tensor:
    import torch.distributed as dist

    total = here.clone()
    dist.all_reduce(total)
    return total


def _shown(here: bytes, size: int) -> list[bytes]:
    """Sends a first part of fixed size, which tells the length, and the rest only if there is one."""
    first = _all(len(here).to_bytes(8, "little") + here[:INLINE].ljust(INLINE, b"\0"), size)
    lengths = [int.from_bytes(each[:8], "little") for each in first]
    longest = max(lengths)
    rest = _all(here[INLINE:].ljust(longest - INLINE, b"\0"), size) if longest > INLINE else [b""] * size
    return [(each[8:] + more)[:length] for each, more, length in zip(first, rest, lengths, strict=True)]


def _all(here: bytes, size: int) -> list[bytes]:
    import torch.distributed as dist

    data = torch.frombuffer(bytearray(here), dtype=torch.uint8)
    found = [torch.empty_like(data) for _ in range(size)]
    dist.all_gather(found, data)
    return [each.numpy().tobytes() for each in found]


def _or_lost(collective: Callable[[], T], store: Store, place: Place, ended: Callable[[], Lost | None]) -> T:
    try:
        return collective()
    except RuntimeError as error:
        lost = _wait(ended) or Lost(f"another process does not answer any more ({_reason(error)})")
        _write(store, lost.rank, str(lost), noted=lost.noted)  # the first to know tells the others
        raise lost from None


def _reason(error: Exception) -> str:
    """Returns what torch says of a connection, without the place in its code."""
    return re.sub(r"^\[\S+\] ", "", one_line(error))[:200].rstrip(".")


def _wait(ended: Callable[[], Lost | None]) -> Lost | None:
    """Asks for a moment which process has ended: a connection is closed before the process is gone."""
    until = time.monotonic() + PAUSE
    while (lost := ended()) is None and time.monotonic() < until:
        time.sleep(0.05)
    return lost


def _gone(processes: list[tuple[str, int]], place: Place) -> Lost | None:
    """Finds a process of this machine that is no more, and left no note."""
    here = socket.gethostname()
    for rank, (host, number) in enumerate(processes):
        if host == here and not _lives(number):
            return Lost(f"process {rank} of {place.size} was killed", rank)
    return None


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _noted(store: Store, place: Place) -> Lost | None:
    """Reads the note of the first process that ended, if another one than this."""
    with suppress(RuntimeError):  # the store has ended with process 0
        if store.check([_NOTE]):
            rank, why, noted = json.loads(store.get(_NOTE))
            return None if rank == place.rank else Lost(why, rank, noted=noted)
    return None


def _leave_note(store: Store, error: BaseException, rank: int) -> None:
    if not isinstance(error, Lost | GeneratorExit):
        why = "was stopped" if isinstance(error, KeyboardInterrupt) else f"failed: {one_line(error)}"
        _write(store, rank, f"process {rank} {why}", noted=True)


def _write(store: Store, rank: int | None, why: str, *, noted: bool) -> None:
    with suppress(RuntimeError):
        store.compare_set(_NOTE, "", json.dumps([rank, why, noted]))


def _patience() -> float:
    given = os.environ.get("FEDATOMS_PATIENCE", "")
    try:
        seconds = float(given or PATIENCE)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 10**8:
        raise ValueError(f"FEDATOMS_PATIENCE={given} is not a number of seconds. Use for example 1800.")
    return seconds


def _whole(environment: Mapping[str, str], name: str, default: int) -> int:
    given = environment.get(name) or str(default)
    if not given.isdecimal():
        raise ValueError(f"{name}={given} is not a whole number. Start the processes with torchrun, or unset it.")
    return int(given)
