"""Local training: the baseline without communication."""

from fedatoms.personal.base import Personal, Phase, everything


def local() -> Personal:
    """Makes all parameters personal; a sampled client trains them, and nothing travels.

    >>> [phase.moves for phase in local().phases]
    ['own']
    """
    return Personal(everything, phases=(Phase("own"),))
