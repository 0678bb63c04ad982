"""Local training: every client for itself, the baseline that communicates nothing."""

from fedatoms.personal.base import Personal, Phase, everything


def local() -> Personal:
    """Gives each client a whole model of its own; a sampled one trains it, and nothing travels.

    >>> [phase.moves for phase in local().phases]
    ['own']
    """
    return Personal(everything, phases=(Phase("own"),))
