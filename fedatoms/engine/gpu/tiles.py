"""Sizes of what the batched kernels compute at once; no Triton, as tracing needs them too."""

import math

from torch import Tensor

PROGRAMS = 264  # twice the multiprocessors of a large GPU: fewer leave it idle
PATCH = 128  # numbers of a patch whose gradients are summed at once
PARTS = (32, 512)  # of a client's filters, at least and at most: the gradient of the atoms is summed over each part
CHUNK = 8192  # numbers of a leaf whose squares are summed at once
LONG = 64  # filters of a part, where neither is reached
DEAD = 4  # argmax code of a 2 x 2 window with no positive value


def tile(size: int, most: int = 128) -> int:
    """Returns the smallest power of two that holds ``size``, from 16 to ``most``.

    >>> tile(3), tile(64), tile(65), tile(1000)
    (16, 64, 128, 128)
    """
    return min(max(16, 1 << (size - 1).bit_length()), most)


def out_tile(x: Tensor, out: int) -> int:
    """Returns how many output channels of a gradient are summed at once."""
    return min(tile(out), 64) if x.element_size() == 4 else tile(out)


def parts_of(x: Tensor, dy: Tensor, patch: int, *, pool: bool) -> int:
    """Returns into how many parts the pixels of a gradient's sum are split, so that there is work for all of a GPU."""
    out, pixels = dy.shape[-1], math.prod(dy.shape[1:-1])
    tiles = len(x) * -(-patch // PATCH) * -(-out // out_tile(x, out))
    wanted = PROGRAMS * (2 if x.element_size() == 4 or x.shape[-1] % 16 else 1)  # small sums cost little
    return max(min(-(-wanted // tiles), -(-pixels // (32 if pool else 128))), 1)


def parts_of_filters(coefficients: Tensor) -> int:
    """Returns into how many parts a client's filters (C, O, I, M) are split, for the gradient of its atoms."""
    return min(max(math.prod(coefficients.shape[1:-1]) // LONG, PARTS[0]), PARTS[1])


def chunks_of(leaf: Tensor) -> int:
    """Returns in how many chunks the squares of one client's leaf (C, ...) are summed."""
    return -(-leaf[0].numel() // CHUNK)
