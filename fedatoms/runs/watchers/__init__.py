"""Watchers: what sees the numbers of every round of a run, where people already look; one file each."""

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, cast

from fedatoms.core.extras import need
from fedatoms.core.lookup import one_line
from fedatoms.core.options import Watcher
from fedatoms.engine.loop import Progress, Watch
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.parse import watchers_of
from fedatoms.runs.rounds import row_of
from fedatoms.runs.watchers.base import Ended, Open, Watching, missed, numbers_of


class Way(NamedTuple):
    """How to open a watcher: module:function in this folder, and the packages of the extra that has its name.

    One that cannot take back rounds hears of each only when a checkpoint has it: no kill can throw it away then.
    """

    opens: str
    packages: tuple[str, ...]
    takes_back: bool = False


_Round = tuple[int, Mapping[str, float]]  # its number, and what was measured in it

WATCHERS: dict[Watcher, Way] = {
    "tensorboard": Way("_tensorboard:tensorboard", ("tensorboard",), takes_back=True),
    "mlflow": Way("_mlflow:mlflow", ("mlflow", "sqlalchemy", "alembic")),
    "wandb": Way("_wandb:wandb", ("wandb",)),
}


def check_watchers(experiment: Experiment) -> None:
    """Refuses an experiment whose watchers are not installed.

    >>> check_watchers(Experiment())
    """
    for name in watchers_of(experiment):
        need(f"watch={name}", name, *WATCHERS[name].packages)


@contextmanager
def watching(experiment: Experiment, folder: Path, first: int) -> Iterator[tuple[Watch, Callable[[], None]]]:
    """Opens the watchers of a run after its round ``first``, and closes them, also when the run fails or is stopped.

    Yields what shows them a round, and what says that a checkpoint has all rounds that were shown.
    One that fails on the way is left out with a warning: the run goes on, and its folder has every number.
    """
    with ExitStack() as ways:
        opened = dict[Watcher, Watching]()
        for name in watchers_of(experiment):
            opened[name] = ways.enter_context(_closing(_open(name, experiment, folder, first)))
            _tell(opened, [name], missed(opened[name], folder))
        held: list[_Round] = []  # since the last checkpoint

        def settle() -> None:
            late = [name for name in opened if not WATCHERS[name].takes_back]
            while held:  # one by one: a Ctrl-C here tells no round twice
                _tell(opened, late, [held.pop(0)])

        def watch(progress: Progress) -> None:
            held.append((progress.state.round, numbers_of(row_of(progress))))
            _tell(opened, [name for name in opened if WATCHERS[name].takes_back], held[-1:])

        yield watch, settle


def _tell(opened: dict[Watcher, Watching], names: list[Watcher], rounds: list[_Round]) -> None:
    """Shows rounds to some of the watchers, and closes out one that fails."""
    for name in names:
        try:
            for t, numbers in rounds:
                opened[name].see(t, numbers)
        except Exception as error:  # whatever a store may raise
            del opened[name]
            warnings.warn(f"watch={name} fails, and the run goes on without it: {one_line(error)}", stacklevel=3)


def _open(name: Watcher, experiment: Experiment, folder: Path, first: int) -> Watching:
    module, _, function = WATCHERS[name].opens.partition(":")
    opens = cast(Open, getattr(importlib.import_module(f"{__name__}.{module}"), function))
    try:
        return opens(experiment, folder, first)
    except Exception as error:
        raise ValueError(f"watch={name} cannot begin: {one_line(error)}. Leave it out, or mend its store.") from error


@contextmanager
def _closing(watcher: Watching) -> Iterator[Watching]:
    """Closes a watcher with how the run ended."""
    ended: Ended = "failed"
    try:
        yield watcher
        ended = "finished"
    except KeyboardInterrupt:
        ended = "stopped"
        raise
    finally:
        with suppress(Exception):  # the run's own end, or error, is what counts
            watcher.close(ended)
