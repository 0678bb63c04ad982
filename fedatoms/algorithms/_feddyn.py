"""FedDyn: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021."""

from fedatoms.algorithms.base import Algorithm, Server, Work, require
from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params


def feddyn(a: float = 0.01) -> Algorithm:
    """Regularises each client towards a point that makes local and global optima agree.

    Client loss ``F_k(w) + a * <w, H_k - w^t> + a / 2 * |w|^2``, its quadratic part as extra weight decay; then
    ``H_k += w_k - w^t``. Server: ``h -= a * participation * mean of (w_k - w^t)``, ``w = mean of w_k - h / a``.

    >>> feddyn(a=0.1).decay
    0.1
    """
    require(a, "a")

    def sum_of_moves(params: Params) -> Memory:
        return {"moves": trees.zeros_like(params)}

    def regulariser(params: Params) -> Memory:
        return {"h": trees.zeros_like(params)}

    def correct(gradient: Params, params: Params, server: Server, memory: Memory) -> Params:
        return trees.apply(lambda g, moves, w: g + a * (moves - w), gradient, memory["moves"], server.params)

    def report(params: Params, server: Server, memory: Memory, work: Work) -> tuple[Memory, Memory]:
        move = trees.subtract(params, server.params)
        return {"params": params}, {"moves": trees.add(memory["moves"], move)}

    def aggregate(server: Server, mean: Memory, participation: float) -> Server:
        move = trees.subtract(mean["params"], server.params)
        h = trees.add(server.memory["h"], move, -a * participation)
        return Server(trees.add(mean["params"], h, -1 / a), {"h": h})

    return Algorithm(regulariser, sum_of_moves, correct, report, aggregate, weighting="uniform", decay=a)
