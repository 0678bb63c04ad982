"""The search: trial after trial, each an ordinary run for every seed, until all are over; a kill costs no trial."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from fedatoms.core.lookup import counted, one_line
from fedatoms.core.options import check_numbers, check_range
from fedatoms.core.run_files import CLIENTS
from fedatoms.engine.loop import Progress, Watch
from fedatoms.engine.spec import Simulation
from fedatoms.experiment.build import simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import run_folder
from fedatoms.experiment.images import Read, images_for, shared_images
from fedatoms.experiment.parse import is_private
from fedatoms.experiment.weights import changed
from fedatoms.runs.comparison import Watching
from fedatoms.runs.lock import locked
from fedatoms.runs.results import Result, score_curves
from fedatoms.runs.rounds import read_lines
from fedatoms.tuning.blocks import Ending, Endings, Failed, attempt, beside, label_of
from fedatoms.tuning.proposals import Proposal, check_optuna, propose, repeated, step_of
from fedatoms.tuning.space import size_of
from fedatoms.tuning.studies import Plan, Point, Study, Trial, begin, check_folder, runs_of, write

Command = Callable[[Experiment], str]  # how a user types an experiment


class Behind(KeyboardInterrupt):
    """Stops the run of a trial that is behind as Ctrl-C does: with a checkpoint, and no note of a failure."""


def search(plan: Plan, folder: Path, watching: Watching, command: Command = lambda experiment: "") -> Study:
    """Tries the settings of a plan that its folder has no trial of yet, and returns the study.

    The folder has one writer. A trial is written down when it is over; one that was killed goes on from its last
    checkpoint. ``command`` says what is written beside the best trial.
    """
    check_plan(plan)
    check_folder(folder)
    study = _new(plan, folder)
    with locked(folder):
        for path in folder.glob("*.partial"):  # its trials' folders have writers of their own
            path.unlink()
        study = begin(study)
        write(study)
        known: Endings = {}
        while len(study.trials) < plan.trials:
            trial, known = _next(study, known, watching)
            study = study._replace(trials=(*study.trials, trial))
            write(study)
        write(study, command(best_of(study)) if study.best else "")
    return study


def check_plan(plan: Plan) -> None:
    """Refuses a search that cannot be, or that would choose settings by the test images."""
    if not plan.experiment.holdout > 0:
        raise ValueError(
            f"holdout={plan.experiment.holdout:g} would choose settings by their scores on the test images, which then "
            f"tell nothing any more. Use for example holdout=0.1."
        )
    if is_private(plan.experiment):
        raise ValueError(
            "differential privacy in a search: what its trials and the choice among them cost is not accounted for. "
            "Search on data that are public, without dp_epsilon and dp_noise."
        )
    if plan.experiment.name:
        raise ValueError("`name` cannot name the runs of a search: each has its own folder in `out`. Leave it out.")
    check_numbers(plan.tune, "tune")
    for place, seed in enumerate(plan.seeds):
        check_range("seed", seed)
        if seed in plan.seeds[:place]:
            raise ValueError(f"seeds={','.join(map(str, plan.seeds))} has {seed} twice. Leave one out.")
    if plan.is_grid and plan.tune.trials is not None:
        size = counted(size_of(plan.axes), "point")
        raise ValueError(
            f"trials={plan.tune.trials}: these lists are a grid of {size}, and all are tried. Leave it out, or give "
            f"a range such as --over 'lr=0.01..1:log'."
        )
    check_optuna(plan)


def best_of(study: Study) -> Experiment:
    """Returns the experiment of the best trial as it is to be run: scored on the test images."""
    assert study.best is not None
    return replace(changed(study.plan.experiment, study.best.settings), holdout=0.0, seed=study.plan.seeds[0])


def _new(plan: Plan, folder: Path) -> Study:
    """Returns a study without trials; every value of its axes is tried out on the way, before hours are spent."""
    read = shared_images()
    sims = [_built(replace(one, out=str(folder)), read) for one in _samples(plan)]
    common = [name for name in sims[0].scored if all(name in sim.scored for sim in sims)]
    if not common:
        raise ValueError(
            f"score={plan.experiment.score}: these settings score no model in common. Name one, as server."
        )
    return Study(folder, plan, common[-1], sims[0].objective.scale)


def _samples(plan: Plan) -> Iterator[Experiment]:
    """Yields experiments in which every value of each list and both ends of each range occur."""
    first = {axis.field: axis.ends[0] for axis in plan.axes}
    yield changed(plan.experiment, first)
    for axis in plan.axes:
        for value in axis.ends[1:]:
            yield changed(plan.experiment, {**first, axis.field: value})


def _built(experiment: Experiment, read: Read = images_for) -> Simulation:
    return simulation(experiment, run_folder(experiment) / CLIENTS, read=read)


def _next(study: Study, known: Endings, watching: Watching) -> tuple[Trial, Endings]:
    """Returns the next trial, which is over, and how runs of later ones ended that were trained beside its own."""
    proposal = propose(study)
    if (same := repeated(study.trials, proposal.settings)) is not None:
        why = f"the same as trial {same.number}"
        return same._replace(number=proposal.number, state="repeated", why=why), known
    known = beside(study, proposal, known, watching)
    return _try(study, proposal, known, watching), known


def _try(study: Study, proposal: Proposal, known: Endings, watching: Watching) -> Trial:
    """Returns a trial that is over: what it gave, or why it was stopped."""
    number, settings, _ = proposal
    curve: list[Point] = []
    results: list[Result] = []
    runs = runs_of(study, number, settings)
    try:
        if not isinstance(known.get(runs[0].name), Result):  # else it was built, in a block
            _built(runs[0])
    except ValueError as error:  # values that are good alone, but not together
        return Trial(number, settings, "failed", None, curve, one_line(error))
    for run in runs:
        try:
            ended = _train(study, proposal, curve, run, known.get(run.name), watching)
        except Behind:
            return Trial(number, settings, "pruned", None, curve)
        if isinstance(ended, Failed):
            return Trial(number, settings, "failed", None, curve, ended.why)
        results.append(ended)
    return _over(study, proposal, curve, results)


def _over(study: Study, proposal: Proposal, curve: list[Point], results: Sequence[Result]) -> Trial:
    scores = [result.scores[study.model].headline for result in results if study.model in result.scores]
    if len(scores) < len(results):
        return Trial(proposal.number, proposal.settings, "failed", None, curve, "its scores are not finite")
    return Trial(proposal.number, proposal.settings, "finished", fmean(scores), curve)


def _train(
    study: Study, proposal: Proposal, curve: list[Point], run: Experiment, known: Ending | None, watching: Watching
) -> Result | Failed:
    """Runs or resumes one run of a trial, unless it is known how it ended.

    ``curve`` gets its scores, those of rounds that are done already first.
    """
    place = study.plan.seeds.index(run.seed)
    last = place + 1 == len(study.plan.seeds)

    def see(rounds: int, score: float) -> None:
        if any(point.run == place and point.rounds >= rounds for point in curve) or not math.isfinite(score):
            return
        curve.append(Point(place, rounds, score))
        behind = proposal.is_behind(step_of(study.plan, place, rounds), score)
        if behind and not (last and rounds == run.rounds):
            raise Behind

    @contextmanager
    def seen() -> Iterator[Watch]:
        with watching(label_of(study, proposal.number, run), run.rounds) as watch:

            def after(progress: Progress) -> None:
                watch(progress)
                for name, found in progress.scores.items():
                    if name == study.model:
                        see(progress.state.round, found.value)

            yield after

    for t, score in score_curves(read_lines(run_folder(run)).rows).get(study.model, []):
        see(t + 1, score)
    if isinstance(known, Exception):
        raise known
    return attempt(run, seen()) if known is None else known
