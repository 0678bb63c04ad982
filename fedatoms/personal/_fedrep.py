"""FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021."""

from fedatoms.personal.base import Personal, Phase, of_groups


def fedrep() -> Personal:
    """Keeps the head on each client: first the head is trained on the received body, then the body for one epoch.

    >>> [(phase.moves, phase.epochs) for phase in fedrep().phases]
    [('own', 0), ('shared', 1)]
    """
    return Personal(of_groups("head"), phases=(Phase("own"), Phase("shared", epochs=1)))
