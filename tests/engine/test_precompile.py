"""Kernels of a traced step, compiled in processes that have no GPU."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedatoms.engine.gpu.precompile import Call, Of, calls_of, compile_elsewhere
from fedatoms.engine.gpu.rewrite import BatchedKernels, traced

NET = nn.Sequential(nn.Conv2d(4, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 1))
OF_A_CARD = """
import pickle, sys
from fedatoms.engine.gpu.launches import Card
from fedatoms.engine.gpu.precompile import compile_call
for call in pickle.loads(sys.stdin.buffer.read()):
    compile_call(call, Card("cuda", 90, 32, 232448))
"""


def graph_of_clients() -> torch.fx.GraphModule:
    params = {name: torch.stack([leaf.detach()] * 2) for name, leaf in NET.named_parameters()}

    def step(params: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = torch.vmap(lambda own, images: functional_call(NET, own, (images,)))(params, x)
        return outputs

    with BatchedKernels():
        return traced(step, params, torch.zeros(2, 3, 4, 8, 8))


def test_a_graph_names_what_its_operators_are_called_with() -> None:
    calls = list(calls_of(graph_of_clients()))
    assert [call.operator for call in calls] == ["convolve_pool", "convolve"]
    assert calls[0].arguments[0] == Of((2, 3, 8, 8, 4), torch.float32)
    assert calls[1].arguments[2:] == (None, 0, 0, 1, False)
    assert pickle.loads(pickle.dumps(calls)) == calls


def test_without_triton_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "fedatoms.engine.gpu.launches", raising=False)
    assert compile_elsewhere(graph_of_clients(), torch.device("cpu")) == []


def test_kernels_are_compiled_where_there_is_no_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    atoms, filters = Of((2, 9, 3, 3), torch.float32), Of((2, 16, 3, 3, 16), torch.bfloat16)
    coefficients = Of((2, 16, 16, 9), torch.float32)
    calls = [
        *calls_of(graph_of_clients()),
        Call(
            "correlate",
            (Of((2, 3, 8, 8, 16), torch.bfloat16), Of((2, 3, 6, 6, 16), torch.bfloat16), None, None, 3, 3, 1),
        ),
        Call("compose", (coefficients, atoms, torch.bfloat16)),
        Call("share", (coefficients, atoms, filters)),
    ]
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    env.pop("TRITON_INTERPRET", None)
    subprocess.run([sys.executable, "-c", OF_A_CARD], input=pickle.dumps(calls), env=env, check=True)
    assert len(list(tmp_path.glob("*/*.cubin"))) == len(calls)


FROM_POOL = """
import contextlib, sys, time, torch
sys.path.insert(0, sys.argv[1])
from test_precompile import graph_of_clients
from fedatoms.engine.gpu import launches, precompile, triton_conv

if __name__ == "__main__":  # the compiler's processes import this, too
    card = launches.Card("cuda", 90, 32, 232448)
    launches.compile_for(card)  # stands in for the driver of a GPU
    torch.cuda.device = contextlib.nullcontext
    for job in precompile.compile_elsewhere(graph_of_clients(), torch.device("cuda", 0)):
        job.result(timeout=100)
    kernels, until = (triton_conv._convolve, triton_conv._convolve_pool), time.monotonic() + 100
    while not all(kernel.device_caches[0][0] for kernel in kernels) and time.monotonic() < until:
        time.sleep(0.05)  # a job is over before what follows it is
    print(*(len(kernel.device_caches[0][0]) for kernel in kernels))
"""


@pytest.mark.slow
def test_what_another_process_has_compiled_is_loaded_at_once(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    env.pop("TRITON_INTERPRET", None)
    (tmp_path / "main.py").write_text(FROM_POOL)
    words = [sys.executable, str(tmp_path / "main.py"), str(Path(__file__).parent)]
    said = subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout
    assert said.split() == ["1", "1"]
    assert len(list(tmp_path.glob("*/*.cubin"))) == 2  # found there, not compiled again
