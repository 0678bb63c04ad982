"""Ditto: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021."""

from fedatoms.algorithms.base import require
from fedatoms.personal.base import Personal, Phase, everything


def ditto(pull: float = 0.75) -> Personal:
    """Gives each client a second model, trained on ``F_k(v) + pull / 2 * |v - w^t|^2`` beside the global one.

    >>> ditto().phases[1].pull
    0.75
    """
    require(pull, "pull", or_zero=True)
    return Personal(everything, beside=True, phases=(Phase("shared", view="global"), Phase("own", pull=pull)))
