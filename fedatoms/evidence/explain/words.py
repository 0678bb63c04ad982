"""The findings of an explanation in sentences, computed from its numbers."""

from statistics import fmean as mean

from fedatoms.algorithms import TABLE as ALGORITHMS
from fedatoms.evidence.explain.forks import Forked
from fedatoms.evidence.explain.values import Explanation, Round


def findings(explanation: Explanation) -> list[str]:
    """Returns a sentence for each question; for one that was not asked, the flag that asks it."""
    rounds = explanation.rounds
    lines = [_apart(rounds), _scores(explanation), _latent(rounds), _variance(rounds), _gain(explanation)]
    return [line for line in (*lines, _longer(explanation)) if line]


def title(explanation: Explanation) -> str:
    """Names an explanation by its run and the replayed rounds, counted from 1."""
    rounds = [one.round + 1 for one in explanation.rounds]
    which = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
    return f"{explanation.run}, {which} replayed"


def percent(share: float, digits: int = 2) -> str:
    """Writes a share in per cent; only the whole is 100 %.

    >>> percent(0.125), percent(0.999, digits=0), percent(1.0, digits=0)
    ('12.50 %', '99 %', '100 %')
    """
    most = 100 - 10**-digits if share < 1 else 100 * share
    return f"{min(100 * share, most):.{digits}f} %"


def points(value: float) -> str:
    """Writes a difference in accuracy.

    >>> points(0.125)
    '+0.12 points'
    """
    return f"{value:+.2f} points"


def _apart(rounds: list[Round]) -> str:
    ratios = [each.aggregates.apart.ratio for each in rounds]
    if not any(ratios):
        return "The two averages are identical: only one factor was sent, or one client reported, or nothing moved."
    many = f", {percent(min(ratios))} to {percent(max(ratios))} in {len(ratios)} rounds" if len(ratios) > 1 else ""
    return f"The averages with and without latent clients differ by {percent(mean(ratios))} of the round's move{many}."


def _scores(explanation: Explanation) -> str:
    on, off = ([getattr(each.aggregates, kind) for each in explanation.rounds] for kind in ("on", "off"))
    accuracy = [mean(each.accuracy for each in kind) for kind in (on, off)]
    loss = [mean(each.loss for each in kind) for kind in (on, off)]
    return (
        f"Accuracy {accuracy[0]:.2f} % with latent clients, {accuracy[1]:.2f} % without "
        f"({points(accuracy[0] - accuracy[1])}; one of the {explanation.images:,} images is "
        f"worth {100 / explanation.images:.2f}); loss {loss[0]:.4f} and {loss[1]:.4f}."
    )


def _latent(rounds: list[Round]) -> str:
    found = [each.latent for each in rounds if each.latent]
    if not found:
        return ""
    scored, of = sum(len(each.latent) for each in found), sum(each.of for each in found)
    which = f"all {scored:,}" if scored == of else f"{scored:,} of {of:,}, drawn"
    bounded, by_parents = (
        percent(mean(getattr(each, kind) for each in found), 0) for kind in ("bounded", "by_parents")
    )
    return (
        f"Latent clients ({which}): mean loss {mean(each.loss_latent for each in found):.3f}, real ones "
        f"{mean(each.loss_real for each in found):.3f}; largest {max(each.worst_latent for each in found):.3f}, real "
        f"ones {max(each.worst_real for each in found):.3f}. The loss of {bounded} of them is at most that of the "
        f"worst real client of the round, of {by_parents} at most that of the worse of the two that they combine."
    )


def _variance(rounds: list[Round]) -> str:
    found = [each.variance for each in rounds if each.variance and each.variance.off]
    if not found:
        return "The variance over clients is unknown: it takes a round with two clients that moved."
    first = mean(each.first / each.off for each in found)
    formula, resampled = (mean(getattr(each, kind) or 0.0 for each in found) for kind in ("ratio", "drawn_ratio"))
    return (
        f"{percent(first)} of the variance is of first order, which both averages share: with latent clients "
        f"{percent(formula)} of the variance remains by the formulas, and {percent(resampled)} over resampled clients."
    )


def _gain(explanation: Explanation) -> str:
    if explanation.plain is None:
        return (
            "The gain of the parametrisation is unknown from this run alone: give a plain run of the same experiment "
            "with --plain."
        )
    plain = mean(explanation.plain[each.round - explanation.round] for each in explanation.rounds)
    on, off = (mean(getattr(each.aggregates, kind).accuracy for each in explanation.rounds) for kind in ("on", "off"))
    return (
        f"Against the plain run ({plain:.2f} %) the gain is {points(on - plain)}: {points(on - off)} from latent "
        f"clients in the round itself, {points(off - plain)} from the parametrisation and all earlier rounds."
    )


def _longer(explanation: Explanation) -> str:
    name = explanation.experiment.algorithm
    if explanation.fork:
        return _forked(explanation.fork)
    if ALGORITHMS.has(name, "replaces"):
        return "A replayed round shows one average only: --fork N goes on for N rounds with and without latent clients."
    return f"Both are means of the clients' models: what the server of {name} adds of its own is not in these numbers."


def _forked(fork: Forked) -> str:
    rounds = f"{len(fork.accuracy_on)} round{'s' * (len(fork.accuracy_on) > 1)}"
    gains = [on - off for on, off in zip(fork.accuracy_on, fork.accuracy_off, strict=True)]
    line = (
        f"After {rounds}: {fork.accuracy_on[-1]:.2f} % with latent clients, {fork.accuracy_off[-1]:.2f} % without "
        f"({points(gains[-1])}; mean over the rounds {points(mean(gains))})."
    )
    if fork.lost > 0.01:
        lost = percent(fork.lost, 0)
        line += f" Up to {lost} of the difference between the two averages is outside the span of the atoms and lost."
    return line
