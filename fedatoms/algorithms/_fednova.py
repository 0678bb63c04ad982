"""FedNova: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
NeurIPS 2020."""

from fedatoms.algorithms.base import Algorithm, Server, Work
from fedatoms.core import trees
from fedatoms.core.trees import NUMBERS, Memory, Params


def fednova() -> Algorithm:
    """Averages moves per step: ``w += sum of p_k tau_k * sum of p_k (w_k - w) / tau_k``, with momentum in ``tau_k``.

    >>> fednova().measures
    True
    """

    def report(params: Params, server: Server, memory: Memory, work: Work) -> tuple[Memory, Memory]:
        normalised = trees.apply(lambda w, start: start + (w - start) / work.units, params, server.params)
        return {"params": normalised, NUMBERS: {"steps": work.units}}, memory

    def aggregate(server: Server, mean: Memory, participation: float) -> Server:
        steps = mean[NUMBERS]["steps"]
        return Server(trees.apply(lambda w, m: w + steps * (m - w), server.params, mean["params"]), server.memory)

    return Algorithm(report=report, aggregate=aggregate, measures=True, uploads_models=False)
