"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017."""

from fedatoms.algorithms.base import Algorithm


def fedavg() -> Algorithm:
    """Averages the clients' models, weighted by their numbers of samples: ``w = sum of n_k / n * w_k``.

    >>> fedavg().weighting
    'samples'
    """
    return Algorithm()
