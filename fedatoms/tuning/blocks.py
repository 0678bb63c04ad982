"""Trials in one block: where no score decides about a run, those to come are trained beside the one that is due.

The search itself stays trial after trial: it asks how a run ended, and is told at once what a block has answered.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch

from fedatoms.core.lookup import one_line
from fedatoms.core.run_files import RESULT
from fedatoms.engine.loop import Watch
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import run_folder
from fedatoms.experiment.weights import pinned
from fedatoms.runs.abreast import NotBeside
from fedatoms.runs.comparison import Watching, finish
from fedatoms.runs.execute import Engine
from fedatoms.runs.one_block import block_mates, in_one_block
from fedatoms.runs.results import Result
from fedatoms.tuning.proposals import Proposal, is_pruned
from fedatoms.tuning.space import points
from fedatoms.tuning.studies import Study, runs_of

AHEAD = 256  # trials among which company is looked for: a grid may have thousands


class Failed(NamedTuple):
    """Why a run has no result. In words: an error would hold the tensors of those that raised it."""

    why: str


Ending = Result | Failed | Exception  # any other error ends the search, once the trial of its run is due
Endings = Mapping[str, Ending]  # by the names of runs
NO_RESULT = (Failed, Exception)


def attempt(run: Experiment, watch: AbstractContextManager[Watch], engine: Engine | None = None) -> Result | Failed:
    """Runs or resumes a run; one that is not finite, or has not enough memory, has failed."""
    try:
        with watch as after:
            return finish(run, after, engine=engine)
    except (FloatingPointError, MemoryError, torch.OutOfMemoryError) as error:
        return Failed(one_line(error))


def beside(study: Study, due: Proposal, known: Endings, watching: Watching) -> Endings:
    """Trains the runs of a trial that is due in blocks with others, where they can share some; adds how all ended.

    With a grid the others are those of points to come, too; what a range draws next depends on this trial. A run that
    finds no company is left alone, and so are all where trials are stopped early: each is judged by those before it.
    """
    if is_pruned(study.plan):
        return known
    found, study = dict(known), _pinned(study)
    for run in runs_of(study, due.number, due.settings):
        if run.name not in found:
            found |= _in_one_block(study, due, run, found, watching)
        if isinstance(found.get(run.name), NO_RESULT):
            break  # its trial is over: those of other seeds are not run
    return found


def label_of(study: Study, number: int, run: Experiment) -> str:
    """Names a run of a trial where its progress is shown."""
    return f"[{number + 1}/{study.plan.trials}] {run.name}"


def _pinned(study: Study) -> Study:
    """Returns a study that knows the SHA-256 of its weights: they are not read for each run that may share a block."""
    return study._replace(plan=study.plan._replace(experiment=pinned(study.plan.experiment)))


def _in_one_block(study: Study, due: Proposal, run: Experiment, known: Endings, watching: Watching) -> Endings:
    """Trains a run and those that fit into one block with it; nothing if there are none, or if it has its result."""
    coming = dict(_coming(study, due, known))
    if run not in coming:
        return {}
    group = block_mates([run, *(one for one in coming if one != run)], study.plan.tune.together)
    if len(group) == 1:
        return {}

    def work(one: Experiment, engine: Engine | None) -> Ending:
        try:
            return attempt(one, watching(label_of(study, coming[one], one), one.rounds), engine)
        except NotBeside:
            raise
        except Exception as error:
            return error

    over = in_one_block([partial(work, one) for one in group])
    return {one.name: ending for one, ending in zip(group, over, strict=True) if ending is not None}


def _coming(study: Study, due: Proposal, known: Endings) -> Iterator[tuple[Experiment, int]]:
    """Yields the runs that will be asked for, as far as that is certain, with the numbers of their trials."""
    more = enumerate(points(study.plan.axes)) if study.plan.is_grid else iter(())
    trials = [(due.number, due.settings), *islice(more, due.number + 1, due.number + AHEAD)]
    for number, settings in trials:
        for run in runs_of(study, number, settings):
            if isinstance(known.get(run.name), NO_RESULT):
                break
            if run.name not in known and not (run_folder(run) / RESULT).exists():
                yield run, number
