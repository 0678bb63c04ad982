"""An algorithm of your own, in twenty lines: FedExP, whose server extrapolates where clients disagree.

Jhunjhunwala et al., "FedExP: Speeding up Federated Averaging via Extrapolation", ICLR 2023. In this folder, type
`fedatoms run --algorithm own_algorithm:fedexp`.
"""

import torch
from torch import Tensor

import fedatoms
from fedatoms.algorithms import Algorithm, Server, Work
from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params


def fedexp(epsilon: float = 1e-3) -> Algorithm:
    """Takes the mean move ``d`` times ``max(1, mean of |d_k|^2 / (2 (|d|^2 + epsilon)))``."""

    def report(params: Params, server: Server, memory: Memory, work: Work) -> tuple[Memory, Memory]:
        squares = trees.apply(lambda w, start: (w - start).square().sum(), params, server.params)
        return {"params": params, "squares": squares}, memory

    def aggregate(server: Server, mean: Memory, participation: float) -> Server:
        move = trees.subtract(mean["params"], server.params)
        step = _sum(mean["squares"]) / (2 * (_sum(trees.apply(lambda d: d.square().sum(), move)) + epsilon))
        params = trees.apply(lambda w, d: w + step.clamp(min=1.0) * d, server.params, move)
        return Server(params, server.memory)

    return Algorithm(report=report, aggregate=aggregate)


def _sum(tree: Params) -> Tensor:
    return torch.stack(list(tree.values())).sum()


if __name__ == "__main__":
    fedatoms.testing.check_algorithm(fedexp)  # the laws that our own algorithms keep, in seconds
    experiment = fedatoms.Experiment(algorithm="own_algorithm:fedexp", strength=1e-2, clients=10, rounds=2, epochs=1)
    print(f"accuracy {fedatoms.run(experiment).accuracy['server'].final:.1f} %")
