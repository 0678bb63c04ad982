"""Kernels of a traced step, compiled in processes that have no GPU."""

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedatoms.core import trees
from fedatoms.engine.gpu.precompile import MODULES, NAMESPACE, Call, Outline, calls_of, compiling_elsewhere
from fedatoms.engine.gpu.rewrite import BatchedKernels, traced
from fedatoms.nn.atoms import decompose

CONVOLUTIONS = nn.Conv2d(4, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3)
NET = decompose(nn.Sequential(*CONVOLUTIONS), 4, init="orthonormal")
OF_A_CARD = """
import os, pickle, sys
from fedatoms.engine.gpu.launches import Card
from fedatoms.engine.gpu.precompile import compile_call
for call in pickle.loads(sys.stdin.buffer.read()):
    compile_call(call, Card("cuda", 90, 32, 232448, cache=os.environ["TRITON_CACHE_DIR"]))
"""


def graph_of_clients() -> torch.fx.GraphModule:
    params = {name: torch.stack([leaf.detach()] * 2) for name, leaf in NET.named_parameters()}

    def loss(own: dict[str, Tensor], images: Tensor) -> Tensor:
        return functional_call(NET, own, (images,)).square().sum()

    def step(params: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        return torch.vmap(torch.func.grad(loss))(params, x)

    with BatchedKernels():
        return traced(step, params, torch.zeros(2, 3, 4, 8, 8))


def test_a_graph_names_what_its_operators_are_called_with() -> None:
    calls = list(calls_of(graph_of_clients()))
    operators = [
        "compose",
        "compose",
        "convolve",
        "convolve",
        "convolve_pool",
        "correlate",
        "correlate",
        "share",
        "share",
    ]
    assert sorted(call.operator for call in calls) == operators
    assert (
        Outline((2, 3, 8, 8, 4), torch.float32)
        in next(one for one in calls if one.operator == "convolve_pool").arguments
    )
    assert {one.arguments[2:] for one in calls if one.operator == "convolve"} == {
        (None, None, 0, 0, 1, False),
        (None, None, 2, 2, 1, True),
    }
    assert pickle.loads(pickle.dumps(calls)) == calls


def test_every_operator_is_looked_for_where_its_kernels_are() -> None:
    pytest.importorskip("triton")
    names = [name.partition("::") for name in torch._C._dispatch_get_all_op_names()]
    ours = {name for namespace, _, name in names if namespace == NAMESPACE}
    assert {"normalise", "normalise_back", "compose", "share", "convolve"} <= ours
    for name in ours:
        module = importlib.import_module(f"fedatoms.engine.gpu.{MODULES.get(name, 'triton_conv')}")
        assert name.endswith("_one") or callable(getattr(module, name))


@pytest.mark.filterwarnings("ignore:.*script_method.* is deprecated:DeprecationWarning")  # torch's own
def test_without_triton_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.async_compile import AsyncCompile

    asked: list[object] = []
    monkeypatch.setattr(AsyncCompile, "process_pool", lambda: asked.append("a pool"))
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "fedatoms.engine.gpu.launches", raising=False)
    with compiling_elsewhere(graph_of_clients(), torch.device("cpu")) as jobs:
        assert jobs == [] and not asked


def graph_of_a_norm() -> torch.fx.GraphModule:
    with BatchedKernels():
        return traced(torch.vmap(trees.norm), {"w": torch.zeros(2, 130, 70), "b": torch.zeros(2, 3)})


def test_a_graph_names_the_tensors_of_a_list() -> None:
    (call,) = calls_of(graph_of_a_norm())
    assert call == Call("squares", ((Outline((2, 130, 70), torch.float32), Outline((2, 3), torch.float32)),))


def calls_of_batch_norms() -> list[Call]:
    """A norm and its gradients, without a ReLU and with one: two kernels each, of which the first is the same."""
    x, real = Outline((2, 5, 4, 4, 16), torch.bfloat16), Outline((2, 5), torch.bool)
    each = Outline((2, 16), torch.float32)
    back = x, real, each, each, each, each, x, 1e-5
    calls = [
        (Call("normalise", (x, real, each, each, 1e-5, relu)), Call("normalise_back", (*back, relu)))
        for relu in (False, True)
    ]
    return [call for pair in calls for call in pair]


def test_the_kernels_of_norms_are_compiled_where_there_is_no_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    compile_for_a_card(calls_of_batch_norms(), tmp_path)
    assert len(list(tmp_path.glob("*/*.cubin"))) == 7


def test_kernels_are_compiled_where_there_is_no_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    calls = [*{*calls_of(graph_of_clients()), *calls_of(graph_of_a_norm())}]
    compile_for_a_card(calls, tmp_path)
    assert len(list(tmp_path.glob("*/*.cubin"))) == len(calls)


def compile_for_a_card(calls: list[Call], cache: Path) -> None:
    env = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    env.pop("TRITON_INTERPRET", None)
    subprocess.run([sys.executable, "-c", OF_A_CARD], input=pickle.dumps(calls), env=env, check=True)


FROM_POOL = """
import contextlib, sys, time, torch, triton
from torch._inductor.runtime import compile_tasks
sys.path.insert(0, sys.argv[1])
from test_precompile import graph_of_clients
from fedatoms.engine.gpu import launches, precompile, triton_atoms, triton_conv

if __name__ == "__main__":  # the compiler's processes import this, too
    torch.cuda.device = contextlib.nullcontext
    compile_tasks._set_triton_libdevice_path = lambda: setattr(triton.knobs.nvidia, "libdevice_path", sys.argv[2])
    launches.triton.runtime.driver.set_active(launches.Card("cuda", 90, 32, 232448))  # stands in for that of a GPU
    kernels = triton_conv._convolve, triton_conv._convolve_pool, triton_conv._correlate
    kernels += triton_atoms._compose, triton_atoms._share
    until = time.monotonic() + 100
    with precompile.compiling_elsewhere(graph_of_clients(), torch.device("cuda", 0)) as jobs:
        compile_tasks._set_triton_libdevice_path()  # as Inductor does before its first kernel, long before ours
        if sys.argv[3] == "wait":
            while sum(len(kernel.device_caches[0][0]) for kernel in kernels) < 9 and time.monotonic() < until:
                time.sleep(0.05)
    for job in jobs:
        job.result(timeout=100)
    time.sleep(0.5)  # a job is over before what follows it is
    loaded = sum(len(kernel.device_caches[0][0]) for kernel in kernels)
    print(loaded)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("patience", "loaded"), [("wait", 9), ("leave", 0)])
def test_what_another_process_has_compiled_is_loaded_while_it_is_waited_for(
    tmp_path: Path, patience: str, loaded: int
) -> None:
    triton = pytest.importorskip("triton")
    env = {**os.environ, "HOME": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    for name in ("TRITON_INTERPRET", "TRITON_CACHE_DIR"):
        env.pop(name, None)
    (tmp_path / "main.py").write_text(FROM_POOL)
    functions = Path(triton.__file__).parent / "backends" / "nvidia" / "lib" / "libdevice.10.bc"
    others = tmp_path / "others.bc"  # of another version
    others.write_bytes(functions.read_bytes() + bytes(4))
    words = [sys.executable, str(tmp_path / "main.py"), str(Path(__file__).parent), str(others), patience]
    said = subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout
    assert said == f"{loaded}\n"
    assert len(list(tmp_path.rglob("*.cubin"))) == 9  # found there, not compiled again
