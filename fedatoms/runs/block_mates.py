"""Which runs are trained in one block: those whose clients can share it, as many as keep a device busy."""

from collections.abc import Sequence

from fedatoms.engine.execution.blocks import MOST
from fedatoms.engine.server import sample_size
from fedatoms.experiment.build import device_of
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import block_kind

TOGETHER = 8  # runs at once by default: each needs its own memory for clients' states and batches


def block_mates(experiments: Sequence[Experiment], most: int) -> list[Experiment]:
    """Returns the first experiment and those after it, ``most`` in all, whose clients fit into one block with its own.

    >>> seeds = [Experiment(seed=seed, map="vectorised") for seed in range(4)]
    >>> [one.seed for one in block_mates([*seeds, Experiment(seed=9)], most=3)]
    [0, 1, 2]
    >>> len(block_mates([Experiment(map="one_by_one"), *seeds], most=3))
    1
    """
    first, *others = experiments
    if most < 2 or not _is_vectorised(first):
        return [first]
    kind, group = block_kind(first), [first]
    for one in others:
        clients = sum(_clients(each) for each in (*group, one))
        if len(group) < most and clients <= (first.block or MOST) and block_kind(one) == kind:
            group.append(one)
    return group


def _is_vectorised(experiment: Experiment) -> bool:
    return experiment.map == "vectorised" or (experiment.map == "auto" and device_of(experiment) != "cpu")


def _clients(experiment: Experiment) -> int:
    return sample_size(experiment.clients, experiment.fraction)
