"""Epsilon is what the theory and an independent accountant say, and the noise that is found keeps its promise."""

import importlib.util
import math

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from fedatoms.core.accounting import CLOSE, epsilon_of, noise_for
from fedatoms.engine.privacy import Privacy, noise_of

SETTINGS = [  # sampling probability, noise, rounds, delta
    (0.2, 2.0, 100, 1e-5),
    (0.05, 1.0, 100, 1e-5),
    (0.5, 4.0, 40, 1e-5),
    (0.01, 0.6, 1000, 1e-6),
    (0.1, 0.9, 20, 1e-4),
]


def agrees_with_the_second_accountant(probability: float, noise: float, rounds: int, delta: float) -> bool:
    mechanism = PoissonSubsampledGaussianMechanism(sampling_probability=probability, noise_multiplier=noise)
    other = PRVAccountant([mechanism], max_self_compositions=[rounds], eps_error=0.01, delta_error=delta / 1000)
    _, expected, _ = other.compute_epsilon(delta=delta, num_self_compositions=[rounds])
    return epsilon_of(probability, noise, rounds, delta) == pytest.approx(expected, rel=0.01)


def test_epsilon_is_that_of_an_independent_accountant() -> None:
    assert agrees_with_the_second_accountant(*SETTINGS[0])


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS[1:])
def test_epsilon_is_that_of_an_independent_accountant_for_other_settings(
    setting: tuple[float, float, int, float],
) -> None:
    assert agrees_with_the_second_accountant(*setting)


@pytest.mark.parametrize(("noise", "rounds"), [(5.0, 20), (1.0, 1), (30.0, 10)])
def test_with_all_clients_in_each_round_epsilon_has_a_closed_form(noise: float, rounds: int) -> None:
    """Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, theorem 8."""
    shift, delta = math.sqrt(rounds) / noise, 1e-5

    def broken(epsilon: float) -> float:
        over = norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)
        return float(over - delta)

    exact = brentq(broken, 0, 100)
    assert exact * (1 - 1e-9) <= epsilon_of(1.0, noise, rounds, delta) <= exact * 1.01  # it errs on the safe side


@pytest.mark.parametrize("epsilon", [0.5, pytest.param(8.0, marks=pytest.mark.slow)])
def test_the_noise_that_is_found_keeps_its_promise_and_is_hardly_more(epsilon: float) -> None:
    noise = noise_for(epsilon, probability=0.2, rounds=20, delta=1e-5)
    assert epsilon_of(0.2, noise, 20, 1e-5) <= epsilon < epsilon_of(0.2, noise / CLOSE**2, 20, 1e-5)


@pytest.mark.slow
def test_a_larger_epsilon_than_the_least_noise_has_takes_the_least_noise() -> None:
    assert noise_for(1000.0, probability=0.01, rounds=1, delta=1e-5) == 0.1


def test_more_rounds_cost_more() -> None:
    spent = [epsilon_of(0.3, 1.5, rounds, 1e-5) for rounds in range(6)]
    assert spent[0] == 0 and spent == sorted(set(spent))


@pytest.mark.parametrize("expected", [10.0, 400.0])
def test_both_answers_of_an_adaptive_clip_cost_what_one_would(expected: float) -> None:
    """The votes are +-1/2, so one client moves their sum by 1/2: the noise on it counts twice."""
    privacy = Privacy(noise=3.0, adaptive=True)
    of_sum, of_count = noise_of(privacy, expected)
    both = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    both.compose(GaussianDpEvent(of_sum), 5)
    both.compose(GaussianDpEvent(of_count / 0.5), 5)
    assert epsilon_of(1.0, privacy.noise, 5, 1e-5) == pytest.approx(both.get_epsilon(1e-5), rel=1e-3)


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"differential privacy needs dp_accounting. Type: pip install"):
        epsilon_of(0.123, 4.56, 7, 1e-5)
