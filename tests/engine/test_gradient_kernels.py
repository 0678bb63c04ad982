"""What becomes of gradients on a GPU: one norm of all of them, by one kernel; and compiled steps that are kept."""

import shutil

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.gpu import norm_ops, rewrite, triton_norms
from fedatoms.engine.gpu.norm_ops import squares
from fedatoms.engine.gpu.rewrite import BatchedKernels

SHAPES = ((), (3,), (2, 5), (4, 1, 3), (130, 70))  # of one client's leaves; the last has more than a chunk
CLIENTS = 3


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def leaves_of(shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[Tensor]:
    return [random(CLIENTS, *shape, seed=seed) for seed, shape in enumerate(shapes)]


def total(leaves: list[Tensor]) -> Tensor:
    """The norm of all leaves of one client, as a step computes it for the clip."""
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(leaf) for leaf in leaves]))


def operators(graph: GraphModule) -> list[str]:
    graph.graph.eliminate_dead_code()
    return [
        str(node.target) for node in graph.graph.nodes if "norm" in str(node.target) or "fedatoms" in str(node.target)
    ]


def traced(function: object, *args: object) -> GraphModule:
    with BatchedKernels():
        return make_fx(function)(*args)


def test_a_norm_of_norms_is_one_operator_and_the_same_number() -> None:
    leaves = [leaf.double() for leaf in leaves_of()]
    graph = traced(torch.vmap(total), leaves)
    assert operators(graph) == ["fedatoms.squares.default"]
    assert torch.allclose(graph(leaves), torch.vmap(total)(leaves), rtol=1e-12)
    assert torch.allclose(traced(total, leaves)(leaves), total(leaves), rtol=1e-12)  # without clients, too


def test_norms_that_are_differentiated_or_used_otherwise_stay() -> None:
    leaves = leaves_of()
    gradients = torch.vmap(torch.func.grad(total))
    graph = traced(gradients, leaves)
    assert "fedatoms.squares.default" not in operators(graph)
    assert all(torch.allclose(a, b) for a, b in zip(graph(leaves), gradients(leaves), strict=True))
    largest = torch.vmap(lambda those: torch.stack([torch.linalg.vector_norm(leaf) for leaf in those]).max())
    assert torch.equal(traced(largest, leaves)(leaves), largest(leaves))


def test_a_leaf_that_was_changed_since_has_its_new_norm() -> None:
    def changed(leaves: list[Tensor]) -> Tensor:
        norms = [torch.linalg.vector_norm(leaf) for leaf in leaves]
        leaves[1].mul_(2.0)
        return torch.linalg.vector_norm(torch.stack(norms))

    before = changed([leaf.clone() for leaf in leaves_of()])
    assert torch.equal(traced(changed, [leaf.clone() for leaf in leaves_of()])(leaves_of()), before)


@pytest.mark.parametrize("most", [2, 64])
def test_the_kernel_sums_squares_of_leaves_in_any_layout(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_norms, "_LEAVES", most)
    whole = random(CLIENTS, 7, 6, 5, seed=9)
    views = [whole.transpose(1, 3), whole[:, ::2], random(6, CLIENTS, seed=8).T, whole[:, 0, 0, 0].expand(2, CLIENTS).T]
    leaves = [*leaves_of(), *views]
    sums = triton_norms.squares(leaves)
    assert torch.allclose(sums.double().sum(1), squares([leaf.double() for leaf in leaves]).sum(1), rtol=1e-6)


def test_operators_keep_what_they_promise_the_tracer() -> None:
    torch.library.opcheck(squares, (leaves_of(),), test_utils=["test_schema", "test_faketensor"])


def compiled_twice(monkeypatch: pytest.MonkeyPatch, code: str) -> tuple[int, int]:
    """Compiles a step twice, the second time with other code of operators; returns hits and misses of the cache."""

    def step(buffers: tuple[Tensor]) -> None:
        buffers[0].mul_(2.0).add_(torch.linalg.vector_norm(buffers[0]))

    for tag in ("one", code):
        monkeypatch.setattr(cuda_graph, "_code_of_kernels", lambda tag=tag: tag)
        given = (torch.ones(3),)
        run = cuda_graph._inductor(rewrite.traced(step, given), [given])
        run(given)
        assert torch.allclose(given[0], torch.full((3,), 2.0 + 12**0.5))
    return counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ on a CPU")
@pytest.mark.filterwarnings("ignore:.*script_method.* is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize(("code", "hits"), [("one", 1), ("two", 0)])
def test_a_compiled_step_is_kept_for_the_next_start_of_the_same_code(
    code: str, hits: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("kept")))
    counters.clear()
    assert compiled_twice(monkeypatch, code) == (hits, 2 - hits)


def test_the_code_of_all_operators_is_a_part_of_the_key() -> None:
    assert norm_ops.__file__ in {str(path) for path in cuda_graph._files_of_kernels()}
