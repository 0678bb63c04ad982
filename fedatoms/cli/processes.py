"""Processes that torchrun starts with the same words: one run is shared by all, and process 0 alone speaks."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedatoms.engine.peers import Lost, Peers

PAUSE = 1.5  # seconds until a silent process ends: torchrun stops all others then, and process 0 has to say why
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def check_alone(command: str) -> None:
    """Refuses a command of which torchrun would start several at once."""
    if (size := os.environ.get("WORLD_SIZE", "1")) != "1" and command != "run" and "RANK" in os.environ:
        raise ValueError(
            f"torchrun starts `fedatoms {command}` {size} times, but only `fedatoms run` is shared by processes. Leave "
            f"torchrun out."
        )


def is_silent(error: BaseException | None = None) -> bool:
    """Returns whether another process says what this one would say: process 0, or 1 if that was killed."""
    rank = os.environ.get("RANK", "0") if os.environ.get("WORLD_SIZE", "1") != "1" else "0"
    first_is_lost = getattr(error, "rank", None) == 0 and not getattr(error, "noted", True)
    return rank != ("1" if first_is_lost else "0")


def processes_here() -> str:
    """Returns how many processes torchrun started on this machine."""
    return os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or "1"


def wait_for_the_first() -> None:
    """Lets process 0 say why all of them end, before torchrun stops it; torchrun may stop this one meanwhile."""
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(PAUSE)


@contextlib.contextmanager
def joined() -> Iterator["Peers"]:
    """Connects this process with the others that torchrun started, if it did; alone without it.

    A signal asks all of them to stop after the round, unless one of them has ended.
    """
    from fedatoms.engine.gloo import connected, place_of

    asked = list[int]()
    with connected(place_of(os.environ), is_stopped=lambda: bool(asked)) as (peers, ended):
        if peers.size == 1:
            yield peers
            return
        with _handled(lambda number: _ask(asked, number, ended)):
            yield peers


def _ask(asked: list[int], number: int, ended: "Callable[[], Lost | None]") -> None:
    if not asked and (lost := ended()) is not None:
        raise lost
    asked.append(number)


@contextlib.contextmanager
def _handled(handle: Callable[[int], None]) -> Iterator[None]:
    """Handles what stops a command; as before at the end."""
    numbers = [number for name in SIGNALS if (number := getattr(signal, name, None)) is not None]
    before = {each: signal.getsignal(each) for each in numbers}
    for each, old in before.items():
        if old != signal.SIG_IGN:
            signal.signal(each, lambda number, frame: handle(number))
    try:
        yield
    finally:
        for each, old in before.items():
            signal.signal(each, old)
