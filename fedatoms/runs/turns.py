"""Work that takes turns: each in a thread of its own, one at a time, until it gives its turn back."""

from collections.abc import Callable
from threading import Semaphore, Thread
from typing import Generic, TypeVar

T = TypeVar("T")
_LOOKS = 0.5  # seconds after which a thread looks again whose turn it is: an interruption may have cost a word of it


class Turns(Generic[T]):
    """Work that is done bit by bit, as a generator is, but may give its turn back from however deep it is.

    Nothing of it runs while others have their turn, so that it needs no locks.

    >>> def work():
    ...     seen.append("begun")
    ...     turns.give_back()
    ...     return "done"
    >>> seen, turns = [], Turns(work)
    >>> turns.go()
    >>> seen, turns.over
    (['begun'], False)
    >>> turns.go()
    >>> turns.over, turns.result()
    (True, 'done')
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self.over = False
        self.error: BaseException | None = None
        self._has_turn, self._stopped = False, False
        self._made: list[T] = []
        self._to_it, self._back = Semaphore(0), Semaphore(0)
        # a daemon: who interrupts a second time does not wait for it
        self._thread = Thread(target=self._work, args=(work,), daemon=True)

    def go(self) -> None:
        """Lets it go on until it gives its turn back, or is over; an interruption waits for that."""
        try:
            if self._thread.ident is None:
                self._thread.start()
            self._has_turn = True
            self._to_it.release()
            self._wait()
        except KeyboardInterrupt:
            self._wait()
            raise

    def stop(self) -> None:
        """Interrupts it where it gave its turn back, and waits for its end; one that did not begin never does."""
        if self._thread.ident is not None and not (self.over or self._has_turn):
            self._stopped = True
            self.go()

    def give_back(self) -> None:
        """Gives the turn back, and returns when it comes again; for the work itself."""
        self._has_turn = False
        self._back.release()
        while not self._has_turn:
            self._to_it.acquire(timeout=_LOOKS)
        if self._stopped:
            raise KeyboardInterrupt

    def result(self) -> T:
        """Returns what the work returned, once it is over, or raises its error."""
        if self.error is not None:
            raise self.error
        return self._made[0]

    def _wait(self) -> None:
        while self._has_turn:
            self._back.acquire(timeout=_LOOKS)

    def _work(self, work: Callable[[], T]) -> None:
        while not self._has_turn:
            self._to_it.acquire(timeout=_LOOKS)
        try:
            self._made.append(work())
        except BaseException as error:  # an interruption too: who gave the turn passes it on
            self.error = error
        self.over, self._has_turn = True, False
        self._back.release()
