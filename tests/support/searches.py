"""A small search, and what tests of searches have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fedatoms.engine.loop import Watch
from fedatoms.experiment.fields import Experiment
from fedatoms.tuning.settings import Tune
from fedatoms.tuning.space import axes_of
from fedatoms.tuning.studies import Plan

TINY = Experiment(
    clients=5,
    fraction=0.4,
    rounds=3,
    epochs=1,
    batch_size=50,
    checkpoint_every=2,
    threads=1,
    holdout=0.1,
    score="server",
)


class Killed(BaseException):
    """What ends a search in the tests, at once."""


@contextmanager
def silent(label: str, rounds: int) -> Iterator[Watch]:
    """Shows nothing."""
    yield lambda progress: None


def plan_of(*over: str, experiment: Experiment = TINY, **asked: object) -> Plan:
    """Returns the plan of a search without pruning."""
    return Plan(experiment, axes_of(over, experiment), replace(Tune(prune="none"), **asked))  # type: ignore[arg-type]
