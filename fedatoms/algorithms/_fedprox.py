"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020."""

from fedatoms.algorithms.base import Algorithm, Server, require
from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params


def fedprox(mu: float = 1e-4) -> Algorithm:
    """Adds ``mu / 2 * |w - w^t|^2`` to every client's loss.

    >>> from torch import tensor
    >>> broadcast = Server({"w": tensor(1.0)}, {})
    >>> fedprox(mu=0.5).correct({"w": tensor(1.0)}, {"w": tensor(3.0)}, broadcast, {})
    {'w': tensor(2.)}
    """
    require(mu, "mu", or_zero=True)  # 0 is FedAvg

    def correct(gradient: Params, params: Params, server: Server, memory: Memory) -> Params:
        return trees.apply(lambda g, w, start: g + mu * (w - start), gradient, params, server.params)

    return Algorithm(correct=correct)
