"""A traced step that goes to the compiler as it is."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from support.inductor import compiles
from support.small import clients_of, difference, play, small_net
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import metrics

from fedatoms.data.batches import fetch
from fedatoms.data.datasets import Fill, Recipe
from fedatoms.engine.execution import cuda_graph, inductor
from fedatoms.engine.gpu.rewrite import traced
from fedatoms.engine.gpu.square_ops import squares
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training

Step = Callable[[Tensor, Tensor], object]


def doubles(a: Tensor, b: Tensor) -> None:
    a.copy_(2 * a + b)
    b.copy_(b + 1)


def adds_in_place_to_what_nobody_sees(a: Tensor, b: Tensor) -> None:
    a.copy_((2 * a).add_(b).relu_())


def adds_in_place_to_what_is_seen(a: Tensor, b: Tensor) -> None:
    twice = 2 * a
    flat = twice.view(-1)
    twice.add_(b)
    a.copy_(flat.view_as(a))


def adds_to_a_view_of_an_input(a: Tensor, b: Tensor) -> None:
    a[0].add_(b[0])


def changes_an_input_at_once(a: Tensor, b: Tensor) -> None:
    a.mul_(2)


def reads_what_it_has_written(a: Tensor, b: Tensor) -> None:
    a.copy_(b)
    b.copy_(a + 1)


def adds_another_type_in_place(a: Tensor, b: Tensor) -> None:
    a.copy_((2 * a).bfloat16().add_(b).float())


def takes_a_power_in_place(a: Tensor, b: Tensor) -> None:
    a.copy_((2 * a).clamp_(0).pow_(2))


def transposes_in_place(a: Tensor, b: Tensor) -> None:
    a.copy_((2 * a)[None].t_()[:, 0])


def adds_to_several(a: Tensor, b: Tensor) -> None:
    both = [2 * a, 2 * b]
    torch._foreach_add_(both, 1.0)
    a.copy_(both[0])


def decides(a: Tensor, b: Tensor) -> None:
    a.copy_(torch.cond(b.sum() > 0, lambda x: x + 1, lambda x: x - 1, (a,)))


@pytest.mark.parametrize("step", [doubles, adds_in_place_to_what_nobody_sees])
def test_copies_into_inputs_are_seen(step: Step) -> None:
    graph = traced(step, torch.ones(2), torch.ones(2))
    pure = inductor.in_place(graph.graph)
    assert pure is not None
    for node, target in pure.items():
        node.target = target
    graph.recompile()
    given, expected = ([torch.tensor([1.0, -3.0]), torch.tensor([2.0, 4.0])] for _ in range(2))
    graph(*given)
    step(*expected)
    assert all(map(torch.equal, given, expected))


@pytest.mark.parametrize(
    "step",
    [
        adds_in_place_to_what_is_seen,
        adds_to_a_view_of_an_input,
        changes_an_input_at_once,
        reads_what_it_has_written,
        adds_another_type_in_place,
        takes_a_power_in_place,
        transposes_in_place,
        adds_to_several,
        decides,
    ],
)
def test_other_changes_are_left_to_torch(step: Step) -> None:
    graph = traced(step, torch.ones(2), torch.ones(2))
    before = [node.target for node in graph.graph.nodes]
    assert inductor.in_place(graph.graph) is None and before == [node.target for node in graph.graph.nodes]


@pytest.mark.parametrize("fill", ["zero", "black"])
def test_images_are_augmented_without_a_change_that_torch_must_find(fill: Fill) -> None:
    recipe = Recipe(255.0, (0.5,), (0.25,), flip=True, pad=2, crop=0.5, fill=fill)
    pool, labels = torch.zeros(5, 1, 4, 4, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64)

    def step(images: Tensor, rows: Tensor, flip: Tensor, shift: Tensor) -> None:
        images.copy_(fetch(pool, labels, rows, recipe, torch.float32, flip, shift)[0])

    rows, yes, far = torch.arange(3), torch.ones(3, dtype=torch.bool), torch.ones(3, 2, dtype=torch.int64)
    assert inductor.in_place(traced(step, torch.zeros(3, 1, 4, 4), rows, yes, far).graph) is not None


class TritonMissing(RuntimeError):
    """As Inductor says it."""


@pytest.mark.parametrize(
    ("refusal", "tries"),
    [
        (RuntimeError("PassManager failed. See above."), 2),
        (torch.OutOfMemoryError("no more"), 1),
        (TritonMissing("Cannot find a working triton installation."), 1),
    ],
)
def test_a_step_that_triton_fails_at_gets_smaller_kernels(
    refusal: Exception, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a fresh trace: a compiler changes the graph that it is given. Where they cannot help, none are made."""
    first, second = (traced(doubles, torch.ones(2), torch.ones(2)) for _ in range(2))
    asked: list[tuple[object, bool]] = []

    def compile_it(graph: object, example: object, apart: bool = False) -> Callable[..., object]:
        asked.append((graph, apart))
        if apart:
            return second
        try:
            raise refusal
        except Exception as error:  # as Inductor wraps all errors that it meets
            raise RuntimeError(f"{type(error).__name__}: {error}") from None

    monkeypatch.setattr(inductor, "compile_decomposed", compile_it)
    if tries == 1:
        with pytest.raises(RuntimeError, match=type(refusal).__name__):
            inductor.compile_twice(lambda: second, first, [])
    else:
        with pytest.warns(UserWarning, match=r"\(RuntimeError: PassManager failed\): the step has smaller ones"):
            assert inductor.compile_twice(lambda: second, first, []) is second
    assert asked == [(first, False), (second, True)][:tries]


def test_a_second_try_joins_fewer_operations() -> None:
    one, two = inductor._options(apart=False, operations=9), inductor._options(apart=True, operations=9)
    assert one["combo_kernels"] and not two["combo_kernels"] and one.keys() < two.keys()


def test_without_triton_its_digest_is_nobodys_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime import triton_compat

    def missing() -> str:
        raise RuntimeError("triton package is not installed")

    monkeypatch.setattr(triton_compat, "triton_key", missing)
    inductor._read_triton()


def test_orders_of_loops_are_tried_for_small_steps_only() -> None:
    small, large = (inductor._options(apart=False, operations=count) for count in (100, 10_000))
    assert "loop_ordering_after_fusion" not in small and large == {**small, "loop_ordering_after_fusion": False}


@compiles
def test_of_an_input_that_is_changed_only_what_is_still_read_is_computed(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read after it is of its old value, whether it is itself read again, a view of it, or made of it."""
    from torch._inductor.graph import GraphLowering

    generate, counts = GraphLowering.codegen, list[int]()

    def counting(lowering: GraphLowering) -> object:
        counts.append(len(lowering.operations))
        return generate(lowering)

    monkeypatch.setattr(GraphLowering, "codegen", counting)
    monkeypatch.setattr(inductor, "_OPTIONS", {})  # which are a GPU's

    def step(a: Tensor, b: Tensor) -> None:
        once, again = (a * b).sin(), a * 3
        seen = again.view(3, 2).transpose(0, 1)  # of what is not computed yet
        new = once + a.exp() / (1 + b)
        a.copy_(new)
        b.copy_(seen + again + b)

    def result() -> list[Tensor]:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("read")))
        given = [torch.full((2, 3), 0.5), torch.arange(6.0).view(2, 3)]
        graph = traced(step, *given, decompositions=inductor.decompositions())
        inductor.compile_decomposed(graph, [given])(given)
        return given

    expected = [torch.full((2, 3), 0.5), torch.arange(6.0).view(2, 3)]
    step(*expected)
    torch.testing.assert_close(result(), expected)
    monkeypatch.setattr(inductor, "_forgetting", nullcontext)
    torch.testing.assert_close(result(), expected)
    assert counts[0] < counts[1]


@compiles
def test_what_two_of_our_operators_read_is_written_once(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("once")))
    monkeypatch.setattr(inductor, "_OPTIONS", {})  # which are a GPU's

    def step(a: Tensor, b: Tensor) -> None:
        both = a * b
        a.copy_(squares([both]) + squares([both, b]).sum(1, keepdim=True))

    def nodes_of_inductor() -> int:
        graph = traced(step, torch.ones(3, 1), torch.ones(3, 1), decompositions=inductor.decompositions())
        metrics.reset()
        given = [torch.full((3, 1), 2.0), torch.ones(3, 1)]
        inductor.compile_decomposed(graph, [given])(given)
        assert torch.equal(given[0], torch.full((3, 1), 4.0 + 5.0))
        return metrics.ir_nodes_pre_fusion

    monkeypatch.setattr(inductor, "_let_ours_share_what_they_read", lambda graph: None)
    each = nodes_of_inductor()
    monkeypatch.undo()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("twice")))
    monkeypatch.setattr(inductor, "_OPTIONS", {})
    assert nodes_of_inductor() == each - 1


class Beside(nn.Module):
    """A network with a parameter that torch does not know of, and so a constant that requires a gradient."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.hidden = net, [nn.Parameter(torch.ones(3, dtype=torch.float64))]

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(x)
        return outputs * self.hidden[0].sum()


@compiles
def test_a_step_that_is_compiled_as_it_is_trains_as_any(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, where a step is else traced again; and the next start finds it on disk, with other data, too."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("as-it-is")))
    monkeypatch.setattr(cuda_graph, "_traced", partial(traced, decompositions=inductor.decompositions()))
    monkeypatch.setattr(cuda_graph, "compile_graph", inductor.compile_decomposed)
    monkeypatch.setattr(inductor, "compile_graph", None)  # not traced again
    monkeypatch.setattr(inductor, "_OPTIONS", {})  # which are a GPU's
    counters.clear()
    training, data = Training(2, 5, 0.05, momentum=0.5), clients_of((7, 4))
    for hits in (0, 1):
        net = Beside(small_net(dropout=True, atoms=4))
        sim = Simulation(net, data._replace(x=data.x + hits), training=training)
        runtime = prepare(sim)._replace(map_clients=cuda_graph.compiled(2))
        assert difference(play(sim, 2).server.params, play(runtime, 2).server.params) < 1e-10
        assert counters["inductor"]["fxgraph_cache_hit"] == hits


@pytest.mark.slow
@pytest.mark.parametrize(("told", "size"), [({}, "100000"), ({"SYMPY_CACHE_SIZE": "500"}, "500")])
def test_the_compilers_algebra_remembers_more_formulas_unless_told_how_many(told: dict[str, str], size: str) -> None:
    code = (
        "from fedatoms.engine.execution.inductor import start_compiler; start_compiler(); from sympy.core import cache"
    )
    env = {name: value for name, value in os.environ.items() if name != "SYMPY_CACHE_SIZE"} | told
    command = [sys.executable, "-c", f"{code}; print(cache.SYMPY_CACHE_SIZE)"]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip() == size
