"""User-level central differential privacy: a client's whole update is clipped, the sum of all of them is noised.

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018; the clip that follows a quantile
of the updates' norms: Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021.
"""

import math
import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedatoms.core.trees import NUMBERS, Memory, Params

Uniforms = Callable[[int], Tensor]  # so many numbers in (0, 1), float64, each drawn by itself
BITS = 52  # of each: half a step more still fits a float64, so neither 0 nor 1 is drawn
FIRST_CLIP = 0.1  # these three are the choices of Andrew et al.
QUANTILE = 0.5
CLIP_RATE = 0.2
SHARE_OF_COHORT = 20  # the noise on the number of updates within the clip is the cohort's size over this


def from_system(count: int) -> Tensor:
    """Draws numbers in (0, 1) from the operating system's generator: nobody can draw them again.

    >>> drawn = from_system(1000)
    >>> bool((drawn > 0).all() and (drawn < 1).all()), drawn.dtype
    (True, torch.float64)
    """
    words = torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64)
    return torch.add((words & (2**BITS - 1)).double(), 0.5).mul(2.0**-BITS)


class Privacy(NamedTuple):
    """What makes a run differentially private: the noise of a round in clip norms, and the norm that updates may have.

    With ``adaptive`` the clip is only the first one: in each round it moves towards the median of the updates' norms.
    ``noise`` is then that of both answers, the sum of updates and the number of them within the clip, taken together.
    """

    noise: float
    clip: float = 1.0
    adaptive: bool = False
    delta: float = 1e-5  # for which epsilon is reported
    uniforms: Uniforms = from_system  # of cohorts and noise; tests draw theirs from a seed


class Noise(NamedTuple):
    """Standard deviations: on the sum of updates, in clip norms, and on the number of them within the clip."""

    of_sum: float
    of_count: float


def cohort(privacy: Privacy, clients: int, probability: float) -> list[int]:
    """Draws who takes part in a round: every client by itself.

    >>> cohort(Privacy(1.0), clients=3, probability=1.0)
    [0, 1, 2]
    """
    return (privacy.uniforms(clients) < probability).nonzero()[:, 0].tolist()


def noise_of(privacy: Privacy, expected: float) -> Noise:
    """Splits the noise of a round over its answers; ``expected`` is the mean size of a cohort.

    One client changes the count, of votes of +-1/2, by 1/2. Both together are as private as one answer with ``noise``:
    ``noise^-2 = of_sum^-2 + (2 of_count)^-2``.

    >>> noise_of(Privacy(1.0), 10), noise_of(Privacy(1.0, adaptive=True), 20).of_count
    (Noise(of_sum=1.0, of_count=0.0), 1.0)
    """
    if not privacy.adaptive:
        return Noise(privacy.noise, 0.0)
    of_count = max(expected / SHARE_OF_COHORT, privacy.noise)  # at least as much: else nothing is left for the sum
    return Noise((privacy.noise**-2 - (2 * of_count) ** -2) ** -0.5, of_count)


def clipped(uploads: Params, start: Params, clip: float) -> Memory:
    """Returns the updates of a block of clients, (C, ...) in float64, each at most ``clip`` long over all its leaves.

    An update that is not finite counts as none. ``within`` is a client's vote: 1/2 if nothing was clipped, else -1/2.

    >>> clipped({"w": torch.tensor([[3.0, 4.0], [torch.nan, 0.0]])}, {"w": torch.zeros(2)}, clip=1.0)["params"]
    {'w': tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]], dtype=torch.float64)}
    """
    moves = {name: leaf.double() - start[name].double() for name, leaf in uploads.items()}
    norms = torch.stack([leaf.square().flatten(1).sum(1) for leaf in moves.values()]).sum(0).sqrt()
    finite = torch.isfinite(norms)
    factors = torch.where(finite, clip / norms.clamp(min=clip), 0.0)
    within = torch.where(finite & (norms <= clip), 0.5, -0.5).double()
    return {"params": {name: _scaled(leaf, factors) for name, leaf in moves.items()}, NUMBERS: {"within": within}}


def noised(privacy: Privacy, sums: Params, deviation: float) -> Params:
    """Adds Gaussian noise to float64 sums, each number's drawn by itself."""
    sizes = [leaf.numel() for leaf in sums.values()]
    drawn = deviation * torch.special.ndtri(privacy.uniforms(sum(sizes)))
    parts = zip(sums.items(), drawn.split(sizes), strict=True)
    return {name: leaf + part.view(leaf.shape).to(leaf.device) for (name, leaf), part in parts}


def next_clip(privacy: Privacy, clip: float, votes: float, expected: float) -> float:
    """Moves the clip towards the quantile: ``votes`` is the sum of +-1/2 over a cohort, which is noised here.

    >>> next_clip(Privacy(1.0, adaptive=True), clip=1.0, votes=5e9, expected=1e10) < 1.0  # all are within: it shrinks
    True
    """
    of_count = noise_of(privacy, expected).of_count
    ballots = {"votes": torch.tensor([votes], dtype=torch.float64, device="cpu")}
    share = float(noised(privacy, ballots, of_count)["votes"]) / expected
    return clip * math.exp(-CLIP_RATE * (share + 0.5 - QUANTILE))


def _scaled(leaf: Tensor, factors: Tensor) -> Tensor:
    each = factors.view(-1, *[1] * (leaf.dim() - 1))
    return torch.where(each > 0, leaf, 0.0) * each
