"""The paper's bounds for given constants: both theorems, as printed and as derived, and their assumptions."""

from dataclasses import dataclass
from typing import NamedTuple, get_args

from fedatoms.core.options import check_numbers
from fedatoms.evidence.paper.bounds import Form, Problem, bound, communication_rate, rounds_to, sampling_term, terms

ASSUMED = (
    "every client's loss is L-smooth and mu-strongly convex, which no network with a hidden layer is",
    "gradients are bounded by G, all clients weigh the same and are drawn without replacement",
    "every step takes all of a client's data, at the rate 2 / (mu (gamma + t)); T counts steps",
    "the m^2 products of coefficients and atoms are a random sample of M^2 models as good as the real ones; but they "
    "are not independent: to first order the variance is that without latent clients",
)


@dataclass(frozen=True)
class Bounds:
    """The constants of Theorem 5.5 (some clients in a round) and F.1 (all clients, fast and slow groups)."""

    smoothness: float = 1.0
    """L of L-smooth losses."""
    convexity: float = 0.5
    """mu of mu-strongly convex losses, at most L."""
    gradient: float = 1.0
    """G, the largest norm of a gradient."""
    heterogeneity: float = 0.1
    """Gamma = F* - sum of p_k F_k*, the cost of sharing one model."""
    start: float = 4.0
    """Squared distance from the optimum at the start."""
    epochs: int = 5
    """E, local steps between two aggregations."""
    clients: int = 100
    """M, all clients."""
    sampled: int = 10
    """m, clients sampled in a round (Theorem 5.5)."""
    rounds: int = 600
    """T of the bound."""
    epsilon: float = 1.0
    """Bound to reach."""
    beta: str = "1/5"
    """Share of rounds in which the slow groups travel: 1/2, 1/5, ... (Theorem F.1)."""
    fast: int = 2380
    """Parameters that travel every round (LeNet with 9 atoms for CIFAR-10: atoms and head)."""
    slow: int = 727424
    """Parameters that travel in a share beta of the rounds."""


class Row(NamedTuple):
    """One form of a bound, and its values."""

    about: str
    form: Form
    sampling: float  # D, the sampling term
    total: float  # the sum B + D + start
    bound: float
    rounds: int  # least T whose bound is epsilon or less


def with_and_without(asked: Bounds) -> list[Row]:
    """Computes Theorem 5.5 with and without latent clients.

    >>> [f"{row.about} {row.form} {row.sampling:.2g}" for row in with_and_without(Bounds())]
    ['without printed 5.8', 'with printed 6.3e-05', 'without derived 5.8', 'with derived 0.63']
    """
    problem, ways = _problem(asked), ((False, "without"), (True, "with"))
    return [_row(asked, problem, about, form, latent=latent) for form in _FORMS for latent, about in ways]


def fast_and_slow(asked: Bounds) -> list[Row]:
    """Computes Theorem F.1 (all clients take part), with all groups in every round and with slow ones.

    >>> [f"{row.about} {row.form} {row.rounds}" for row in fast_and_slow(Bounds())][:2]
    ['1 printed 1015', '1/5 printed 36855']
    """
    problem = _problem(asked)._replace(sampled=asked.clients)
    betas = dict.fromkeys(("1", asked.beta))  # each once
    return [_row(asked, problem, beta, form, beta=beta) for form in _FORMS for beta in betas]


def rate(asked: Bounds) -> float:
    """Returns the share of the parameters that is sent on average.

    >>> f"{rate(Bounds(beta='1/5')):.3f}"
    '0.203'
    """
    return communication_rate(asked.beta, asked.fast, asked.slow)


_FORMS: tuple[Form, ...] = get_args(Form)


def _problem(asked: Bounds) -> Problem:
    check_numbers(asked, "bounds")
    return Problem(*(getattr(asked, name) for name in Problem._fields if name != "weights"))


def _row(asked: Bounds, problem: Problem, about: str, form: Form, *, latent: bool = True, beta: str = "1") -> Row:
    return Row(
        about,
        form,
        sampling_term(problem, latent=latent, form=form),
        sum(terms(problem, latent=latent, form=form, beta=beta)),
        bound(problem, asked.rounds, latent=latent, form=form, beta=beta),
        rounds_to(asked.epsilon, problem, latent=latent, form=form, beta=beta),
    )
