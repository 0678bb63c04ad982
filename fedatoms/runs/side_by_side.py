"""The missing runs of a comparison on several devices: one process for each, and the same results as in turn."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import NamedTuple

from fedatoms.algorithms.base import Server
from fedatoms.core.lookup import one_line
from fedatoms.engine.client_states import Clients, Held
from fedatoms.engine.loop import Progress, Watch
from fedatoms.engine.state import State
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import run_name
from fedatoms.runs.comparison import Failure, Watching, check_runs, existing, finish
from fedatoms.runs.devices import Tell, spread


class _Job(NamedTuple):
    label: str
    experiment: Experiment


def run_on(
    devices: Sequence[str],
    experiments: Sequence[Experiment],
    watching: Watching,
    failed: Callable[[Failure], None],
) -> None:
    """Runs or resumes the experiments that have no result yet; those that fail are told, and the others go on."""
    check_runs(experiments)
    numbered = [_Job(f"[{i}/{len(experiments)}] {run_name(one)}", one) for i, one in enumerate(experiments, 1)]
    left = [job for job in numbered if existing(job.experiment) is None]
    jobs, shown = iter(left), _Shown(watching)
    with shown.open, closing(spread(_work, devices, lambda: next(jobs, None), shown.hear)) as over:
        for job, why, failure in over:
            shown.close(job)
            if (why or failure) and existing(job.experiment) is None:  # else another process finished it
                failed(Failure(job.experiment, str(why or failure), diverged=bool(why)))


class _Shown:
    """What is shown of the runs that go on: one callback for each, from its first word to its end."""

    def __init__(self, watching: Watching) -> None:
        self._watching, self._going = watching, dict[str, tuple[ExitStack, Watch]]()
        self.open = ExitStack()

    def hear(self, job: _Job, said: object) -> None:
        if job.label not in self._going:
            own = self.open.enter_context(ExitStack())
            self._going[job.label] = own, own.enter_context(self._watching(job.label, job.experiment.rounds))
        if isinstance(said, Progress):
            self._going[job.label][1](said)

    def close(self, job: _Job) -> None:
        if job.label in self._going:
            self._going.pop(job.label)[0].close()


def _work(job: _Job, device: str, tell: Tell) -> str:
    """Finishes a run on a device, in a process of its own; returns why it diverged, if it did."""
    tell(None)  # it begins
    try:
        finish(replace(job.experiment, device=device), lambda progress: tell(_outline(progress)))
    except FloatingPointError as error:
        return one_line(error)
    return ""


def _outline(progress: Progress) -> Progress:
    """Returns what is shown of a round: its models stay where they are."""
    return progress._replace(state=State(progress.state.round, Server({}, {}), Clients(), {}, Held(), None, {}))
