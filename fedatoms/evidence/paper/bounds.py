"""The paper's bounds as functions: Theorems 5.5 and F.1, rounds to an accuracy, and the rate of communication.

Assumptions: every F_k is L-smooth (Assumption 5.2) and mu-strongly convex (5.3), which no network with a hidden
layer is; gradients are bounded by G (5.4); all clients weigh the same and are sampled without replacement (E.1);
every step takes all of a client's data; the rate is eta_t = 2 / (mu (gamma + t)). With latent clients the paper also
takes the m^2 products of coefficients and atoms as a random sample of M^2 models with the same mean and the same
distance from it, which they are not. So the numbers compare the terms of a bound and do not predict a run.

``form`` selects the formula: ``printed`` as in the paper, ``derived`` as the steps of its own proof give it.
"""

import math
from typing import Literal, NamedTuple, get_args

from fedatoms.core.lookup import unknown
from fedatoms.experiment.parse import period_of

Form = Literal["printed", "derived"]


class Problem(NamedTuple):
    """The constants of the assumptions, and how clients take part."""

    smoothness: float
    """L: F_k(v) <= F_k(w) + (v - w) grad F_k(w) + L / 2 |v - w|^2 for all k, v, w (Assumption 5.2)."""
    convexity: float
    """mu: F_k(v) >= F_k(w) + (v - w) grad F_k(w) + mu / 2 |v - w|^2 for all k, v, w (Assumption 5.3)."""
    gradient: float
    """G: |grad F_k|^2 <= G^2 wherever clients go. Assumption 5.4 adds |grad F|^2 to the right; the proof does not."""
    heterogeneity: float
    """Gamma = F* - sum p_k F_k*, the cost of sharing one model; 0 if all clients agree."""
    start: float
    """E |w^1 - w*|^2, the squared distance at the start; in Theorem F.1 it is w^0."""
    epochs: int
    """E, local steps between two aggregations."""
    clients: int
    """M, all clients."""
    sampled: int
    """m, clients sampled in a round."""
    weights: tuple[float, ...] = ()
    """p_1, ..., p_M, only to be checked: all must be equal (Assumption E.1)."""


class Terms(NamedTuple):
    """The terms of a bound: the first two are the paper's B, the third is its D."""

    drift: float
    """8 (E - 1)^2 G^2, or with E / beta for E: clients move apart between aggregations."""
    heterogeneity: float
    """6 L Gamma."""
    sampling: float
    """D: only some clients report."""
    start: float
    """mu^2 / 4 times the distance at the start; derived, gamma + 1 times as much."""


def check(problem: Problem) -> None:
    """Refuses constants that violate the paper's assumptions.

    >>> check(Problem(1.0, 2.0, 1.0, 0.0, 1.0, epochs=5, clients=100, sampled=10))
    Traceback (most recent call last):
    ...
    ValueError: convexity=2.0 is above smoothness=1.0: a mu-strongly convex (Assumption 5.3) and L-smooth (5.2) function
    has mu <= L. Lower convexity.
    """
    for name, rule in _POSITIVE.items():
        _require(name, getattr(problem, name), rule, zero=False)
    for name, rule in _NOT_NEGATIVE.items():
        _require(name, getattr(problem, name), rule, zero=True)
    if problem.convexity > problem.smoothness:
        raise ValueError(
            f"convexity={problem.convexity} is above smoothness={problem.smoothness}: a mu-strongly convex (Assumption "
            f"5.3) and L-smooth (5.2) function has mu <= L. Lower convexity."
        )
    _check_counts(problem)
    _check_weights(problem)


def sampling_term(problem: Problem, *, latent: bool = True, form: Form = "printed") -> float:
    """Returns D, the cost of sampling m of M clients: 4 s (E - 1)^2 G^2 with a share s that latent clients reduce.

    Without latent clients s = (M - m) / (m (M - 1)). With them the paper prints (M^2 - m^2) / (m^2 M^2 (M^2 - 1)); its
    own derivation sums M^2 terms of that size, so derived it is M^2 times as much. All of it is zero if m = M.

    >>> problem = Problem(1.0, 0.1, 1.0, 0.0, 1.0, epochs=2, clients=100, sampled=10)
    >>> found = [sampling_term(problem, latent=False), sampling_term(problem), sampling_term(problem, form="derived")]
    >>> [f"{term:.2e}" for term in found]
    ['3.64e-01', '3.96e-06', '3.96e-02']
    """
    check(problem)
    _check_form(form)
    return 4 * _share(problem, latent, form) * _squared((problem.epochs - 1) * problem.gradient)


def terms(problem: Problem, *, latent: bool = True, form: Form = "printed", beta: str | float = 1) -> Terms:
    """Returns the terms of a bound; a ``beta`` below 1 makes it Theorem F.1, with all clients in every round.

    >>> terms(Problem(1.0, 0.1, 1.0, 0.5, 4.0, epochs=2, clients=10, sampled=10), beta="1/5")
    Terms(drift=648.0, heterogeneity=3.0, sampling=0.0, start=0.010000000000000002)
    """
    sampling, period = sampling_term(problem, latent=latent, form=form), period_of(beta)
    if period > 1 and problem.sampled < problem.clients:
        raise ValueError(
            f"sampled={problem.sampled} of clients={problem.clients}: Theorem F.1 (beta < 1) has no term for sampling, "
            f"all clients take part in every round. Use sampled={problem.clients}."
        )
    factor = 1.0 if form == "printed" else offset(problem, form=form, beta=beta) + 1
    return Terms(
        drift=8 * _squared((problem.epochs * period - 1) * problem.gradient),
        heterogeneity=6 * problem.smoothness * problem.heterogeneity,
        sampling=sampling,
        start=_squared(problem.convexity) / 4 * factor * problem.start,
    )


def offset(problem: Problem, *, form: Form = "printed", beta: str | float = 1) -> float:
    """Returns gamma = max(8 L / mu, E), by which eta_t = 2 / (mu (gamma + t)) starts at 1 / (4 L) or less.

    The proof needs a rate that at most halves between two exchanges of the whole model, so the derived form is
    max(8 L / mu, E / beta).

    >>> problem = Problem(1.0, 0.5, 1.0, 0.0, 1.0, epochs=5, clients=10, sampled=10)
    >>> offset(problem), offset(problem, form="derived", beta="1/5")
    (16.0, 25.0)
    """
    check(problem)
    _check_form(form)
    steps = problem.epochs * (period_of(beta) if form == "derived" else 1)
    return max(8 * problem.smoothness / problem.convexity, float(steps))


def bound(
    problem: Problem, rounds: int, *, latent: bool = True, form: Form = "printed", beta: str | float = 1
) -> float:
    """Bounds E F(w^T) - F* after T = ``rounds``: 2 L / (mu^2 (gamma + T)) times the sum of the terms.

    Theorem 5.5 with beta = 1, else Theorem F.1. Strictly T counts steps, an aggregation every E of them; the paper
    calls it rounds where it asks how many reach an epsilon.

    >>> problem = Problem(1.0, 0.5, 1.0, 0.1, 4.0, epochs=5, clients=100, sampled=10)
    >>> f"{bound(problem, 600):.4f} {bound(problem, 600, latent=False):.4f}"
    '1.6734 1.7489'
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds} is less than 1: the bound holds from w^1 on. Use a whole number from 1 up.")
    return _scale(problem, latent, form, beta) / (offset(problem, form=form, beta=beta) + rounds)


def rounds_to(
    epsilon: float, problem: Problem, *, latent: bool = True, form: Form = "printed", beta: str | float = 1
) -> int:
    """Returns the least T whose bound is epsilon or less: T >= 2 L (sum of the terms) / (mu^2 epsilon) - gamma.

    >>> problem = Problem(1.0, 0.5, 1.0, 0.1, 4.0, epochs=5, clients=100, sampled=10)
    >>> rounds_to(1.0, problem), rounds_to(1.0, problem, latent=False)
    (1015, 1062)
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon} is not a positive number: the bound never reaches 0. Use for example 0.1.")
    needed = _scale(problem, latent, form, beta) / epsilon - offset(problem, form=form, beta=beta)
    if not needed < math.inf:
        raise ValueError(f"epsilon={epsilon} needs more rounds than a number can hold. Use a larger one.")
    step = max(1, math.ceil(needed) >> 50)  # rounding may be off by this
    least = max(1, math.ceil(needed) - 2 * step)
    while bound(problem, least, latent=latent, form=form, beta=beta) > epsilon:
        least += step
    return least


class Counts(NamedTuple):
    """Parameters of a decomposed convolution."""

    atoms: int
    coefficients: int


def convolution(channels_in: int, channels_out: int, kernel: int, atoms: int) -> Counts:
    """Counts m_a k^2 atoms and c c' m_a coefficients of a convolution.

    >>> convolution(64, 64, kernel=5, atoms=9)
    Counts(atoms=225, coefficients=36864)
    """
    for name, value in (("channels_in", channels_in), ("channels_out", channels_out), ("kernel", kernel)):
        _require_count(name, value, "a convolution has channels and a kernel")
    _require_count("atoms", atoms, "a filter needs at least one atom")
    return Counts(atoms * kernel**2, channels_in * channels_out * atoms)


def communication_rate(beta: str | float, fast: int, slow: int) -> float:
    """Returns the share that is sent if ``slow`` parameters are sent every 1 / beta rounds and ``fast`` ones in each.

    (beta (fast + slow) + (1 - beta) fast) / (fast + slow), in one direction. In the paper fast are atoms and head, slow
    are coefficients, and the rate is about beta: that needs fast to be much less than slow. Linear layers other than
    the head, which the paper's count leaves out, belong to the slow ones.

    >>> layer = convolution(64, 64, kernel=5, atoms=9)
    >>> f"{communication_rate('1/5', layer.atoms, layer.coefficients):.3f}"
    '0.205'
    """
    if fast < 0 or slow < 0 or fast + slow == 0:
        raise ValueError(
            f"fast={fast} and slow={slow} do not count a model's parameters. Use 0 or more, and one above 0."
        )
    return (fast + slow / period_of(beta)) / (fast + slow)


_POSITIVE = {
    "smoothness": "the L of L-smooth functions (Assumption 5.2)",
    "convexity": "the mu of mu-strongly convex functions (Assumption 5.3)",
}
_NOT_NEGATIVE = {
    "gradient": "G bounds the norm of gradients (Assumption 5.4)",
    "heterogeneity": "Gamma = F* - sum p_k F_k* is never below 0, as no client's own minimum is above F_k(w*)",
    "start": "a squared distance",
}


def _scale(problem: Problem, latent: bool, form: Form, beta: str | float) -> float:
    total = sum(terms(problem, latent=latent, form=form, beta=beta))
    return 2 * problem.smoothness / problem.convexity / problem.convexity * total


def _share(problem: Problem, latent: bool, form: Form) -> float:
    clients, sampled = problem.clients, problem.sampled
    if sampled == clients:
        return 0.0
    if not latent:
        return (clients - sampled) / (sampled * (clients - 1))
    share = (clients**2 - sampled**2) / (sampled**2 * (clients**2 - 1))
    return share if form == "derived" else share / clients**2


def _require(name: str, value: float, rule: str, *, zero: bool) -> None:
    if not (0 < value < math.inf or (zero and value == 0)):
        raise ValueError(
            f"{name}={value} is not {'0 or ' if zero else ''}a positive number: {rule}. Use for example 1."
        )


def _require_count(name: str, value: int, rule: str) -> None:
    if value != int(value) or value < 1:
        raise ValueError(f"{name}={value} is not a whole number from 1 up: {rule}. Use for example 10.")


def _check_counts(problem: Problem) -> None:
    _require_count("epochs", problem.epochs, "a client takes E steps between aggregations (Theorem 5.5)")
    _require_count("clients", problem.clients, "M clients take part (Theorem 5.5)")
    _require_count("sampled", problem.sampled, "a round has m clients (Theorem 5.5)")
    if problem.sampled > problem.clients:
        raise ValueError(
            f"sampled={problem.sampled} is above clients={problem.clients}: m of M clients are sampled without "
            f"replacement (appendix E). Use at most {problem.clients}."
        )


def _check_weights(problem: Problem) -> None:
    weights = problem.weights
    if weights and (len(weights) != problem.clients or not math.isclose(min(weights), max(weights))):
        raise ValueError(
            f"weights of {len(weights)} clients from {min(weights)} to {max(weights)}: Assumption E.1 wants all "
            f"{problem.clients} to be the same. Leave them out if clients have equally many samples."
        )


def _check_form(form: Form) -> None:
    if form not in get_args(Form):
        raise unknown(form, get_args(Form), "form of a bound")


def _squared(value: float) -> float:
    return value * value  # not ** 2, which raises where this is infinite
