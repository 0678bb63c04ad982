"""Runs whose clients are trained in one block: which of them, as many as keep a device busy, and how they end."""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from fedatoms.engine.execution.blocks import MOST
from fedatoms.engine.runtime import is_vectorised
from fedatoms.engine.server import sample_size
from fedatoms.experiment.build import device_of, simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import block_kind
from fedatoms.experiment.images import shared_images
from fedatoms.runs.abreast import Abreast, NotBeside
from fedatoms.runs.execute import Engine

T = TypeVar("T")


def block_mates(experiments: Sequence[Experiment], most: int) -> list[Experiment]:
    """Returns the first experiment and those after it, ``most`` in all, whose clients fit into one block with its own.

    >>> seeds = [Experiment(seed=seed, map="vectorised") for seed in range(4)]
    >>> [one.seed for one in block_mates([*seeds, Experiment(seed=9)], most=3)]
    [0, 1, 2]
    >>> len(block_mates([Experiment(map="one_by_one"), *seeds], most=3))
    1
    """
    first, *others = experiments
    if (
        most < 2 or first.deterministic or not is_vectorised(first.map, device_of(first))
    ):  # another block, other kernels and other bits
        return [first]
    kind, group = block_kind(first), [first]
    for one in others:
        clients = sum(_clients(each) for each in (*group, one))
        if len(group) < most and clients <= (first.block or MOST) and block_kind(one) == kind:
            group.append(one)
    return group


def in_one_block(works: Sequence[Callable[[Engine | None], T]]) -> list[T | None]:
    """Does the work of several runs abreast, each with the engine that it is given; a single one takes its own.

    Returns what each of them returns, or None for one that cannot share blocks with those before it: it has not begun.
    If some fail, the others go on to their ends, and then the first error is raised.

    >>> in_one_block([lambda engine: "done"])
    ['done']
    """
    if len(works) == 1:
        return [works[0](None)]
    group = Abreast[T]()
    build = partial(simulation, read=shared_images())  # one pool of samples, on the host as on the device
    engine = Engine(build, prepare=group.prepare, abreast=group.size)
    over = group.run([partial(work, engine) for work in works])
    gc.collect()  # compiled steps refer to each other: frees GPU memory for the next
    return [None if isinstance(ended.error, NotBeside) else ended.result() for ended in over]


def _clients(experiment: Experiment) -> int:
    return sample_size(experiment.clients, experiment.fraction)
