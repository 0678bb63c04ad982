"""SCAFFOLD, option II: Karimireddy et al., "Stochastic Controlled Averaging for Federated Learning", ICML 2020."""

from fedatoms.algorithms.base import Algorithm, Server, Work, require
from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params


def scaffold(server_lr: float = 1.0) -> Algorithm:
    """Corrects each step by the difference of the server's control ``c`` and the client's ``c_k``.

    Step ``y -= eta * (g(y) - c_k + c)``; then ``c_k += (w - y) / (K * eta) - c``. Server: ``w += server_lr * mean of
    (y - w)``, and ``c`` moves by the mean change of the ``c_k`` times the participation.

    >>> scaffold().sends
    ('control',)
    """
    require(server_lr, "server_lr")

    def control(params: Params) -> Memory:
        return {"control": trees.zeros_like(params)}

    def correct(gradient: Params, params: Params, server: Server, memory: Memory) -> Params:
        return trees.apply(lambda g, own, c: g - own + c, gradient, memory["control"], server.memory["control"])

    def report(params: Params, server: Server, memory: Memory, work: Work) -> tuple[Memory, Memory]:
        c, start = server.memory["control"], work.start
        change = trees.apply(lambda y, w, c, far: (w - y) / far - c, params, start, c, work.displacement)
        return {"params": params, "control": change}, {"control": trees.add(memory["control"], change)}

    def aggregate(server: Server, mean: Memory, participation: float) -> Server:
        params = trees.apply(lambda w, y: w + server_lr * (y - w), server.params, mean["params"])
        return Server(params, {"control": trees.add(server.memory["control"], mean["control"], participation)})

    return Algorithm(
        control, control, correct, report, aggregate, weighting="uniform", sends=("control",), measures=True
    )
