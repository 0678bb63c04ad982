"""MOON: Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021."""

import torch.nn.functional as F
from torch import Tensor, clone

from fedatoms.algorithms.base import Algorithm, Report, See, Seen, Server, require
from fedatoms.core import trees
from fedatoms.core.trees import Memory


def moon(mu: float = 1.0, temperature: float = 0.5) -> Algorithm:
    """Draws features to the received model's, and from the client's last: ``-mu log(e^near / (e^near + e^far))``.

    >>> sorted(moon().client_memory({}))
    ['previous']
    """
    require(mu, "mu", or_zero=True)  # 0 is FedAvg
    require(temperature, "temperature")

    def penalty(seen: Seen, see: See, server: Server, memory: Memory) -> Tensor:
        near, far = (F.cosine_similarity(seen.features, see(w).features) for w in (server.params, memory["previous"]))
        return mu * F.softplus((far - near) / temperature)

    report: Report = lambda params, *_: ({"params": params}, {"previous": params})  # noqa: E731
    return Algorithm(client_memory=lambda w: {"previous": trees.apply(clone, w)}, report=report, penalty=penalty)
