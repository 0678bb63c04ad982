"""The norm of all gradients of many clients, as an operator with a client axis of its own: one kernel for all leaves.

Otherwise each leaf would have reductions of its own, most of which are too short to keep a GPU busy.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedatoms.engine.gpu.conv_ops import Vmap
from fedatoms.engine.gpu.tiles import chunks_of


@torch.library.custom_op("fedatoms::squares", mutates_args=())
def squares(leaves: Sequence[Tensor]) -> Tensor:
    """Returns the sums of squares of each client's leaves (C, ...) as partial sums (C, P), in whatever order."""
    if leaves[0].is_cuda:
        from fedatoms.engine.gpu import triton_norms

        return triton_norms.squares(leaves)
    return torch.stack([leaf.reshape(len(leaf), -1).square().sum(1) for leaf in leaves], 1)


def norm_of(leaves: Sequence[Tensor]) -> Tensor:
    """Returns the norm of one client's leaves together.

    >>> norm_of([torch.tensor([3.0, 0.0]), torch.tensor(4.0)])
    tensor(5.)
    """
    sums: Tensor = squares([leaf[None] for leaf in leaves])
    return sums.sum().sqrt()


@squares.register_fake
def _(leaves: Sequence[Tensor]) -> Tensor:
    first = leaves[0]
    return first.new_empty(len(first), sum(map(chunks_of, leaves)) if first.is_cuda else len(leaves))


@squares.register_vmap
def _(info: Vmap, axes: tuple[Sequence[int | None]], leaves: Sequence[Tensor]) -> tuple[Tensor, int]:
    def join(leaf: Tensor, axis: int | None) -> Tensor:
        each = leaf.expand(info.batch_size, *leaf.shape) if axis is None else leaf.movedim(axis, 0)
        return each.flatten(0, 1)

    sums: Tensor = squares([join(leaf, axis) for leaf, axis in zip(leaves, axes[0], strict=True)])
    return sums.unflatten(0, (info.batch_size, -1)), 0
