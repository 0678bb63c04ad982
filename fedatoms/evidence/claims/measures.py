"""Claims judged by measures of the paper's experiments and settings, and by explanations."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Generic, Literal, NamedTuple, TypeVar

from fedatoms.core.gains import Gain, Pooled, State, beyond, over_seeds
from fedatoms.evidence.claims.base import (
    CLEAR,
    Claim,
    Evidence,
    Unit,
    conditions,
    counted,
    judge,
    least,
    most,
    smallest,
)
from fedatoms.evidence.explain.latent import Latent
from fedatoms.evidence.explain.values import Explanation
from fedatoms.evidence.explain.words import title
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import size_of
from fedatoms.evidence.measures.files import Measure
from fedatoms.evidence.measures.values import (
    Checked,
    LandscapeValues,
    SyntheticValues,
    TrainingLossValues,
    VarianceValues,
)
from fedatoms.evidence.paper.study_list import QUICK_ROUNDS
from fedatoms.evidence.results.finding import FoundMeasure
from fedatoms.evidence.results.groups import is_quick, key_of
from fedatoms.evidence.results.names import distinct_names, seeds
from fedatoms.evidence.results.pairs import Twins, server_gain

AT_THE_END = "The geometric mean over seeds of the ratio of both last losses decides: it is below 1 with its interval."
LOWER_FROM = 20  # the round from which on the paper's training loss is lower with decomposition
V = TypeVar("V", bound=Checked)


class Varied(NamedTuple):
    """A reading of figure (b): what of a decomposed network is held against the same of plain filters."""

    of: Literal["filters", "factors"]
    kind: Literal["raw", "by_move"]


VARIED = tuple(Varied(of, kind) for of in ("filters", "factors") for kind in ("raw", "by_move"))
TEXTS = {
    Varied("filters", "raw"): "The variance of the aggregated filters is smaller with decomposition",
    Varied("filters", "by_move"): "The variance of the filters, by their squared move, is smaller with decomposition",
    Varied("factors", "raw"): "The variance of the raw factors is smaller than that of plain filters",
    Varied("factors", "by_move"): "The variance of the raw factors, by their squared move, is smaller than that of "
    "plain filters",
}
SCALE = " Factors are fewer numbers of another scale: scaling atoms by c and coefficients by 1/c changes their variance"
SCALE += " and no filter."


def of_the_papers(found: Sequence[FoundMeasure]) -> list[FoundMeasure]:
    """Keeps the measures with the paper's experiments and settings, as we read it, with any seed: they decide.

    >>> of_the_papers([])
    []
    """
    return [each for each in found if size_of(MEASURES[each.measure.name], each.measure) == "full"]


def judged(found: Sequence[FoundMeasure]) -> list[Claim]:
    """Judges all claims that measures speak of by the given ones, whatever their setting.

    >>> {claim.verdict for claim in judged([])}
    {'not run'}
    """
    return [*variance(found), synthetic(found), nearer(found), training_loss(found), landscape(found)]


def variance(found: Sequence[FoundMeasure]) -> list[Claim]:
    """Judges each reading of figure (b) in each repeated round."""
    given = _given(VarianceValues, found)
    return [_varied(one, [each for each in given if getattr(each.values.lines[-1], one.of)]) for one in VARIED]


def ratios(values: VarianceValues, one: Varied) -> dict[float, float]:
    """Returns by round how many times the plain filters' variance the decomposed network's is; none where none varies.

    >>> from fedatoms.evidence.measures.values import VarianceLine, VarianceLines
    >>> filters = VarianceLines(VarianceLine([2.0], [0.0], [0.0]))
    >>> decomposed = VarianceLines(VarianceLine([1.0], [0.0], [0.0]), VarianceLine([3.0], [0.0], [0.0]))
    >>> [ratios(VarianceValues([5], [filters, decomposed], 10), one) for one in VARIED]
    [{5: 0.5}, {}, {5: 1.5}, {}]
    """
    plain, line = values.lines[0].filters, getattr(values.lines[-1], one.of)
    rows = zip(values.rounds, getattr(line, one.kind), getattr(plain, one.kind), strict=True) if line else ()
    return {t: _ratio(mine, theirs) for t, mine, theirs in rows if mine or theirs}


def training_loss(found: Sequence[FoundMeasure]) -> Claim:
    """Judges from which round on the training loss is lower with decomposition.

    >>> training_loss([]).text
    'After 20 rounds the training loss is lower with decomposition.'
    """
    given = _given(TrainingLossValues, found)
    lines = [_lower_from(each) for each in given]
    text = f"After {LOWER_FROM} rounds the training loss is lower with decomposition."
    rule = f"A line says yes if with its seed the loss is lower in every round from round {LOWER_FROM} or earlier to "
    rule += f"the last one. {AT_THE_END}"
    rule += _one_seed(given) + _conditions(given)
    latest, ends = most(line.ours for line in lines), [(line[-1] for line in each.values.lines) for each in given]
    return judge(text, rule, lines, (LOWER_FROM, latest), Unit("rounds", ".0f"), whole=_at_the_end(ends))


def landscape(found: Sequence[FoundMeasure]) -> Claim:
    """Judges the loss landscape by the losses at the ends of both trajectories."""
    given = _given(LandscapeValues, found)
    lines = [_end(each) for each in given]
    text = "From the same start, training reaches a lower loss with decomposition (loss landscape, largest ratio)."
    rule = f"A line says yes if its loss at the end of its trajectory is below the plain run's. {AT_THE_END}"
    rule += _one_seed(given) + _conditions(given)
    times, ends = Unit("times the plain run's", ".2f"), [(line[-1] for line in each.values.losses) for each in given]
    return judge(text, rule, lines, (None, most(line.ours for line in lines)), times, whole=_at_the_end(ends))


def synthetic(found: Sequence[FoundMeasure]) -> Claim:
    """Judges the two Gaussians by the variance of an average of many models against that of a few."""
    lines = [line for each in _given(SyntheticValues, found) for line in _more_models(each.values)]
    text = "More models make the variance of their average smaller (two Gaussians, largest ratio)."
    rule = "After the last round the variance over repeats is below that of the fewest models. Latent clients are not "
    rule += "independent models: the figure shows them."
    times = Unit("times that of the fewest", ".2f")
    return judge(text, rule, lines, (None, most(line.ours for line in lines)), times)


def nearer(found: Sequence[FoundMeasure]) -> Claim:
    """Judges the two Gaussians by the rounds after which many models are as near to the optimum as a few ever get.

    >>> nearer([]).verdict
    'not run'
    """
    lines = [line for each in _given(SyntheticValues, found) for line in _rounds_to_the_optimum(each.values)]
    text = "More models come as near to the optimum in fewer rounds (two Gaussians, largest share of rounds)."
    rule = "The mean distance of the average from the optimum, over repeats, is as small as the fewest models ever "
    rule += "make it after fewer rounds. Latent clients are not independent models: the figure shows them."
    times, bound = Unit("times those of the fewest", ".2f"), any(line.at_least for line in lines)
    return judge(text, rule, lines, (None, most(line.ours for line in lines)), times, at_least=bound)


def bounded(found: Sequence[Explanation]) -> Claim:
    """Judges the bound on latent clients' losses by each replay in which they were scored one by one."""
    scored = [(each, [one.latent for one in each.rounds if one.latent]) for each in found]
    alone = len({each.experiment.seed for each, some in scored if some}) == 1
    lines = [_open_if(alone or _is_quick(each), _within(title(each), some)) for each, some in scored if some]
    text = "Every latent client's loss is bounded by those of real clients (share of latent clients, smallest)."
    rule = "Each loss is at most that of the worst real client of its round. In brackets: the share whose loss is at "
    rule += (
        "most that of the worse of the two clients that they combine. The paper gives no constant for its bound, so "
    )
    rule += "that a loss above the worst one refutes nothing."
    rule += " One seed does not support it." * alone
    rule += _explained([each for each, some in scored if some])
    return judge(text, rule, lines, (None, _least(lines)), Unit("% of latent clients", ".2f"))


def latent(found: Sequence[Explanation], runs: Sequence[Twins] = (), pooled: Pooled | None = None) -> Claim:
    """Judges latent clients by whole runs with and without them, and by rounds of the same clients averaged both ways.

    >>> latent([]).verdict
    'not run'
    """
    where, names = distinct_names([mine.experiment for mine, _ in runs])
    gains = [server_gain(*both, pooled) for both in runs]
    whole = [_adds(f"whole runs, {name}", one) for name, one in zip(names, gains, strict=True)]
    lines = [*whole, *(line for same in _but_for_the_seed(found) for line in _replayed(same))]
    text = f"The average with latent clients is better than the mean of the same clients' filters by {CLEAR} points "
    text += "(smallest difference)."
    rule = "The server's model of whole runs is better than where the server averages filters, and so is the mean "
    rule += f"accuracy over the rounds of each replay and each fork, by {CLEAR} points with all of its interval. Where "
    rule += "there are whole runs, the smallest of their differences decides. A replay of one seed has no interval."
    rule += conditions([(mine.experiment, mine.seeds) for mine, _ in runs], f"Whole runs{f' on {where}' * bool(where)}")
    rule += _explained(found, "Replays")
    least_one = smallest(whole)
    if least_one is None:
        return judge(text, rule, lines, (None, _least(lines)))
    return judge(text, rule, lines, (None, least_one.ours), whole=least_one.state, gain=least_one.gain)


class _Given(NamedTuple, Generic[V]):
    """A measure with the start of its lines: its seed, if there are several."""

    start: str
    measure: Measure
    values: V
    alone: bool

    def says(self, supports: bool) -> State:
        """Returns what it says of a claim: nothing for sure if it is one trajectory, of one seed."""
        return "inconclusive" if self.alone else counted(supports)


def _given(kind: type[V], found: Sequence[FoundMeasure]) -> list[_Given[V]]:
    """Returns the measures of a kind."""
    same = [(each.measure, each.values) for each in found if isinstance(each.values, kind)]
    many = len(same) > 1
    return [_Given(f"seed {one.experiments[0].seed}, " if many else "", one, values, not many) for one, values in same]


def _one_seed(given: Sequence[_Given[V]]) -> str:
    return " One seed decides nothing." if len(given) == 1 else ""


def _conditions(given: Sequence[_Given[V]]) -> str:
    """Says of which experiments and seeds the measures are: they differ in the seed alone."""
    last = [one for each in given for one in each.measure.experiments[-1:]]
    return conditions([(one, sorted(each.seed for each in last)) for one in last[:1]])


def _explained(found: Sequence[Explanation], whose: str = "Ours") -> str:
    few = f" On digits {QUICK_ROUNDS} rounds or fewer decide nothing." if any(map(_is_quick, found)) else ""
    return few + conditions([(each.experiment, [each.experiment.seed]) for each in found], whose)


def _is_quick(explanation: Explanation) -> bool:
    """Returns whether the run, or what was trained of it until the replay, is too short to support anything."""
    trained = replace(explanation.experiment, rounds=explanation.rounds[-1].round + 1)
    return is_quick(explanation.experiment) or is_quick(trained)


def _open_if(weak: bool, line: Evidence) -> Evidence:
    return line._replace(state="inconclusive") if weak else line


def _but_for_the_seed(found: Sequence[Explanation]) -> Iterable[list[Explanation]]:
    """Groups explanations that differ in the seed alone."""
    alike = defaultdict[Hashable, list[Explanation]](list)
    for each in found:
        asked = replace(each.settings, device=None, threads=None)
        alike[key_of(each.experiment), each.round, asked, each.fork is None].append(each)
    return alike.values()


def _replayed(same: Sequence[Explanation]) -> Iterator[Evidence]:
    """Returns a line of the replays with some seeds, and one of their forks if there are some."""
    which = f", {seeds([each.experiment.seed for each in same])}" if len(same) > 1 else ""
    for one in zip(*map(_differences, same), strict=True):
        about, gain = one[0][0], over_seeds([fmean(rounds) for _, rounds in one])
        yield _open_if(_is_quick(same[0]), _adds(f"{about}{which}", gain))


def _adds(about: str, one: Gain) -> Evidence:
    return Evidence(about, None, one.gain, beyond(one, CLEAR), one)


def _least(lines: Sequence[Evidence]) -> float | None:
    """Returns the smallest number of the lines that decide; of all if none does."""
    return least(line.ours for line in [each for each in lines if each.state != "inconclusive"] or lines)


def _varied(one: Varied, given: Sequence[_Given[VarianceValues]]) -> Claim:
    found = [ratios(each.values, one) for each in given]
    rounds = sorted({t for each in found for t in each})
    lines = [_in_round(t, [each[t] for each in found if t in each]) for t in rounds]
    text = f"{TEXTS[one]} (figure (b), largest mean ratio)."
    both = "" if one.kind == "raw" else ", each divided by the squared move of its own,"
    rule = f"In each measured round the ratio to the variance of the plain run's filters{both} is below 1: the "
    rule += f"geometric mean over seeds, with its interval. In brackets: each seed's.{_one_seed(given)}"
    rule += SCALE * (one.of == "factors") + _conditions(given)
    return judge(text, rule, lines, (None, most(line.ours for line in lines)), Unit("times the plain run's", ".2f"))


def _in_round(t: float, found: Sequence[float]) -> Evidence:
    """Judges a round by its ratios, one for each seed: a variance over ten repeats is an estimate."""
    about = f"after {t:,g} round{'s' * (t != 1)} ({', '.join(f'{ratio:.2f}' for ratio in found)})"
    return Evidence(about, None, *_mean_ratio(found))


def _mean_ratio(found: Sequence[float]) -> tuple[float, State]:
    """Returns the geometric mean of ratios over seeds, and whether it is below 1 with its interval."""
    if not all(0 < ratio < math.inf for ratio in found):  # nothing is there on one side, which is no estimate
        return max(found), counted(max(found) < 1)
    mean = over_seeds([math.log(ratio) for ratio in found])
    return math.exp(mean.gain), beyond(mean, below=True)


def _at_the_end(losses: Iterable[Iterable[float]]) -> State:
    """Says whether the last loss with atoms is below the plain one on average over seeds; one seed says nothing."""
    found = [_ratio(atoms, plain) for plain, *_, atoms in losses]
    return _mean_ratio(found)[1] if len(found) > 1 else "inconclusive"


def _ratio(one: float, other: float) -> float:
    return one / other if other else math.inf


def _lower_from(each: _Given[TrainingLossValues]) -> Evidence:
    since, last = each.values.lower_from, float(str(each.measure.settings["rounds"]))
    if since is None:
        return Evidence(f"{each.start}not lower in round {last:g}", LOWER_FROM, last, each.says(False))
    about = f"{each.start}lower from round {since} to round {last:g}"
    return Evidence(about, LOWER_FROM, since, each.says(since <= LOWER_FROM))


def _end(each: _Given[LandscapeValues]) -> Evidence:
    plain, atoms = each.values.losses
    about = f"{each.start}after round {len(plain) - 1}: {atoms[-1]:.3f}, plain {plain[-1]:.3f}"
    return Evidence(about, None, _ratio(atoms[-1], plain[-1]), each.says(atoms[-1] < plain[-1]))


def _more_models(values: SyntheticValues) -> Iterator[Evidence]:
    lines = [line for line in values.lines if line.products is None]  # the others are latent clients'
    few, *others = [(line.name, line.variance[-1]) for line in lines]
    for many, variance in others:
        yield Evidence(f"{many} against {few[0]}", None, _ratio(variance, few[1]), counted(variance < few[1]))


def _rounds_to_the_optimum(values: SyntheticValues) -> Iterator[Evidence]:
    """Compares numbers of models by distances; latent clients' lines, and files without distances, have none."""
    few, *others = [(line.name, line.distance) for line in values.lines if line.products is None]
    for many, distance in others:
        if few[1] and distance:
            aim = min(few[1])
            rounds = few[1].index(aim)
            since = next((t for t, each in enumerate(distance) if each <= aim), None)
            ran = len(distance) - 1 if since is None else since
            about = f"{many}, {'not in ' * (since is None)}{ran} rounds; {few[0]}, {rounds}"
            share, fewer = ran / rounds if rounds else math.inf, since is not None and since < rounds
            yield Evidence(about, None, share, counted(fewer), at_least=since is None)


def _within(about: str, some: Sequence[Latent]) -> Evidence:
    share, parents = (100 * fmean(getattr(each, kind) for each in some) for kind in ("bounded", "by_parents"))
    state: State = "supported" if all(each.bounded == 1 for each in some) else "inconclusive"
    return Evidence(f"{about} ({parents:.2f} %)", None, share, state)


def _differences(explanation: Explanation) -> Iterator[tuple[str, list[float]]]:
    """Returns what a replay, and its fork if there is one, are about, and what latent clients add in each round."""
    both, fork = [each.aggregates for each in explanation.rounds], explanation.fork
    yield title(explanation), [each.on.accuracy - each.off.accuracy for each in both]
    if fork:
        gains = [on - off for on, off in zip(fork.accuracy_on, fork.accuracy_off, strict=True)]
        yield f"{explanation.run}, fork, rounds {fork.round + 1} to {fork.round + len(gains)}", gains
