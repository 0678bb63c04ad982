"""Python's garbage collector, paused while a compiler is imported or works: it makes a million objects. No torch."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses the collector: looking through all that is alive, again and again, would take a quarter of an import.

    What was made meanwhile is then old to it, which it looks through when much else has become old. Otherwise three
    generations of it would be, in what follows.

    >>> with collector_paused():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            if not gc.get_freeze_count():  # else a program has frozen some of its own
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
