"""Who takes part in a round, drawn by address: so many clients, or every client by itself; and who of them reports."""

from functools import lru_cache

import torch
from torch import Tensor

from fedatoms.core.options import Sampling
from fedatoms.core.randomness import generator
from fedatoms.engine.server import sample_size


@lru_cache(16)  # of 8 runs, this round and the next, which is looked ahead to: of 100,000 clients a draw takes 8 ms
def drawn(
    clients: int, fraction: float, failures: float, seed: int, t: int, sampling: Sampling = "fixed"
) -> tuple[list[int], list[int]]:
    """Returns the clients that are sampled in round ``t``, and those of them that report; both in order.

    >>> len(drawn(6, fraction=0.5, failures=0.0, seed=0, t=0)[0])
    3
    >>> [len(drawn(6, 0.5, 0.0, 0, t, "poisson")[0]) for t in range(4, 7)]
    [2, 4, 5]
    """
    draws = generator(seed, "clients", t)
    chosen = _some(clients, fraction, draws) if sampling == "fixed" else _by_themselves(clients, fraction, draws)
    reports = torch.rand(len(chosen), generator=generator(seed, "failures", t)) >= failures
    return chosen.tolist(), chosen[reports].tolist()


def _some(clients: int, fraction: float, draws: torch.Generator) -> Tensor:
    return torch.randperm(clients, generator=draws)[: sample_size(clients, fraction)].sort().values


def _by_themselves(clients: int, fraction: float, draws: torch.Generator) -> Tensor:
    return (torch.rand(clients, generator=draws, dtype=torch.float64) < fraction).nonzero()[:, 0]
