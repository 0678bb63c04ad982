"""Runs jobs: one after the other in this process, on several devices at once, or on a Ray cluster."""

import gc
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import torch

from fedatoms.core.extras import need
from fedatoms.core.lookup import one_line
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.files import FILE, write_measure
from fedatoms.evidence.reproduce.budget import NO_LIMIT, Limit, next_of, took
from fedatoms.evidence.reproduce.plan import Job, missing
from fedatoms.evidence.results.finding import find
from fedatoms.experiment.identities import run_folder
from fedatoms.runs.comparison import existing, finish
from fedatoms.runs.devices import spread
from fedatoms.runs.execute import Engine
from fedatoms.runs.lock import locked
from fedatoms.runs.one_block import block_mates, in_one_block
from fedatoms.runs.results import Result

Tick = Callable[[float], None]  # progress callback: the share of a job that is done
Tell = Callable[[Job, float], None]  # the same for any job
FAILURES = (ValueError, OSError, FloatingPointError, MemoryError, torch.OutOfMemoryError)  # of one job


class TimeOver(KeyboardInterrupt):
    """Stops a run as Ctrl-C does, with a checkpoint."""


class Done(NamedTuple):
    """A job that has ended, with the reason if it failed."""

    job: Job
    failure: str = ""


def perform(job: Job, tick: Tick = lambda share: None, engine: Engine | None = None) -> Done:
    """Runs a job and writes its result; a run that was started continues from its checkpoint."""
    try:
        _measure(job, tick) if job.measure else _train(job, tick, engine)
    except FAILURES as error:
        return Done(job, one_line(error))
    return Done(job)


def here(jobs: Sequence[Job], tell: Tell, limit: Limit = NO_LIMIT, together: int = 1) -> Iterator[Done]:
    """Runs jobs one after the other: all, or as long as one should finish within the limit.

    Without a limit, up to ``together`` runs whose clients can be trained in one block are one job.
    """
    left, known = list(jobs), list(limit.known)
    while (job := next_of(left, known, limit.end - limit.clock(), limit.begun)) is not None:
        group = _mates(job, left, together) if limit.end == math.inf else [job]
        for each in group:
            tell(each, 0.0)
        try:
            over = in_one_block([partial(perform, each, partial(_watch, each, tell, limit)) for each in group])
        except TimeOver:
            return
        gc.collect()  # a simulation and its compiled steps refer to each other: frees GPU memory for the next
        for done in filter(None, over):
            left.remove(done.job)
            if not (done.job.measure or done.failure) and (result := existing(done.job.experiments[0])):
                known += took([result], limit.device)
            yield done


def on_devices(jobs: Sequence[Job], tell: Tell, limit: Limit, devices: Sequence[str]) -> Iterator[Done]:
    """Runs jobs on several devices, one on each at a time, and yields them as they end."""
    left, known = list(jobs), list(limit.known)

    def take() -> _Order | None:
        job = next_of(left, known, limit.end - limit.clock(), limit.begun)
        if job is None:
            return None
        left.remove(job)
        tell(job, 0.0)
        return _Order(job, limit.end - limit.clock())

    for (job, _), answer, failure in spread(
        _obey, devices, take, lambda order, share: tell(order.job, cast(float, share))
    ):
        if answer is None and not failure:  # time was over
            continue
        if not (job.measure or failure or answer) and (result := existing(job.experiments[0])):
            known += took([result], limit.device)
        yield Done(job, failure or str(answer))


def on_ray(jobs: Sequence[Job], tell: Tell) -> Iterator[Done]:
    """Runs jobs on a Ray cluster and yields them as they end; all nodes must see the same folders."""
    need("--on ray", "ray", "ray", otherwise=", or leave --on ray out")
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default, without its warning
    ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.WARNING)
    try:
        remote, there = ray.remote(perform), ray.cluster_resources()
        shares = [share_of_node(job, there) for job in jobs]  # checks all before the first starts
        going = {remote.options(**share).remote(_absolute(job)): job for job, share in zip(jobs, shares, strict=True)}
        while going:
            (ready,), _ = ray.wait(list(going), num_returns=1)
            job = going.pop(ready)
            try:
                yield ray.get(ready)._replace(job=job)
            except ray.exceptions.RayError as error:  # a node died; the other jobs continue
                yield Done(job, one_line(error))
    finally:
        ray.shutdown()


def is_done(job: Job) -> bool:
    """Returns whether a job has a result now: another process may have finished it meanwhile."""
    folder = job.folder if job.measure else run_folder(job.experiments[0])
    return folder.is_dir() and not missing([job], find([folder]))


def share_of_node(job: Job, cluster: Mapping[str, float]) -> dict[str, float]:
    """Returns the resources of a job: one core, and one GPU if it can use one and the cluster has any.

    >>> share_of_node(Job("synthetic", ()), {"CPU": 4.0, "GPU": 1.0})
    {'num_cpus': 1, 'num_gpus': 0}
    """
    device = job.experiments[0].device if job.experiments else "cpu"
    if device.startswith("cuda") and not cluster.get("GPU"):
        raise ValueError(
            f"--device {device}: the Ray cluster has no GPU. Use --device cpu, or add a node that has one."
        )
    return {"num_cpus": 1, "num_gpus": int(device != "cpu" and bool(cluster.get("GPU")))}


class _Order(NamedTuple):
    """A job for another process, and the seconds after which it should stop."""

    job: Job
    seconds: float


def _obey(order: _Order, device: str, tell: Callable[[object], None]) -> str | None:
    """Runs a job on a device, in a process of its own; returns why it failed, or None if its time was over."""
    job, end = order.job, time.monotonic() + order.seconds
    there = job._replace(experiments=tuple(replace(one, device=device) for one in job.experiments))
    try:
        return perform(there, partial(_watch, there, lambda _, share: tell(share), Limit(end))).failure
    except TimeOver:
        return None


def _mates(job: Job, left: Sequence[Job], together: int) -> list[Job]:
    """Returns a job and those whose runs can be trained in one block with its own."""
    if job.measure:
        return [job]
    runs = [job, *(each for each in left if not each.measure and each != job)]
    mates = block_mates([each.experiments[0] for each in runs], together)
    return [each for each in runs if each.experiments[0] in mates]


def _train(job: Job, tick: Tick, engine: Engine | None) -> None:
    (one,) = job.experiments
    known = partial(_whole_result, job)
    finish(one, lambda progress: tick(progress.state.round / one.rounds), known, engine=engine)


def _whole_result(job: Job) -> Result | None:
    """Returns the result of a run unless ``find`` calls it damaged: then it is run again."""
    return existing(job.experiments[0]) if is_done(job) else None


def _measure(job: Job, tick: Tick) -> None:
    with locked(job.folder):
        if not missing([job], find([job.folder])):
            return
        if _is_whole(job.folder / FILE):  # perhaps of another version, or older than a copy of it
            other = f"{job.folder} holds a measure of other experiments or settings, which would be overwritten"
            raise ValueError(f"{other}. Rename this folder to keep it, or use another --out.")
        kind = MEASURES[job.measure]
        settings = kind.quick if job.quick else kind.settings
        measure = kind.measure(job.experiments, settings, lambda done, total, what: tick(done / total))
        write_measure(job.folder, measure)


def _is_whole(file: Path) -> bool:
    """Says whether a file is there, and not cut off."""
    try:
        return isinstance(json.loads(file.read_bytes()), dict)
    except (OSError, ValueError):
        return False


def _watch(job: Job, tell: Tell, limit: Limit, share: float) -> None:
    """Reports progress, and stops a run when time is up; a measure would be lost, and continues."""
    tell(job, share)
    if not job.measure and share < 1 and limit.clock() >= limit.end:
        raise TimeOver


def _absolute(job: Job) -> Job:
    """Makes paths absolute, since a worker has another working folder."""
    there = tuple(replace(one, data_dir=_resolved(one.data_dir), out=_resolved(one.out)) for one in job.experiments)
    return job._replace(out=_resolved(job.out), experiments=there)


def _resolved(path: str) -> str:
    return str(Path(path).resolve())
