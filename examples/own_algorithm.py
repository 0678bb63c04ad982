"""An algorithm of your own, in twenty lines: FedAdagrad, whose server divides moves by the root of all squared ones.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021. In this folder, type
`fedatoms run --algorithm own_algorithm:fedadagrad`.
"""

import fedatoms
from fedatoms.algorithms import Algorithm, Server
from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params


def fedadagrad(server_lr: float = 0.1, tau: float = 1e-3) -> Algorithm:
    """Takes the mean move ``d``: ``v += d^2``, ``w += server_lr * d / (sqrt(v) + tau)``."""

    def squares(params: Params) -> Memory:
        return {"squares": trees.zeros_like(params)}

    def aggregate(server: Server, mean: Memory, participation: float) -> Server:
        move = trees.subtract(mean["params"], server.params)
        v = trees.apply(lambda old, d: old + d.square(), server.memory["squares"], move)
        step = trees.apply(lambda d, total: d / (total.sqrt() + tau), move, v)
        return Server(trees.add(server.params, step, server_lr), {"squares": v})

    return Algorithm(server_memory=squares, aggregate=aggregate)


if __name__ == "__main__":
    fedatoms.testing.check_algorithm(fedadagrad)  # the laws that our own algorithms keep, in seconds
    name = "own_algorithm:fedadagrad"
    experiment = fedatoms.Experiment(algorithm=name, strength=0.05, clients=10, rounds=2, epochs=1)
    print(f"accuracy {fedatoms.run(experiment).accuracy['server'].final:.1f} %")
