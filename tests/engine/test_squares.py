"""The norm of all gradients on a GPU: one kernel for all leaves, the same number as torch's."""

import pytest
import torch
from support.small import clients_of, difference, play, small_net
from torch import Tensor
from torch.fx import GraphModule

from fedatoms.core import trees
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.gpu.rewrite import BatchedKernels, traced
from fedatoms.engine.gpu.square_ops import squares
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training

SHAPES = ((), (3,), (2, 5), (4, 1, 3), (130, 70))  # of one client's leaves; the last has more than a chunk
CLIENTS = 3
SQUARES = "fedatoms.squares.default"


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def leaves_of(shapes: tuple[tuple[int, ...], ...] = SHAPES) -> dict[str, Tensor]:
    return {str(seed): random(CLIENTS, *shape, seed=seed) for seed, shape in enumerate(shapes)}


def operators(graph: GraphModule) -> list[str]:
    names = [str(node.target) for node in graph.graph.nodes]
    return [name for name in names if "norm" in name or "fedatoms" in name]


def rerouted(function: object, *args: object) -> GraphModule:
    with BatchedKernels():
        return traced(function, *args)


def test_a_norm_is_one_operator_and_the_same_number() -> None:
    tree = {name: leaf.double() for name, leaf in leaves_of().items()}
    graph = rerouted(torch.vmap(trees.norm), tree)
    assert operators(graph) == [SQUARES]
    assert torch.allclose(graph(tree), torch.vmap(trees.norm)(tree), rtol=1e-12)
    one = {name: leaf[0] for name, leaf in tree.items()}  # without clients, too
    assert torch.allclose(rerouted(trees.norm, one)(one), trees.norm(one), rtol=1e-12)


def test_a_leaf_that_all_clients_share_is_counted_for_each() -> None:
    tree, shared = leaves_of(), random(5, seed=7)
    norms = torch.vmap(lambda own: trees.norm({**own, "shared": shared}))
    assert torch.allclose(rerouted(norms, tree)(tree), norms(tree))


def test_norms_that_are_differentiated_stay() -> None:
    tree = leaves_of()
    gradients = torch.vmap(torch.func.grad(trees.norm))
    graph = rerouted(gradients, tree)
    assert SQUARES not in operators(graph)
    assert difference(graph(tree), gradients(tree)) < 1e-6


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_leaves_are_read_as_they_are_before_a_cast(kind: torch.dtype) -> None:
    """A gradient of few digits would be written down in float32 for nothing."""
    tree = {name: leaf.to(kind) for name, leaf in leaves_of(((6, 5), (4,), (2, 3))).items()}

    def norm(own: dict[str, Tensor]) -> Tensor:
        other = own["1"].double().float()  # which is no cast of few digits
        return trees.norm({"turned": own["0"].float().T, "other": other, "bias": own["2"].float()})

    graph = rerouted(torch.vmap(norm), tree)
    (found,) = graph.graph.find_nodes(op="call_function", target=torch.ops.fedatoms.squares.default)
    assert [leaf.meta["val"].dtype for leaf in found.args[0]] == [kind, torch.float32, kind]
    assert [tuple(leaf.meta["val"].shape) for leaf in found.args[0]] == [(3, 5, 6), (3, 4), (3, 2, 3)]
    assert torch.allclose(graph(tree), torch.vmap(norm)(tree), rtol=1e-6)


@pytest.mark.parametrize("most", [2, 64])
def test_the_kernel_sums_squares_of_leaves_in_any_layout(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton's interpreter: leaves of several launches and types, permuted, with gaps, and shared."""
    pytest.importorskip("triton")
    from fedatoms.engine.gpu import triton_squares

    monkeypatch.setattr(triton_squares, "_LEAVES", most)
    whole = random(CLIENTS, 7, 6, 5, seed=9)
    views = [whole.transpose(1, 3), whole[:, ::2], random(6, CLIENTS, seed=8).T, whole[:, 0, 0, 0].expand(2, CLIENTS).T]
    leaves = [*leaves_of().values(), *views, whole.half().transpose(1, 2), random(CLIENTS, 0), random(CLIENTS, 1)]
    sums = triton_squares.squares(leaves)
    expected = torch.stack([leaf.double().flatten(1).square().sum(1) for leaf in (x[..., None] for x in leaves)]).sum(0)
    assert sums.dtype == torch.float32 and torch.allclose(sums.double().sum(1), expected, rtol=1e-6)


def test_a_permuted_leaf_is_not_copied() -> None:
    pytest.importorskip("triton")
    from fedatoms.engine.gpu import triton_squares

    whole = random(CLIENTS, 7, 6, 5)
    dense = [whole, whole.transpose(1, 3), whole[:, :1, :, :1].contiguous(), whole[:, 0, 0, 0].contiguous()]
    gaps = [whole[:, ::2], whole.transpose(0, 1), whole[:1].expand(CLIENTS, 7, 6, 5)]
    assert [triton_squares._is_dense(leaf) for leaf in dense + gaps] == [True] * 4 + [False] * 3


def test_the_operator_keeps_what_it_promises_the_tracer() -> None:
    torch.library.opcheck(squares, ([*leaves_of().values()],), test_utils=["test_schema", "test_faketensor"])


def test_a_step_with_a_clip_sums_squares_once_and_trains_as_one_without_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = list[list[str]]()
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: seen.append(operators(graph)) or graph)
    sim = Simulation(
        small_net(norm=True, atoms=4), clients_of((5, 9)), training=Training(batch_size=5, lr=0.1, clip=0.01)
    )
    plain = play(sim, 2)
    monkeypatch.setattr(cuda_graph, "_traced", rerouted)  # as it is with tf32
    compiled = prepare(sim)._replace(map_clients=cuda_graph.compiled(2))
    assert difference(plain.server.params, play(compiled, 2).server.params) < 1e-10
    assert [names.count(SQUARES) for names in seen] == [1]
