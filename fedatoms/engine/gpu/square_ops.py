"""The norm of all gradients of many clients, by an operator with a client axis of its own: one kernel for all leaves.

The compiler would reduce leaf after leaf, twice each, and copy what it joins: a dozen kernels that leave a GPU idle.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fedatoms.engine.gpu.client_axis import for_one
from fedatoms.engine.gpu.tiles import chunks_of
from fedatoms.nn.masked_norm import exact

_PERMUTED = torch.ops.aten.permute.default
_CASTS = (torch.ops.aten._to_copy.default, torch.ops.prims.convert_element_type.default)


@torch.library.custom_op("fedatoms::squares", mutates_args=())
def squares(leaves: Sequence[Tensor]) -> Tensor:
    """Returns the sums of squares of each client's leaves (C, ...) as partial sums (C, P), in whatever order."""
    if leaves[0].is_cuda:
        from fedatoms.engine.gpu import triton_squares

        return triton_squares.squares(leaves)
    return torch.stack([exact(leaf).reshape(len(leaf), -1).square().sum(1) for leaf in leaves], 1)


def norm_of(tree: Mapping[str, Tensor]) -> Tensor:
    """Returns the norm of one client's leaves together, as ``trees.norm`` does.

    >>> norm_of({"w": torch.tensor([3.0, 0.0]), "b": torch.tensor(4.0)})
    tensor(5.)
    """
    return _squares_one([*tree.values()]).sum().sqrt()


def has_kernel(tree: Mapping[str, Tensor]) -> bool:
    """Says whether the operator takes the norm of these leaves, which nobody differentiates.

    >>> has_kernel({"w": torch.ones(1)}), has_kernel({"w": torch.ones(1, requires_grad=True)})
    (True, False)
    """
    leaves = tree.values()
    if any(leaf.requires_grad for leaf in leaves):
        return False
    return not any(leaf.is_cuda for leaf in leaves) or (
        all(leaf.dtype == torch.float32 for leaf in leaves) and _takes_tuples()
    )


@cache
def _takes_tuples() -> bool:
    """Says whether Triton is there and gives a kernel several tensors as one argument, as it does since 3.3."""
    try:
        import triton
    except ImportError:
        return False
    return [int(part) for part in triton.__version__.split(".")[:2]] >= [3, 3]


def read_uncast(graph: Graph) -> None:
    """Lets the operator read leaves as they are before a cast to float32, which it does by itself, without a copy."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.fedatoms.squares.default):
        with graph.inserting_before(node):
            node.args = ([_uncast(leaf) for leaf in node.args[0]],)


def _uncast(leaf: Node) -> Node:
    """Returns what was cast to float32 and, since then, perhaps permuted: so are weights' gradients."""
    if leaf.target not in (*_CASTS, _PERMUTED) or leaf.meta["val"].dtype != torch.float32:
        return leaf
    source = cast(Node, leaf.args[0])
    if leaf.target in _CASTS:
        return source if source.meta["val"].dtype in (torch.bfloat16, torch.float16) else leaf
    before = _uncast(source)
    if before is source:
        return leaf
    same = leaf.graph.call_function(_PERMUTED, (before, *leaf.args[1:]))
    same.meta["val"] = _PERMUTED(before.meta["val"], *leaf.args[1:])
    return same


@squares.register_fake
def _(leaves: Sequence[Tensor]) -> Tensor:
    first = leaves[0]
    parts = sum(map(chunks_of, leaves)) if first.is_cuda else len(leaves)
    return first.new_empty(len(first), parts, dtype=torch.promote_types(first.dtype, torch.float32))


_squares_one = cast(Callable[..., Tensor], for_one(torch.ops.fedatoms.squares.default, contiguous=False))
