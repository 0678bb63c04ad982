"""Claims that measures of the paper's size and explanations speak of."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from fedatoms.explain.values import Explanation
from fedatoms.measures import MEASURES
from fedatoms.measures.base import size_of
from fedatoms.measures.files import Measure, numbers
from fedatoms.report.claims.base import Claim, Evidence, Unit, judge, least, most
from fedatoms.report.drawings import objects
from fedatoms.report.explained import Explained, title
from fedatoms.report.measured import Measured

LOWER_FROM = 20  # the round from which on the paper's training loss is the lower one


def variance(found: Sequence[Measured]) -> Claim:
    """Judges figure (b) by each round that was repeated."""
    lines = [line for start, measure in _full("variance", found) for line in _variances(start, measure)]
    text = "The variance of the aggregated filters is smaller with decomposition (figure (b), largest ratio)."
    rule = "In each measured round the variance is below that of the plain filters. In brackets the same ratio of "
    rule += "variances divided by the filters' squared norm, and by their squared move in the round."
    return judge(text, rule, lines, (None, most(line.ours for line in lines)), Unit("times the plain one's", ".2f"))


def training_loss(found: Sequence[Measured]) -> Claim:
    """Judges the round from which on the decomposed network's training loss is the lower one."""
    lines = [_lower_from(start, measure) for start, measure in _full("training_loss", found)]
    text = f"After {LOWER_FROM} rounds the training loss is lower with decomposition."
    rule = f"It is lower in each round from {LOWER_FROM} at the latest to the last one measured."
    numbers = LOWER_FROM, most(line.ours for line in lines)
    return judge(text, rule, lines, numbers, Unit("rounds", ".0f"))


def latent(found: Sequence[Explained]) -> Claim:
    """Judges latent clients alone: the same rounds of the same clients, averaged with them and without."""
    lines = [line for each in found for line in _latent(each.explanation)]
    text = "The average with latent clients is better than the mean of the same clients' filters (smallest difference)."
    rule = "In each replay, and each fork that goes on from one, the mean difference of accuracies over its rounds is "
    rule += "above 0 by more than one test image."
    return judge(text, rule, lines, (None, least(line.ours for line in lines)))


def _full(name: str, found: Sequence[Measured]) -> list[tuple[str, Measure]]:
    """Finds the measures of the paper's size, each with what a line of it starts with: its seed, if there are many."""
    full = [each.measure for each in found if each.measure.name == name]
    full = [each for each in full if size_of(MEASURES[name], each) == "full"]
    return [(f"seed {each.experiments[0].seed}, " if len(full) > 1 else "", each) for each in full]


def _variances(start: str, measure: Measure) -> Iterator[Evidence]:
    plain, atoms = objects(measure.values["lines"])
    pairs = (zip(numbers(atoms[key]), numbers(plain[key]), strict=True) for key in ("raw", "by_norm", "by_move"))
    for t, *sides in zip(numbers(measure.values["rounds"]), *pairs, strict=True):
        if all(side[1] for side in sides):
            raw, by_norm, by_move = (one / other for one, other in sides)
            about = f"{start}round {t:g} (by norm {by_norm:.2f}, by move {by_move:.2f})"
            yield Evidence(about, None, raw, raw < 1)


def _lower_from(start: str, measure: Measure) -> Evidence:
    since, (last,) = measure.values["lower_from"], numbers([measure.settings["rounds"]])
    if not isinstance(since, int):
        return Evidence(f"{start}never up to round {last}", LOWER_FROM, last, False)
    return Evidence(f"{start}lower from then to round {last}", LOWER_FROM, since, since <= LOWER_FROM)


def _latent(explanation: Explanation) -> Iterator[Evidence]:
    both, fork = [each.aggregates for each in explanation.rounds], explanation.fork
    yield _gain(explanation, title(explanation), [each.on.accuracy - each.off.accuracy for each in both])
    if fork:
        gains = [on - off for on, off in zip(fork.accuracy_on, fork.accuracy_off, strict=True)]
        yield _gain(explanation, f"{explanation.run}, fork of {len(gains)} rounds", gains)


def _gain(explanation: Explanation, about: str, gains: Sequence[float]) -> Evidence:
    gain = fmean(gains)
    images = round(gain * explanation.images / 100, 6)  # whole images, but for the floats of accuracies
    return Evidence(about, None, gain, images > 1)
