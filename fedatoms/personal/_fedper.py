"""FedPer: Arivazhagan et al., "Federated Learning with Personalization Layers", 2019."""

from fedatoms.personal.base import Personal, of_groups


def fedper() -> Personal:
    """Keeps the head on each client and trains it jointly with the rest, which is averaged.

    >>> fedper().beside
    False
    """
    return Personal(of_groups("head"))
