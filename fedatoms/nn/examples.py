"""Batches of example inputs with any number of rows, made from a shape or a batch, which a network must take."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedatoms.core.inputs import Inputs, each, leaves, named, shapes_of, take
from fedatoms.core.lookup import one_line, shown
from fedatoms.core.memory import available, check_fits
from fedatoms.core.randomness import generator
from fedatoms.nn.models import fitting
from fedatoms.nn.pure import run_on

Batches = Callable[[int], Inputs]  # from a number of rows
GIVE = "Use for example shape=(3, 32, 32), or inputs=x with a batch of your own."


def batches_of(model: nn.Module, shape: Sequence[int] | None, inputs: Inputs | None, *, needed: bool) -> Batches | None:
    """Returns the example batches of a network: normal numbers of a shape, or rows of ``inputs``; None without both.

    >>> batches_of(nn.Embedding(9, 2), None, torch.tensor([[1, 2], [3, 4]]), needed=True)(3)
    tensor([[1, 2],
            [3, 4],
            [1, 2]])
    """
    if shape is not None and inputs is not None:
        raise ValueError("shape and inputs are both given, and inputs have a shape. Leave one of them out.")
    if shape is None and inputs is None:
        if needed:
            raise ValueError(f"neither shape nor inputs is given, and a network is exported by running it. {GIVE}")
        return None
    batches = _random(model, _checked_shape(shape)) if inputs is None else _repeated(_checked_inputs(inputs))
    with _taking(shape, batches(2)), torch.no_grad():
        run_on(model, batches(2))
    return batches


def _random(model: nn.Module, shape: tuple[int, ...]) -> Batches:
    dtype = next((leaf.dtype for leaf in model.parameters() if leaf.is_floating_point()), torch.float32)
    return lambda rows: torch.randn(rows, *shape, generator=generator(0, "export", rows), dtype=dtype, device="cpu")


def _repeated(x: Inputs) -> Batches:
    """Takes rows from the first on, and begins again after the last."""
    return lambda rows: take(x, torch.arange(rows) % len(leaves(x)[0]))


def _checked_shape(shape: object) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, Sequence) and not isinstance(shape, str) else [None]
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise ValueError(f"shape={shown(shape)} is not the shape of one input, sizes of its axes. {GIVE}")
    check_fits({"three inputs": 3 * 4 * math.prod(sizes)}, available(), "Use a smaller `shape`.")
    return tuple(sizes)


def _checked_inputs(x: Inputs) -> Inputs:
    """Refuses what is no batch: tensors with as many rows each."""
    parts: list[object] = [*(leaves(x) if isinstance(x, dict | tuple) else [x])]
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise ValueError(f"inputs={type(x).__name__} is no batch: give a tensor, or a tuple or dictionary of tensors.")
    rows = {name: len(leaf) if leaf.dim() else 0 for name, leaf in named(x).items()}
    if len(set(rows.values())) > 1 or 0 in rows.values():
        told = ", ".join(f"{name} has {count}" for name, count in rows.items())
        raise ValueError(f"inputs are no batch: each tensor has a row per sample, but {told}. Give as many of each.")
    return each(lambda leaf: leaf.detach().cpu(), x)


@contextmanager
def _taking(shape: Sequence[int] | None, x: Inputs) -> Iterator[None]:
    """Refuses inputs that the network does not take."""
    try:
        with fitting(tuple(shape or ())):
            yield
    except ValueError as error:
        reason = one_line(error.__cause__ or error)
        if shape is None:
            raise ValueError(
                f"inputs of shape {shapes_of(x)} do not fit the model ({reason}). Give a batch that it takes."
            ) from error
        if "argument #1 'indices'" not in reason:
            raise
        raise ValueError(
            f"shape={tuple(shape)}: the network takes tokens, not real numbers. Give inputs=x with a batch of ids."
        ) from error
