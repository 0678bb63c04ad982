"""Claims that measures of the paper's size and explanations speak of."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from fedatoms.evidence.claims.base import CLEAR, Claim, Evidence, Unit, conditions, judge, least, most
from fedatoms.evidence.explain.latent import Latent
from fedatoms.evidence.explain.values import Explanation
from fedatoms.evidence.explain.words import title
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import size_of
from fedatoms.evidence.measures.files import Measure, numbers, objects

LOWER_FROM = 20  # the round from which on the paper's training loss is the lower one


def variance(found: Sequence[Measure]) -> Claim:
    """Judges figure (b) by each round that was repeated."""
    full = _full("variance", found)
    lines = [line for start, measure in full for line in _variances(start, measure)]
    text = "The variance of the aggregated filters is smaller with decomposition (figure (b), largest ratio)."
    rule = "In each measured round the variance is below that of the plain filters. In brackets the same ratio of "
    rule += "variances divided by the filters' squared norm, and by their squared move in the round."
    rule += _conditions(full)
    return judge(text, rule, lines, (None, most(line.ours for line in lines)), Unit("times the plain one's", ".2f"))


def training_loss(found: Sequence[Measure]) -> Claim:
    """Judges the round from which on the decomposed network's training loss is the lower one."""
    full = _full("training_loss", found)
    lines = [_lower_from(start, measure) for start, measure in full]
    text = f"After {LOWER_FROM} rounds the training loss is lower with decomposition."
    rule = f"It is lower in each round from {LOWER_FROM} at the latest to the last one measured.{_conditions(full)}"
    latest = most(line.ours for line in lines)
    return judge(text, rule, lines, (LOWER_FROM, latest), Unit("rounds", ".0f"))


def landscape(found: Sequence[Measure]) -> Claim:
    """Judges the loss landscape by where both trainings stand at the end of their trajectories."""
    full = _full("landscape", found)
    lines = [_end(start, measure) for start, measure in full]
    text = "From one start, training reaches a lower loss with decomposition (loss landscape, largest ratio)."
    rule = f"After the last round that is drawn the training loss is below the plain one's.{_conditions(full)}"
    return judge(text, rule, lines, (None, most(line.ours for line in lines)), Unit("times the plain one's", ".2f"))


def synthetic(found: Sequence[Measure]) -> Claim:
    """Judges the two Gaussians: the variance of the average of many models against that of a few."""
    lines = [line for start, measure in _full("synthetic", found) for line in _more_models(start, measure)]
    text = "More models make the variance of their average smaller (two Gaussians, largest ratio)."
    rule = "After the last round the variance over repeats is below that of the fewest models. Latent clients are no "
    rule += "models of their own, and stand under the figure."
    times = Unit("times that of the fewest", ".2f")
    return judge(text, rule, lines, (None, most(line.ours for line in lines)), times)


def bounded(found: Sequence[Explanation]) -> Claim:
    """Judges what the paper says of latent clients' losses, by each replay in which they were scored one by one."""
    scored = [(title(each), [one.latent for one in each.rounds if one.latent]) for each in found]
    lines = [_within(about, some) for about, some in scored if some]
    text = "A latent client's loss is bounded by those of real clients (share of latent clients, smallest)."
    rule = "Each loses no more than the worst real client of its round; in brackets, than the worse of its own two."
    rule += _taken_apart([each for each in found if any(one.latent for one in each.rounds)])
    return judge(text, rule, lines, (None, least(line.ours for line in lines)), Unit("% of latent clients", ".2f"))


def latent(found: Sequence[Explanation]) -> Claim:
    """Judges latent clients alone: the same rounds of the same clients, averaged with them and without."""
    lines = [line for each in found for line in _latent(each)]
    text = "The average with latent clients is better than the mean of the same clients' filters (smallest difference)."
    rule = "In each replay, and each fork that goes on from one, the mean difference of accuracies over its rounds is "
    rule += f"{CLEAR} points or more, what one seed can tell from none.{_taken_apart(found)}"
    return judge(text, rule, lines, (None, least(line.ours for line in lines)))


def _full(name: str, found: Sequence[Measure]) -> list[tuple[str, Measure]]:
    """Finds the measures of the paper's size, each with what a line of it starts with: its seed, if there are many."""
    full = [each for each in found if each.name == name and size_of(MEASURES[name], each) == "full"]
    return [(f"seed {each.experiments[0].seed}, " if len(full) > 1 else "", each) for each in full]


def _conditions(full: Sequence[tuple[str, Measure]]) -> str:
    return conditions([(one, [one.seed]) for _, measure in full for one in measure.experiments[-1:]])


def _taken_apart(found: Sequence[Explanation]) -> str:
    return conditions([(each.experiment, [each.experiment.seed]) for each in found])


def _variances(start: str, measure: Measure) -> Iterator[Evidence]:
    plain, atoms = objects(measure.values["lines"])
    pairs = (zip(numbers(atoms[key]), numbers(plain[key]), strict=True) for key in ("raw", "by_norm", "by_move"))
    for t, raw, by_norm, by_move in zip(numbers(measure.values["rounds"]), *pairs, strict=True):
        ratios = {"by norm": _ratio(*by_norm), "by move": _ratio(*by_move)}
        said = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items() if math.isfinite(ratio))
        if any(raw):  # else nothing varies, and there is nothing to compare
            yield Evidence(f"{start}round {t:g}{f' ({said})' if said else ''}", None, _ratio(*raw), raw[0] < raw[1])


def _ratio(one: float, other: float) -> float:
    return one / other if other else math.inf


def _lower_from(start: str, measure: Measure) -> Evidence:
    since, (last,) = measure.values["lower_from"], numbers([measure.settings["rounds"]])
    if not isinstance(since, int):
        return Evidence(f"{start}not lower in round {last}", LOWER_FROM, last, False)
    return Evidence(f"{start}lower from then to round {last}", LOWER_FROM, since, since <= LOWER_FROM)


def _end(start: str, measure: Measure) -> Evidence:
    plain, atoms = (numbers(path["loss"]) for path in objects(measure.values["paths"]))
    about = f"{start}after round {len(plain) - 1}: {atoms[-1]:.3f}, plain {plain[-1]:.3f}"
    return Evidence(about, None, _ratio(atoms[-1], plain[-1]), atoms[-1] < plain[-1])


def _more_models(start: str, measure: Measure) -> Iterator[Evidence]:
    lines = [line for line in objects(measure.values["lines"]) if "products" not in line]  # those are latent clients'
    last = [(str(line["name"]), numbers(line["variance"])[-1]) for line in lines]
    for many, variance in last[1:]:
        few, of_few = last[0]
        yield Evidence(f"{start}{many} against {few}", None, _ratio(variance, of_few), variance < of_few)


def _within(about: str, some: Sequence[Latent]) -> Evidence:
    share, parents = (100 * fmean(getattr(each, kind) for each in some) for kind in ("bounded", "by_parents"))
    return Evidence(f"{about} ({parents:.2f} %)", None, share, all(each.bounded == 1 for each in some))


def _latent(explanation: Explanation) -> Iterator[Evidence]:
    both, fork = [each.aggregates for each in explanation.rounds], explanation.fork
    yield _gain(title(explanation), [each.on.accuracy - each.off.accuracy for each in both])
    if fork:
        gains = [on - off for on, off in zip(fork.accuracy_on, fork.accuracy_off, strict=True)]
        yield _gain(f"{explanation.run}, fork, rounds {fork.round} to {fork.round + len(gains) - 1}", gains)


def _gain(about: str, gains: Sequence[float]) -> Evidence:
    gain = fmean(gains)
    return Evidence(about, None, gain, gain >= CLEAR)
