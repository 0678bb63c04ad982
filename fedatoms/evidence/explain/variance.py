"""Variance of both averages over the sampling of clients, to first and to second order.

Client k has coefficients a + eps_k and atoms d + delta_k, so its filter is a d + (eps_k d + a delta_k) + eps_k delta_k.
Averages of m clients share the first-order part; of the second order the mean of filters keeps a mean of m products,
the product of means one product of two means. If eps and delta are independent, with p_k = 1 / m::

    Var(mean of filters)  = E|eps_k d + a delta_k|^2 / m + E|eps_k delta_k|^2 / m
    Var(product of means) = E|eps_k d + a delta_k|^2 / m + E|eps_i delta_j|^2 / m^2
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fedatoms.core.randomness import generator
from fedatoms.evidence.explain.factors import Factors, Layer, factors_of
from fedatoms.evidence.explain.replayed_round import Replay

DRAWS = 200  # samples of the round's clients, with replacement


@dataclass(frozen=True)
class Variance:
    """Variances of the two averages, divided by ``size``, the squared norm of the mean filter.

    ``first`` is the part that both share; ``second_off`` and ``second_on`` add to it without and with latent clients.
    ``drawn_off`` and ``drawn_on`` do not assume that coefficients and atoms are independent: the round's clients are
    resampled with replacement, and both averages computed each time.
    """

    size: float
    first: float
    second_off: float
    second_on: float
    drawn_off: float
    drawn_on: float

    @property
    def off(self) -> float:
        """Without latent clients."""
        return self.first + self.second_off

    @property
    def on(self) -> float:
        """With latent clients."""
        return self.first + self.second_on

    @property
    def ratio(self) -> float | None:
        """The variance with latent clients over that without, by the formulas; None if there is none."""
        return self.on / self.off if self.off else None

    @property
    def drawn_ratio(self) -> float | None:
        """The same over resampled clients."""
        return self.drawn_on / self.drawn_off if self.drawn_off else None


def variance_of(replay: Replay, layers: Sequence[Layer], *, seed: int, draws: int = DRAWS) -> Variance | None:
    """Estimates both variances from the clients of a round; None for one client."""
    if len(replay.clients) < 2:
        return None
    shares = _shares(replay.weights, generator(seed, "resample", replay.before.round), draws)
    parts = [_of_layer(factors_of(layer, replay), shares) for layer in layers]
    sums = [sum(getattr(part, field.name) for part in parts) for field in fields(Variance)]
    return Variance(sums[0], *(value / sums[0] for value in sums[1:]))


def parts_of(clients: Factors) -> tuple[float, float, float]:
    """Estimates the variance of first order, and the second-order parts without and with latent clients.

    With unequal p the sum of p_k^2 replaces 1 / m. The clients' own means replace the true ones, which makes deviations
    too small by known factors and mixes some of the second order into the first; both are corrected, for any p.
    """
    p, share = clients.p, float(clients.p.square().sum())
    first = torch.einsum("c,cnk->", p, (clients.eps @ clients.d + clients.a @ clients.delta).square())
    # |eps_i delta_j|^2 is the inner product of two Gram matrices (M, M): no product of two clients is ever made
    of_eps, of_delta = clients.eps.mT @ clients.eps, clients.delta @ clients.delta.mT
    own = torch.einsum("c,cmn,cmn->", p, of_eps, of_delta) / (p * (1 - 2 * p + share).square()).sum()
    crossed = (torch.tensordot(p, of_eps, dims=1) * torch.tensordot(p, of_delta, dims=1)).sum() / (1 - share) ** 2
    # eps_k times the mean of delta, and the other way round; of unequal p both have something in common
    mixed = 2 * (share * (1 - share) + (p * (p - share).square()).sum()) * crossed
    return share * float((first - mixed) / (1 - share)), share * float(own), share**2 * float(crossed)


def _of_layer(clients: Factors, shares: Tensor) -> Variance:
    size = (clients.a @ clients.d + clients.shift).square().sum()
    return Variance(float(size), *parts_of(clients), *_drawn(clients, shares.to(clients.p.device)))


def _shares(weights: Tensor, draw: torch.Generator, draws: int) -> Tensor:
    """Resamples all clients with replacement; returns their weights (draws, C)."""
    chosen = torch.randint(len(weights), (draws, len(weights)), generator=draw)
    counts = torch.nn.functional.one_hot(chosen, len(weights)).sum(1)
    shares = counts * weights
    return shares / shares.sum(1, keepdim=True)


def _drawn(clients: Factors, shares: Tensor) -> tuple[float, float]:
    """Returns the variances over resampled clients of the mean of filters and of the product of means."""
    own, (a, d) = clients.eps @ clients.delta, clients[:2]
    total, squares = torch.zeros_like(own[:2]), torch.zeros(2, dtype=own.dtype, device=own.device)
    for share in shares:
        eps, delta = (torch.tensordot(share, each, dims=1) for each in (clients.eps, clients.delta))
        second = torch.stack([torch.tensordot(share, own, dims=1), eps @ delta])
        average = eps @ d + a @ delta + second
        total, squares = total + average, squares + average.square().sum((1, 2))
    spread = squares / len(shares) - (total / len(shares)).square().sum((1, 2))
    off, on = (spread / (1 - clients.p.square().sum())).tolist()
    return off, on
