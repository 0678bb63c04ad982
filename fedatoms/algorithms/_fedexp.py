"""FedExP: Jhunjhunwala et al., "FedExP: Speeding up Federated Averaging via Extrapolation", ICLR 2023."""

from fedatoms.algorithms.base import Algorithm, Server, Work, require
from fedatoms.core import trees
from fedatoms.core.trees import NUMBERS, Memory, Params


def fedexp(epsilon: float = 1e-3) -> Algorithm:
    """Takes the mean move ``d`` times ``max(1, mean of |d_k|^2 / (2 (|d|^2 + epsilon)))``.

    >>> fedexp().weighting
    'uniform'
    """
    require(epsilon, "epsilon")

    def aggregate(server: Server, mean: Memory, participation: float) -> Server:
        move = trees.subtract(mean["params"], server.params)
        step = (mean[NUMBERS]["squared"] / (2 * (trees.squared(move) + epsilon))).clamp(min=1.0)
        return Server(trees.apply(lambda w, d: w + step * d, server.params, move), server.memory)

    return Algorithm(report=_report, aggregate=aggregate, weighting="uniform")


def _report(params: Params, server: Server, memory: Memory, work: Work) -> tuple[Memory, Memory]:
    return {"params": params, NUMBERS: {"squared": trees.squared(trees.subtract(params, server.params))}}, memory
