"""Many jobs on several devices: a process for each device takes the next job, and one that dies costs its job alone."""

import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from textwrap import shorten
from typing import Generic, NamedTuple, TypeVar

from fedatoms.core.lookup import one_line

J = TypeVar("J")
Tell = Callable[[object], None]  # sends word of a job's progress to the process that shows it
Work = Callable[
    [J, str, Tell], object
]  # does a job on a device; both are sent to another process, and so is the answer


class Ended(NamedTuple, Generic[J]):
    """A job that is over: what its work returned, or why it failed."""

    job: J
    answer: object = None
    failure: str = ""


def devices_of(text: str) -> list[str]:
    """Reads devices with commas between them, and refuses one that is not there; one may be named twice.

    >>> devices_of("cpu, cpu"), devices_of("")
    (['cpu', 'cpu'], [])
    """
    from fedatoms.experiment.build import device_of  # here: who serves a device reads no list of them
    from fedatoms.experiment.fields import Experiment

    names = [name.strip() for name in text.split(",")] if text else []
    for name in names:
        try:
            device_of(Experiment(device=name))
        except ValueError as error:
            why = shorten(one_line(error.__cause__ or error), 120, placeholder=" ...")
            raise ValueError(
                f"--devices {text}: '{name}' cannot be used here ({why}). Use for example --devices cpu,cpu."
            ) from None
    return names


def spread(
    work: Work[J], devices: Sequence[str], take: Callable[[], J | None], hear: Callable[[J, object], None]
) -> Generator[Ended[J], None, None]:
    """Does jobs on devices, and yields each as it ends; ``take`` gives the next one, ``hear`` gets word of each.

    If this process is stopped, so are the others, each with a checkpoint of its run; close the iterator to be sure.
    """
    workers = [_Worker(work, device) for device in devices]
    try:
        while True:
            for worker in workers:
                if worker.job is None and (job := take()) is not None:
                    worker.begin(job)
            busy = [worker for worker in workers if worker.job is not None]
            if not busy:
                return
            for one in _with_news(busy):
                if (ended := one.receive(hear)) is not None:
                    yield ended
    finally:
        _stop(workers)


class _Worker(Generic[J]):
    """A device with its process, which is started for the first job, and anew after one that it did not survive."""

    def __init__(self, work: Work[J], device: str) -> None:
        self.job: J | None = None
        self.process: SpawnProcess | None = None
        self._work, self._device = work, device

    def begin(self, job: J) -> None:
        if self.process is None:
            with _deaf():
                self.line, its = get_context("spawn").Pipe()
                self.process = get_context("spawn").Process(target=_serve, args=(its, self._work, self._device))
                self.process.start()
            its.close()  # so that its end is the end of the line
        self.job = job
        with suppress(OSError):  # it has died; the line says so
            self.line.send(job)

    def receive(self, hear: Callable[[J, object], None]) -> Ended[J] | None:
        job = self.job
        assert job is not None
        try:
            said = self.line.recv()
        except (EOFError, OSError):
            return self._died(job)
        if isinstance(said, _Warned):
            warnings.warn(said.text, stacklevel=2)
        elif isinstance(said, Ended):
            self.job = None
            return said._replace(job=job)
        else:
            hear(job, said)
        return None

    def _died(self, job: J) -> Ended[J]:
        assert self.process is not None
        self.process.join()
        code, self.job, self.process = self.process.exitcode or 0, None, None
        self.line.close()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        why = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
        return Ended(job, failure=f"its process on {self._device} was ended {how}{why}")


class _Warned(NamedTuple):
    text: str


def _serve(line: Connection, work: Work[J], device: str) -> None:
    """Does jobs until the line ends; a process that is told to stop saves its run's checkpoint first."""
    signal.signal(signal.SIGTERM, _stop_once)
    with suppress(KeyboardInterrupt, EOFError, OSError), warnings.catch_warnings():
        warnings.showwarning = lambda message, *where: line.send(_Warned(str(message)))
        while True:
            line.send(_done(line.recv(), work, device, line))
            gc.collect()  # a simulation and its compiled steps refer to each other: frees GPU memory for the next


def _done(job: J, work: Work[J], device: str, line: Connection) -> Ended[None]:
    def tell(said: object) -> None:
        try:
            line.send(said)
        except OSError:  # nobody listens any more
            raise KeyboardInterrupt from None

    try:
        return Ended(None, work(job, device, tell))
    except Exception as error:
        if os.environ.get("FEDATOMS_DEBUG"):
            traceback.print_exc()
        return Ended(None, failure=one_line(error))


def _stop_once(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # the checkpoint is being written
    raise KeyboardInterrupt


@contextmanager
def _deaf() -> Iterator[None]:
    """Lets a process that is started within hear no Ctrl-C and no closed terminal: this one tells it to stop."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # which lets the signals through when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _with_news(busy: Sequence[_Worker[J]]) -> list[_Worker[J]]:
    ready = wait([worker.line for worker in busy])
    return [worker for worker in busy if worker.line in ready]


def _stop(workers: Sequence[_Worker[J]]) -> None:
    """Ends all processes: those at work save a checkpoint, unless somebody asks a second time."""
    alive = [worker.process for worker in workers if worker.process is not None]
    for process in alive:
        process.terminate()
    try:
        for process in alive:
            process.join()
    except KeyboardInterrupt:
        for process in alive:
            process.kill()
        raise
