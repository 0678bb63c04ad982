"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020."""

from fedatoms.algorithms.base import Algorithm, proximal, require


def fedprox(mu: float = 1e-4) -> Algorithm:
    """Adds ``mu / 2 * |w - w^t|^2`` to every client's loss.

    >>> from torch import tensor
    >>> from fedatoms.algorithms import Server
    >>> broadcast = Server({"w": tensor(1.0)}, {})
    >>> fedprox(mu=0.5).correct({"w": tensor(1.0)}, {"w": tensor(3.0)}, broadcast, {})
    {'w': tensor(2.)}
    """
    require(mu, "mu", or_zero=True)  # 0 is FedAvg
    return Algorithm(correct=proximal(mu))
