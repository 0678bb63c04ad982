"""What travels: which groups of parameters go in which round, and which never leave a client."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from fedatoms.core.options import GROUPS, Group, SlowLocal, check_range

Schedule = Callable[[int], frozenset[Group]]
FAST: frozenset[Group] = frozenset({"atoms", "head"})
SLOW: frozenset[Group] = frozenset({"coefficients", "rest", "statistics"})


class Exchange(NamedTuple):
    """A schedule, the groups that stay on the clients, and what a client does with the slow part in a fast round.

    ``discard``: trains it and throws the result away (the paper's Algorithm 2); ``freeze``: does not train it;
    ``keep``: trains it and continues from there until it receives the server's next version.
    """

    schedule: Schedule
    personal: frozenset[Group] = frozenset()
    slow_local: SlowLocal = "discard"


def every_round(groups: Collection[Group] = GROUPS) -> Schedule:
    """Sends all groups in every round.

    >>> sorted(every_round({"atoms", "rest"})(7))
    ['atoms', 'rest']
    """
    everything = frozenset(groups)
    return lambda round: everything


def fast_slow(fast: Collection[Group] = FAST, slow: Collection[Group] = SLOW, period: int = 5) -> Schedule:
    """Sends ``fast`` every round and ``slow`` only every ``period`` rounds, the first included.

    >>> plan = fast_slow({"atoms", "head"}, {"coefficients", "rest"}, period=3)
    >>> [sorted(plan(r)) for r in range(2)]
    [['atoms', 'coefficients', 'head', 'rest'], ['atoms', 'head']]
    """
    check_range("period", period)
    if both := frozenset(fast) & frozenset(slow):
        raise ValueError(f"{', '.join(sorted(both))} is in fast and in slow. Leave it in one of them.")
    often, all_ = frozenset(fast), frozenset(fast) | frozenset(slow)
    return lambda round: often if round % period else all_


def check_covers(exchange: Exchange, labels: Mapping[str, Group]) -> None:
    """Refuses an exchange that leaves a group of the model neither travelling nor personal.

    >>> check_covers(Exchange(every_round({"atoms"})), {"conv1.atoms": "atoms", "fc.bias": "head"})
    Traceback (most recent call last):
    ...
    ValueError: head is neither sent (fast or slow) nor personal. Add it to one of them.
    """
    if uncovered := set(labels.values()) - exchange.schedule(0) - exchange.personal:
        raise ValueError(
            f"{', '.join(sorted(uncovered))} is neither sent (fast or slow) nor personal. Add it to one of them."
        )
