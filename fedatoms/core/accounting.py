"""What differential privacy costs: epsilon by Google's dp-accounting, and the noise that a target needs. No torch.

A round is a Gaussian mechanism on a Poisson sample of the clients; neighbours differ in one client, added or removed.
Koskela et al., "Computing Tight Differential Privacy Guarantees Using FFT", AISTATS 2020; Doroshenko et al., "Connect
the Dots: Tighter Discrete Approximations of Privacy Loss Distributions", PETS 2022.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from fedatoms.core.extras import need
from fedatoms.core.options import RANGES

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

CLOSE = 1.001  # the noise that is found is at most so many times the least that would do
GRID = (
    1e-5,
    1e-3,
)  # the finest and the coarsest steps of a discretised privacy loss; what they lose is added to epsilon


def check_accounting() -> None:
    """Refuses to go on where the package that accounts for privacy is not installed."""
    need("differential privacy", "privacy", "dp_accounting")


def check_delta(delta: float, clients: int, argument: str = "delta") -> None:
    """Refuses a probability of failure with which a whole client could be given away in every run.

    >>> check_delta(0.05, clients=20)
    Traceback (most recent call last):
    ...
    ValueError: delta=0.05 is not below 1/20, one in the number of clients: who publishes one client's data at random
    would be as private. Use for example 1e-05.
    """
    if delta * clients >= 1:
        raise ValueError(
            f"{argument}={delta} is not below 1/{clients}, one in the number of clients: who publishes one client's "
            f"data at random would be as private. Use for example {min(1e-5, 0.1 / clients):.0e}."
        )


@lru_cache(4096)  # a run asks in each round, and its result again
def epsilon_of(probability: float, noise: float, rounds: int, delta: float) -> float:
    """Returns the epsilon of some rounds: each samples every client with a probability, and ``noise`` is in clip norms.

    >>> round(epsilon_of(0.5, noise=4.0, rounds=40, delta=1e-5), 2), epsilon_of(0.5, 4.0, 0, 1e-5)
    (3.5, 0.0)
    """
    if not rounds:
        return 0.0
    return float(_of_a_round(probability, noise).self_compose(rounds).get_epsilon_for_delta(delta))


def noise_for(epsilon: float, probability: float, rounds: int, delta: float) -> float:
    """Returns the least noise, up to a thousandth, whose epsilon after some rounds is at most the given one.

    >>> round(noise_for(3.5, probability=0.5, rounds=40, delta=1e-5), 2)
    4.0
    """
    low, high = _bracket(epsilon, probability, rounds, delta)
    while high > CLOSE * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if epsilon_of(probability, middle, rounds, delta) <= epsilon else (middle, high)
    return high


def _bracket(epsilon: float, probability: float, rounds: int, delta: float) -> tuple[float, float]:
    """Returns a noise that is too small, and one that will do; the least noise of all may do."""
    least, most = RANGES["dp_noise"].low, RANGES["dp_noise"].high
    high = 1.0
    while epsilon_of(probability, high, rounds, delta) > epsilon:
        if high > most:
            raise ValueError(
                f"dp_epsilon={epsilon}: no noise is enough for {rounds} rounds. Use for example 1, or fewer rounds."
            )
        high *= 2
    while high > least and epsilon_of(probability, max(high / 2, least), rounds, delta) <= epsilon:
        high = max(high / 2, least)
    return (high if high == least else max(high / 2, least)), high


@lru_cache(4)
def _of_a_round(probability: float, noise: float) -> "PrivacyLossDistribution":
    check_accounting()
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    step = min(max(probability / noise / 20, GRID[0]), GRID[1])  # finer where a round loses little
    return from_gaussian_mechanism(noise, sampling_prob=probability, value_discretization_interval=step)
