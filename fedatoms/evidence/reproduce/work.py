"""Doing jobs: one after the other in this process, or spread over a Ray cluster."""

import gc
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from fedatoms.core.lookup import one_line
from fedatoms.engine.evaluate import Progress
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.files import write_measure
from fedatoms.evidence.reproduce.budget import NO_LIMIT, Limit, next_of, took
from fedatoms.evidence.reproduce.plan import Job, missing
from fedatoms.evidence.results.find import find
from fedatoms.runs.compare import existing, finish, folder_of
from fedatoms.runs.lock import locked

Tick = Callable[[float], None]  # the share of a job that is done
Tell = Callable[[Job, float], None]
FAILURES = (ValueError, OSError, FloatingPointError, MemoryError, torch.OutOfMemoryError)  # of one job; others go on


class TimeOver(KeyboardInterrupt):
    """Stops a run as Ctrl-C does: it saves a checkpoint."""


class Done(NamedTuple):
    """A job that is over, and why it failed if it did."""

    job: Job
    failure: str = ""


def perform(job: Job, tick: Tick = lambda share: None) -> Done:
    """Does a job and writes its result; what was begun goes on where it stopped."""
    try:
        if job.measure:
            with locked(job.folder):
                _measure(job, tick)
        else:
            (experiment,) = job.experiments
            if not is_done(job):
                finish(experiment, lambda progress: tick(_share(progress, experiment.rounds)))
    except FAILURES as error:
        return Done(job, one_line(error))
    return Done(job)


def here(jobs: Sequence[Job], tell: Tell, limit: Limit = NO_LIMIT) -> Iterator[Done]:
    """Does jobs one after the other: all, or always the first that should end within the limit."""
    left, known = list(jobs), list(limit.known)
    while (job := next_of(left, known, limit.end - limit.clock(), limit.begun)) is not None:
        left.remove(job)
        tell(job, 0.0)
        try:
            done = perform(job, partial(_watch, job, tell, limit))
        except TimeOver:
            return
        gc.collect()  # a simulation and its compiled steps refer to each other: on a GPU the next one needs their room
        tell(job, 1.0)  # also one that failed, or had only its result to write
        if not (job.measure or done.failure) and (result := existing(job.experiments[0])):
            known += took([result], limit.device)
        yield done


def on_ray(jobs: Sequence[Job], tell: Tell) -> Iterator[Done]:
    """Does jobs on the nodes of a Ray cluster, in whatever order they end; all nodes must see the same folders."""
    if importlib.util.find_spec("ray") is None:
        raise ValueError('Ray is not installed. Use pip install "fedatoms[ray]", or leave --on ray out.')
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do anyway, without its warning
    ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.WARNING)
    try:
        remote, there = ray.remote(perform), ray.cluster_resources()
        shares = [share_of_node(job, there) for job in jobs]  # all of them before the first begins
        going = {remote.options(**share).remote(_anywhere(job)): job for job, share in zip(jobs, shares, strict=True)}
        while going:
            (ready,), _ = ray.wait(list(going), num_returns=1)
            job = going.pop(ready)
            tell(job, 1.0)
            try:
                yield ray.get(ready)._replace(job=job)
            except ray.exceptions.RayError as error:  # a node or its memory is gone; the other jobs are not
                yield Done(job, one_line(error))
    finally:
        ray.shutdown()


def is_done(job: Job) -> bool:
    """Looks again, since another process may have done a job after the jobs were listed."""
    folder = job.folder if job.measure else folder_of(job.experiments[0])
    return folder.is_dir() and not missing([job], find([folder]))


def share_of_node(job: Job, cluster: Mapping[str, float]) -> dict[str, float]:
    """Returns what a job takes of a node: one GPU if it wants one and the cluster has any, and one core.

    >>> share_of_node(Job("synthetic", ()), {"CPU": 4.0, "GPU": 1.0})
    {'num_cpus': 1, 'num_gpus': 0}
    """
    device = job.experiments[0].device if job.experiments else "cpu"
    if device.startswith("cuda") and not cluster.get("GPU"):
        raise ValueError(
            f"--device {device}: the Ray cluster has no GPU. Use --device cpu, or add a node that has one."
        )
    return {"num_cpus": 1, "num_gpus": int(device != "cpu" and bool(cluster.get("GPU")))}


def _measure(job: Job, tick: Tick) -> None:
    if not is_done(job):
        kind = MEASURES[job.measure]
        settings = kind.quick if job.quick else kind.settings
        measure = kind.measure(job.experiments, settings, lambda done, total, what: tick(done / total))
        write_measure(job.folder, measure)


def _watch(job: Job, tell: Tell, limit: Limit, share: float) -> None:
    """Tells how far a job is, and stops a run when time is over; a measure would be lost and may go on."""
    tell(job, share)
    if not job.measure and share < 1 and limit.clock() >= limit.end:
        raise TimeOver


def _anywhere(job: Job) -> Job:
    """Makes paths absolute: a worker's folder is not the one in which the command was typed."""
    there = tuple(replace(one, data_dir=_whole(one.data_dir), out=_whole(one.out)) for one in job.experiments)
    return job._replace(out=_whole(job.out), experiments=there)


def _whole(path: str) -> str:
    return str(Path(path).resolve())


def _share(progress: Progress, rounds: int) -> float:
    return progress.state.round / rounds
