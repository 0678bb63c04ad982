"""Server optimisers: FedAvgM and FedAdam.

Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019;
Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
"""

from fedatoms.algorithms.base import Algorithm, Server, require
from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params


def fedavgm(momentum: float = 0.9, server_lr: float = 1.0) -> Algorithm:
    """Applies FedAvg's update with momentum: ``v = momentum * v + mean - w``, ``w += server_lr * v``.

    >>> fedavgm().weighting
    'samples'
    """
    require(momentum, "momentum", share=True)
    require(server_lr, "server_lr")

    def aggregate(server: Server, mean: Memory, participation: float) -> Server:
        move = trees.subtract(mean["params"], server.params)
        v = trees.add(move, server.memory["velocity"], momentum)
        return Server(trees.add(server.params, v, server_lr), {"velocity": v})

    return Algorithm(server_memory=_velocity, aggregate=aggregate)


def fedadam(server_lr: float = 0.01, b1: float = 0.9, b2: float = 0.99, tau: float = 1e-3) -> Algorithm:
    """Uses FedAvg's update as Adam's gradient: ``w += server_lr * m / (sqrt(v) + tau)``, without bias correction.

    >>> sorted(fedadam().server_memory({}))
    ['first', 'second']
    """
    require(server_lr, "server_lr")
    require(b1, "b1", share=True, or_zero=True)
    require(b2, "b2", share=True, or_zero=True)
    require(tau, "tau", or_zero=True)

    def moments(params: Params) -> Memory:
        return {"first": trees.zeros_like(params), "second": trees.apply(lambda w: w.new_full(w.shape, tau**2), params)}

    def aggregate(server: Server, mean: Memory, participation: float) -> Server:
        move = trees.subtract(mean["params"], server.params)
        first = trees.apply(lambda m, d: b1 * m + (1 - b1) * d, server.memory["first"], move)
        second = trees.apply(lambda v, d: b2 * v + (1 - b2) * d**2, server.memory["second"], move)
        params = trees.apply(lambda w, m, v: w + server_lr * m / (v.sqrt() + tau), server.params, first, second)
        return Server(params, {"first": first, "second": second})

    return Algorithm(server_memory=moments, aggregate=aggregate)


def _velocity(params: Params) -> Memory:
    return {"velocity": trees.zeros_like(params)}
