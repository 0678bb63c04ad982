"""Compiled steps are kept for the next start of the same code."""

from pathlib import Path

import pytest
import torch
from support import ROOT
from support.inductor import compiles
from torch import Tensor
from torch._dynamo.utils import counters
from torch.fx import GraphModule

from fedatoms.core.files import digest_of_code
from fedatoms.engine import gpu
from fedatoms.engine.execution import inductor
from fedatoms.engine.gpu import rewrite


def compiled_twice(monkeypatch: pytest.MonkeyPatch, code: str) -> tuple[int, int]:
    """Compiles a step twice, the second time with other code of operators; returns hits and misses of the cache."""

    def step(buffers: tuple[Tensor]) -> None:
        buffers[0].mul_(2.0).add_(torch.linalg.vector_norm(buffers[0]))

    for tag in ("one", code):
        monkeypatch.setattr(inductor, "_code_of_kernels", lambda tag=tag: tag)
        given = (torch.ones(3),)
        run = inductor.compile_graph(rewrite.traced(step, given), [given])
        run(given)
        assert torch.allclose(given[0], torch.full((3,), 2.0 + 12**0.5))
    return counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]


@compiles
@pytest.mark.parametrize(("code", "hits"), [("one", 1), ("two", 0)])
def test_a_compiled_step_is_kept_for_the_next_start_of_the_same_code(
    code: str, hits: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("kept")))
    counters.clear()
    assert compiled_twice(monkeypatch, code) == (hits, 2 - hits)


@compiles
def test_a_graph_is_simplified_when_it_is_compiled_and_not_when_it_is_kept(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.fx_passes import joint_graph

    simplified: list[GraphModule] = []
    simplify = joint_graph.joint_graph_passes
    monkeypatch.setattr(joint_graph, "joint_graph_passes", lambda graph: simplified.append(graph) or simplify(graph))
    monkeypatch.setattr(inductor, "_OPTIONS", {})  # which are a GPU's
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("simplified")))
    counters.clear()

    def step(a: Tensor, b: Tensor) -> None:
        a.copy_((a + 0 * b).view(-1).view_as(a) * 2)

    graphs = [rewrite.traced(step, torch.ones(2, 3), torch.ones(2, 3)) for _ in range(2)]
    for graph in graphs:
        given = [torch.ones(2, 3), torch.ones(2, 3)]
        inductor.compile_decomposed(graph, [given])(given)
        assert torch.equal(given[0], torch.full((2, 3), 2.0))
    assert simplified == graphs[:1] and counters["inductor"]["fxgraph_cache_hit"] == 1


@compiles
def test_what_is_found_out_about_a_kernel_is_found_again_by_the_compilers_processes_and_by_this_one(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's processes know torch's settings as they are, without what is changed while a step is compiled."""
    from torch._inductor import compile_fx
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    compile_inner, keys = compile_fx.compile_fx_inner, list[str]()

    def noting_the_key(*args: object, **options: object) -> object:
        keys.append(AutotuneCache._prepare_key("kernel.py"))
        return compile_inner(*args, **options)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", noting_the_key)
    monkeypatch.setattr(inductor, "_OPTIONS", {})  # which are a GPU's
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("found")))

    def step(a: Tensor) -> None:
        a.copy_(a * 2)

    given = [torch.ones(2, 3)]
    inductor.compile_decomposed(rewrite.traced(step, *given), [given])(given)
    assert keys == [AutotuneCache._prepare_key("kernel.py")]


def test_operators_are_defined_only_where_their_code_is_a_part_of_the_key() -> None:
    defined = [path for path in (ROOT / "fedatoms").rglob("*.py") if "library.custom_op" in path.read_text()]
    assert defined and {path.parent for path in defined} == {Path(gpu.__file__).parent}
    assert digest_of_code("fedatoms.engine.gpu") != digest_of_code("fedatoms.engine.execution")
