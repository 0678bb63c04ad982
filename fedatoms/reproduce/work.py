"""Doing jobs: one after the other in this process, or spread over a Ray cluster."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fedatoms.build import device_of
from fedatoms.compare import finish
from fedatoms.measures import MEASURES
from fedatoms.measures.files import write_measure
from fedatoms.reproduce.plan import Job
from fedatoms.scoring import Progress

Tick = Callable[[float], None]  # the share of a job that is done
FAILURES = (ValueError, OSError, FloatingPointError, MemoryError)  # of one job; the others go on


class Done(NamedTuple):
    """A job that is over, and why it failed if it did."""

    job: Job
    failure: str = ""


def perform(job: Job, tick: Tick = lambda share: None) -> Done:
    """Does a job and writes its result; what was begun goes on where it stopped."""
    try:
        if job.measure:
            kind = MEASURES[job.measure]
            settings = kind.quick if job.quick else kind.settings
            watch = lambda done, total, what: tick(done / total)  # noqa: E731
            write_measure(job.folder, kind.measure(job.experiments, settings, watch))
        else:
            (experiment,) = job.experiments
            finish(experiment, lambda progress: tick(_share(progress, experiment.rounds)))
    except FAILURES as error:
        return Done(job, " ".join(str(error).split()) or type(error).__name__)
    return Done(job)


def here(jobs: Sequence[Job], tick: Callable[[Job, float], None]) -> Iterator[Done]:
    """Does jobs one after the other."""
    for job in jobs:
        yield perform(job, lambda share, job=job: tick(job, share))  # type: ignore[misc]


def on_ray(jobs: Sequence[Job], tick: Callable[[Job, float], None]) -> Iterator[Done]:
    """Does jobs on the nodes of a Ray cluster, in whatever order they end; all nodes must see the same folders."""
    if importlib.util.find_spec("ray") is None:
        raise ValueError('Ray is not installed. Use pip install "fedatoms[ray]", or leave --on ray out.')
    import ray

    ray.init(ignore_reinit_error=True, log_to_driver=False)
    try:
        remote = ray.remote(perform)
        going = {remote.options(**_share_of_node(job)).remote(job): job for job in jobs}
        while going:
            (ready,), _ = ray.wait(list(going), num_returns=1)
            tick(going.pop(ready), 1.0)
            yield ray.get(ready)
    finally:
        ray.shutdown()


def _share_of_node(job: Job) -> dict[str, float]:
    """One GPU for a job on GPUs, one core for one on CPUs."""
    device = device_of(job.experiments[0]) if job.experiments else "cpu"
    return {"num_cpus": 1, "num_gpus": 0 if device == "cpu" else 1}


def _share(progress: Progress, rounds: int) -> float:
    return progress.state.round / rounds
