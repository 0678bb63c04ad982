"""What travels: which groups of parameters go in which round, and which never leave a client."""

from collections.abc import Callable, Collection, Mapping, Set
from typing import NamedTuple

from fedatoms.core.lookup import shown
from fedatoms.core.options import GROUPS, SLOW_LOCALS, Group, SlowLocal, check_range, one_of

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
    everything = _known(groups)
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
    often, all_ = _known(fast), _known(fast) | _known(slow)
    return lambda round: often if round % period else all_


def check_exchange(exchange: Exchange) -> None:
    """Refuses personal groups that no model has, and another choice of what happens to the slow part than the three.

    >>> check_exchange(Exchange(every_round(), personal=frozenset({"haed"})))
    Traceback (most recent call last):
    ...
    ValueError: unknown group 'haed'. Did you mean 'head'? Valid: atoms, coefficients, head, rest, statistics.
    """
    one_of(SLOW_LOCALS, exchange.slow_local, "slow_local")
    if not isinstance(exchange.personal, Set):
        raise ValueError(
            f"personal={shown(exchange.personal)} is not a set of groups. Use for example "
            f"personal=frozenset({{'head'}})."
        )
    _known(exchange.personal)


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


def _known(groups: Collection[Group]) -> frozenset[Group]:
    return frozenset(one_of(GROUPS, group, "group") for group in groups)
