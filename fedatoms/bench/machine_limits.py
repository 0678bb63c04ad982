"""Limits of a card, lower bounds of a step, and how time and memory are measured on a device."""

import gc
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedatoms.bench.line_up import Cell
from fedatoms.core.options import Precision
from fedatoms.engine.training import Training
from fedatoms.nn.models import build

IMAGE = 3 * 32 * 32 + 8  # bytes of a uint8 image and its int64 label


class Limits(NamedTuple):
    """What was measured on the card: operations and bytes per second."""

    arithmetic: float
    bandwidth: float


class Need(NamedTuple):
    """Lower bounds for one step of all clients of a cell."""

    flops: float
    bytes: float


def limits(device: str, precision: Precision) -> Limits:
    """Measures a product of two large square matrices, and a large copy, which reads and writes every byte."""
    side, size = (8192, 2**30) if device.startswith("cuda") else (512, 2**20)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    old, new = (torch.zeros(size, device=device, dtype=torch.uint8) for _ in range(2))
    product, copy = _best_time(device, lambda: torch.mm(a, b)), _best_time(device, lambda: new.copy_(old))
    return Limits(2 * side**3 / product, 2 * size / copy)


def need(cell: Cell, training: Training, model: nn.Module | None = None) -> Need:
    """Counts what a step of a plain network needs, LeNet's if none is given; decomposed contestants take the same.

    Operations are those that torch's counter sees in a forward and a backward pass: two per multiply-add of
    convolutions and linear layers. Bytes are the fewest that must move with P parameters of 4 bytes: P read and
    written; gradients written and read again, since clipping needs the norm of all before the first may be used;
    momentum, if any, read and written; images and labels read. Activations are taken to stay in the cache.

    >>> one, ten = need(Cell(1, 10), Training()), need(Cell(10, 10), Training())
    >>> ten.flops / one.flops, ten.bytes / one.bytes
    (10.0, 10.0)
    """
    model = build("lenet", classes=10) if model is None else model
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(
            model(torch.zeros(cell.batch, 3, 32, 32)), torch.zeros(cell.batch).long()
        ).backward()
    parameters = 4 * sum(leaf.numel() for leaf in model.parameters())
    moved = parameters * (6 if training.momentum else 4) + cell.batch * IMAGE
    return Need(float(cell.clients * counter.get_total_flops()), float(cell.clients * moved))


def timed(device: str, work: Callable[[], object]) -> float:
    """Returns the seconds that some work takes, including synchronisation with the device."""
    synchronise(device)
    began = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - began


def synchronise(device: str) -> None:
    """Waits for the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def watch_memory(device: str) -> Callable[[], float | None]:
    """Starts tracking the device's memory: the returned function gives the peak above the start in MB, if known."""
    if not device.startswith("cuda"):
        return lambda: None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    return lambda: (torch.cuda.max_memory_allocated(device) - before) / 1e6


def clean(device: str) -> None:
    """Forgets compiled code (dynamo keeps eight versions of a function at most) and frees unused device memory."""
    gc.collect()
    torch._dynamo.reset()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def _best_time(device: str, work: Callable[[], object], repeats: int = 5, times: int = 5) -> float:
    def several() -> None:
        for _ in range(times):
            work()

    several()
    return min(timed(device, several) for _ in range(repeats)) / times
