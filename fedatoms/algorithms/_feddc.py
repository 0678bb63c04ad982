"""FedDC: Gao et al., "Federated Learning with Non-IID Data via Local Drift Decoupling and Correction", CVPR 2022."""

from fedatoms.algorithms.base import Algorithm, Server, Work, require
from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params


def feddc(a: float = 0.01) -> Algorithm:
    """Learns each client's drift ``h_k`` and removes it from the average.

    Client loss ``F_k(w) + a / 2 * |w - (w^t - h_k)|^2 + <w, g - g_k>``; then, with ``move = w_k - w^t``,
    ``h_k += move`` and ``g_k -= g + move / (K * eta)``. Server: ``w = mean of w_k + mean over all clients of h_k``.

    >>> feddc().sends
    ('gradient',)
    """
    require(a, "a")

    def both(params: Params) -> Memory:
        return {"drift": trees.zeros_like(params), "gradient": trees.zeros_like(params)}

    def correct(gradient: Params, params: Params, server: Server, memory: Memory) -> Params:
        pull = trees.apply(lambda w, start, drift: a * (w - start + drift), params, server.params, memory["drift"])
        return trees.apply(
            lambda f, p, g, own: f + p + g - own, gradient, pull, server.memory["gradient"], memory["gradient"]
        )

    def report(params: Params, server: Server, memory: Memory, work: Work) -> tuple[Memory, Memory]:
        move = trees.subtract(params, server.params)
        gradient = server.memory["gradient"]
        change = trees.apply(lambda w, s, g, far: (s - w) / far - g, params, work.start, gradient, work.displacement)
        kept = {"drift": trees.add(memory["drift"], move), "gradient": trees.add(memory["gradient"], change)}
        return {"params": params, "gradient": change}, kept

    def aggregate(server: Server, mean: Memory, participation: float) -> Server:
        move = trees.subtract(mean["params"], server.params)
        drift = trees.add(server.memory["drift"], move, participation)  # the mean of h_k over all clients
        gradient = trees.add(server.memory["gradient"], mean["gradient"], participation)
        return Server(trees.add(mean["params"], drift), {"drift": drift, "gradient": gradient})

    return Algorithm(both, both, correct, report, aggregate, weighting="uniform", sends=("gradient",), measures=True)
