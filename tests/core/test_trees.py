"""Arithmetic on trees, where it is more than leaf by leaf."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fedatoms.core import trees

LEAVES = {"scalar": (), "vector": (7,), "filters": (4, 3, 2, 2), "large": (40, 50)}


@pytest.mark.parametrize("joined", [-1, 0, 1, 20, 10**6])
def test_a_norm_is_that_of_all_numbers_however_leaves_are_joined(joined: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_JOINED", joined)
    draws = torch.Generator().manual_seed(0)
    tree = {name: torch.randn(3, *shape, generator=draws, dtype=torch.float64) for name, shape in LEAVES.items()}
    tree["filters"] = tree["filters"].permute(0, 1, 3, 4, 2)  # in another order than that of memory
    for client, found in enumerate(torch.vmap(trees.norm)(tree)):
        one = {name: leaf[client] for name, leaf in tree.items()}
        expected = torch.cat([leaf.flatten() for leaf in one.values()]).norm()
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
        torch.testing.assert_close(trees.norm(one), expected, rtol=1e-14, atol=0)


def test_a_norm_of_many_small_leaves_is_few_sums() -> None:
    tree = {f"layer {n}": torch.zeros(n + 1) for n in range(30)}
    graph = make_fx(trees.norm)(tree).graph
    assert len(graph.find_nodes(op="call_function", target=torch.ops.aten.linalg_vector_norm.default)) == 2


def test_an_empty_tree_has_no_length() -> None:
    assert trees.norm({}) == trees.squared({}) == 0
