"""The images of an experiment: read from their files, once for experiments that begin together."""

from collections.abc import Callable

from fedatoms.data.datasets import Images, load
from fedatoms.data.federations import hold_out
from fedatoms.experiment.fields import Experiment

Read = Callable[[Experiment], Images]


def images_for(experiment: Experiment) -> Images:
    """Reads the images that an experiment trains on, and those that it is scored on.

    >>> len(images_for(Experiment()).y), len(images_for(Experiment(holdout=0.1)).y)
    (1437, 1294)
    """
    images = load(experiment.dataset, experiment.data_dir, experiment.augment)
    return hold_out(images, experiment.holdout, experiment.seed)


def shared_images() -> Read:
    """Returns what reads images for experiments that begin together: the same tensors for those that need the same.

    What was read last is held as long as this is, for instance until the runs of a block are over: files that change
    meanwhile are not read again.

    >>> read = shared_images()
    >>> read(Experiment()).x is read(Experiment(seed=1)).x, read(Experiment()).x is read(Experiment(holdout=0.1)).x
    (True, False)
    """
    last: dict[tuple[object, ...], Images] = {}

    def read(experiment: Experiment) -> Images:
        if (key := _key(experiment)) not in last:
            last.clear()  # first: two at once may not fit into memory
            last[key] = images_for(experiment)
        return last[key]

    return read


def _key(experiment: Experiment) -> tuple[object, ...]:
    """Returns all that the images of an experiment depend on, beside their files."""
    drawn = (experiment.holdout, experiment.seed) if experiment.holdout else ()
    return (experiment.dataset, experiment.data_dir, experiment.augment, *drawn)
