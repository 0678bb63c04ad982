"""Comparisons: a grid of experiments and seeds, run only where a result is missing, then shown side by side."""

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from fedatoms.core import ledger
from fedatoms.core.gains import Gain, Pooled, gain, paired, pool_of_pairs
from fedatoms.core.lookup import counted, one_line
from fedatoms.core.run_files import EXPERIMENT, RESULT
from fedatoms.core.scales import Scale
from fedatoms.engine.loop import Watch
from fedatoms.experiment.fields import EXECUTION_FIELDS, Experiment
from fedatoms.experiment.files import load_run, to_json
from fedatoms.experiment.identities import identity, run_folder, run_name
from fedatoms.experiment.relevance import BESIDE
from fedatoms.runs.execute import Engine, Known, resume, run
from fedatoms.runs.lock import check_free
from fedatoms.runs.one_block import block_mates, in_one_block
from fedatoms.runs.results import (
    WINDOW,
    Result,
    Summary,
    alike_averaged,
    averaged_rounds,
    read_result,
    score_curves,
    scored_rounds,
)
from fedatoms.runs.rounds import read_rounds

Pools = Mapping[str, Pooled | None]  # of each scored model
Watching = Callable[[str, int], AbstractContextManager[Watch]]  # label, rounds


class Averages(NamedTuple):
    """Means of a model's scores over seeds, and the headline's standard deviation if there are several."""

    mean: float  # of the headline
    deviation: float | None
    final: float
    best: float


class Spread(NamedTuple):
    """A mean over seeds, and the standard deviation if there are several."""

    mean: float
    deviation: float | None


class Line(NamedTuple):
    """One experiment of a comparison, over its seeds."""

    label: str
    scores: dict[str, Averages]  # of each scored model
    personal: dict[str, Spread]  # of clients' own models, as in a result; empty if there are none
    bytes_up: float
    bytes_down: float
    seconds: float | None  # None: withheld, in one of its runs
    target: float  # the best score that every run of the comparison reaches
    rounds_to_target: float
    seeds: int
    results: list[Result]
    gains: dict[str, Gain | None]  # of each model, against the first line where both are averaged alike; None: no seed

    @property
    def metric(self) -> Scale:
        """What its scores are numbers of."""
        return self.results[0].metric


class Failure(NamedTuple):
    """A run that has no result, and why; ``diverged`` if its numbers are not finite: the same comes of it each time."""

    experiment: Experiment
    why: str
    diverged: bool


def give_up(failure: Failure) -> None:
    """Ends a comparison, of which a run has diverged."""
    raise FloatingPointError(f"{run_name(failure.experiment)}: {failure.why}")


def run_missing(
    experiments: Sequence[Experiment],
    watching: Watching,
    together: int = 1,
    failed: Callable[[Failure], None] = give_up,
) -> list[Result]:
    """Returns the results of experiments; runs or resumes those that have none yet, up to ``together`` at a time.

    ``failed`` is told of a run that diverges; if it returns, the others go on. Any other error of a run ends the
    comparison, once those that train together with it are over.
    """
    check_runs(experiments)
    names = {identity(one): f"[{i}/{len(experiments)}] {run_name(one)}" for i, one in enumerate(experiments, 1)}

    def work(experiment: Experiment, engine: Engine | None = None) -> Result | Failure:
        try:
            with watching(names[identity(experiment)], experiment.rounds) as watch:
                return finish(experiment, watch, engine=engine)
        except FloatingPointError as error:
            return Failure(experiment, one_line(error), diverged=True)

    found: dict[str, Result | Failure | None] = {identity(one): existing(one) for one in experiments}
    while left := [one for one in experiments if found[identity(one)] is None]:
        group = block_mates(left, together)
        for one, ending in zip(group, in_one_block([partial(work, one) for one in group]), strict=True):
            found[identity(one)] = ending
            if isinstance(ending, Failure):
                failed(ending)
    return [ending for ending in found.values() if isinstance(ending, Result)]


def check_runs(experiments: Sequence[Experiment]) -> None:
    """Refuses repeats, and runs that another process writes: now, not after the hours that those before them take."""
    known: set[str] = set()
    for experiment in experiments:
        if identity(experiment) in known:
            raise ValueError(f"{run_name(experiment)} is listed twice: both compute the same. Leave one out.")
        known.add(identity(experiment))
    for experiment in experiments:
        if existing(experiment) is None:
            check_free(run_folder(experiment))


def finish(experiment: Experiment, watch: Watch, known: Known | None = None, *, engine: Engine | None = None) -> Result:
    """Returns the result of an experiment: one that is known, or that of running it or what is left of it.

    ``known`` looks for a result, by default in the run's folder: at once, and again when nobody else writes the folder.
    A run goes on where the experiment says, or without a word of that, where it was.
    """
    look, folder = known or partial(existing, experiment), run_folder(experiment)
    if (found := look()) is not None:
        return found
    if not (folder / EXPERIMENT).exists():
        return run(experiment, watch=watch, known=look, engine=engine)
    if identity(load_run(folder)) != identity(experiment):
        raise ValueError(
            f"{folder} holds another experiment (resumed for more rounds?). Move it, or use another `out`."
        )
    there = {} if experiment.device == Experiment.device else {"device": experiment.device}
    return resume(folder, there, watch=watch, known=look, engine=engine)


def existing(experiment: Experiment) -> Result | None:
    """Returns the result of an experiment if there is one in its folder."""
    folder = run_folder(experiment)
    if not (folder / RESULT).exists():
        return None
    found = read_result(folder)
    return found if identity(found.experiment) == identity(experiment) else None


def spread_of(values: Sequence[float]) -> Spread:
    """Returns the mean over seeds, and their standard deviation if there are several.

    >>> spread_of([50.0]), spread_of([50.0, 52.0]).mean
    (Spread(mean=50.0, deviation=None), 51.0)
    """
    return Spread(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None)


def compare(results: Sequence[Result]) -> list[Line]:
    """Groups results that differ in the seed only, in the order in which they come; gains are against the first."""
    metric, groups = _metric_of(results), dict[str, list[Result]]()
    for result in results:
        groups.setdefault(identity(result.experiment, without=("seed",)), []).append(result)
    names = labels([group[0].experiment for group in groups.values()])
    model = compared_model(results)
    target = metric.worst(metric.best(score for _, score in curve(result, model)) for result in results)
    first, *others = groups.values()
    fair = [each for each in others if alike_averaged(each[0].experiment, first[0].experiment)]
    pooled = {
        name: pool_of_pairs((paired(_headlines(each, name), _headlines(first, name)), names[0]) for each in fair)
        for name in first[0].scores
    }
    return [
        _line(name, each, first, (model, target), pooled) for name, each in zip(names, groups.values(), strict=True)
    ]


def curve(result: Result, model: str = "") -> list[tuple[int, float]]:
    """Returns (rounds done, score) of a model, or of the last scored one: that of all clients if it is scored."""
    curves = score_curves(read_rounds(result.folder))
    return [(t + 1, score) for t, score in curves.get(model, list(curves.values())[-1])]


def compared_model(results: Sequence[Result]) -> str:
    """Returns the last scored model that all results have; an algorithm whose uploads are no models has fewer."""
    common = [name for name in results[0].scores if all(name in each.scores for each in results)]
    return common[-1] if common else list(results[0].scores)[-1]


def averaged(experiments: Iterable[Experiment]) -> str:
    """Says over which rounds headlines are the mean.

    >>> some = [Experiment(rounds=20), Experiment(rounds=1), Experiment(rounds=600)]
    >>> [averaged([one]) for one in some]
    ['mean over all 20 rounds', 'after 1 round', 'mean over the last 100 rounds']
    >>> averaged(some), averaged([Experiment(rounds=12, eval_every=5)])
    ("mean over each run's last 100 rounds, or all if fewer", 'mean over the 3 scored of 12 rounds')
    """
    ones = list(experiments)
    found, whole = {averaged_rounds(one) for one in ones}, all(one.eval_every == 1 for one in ones)
    if len(found) > 1:
        return f"mean over {'' if whole else 'what is scored of '}each run's last {WINDOW} rounds, or all if fewer"
    if len(scored_rounds(ones[0])) == 1:
        return f"after {counted({one.rounds for one in ones}, 'round')}"
    return f"mean over {found.pop()}"


def scored_on(lines: Sequence[Line]) -> str:
    """Returns which images the runs of a comparison were scored on: test, held-out, or both."""
    found = {"held-out" if line.results[0].experiment.holdout else "test" for line in lines}
    return " or ".join(sorted(found, reverse=True))


def labels(experiments: Sequence[Experiment]) -> list[str]:
    """Names experiments by what differs among them.

    >>> labels([Experiment(), Experiment(parametrisation="atoms")])
    ['plain', 'atoms']
    >>> labels([Experiment(), Experiment(fixed="head")]), labels([Experiment(fixed="head")])
    (['fixed=none', 'fixed=head'], ['fedavg plain fixed=head'])
    >>> labels([Experiment(optimiser="adamw", schedule="cosine", beta="1/2", init="dct")])
    ['fedavg plain beta=1/2 adamw cosine']
    """
    names = [field.name for field in dataclasses.fields(Experiment) if field.name not in EXECUTION_FIELDS | {"seed"}]
    fields = [to_json(one) for one in experiments]
    varied = [name for name in names if len({str(one[name]) for one in fields}) > 1]
    return [
        " ".join(_show(name, texts[name]) for name in varied or _named(one))
        for one, texts in zip(experiments, fields, strict=True)
    ]


_NAMED_IF_UNUSUAL = (  # what is done, and neither to what data nor for how long
    *("atoms", "init", "gamma", "atoms_lr", "atoms_decay", "weights_sha256"),
    *("strength", "fixed", "personal", "personal_strength", "objective", "objective_strength"),
    *("aggregation", "attack", "uploads", "sampling", "failures", "dp_epsilon", "dp_noise"),
    *("beta", "fast", "slow_local", "optimiser", "schedule", "warmup", "step_schedule", "warmup_steps", "momentum"),
)


def _named(experiment: Experiment) -> list[str]:
    """Returns the fields that name an experiment alone: its method, and what of that is not as usual and matters."""
    fields, usual = to_json(experiment), to_json(Experiment())
    idle = {name for each in BESIDE if not each.matter(experiment) for name in each.fields}
    more = [name for name in _NAMED_IF_UNUSUAL if name not in idle and fields[name] != usual[name]]
    return ["algorithm", "parametrisation", *more]


def _show(name: str, value: object) -> str:
    if name == "weights_sha256":
        return f"weights={str(value)[:8] or 'none'}"
    if isinstance(value, str) and name not in ("beta", "fixed"):
        return value
    return f"{name.replace('_', '-')}={'none' if value == '' else value}"


def _line(label: str, group: list[Result], first: list[Result], aim: tuple[str, float], pooled: Pools) -> Line:
    reaches, (model, target) = group[0].metric.reaches, aim
    reached = [next(t for t, score in curve(result, model) if reaches(score, target)) for result in group]
    return Line(
        label=label,
        scores={name: _averages([result.scores[name] for result in group]) for name in group[0].scores},
        personal=_personal([result.personal or {} for result in group]),
        bytes_up=statistics.mean(ledger.total(result.bytes_up) for result in group),
        bytes_down=statistics.mean(ledger.total(result.bytes_down) for result in group),
        seconds=_mean_seconds(group),
        target=target,
        rounds_to_target=statistics.mean(reached),
        seeds=len(group),
        results=group,
        gains=_gains(group, first, pooled),
    )


def _mean_seconds(group: list[Result]) -> float | None:
    known = [seconds for result in group if (seconds := result.own_seconds) is not None]
    return statistics.mean(known) if len(known) == len(group) else None


def _gains(group: list[Result], first: list[Result], pooled: Pools) -> dict[str, Gain | None]:
    """Returns what a line has more than the first one, for the models that both score; nothing for the first itself.

    Nor where the means are over other rounds: the gain would be theirs.
    """
    if group is first or not alike_averaged(group[0].experiment, first[0].experiment):
        return {}
    both = [name for name in group[0].scores if name in first[0].scores]
    return {name: gain(_headlines(group, name), _headlines(first, name), pooled[name]) for name in both}


def _headlines(group: list[Result], name: str) -> dict[int, float]:
    return {result.experiment.seed: result.scores[name].headline for result in group if name in result.scores}


def _metric_of(results: Sequence[Result]) -> Scale:
    """Returns what all results are scored by; refuses a comparison of different metrics."""
    found = {result.metric.axis: result.metric for result in results}
    if len(found) > 1:
        raise ValueError(
            f"these runs are scored by {' and by '.join(sorted(found))}, which do not compare. Use one objective."
        )
    return next(iter(found.values()))


def _averages(summaries: list[Summary]) -> Averages:
    headlines, finals, bests = zip(*summaries, strict=True)
    return Averages(*spread_of(headlines), statistics.mean(finals), statistics.mean(bests))


def _personal(found: list[dict[str, float]]) -> dict[str, Spread]:
    return {name: spread_of([one[name] for one in found]) for name in found[0]}
