"""The programme on the simplex: its conditions of optimality, and other ways to the same answer."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from fedatoms.personal._simplex import minimiser


def form_of(size: int, rank: int, spread: float, seed: int) -> Tensor:
    """A positive semidefinite form; ``spread`` decades lie between its rows, and a low rank makes it singular."""
    draws = torch.Generator().manual_seed(seed)
    points = torch.randn(size, rank, dtype=torch.float64, generator=draws)
    points = points * torch.logspace(0, spread, size, dtype=torch.float64)[:, None]
    return points @ points.T


def by_hand(form: Tensor) -> float:
    """The least value over all sets of positive weights."""
    size, best = len(form), torch.inf
    for free in itertools.chain.from_iterable(itertools.combinations(range(size), k + 1) for k in range(size)):
        part = form[list(free)][:, list(free)]
        weights = torch.linalg.pinv(part).sum(1)
        weights = weights / weights.sum()
        if bool((weights >= 0).all()):
            best = min(best, float(weights @ part @ weights))
    return best


FORMS = dict(size=st.integers(1, 30), rank=st.integers(1, 40), spread=st.floats(0, 2), seed=st.integers(0, 10_000))


@settings(max_examples=200)
@given(**FORMS)
def test_the_answer_is_on_the_simplex_and_meets_the_conditions_of_optimality(
    size: int, rank: int, spread: float, seed: int
) -> None:
    """No gradient is below the value, and those of positive weights are the value."""
    form = form_of(size, rank, spread, seed)
    weights = minimiser(form)
    assert bool((weights >= 0).all()) and float(weights.sum()) == pytest.approx(1.0, abs=1e-12)
    gradient, value = form @ weights, weights @ form @ weights
    small = 1e-8 * float(form.diagonal().max())
    assert float(gradient.min()) >= float(value) - small
    assert float(((gradient - value).abs() * (weights > 0)).max()) <= small


@settings(max_examples=40)
@given(size=st.integers(1, 12), rank=st.integers(2, 20), seed=st.integers(0, 10_000))
def test_scipy_finds_nothing_lighter(size: int, rank: int, seed: int) -> None:
    form = form_of(size, rank, 0.5, seed)
    q = form.numpy()
    found = minimize(
        lambda a: a @ q @ a,
        np.full(size, 1 / size),
        jac=lambda a: 2 * q @ a,
        bounds=[(0, None)] * size,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    weights = minimiser(form)
    value = float(weights @ form @ weights)
    assert value <= found.fun + 1e-8 and value == pytest.approx(found.fun, abs=1e-5 * float(form.diagonal().max()))


@settings(max_examples=40)
@given(size=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_a_search_of_all_sets_of_positive_weights_finds_the_same(size: int, seed: int) -> None:
    form = form_of(size, size + 2, 0.5, seed)
    weights = minimiser(form)
    assert float(weights @ form @ weights) == pytest.approx(by_hand(form), rel=1e-7)


@given(size=st.integers(1, 40))
def test_a_form_that_cannot_tell_gives_equal_weights(size: int) -> None:
    for form in (torch.zeros(size, size), torch.eye(size), torch.ones(size, size)):
        assert torch.allclose(minimiser(form), torch.full((size,), 1 / size, dtype=torch.float64), atol=1e-6)


def test_a_form_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        minimiser(torch.tensor([[1.0, torch.nan], [torch.nan, 1.0]]))
