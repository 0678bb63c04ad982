"""Compiled steps are kept for the next start of the same code."""

import shutil
from pathlib import Path

import pytest
import torch
from support import ROOT
from torch import Tensor
from torch._dynamo.utils import counters

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


def test_operators_are_defined_only_where_their_code_is_a_part_of_the_key() -> None:
    defined = [path for path in (ROOT / "fedatoms").rglob("*.py") if "library.custom_op" in path.read_text()]
    assert defined and {path.parent for path in defined} == {Path(gpu.__file__).parent}
    assert digest_of_code("fedatoms.engine.gpu") != digest_of_code("fedatoms.engine.execution")
