"""Sizes of what the batched kernels compute at once; no Triton, as tracing needs them too."""

from torch import Tensor

PROGRAMS = 264  # twice the multiprocessors of a large GPU: fewer leave it idle
PATCH = 128  # numbers of a patch whose gradients are summed at once


def tile(size: int) -> int:
    """Returns the smallest power of two that holds ``size``, from 16 to 128.

    >>> tile(3), tile(64), tile(65), tile(1000)
    (16, 64, 128, 128)
    """
    return next((power for power in (16, 32, 64) if power >= size), 128)


def out_tile(x: Tensor, out: int) -> int:
    """Returns how many output channels of a gradient are summed at once."""
    return min(tile(out), 64) if x.element_size() == 4 else tile(out)


def parts_of(x: Tensor, dy: Tensor, patch: int, *, pool: bool) -> int:
    """Returns into how many parts the pixels of a gradient's sum are split, so that there is work for all of a GPU."""
    out, pixels = dy.shape[-1], dy[0, ..., 0].numel()
    tiles = len(x) * -(-patch // PATCH) * -(-out // out_tile(x, out))
    wanted = PROGRAMS * (2 if x.element_size() == 4 or x.shape[-1] % 16 else 1)  # small sums cost little
    return max(min(-(-wanted // tiles), -(-pixels // (32 if pool else 128))), 1)
