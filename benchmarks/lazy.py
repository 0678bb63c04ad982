"""Time of an epoch over lazy data, relative to the same data in memory, for cheap items.

Networks and image sizes vary, since an item's price counts more where a step is cheap. Each ratio is the median over
repeats of (lazy / in memory) measured in turns, on one thread. Prints a table; takes two minutes.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedatoms.data.federations import Federation, federation
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.nn.models import build

ITEMS, CLIENTS, BATCH, REPEATS = 2000, 10, 50, 7
TRAINING = Training(batch_size=BATCH, lr=0.01)


class Cheap(Dataset[object]):
    """A data set whose items are rows of tensors."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.targets = x, y.tolist(), y.tolist()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return self.x[number], self.y[number]


def networks() -> dict[str, tuple[int, nn.Module]]:
    """Makes networks for 10 classes, each with the pixels of its images."""
    one = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 15 * 15, 10))
    return {
        "digits-cnn": (8, build("digits-cnn", classes=10, channels=1)),
        "one convolution": (32, one),
        "lenet": (32, build("lenet", classes=10, channels=1)),
    }


def federations(pixels: int, folder: Path) -> dict[str, Federation]:
    """Makes the same data in memory, as data sets and as memory maps."""
    x, y = torch.rand(ITEMS, 1, pixels, pixels), torch.arange(ITEMS) % 10
    parts = list(torch.arange(ITEMS).split(ITEMS // CLIENTS))
    test = (x[:10], y[:10])
    np.save(folder / f"{pixels}.npy", x.numpy())
    mapped = np.load(folder / f"{pixels}.npy", mmap_mode="r")
    maps = [(mapped[part[0] : part[-1] + 1], y[part].numpy()) for part in parts]
    return {
        "in memory": federation([(x[part], y[part]) for part in parts], test=test),
        "data set": federation([Cheap(x[part], y[part]) for part in parts], test=test, lazy=True),
        "memory map": federation(maps, test=test, lazy=True),
    }


def epoch(model: nn.Module, data: Federation) -> Callable[[], float]:
    """Returns a function that measures a round of all clients, an epoch each."""
    runtime = prepare(Simulation(model, data, training=TRAINING, map="one_by_one", score=("server",)))
    state = begin(runtime)

    def measure() -> float:
        start = time.perf_counter()
        advance(runtime, state)
        return time.perf_counter() - start

    measure()
    return measure


def ratios(model: nn.Module, data: dict[str, Federation]) -> tuple[float, dict[str, float]]:
    """Returns the milliseconds of a step in memory, and how many times as long an epoch of lazy data takes."""
    run = {name: epoch(model, each) for name, each in data.items()}
    times = [{name: measure() for name, measure in run.items()} for _ in range(REPEATS)]
    of_memory = statistics.median(each["in memory"] for each in times)
    found = {name: statistics.median(each[name] / each["in memory"] for each in times) for name in run}
    return 1000 * of_memory * BATCH / ITEMS, found


def report() -> None:
    """Prints a line for each network."""
    torch.set_num_threads(1)
    print("| network | pixels | step in memory, ms | data set | memory map |\n| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for name, (pixels, model) in networks().items():
            step, found = ratios(model, federations(pixels, Path(folder)))
            print(
                f"| {name} | {pixels} | {step:.2f} | {found['data set']:.2f} | {found['memory map']:.2f} |", flush=True
            )


if __name__ == "__main__":
    report()
