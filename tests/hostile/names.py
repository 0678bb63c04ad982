"""The names that Python code of the campaign may use: the public surface, and things to misuse it with."""

# ruff: noqa: F401

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedatoms
from fedatoms import (
    Experiment,
    Simulation,
    Training,
    adapt,
    algorithms,
    data,
    decompose,
    engine,
    fuse,
    load_model,
    objectives,
    optimisers,
    personal,
    preset,
    run,
    train,
)
from fedatoms import nn as fnn
from fedatoms.data import federation
from fedatoms.nn import groups
from fedatoms.runs.results import read_result, read_rounds

nan, inf = math.nan, math.inf
TINY = Experiment(rounds=1, epochs=1, clients=5, batch_size=50, name="b", device="cpu")


def net() -> nn.Module:
    """Builds a small plain network for 6x6 images in three classes."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def conv() -> nn.Module:
    """Builds one convolution."""
    return nn.Conv2d(1, 4, 3)


def images(count: int = 8, **how: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Makes images and labels."""
    return torch.zeros(count, 1, 6, 6, **how), torch.arange(count) % 3  # type: ignore[arg-type]


class Failing:
    """Data whose items cannot be read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> object:
        raise OSError(f"item {number} is gone")


class Endless(Failing):
    """Data of more items than there can be."""

    def __len__(self) -> int:
        return 10**15


def sim(**changes: object) -> Simulation:
    """Makes a small simulation, with changes."""
    return replace(Simulation(net(), federation([images(), images()], test=images())), **changes)  # type: ignore[arg-type]
