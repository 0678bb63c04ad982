"""The benchmark of pfl-research (Granqvist et al., 2024) on CIFAR-10: its sizes, its network, its IID clients.

Both sides build their work from these functions: `fedatoms.bench.pfl_part` ours, `fedatoms.bench.pfl_twin` pfl's.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedatoms.core.options import Precision
from fedatoms.core.randomness import generator
from fedatoms.data.datasets import Images, Recipe, load

IMAGES, BATCH, LR = 50, 10, 0.1  # a client's images, those of a step, and the learning rate; one epoch a round
HALF = Recipe(255.0, (0.5,) * 3, (0.25,) * 3, flip=False, pad=0, crop=0.0, fill="zero")


class Task(NamedTuple):
    """Which rounds to run, and where; without a folder of CIFAR-10 the images are random."""

    clients: int
    cohort: int  # clients of a round
    rounds: int  # after the first, which is not timed
    turns: int  # into which they are divided
    seed: int
    data_dir: str
    device: str
    precision: Precision
    threads: int


def cnn(seed: int = 0) -> nn.Sequential:
    """The network of pfl's benchmark: two 3x3 convolutions, one pooling, two linear layers, two dropouts.

    >>> sum(leaf.numel() for leaf in cnn().parameters())
    1626442
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        convs = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)]
        dense = [nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)]
        model = nn.Sequential(*convs, *dense)
        for layer in model:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
    return model


def images_of(task: Task) -> Images:
    """Reads CIFAR-10, or draws as many random images as the clients need: a round costs the same."""
    if task.data_dir:
        return load("cifar10", task.data_dir, augment="none")
    draws, n = generator(0, "synthetic"), task.clients * IMAGES
    x = torch.randint(256, (n + IMAGES, 3, 32, 32), dtype=torch.uint8, generator=draws)
    y = torch.randint(10, (n + IMAGES,), generator=draws)
    return Images(x[:n], y[:n], x[n:], y[n:], 10, HALF)


def parts_of(task: Task, images: int) -> list[Tensor]:
    """Deals images out to the clients, 50 to each, at random.

    >>> task = Task(4, 2, 1, 1, 0, "", "cpu", "tf32", 1)
    >>> [len(part) for part in parts_of(task, 200)]
    [50, 50, 50, 50]
    """
    if (needed := task.clients * IMAGES) > images:
        raise ValueError(
            f"{task.clients} clients of {IMAGES} images need {needed}, there are {images}. Use --pfl-clients "
            f"{images // IMAGES} or fewer."
        )
    return list(torch.randperm(images, generator=generator(task.seed, "partition", "pfl"))[:needed].split(IMAGES))
