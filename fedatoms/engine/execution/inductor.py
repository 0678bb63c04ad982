"""Inductor, torch's compiler, asked for a step that is traced already: it is not traced again, and kept on disk."""

import operator
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen
from torch.utils import _pytree as pytree

from fedatoms.core.collector import collector_paused
from fedatoms.core.files import digest_of_code
from fedatoms.engine import gpu
from fedatoms.engine.gpu.precompile import NAMESPACE
from fedatoms.nn.vectorising import causes, first_sentence

if TYPE_CHECKING:
    from torch._subclasses import FakeTensorMode

Compiled = Callable[[object], object]
Decompositions = Mapping[OpOverload, Callable[..., object]]
_OPTIONS: dict[str, bool | int] = {
    "shape_padding": False,  # trying it takes time and gains none
    "combo_kernels": True,  # a step has many small tensors: one kernel for several of them, whatever their sizes
    "combo_kernel_allow_mixed_sizes": 2,
    "max_fusion_buffer_group_pairwise_attempts": 8,  # pairs to fuse, of all that read one tensor; not 64
    "realize_opcount_threshold": 100,  # not 30: an image is fetched, cropped, normalised and rounded by one kernel
    "triton.autotune_pointwise": False,  # two or more shapes of a kernel, timed by the first step: none gains by it
    "graph_partition": False,  # into what CUDA graphs can hold: all of it, and the graphs are ours
}
_APART: dict[str, bool | int] = {  # on top of these, for what Triton fails at: either of the last two mended a step
    "combo_kernels": False,
    "max_fusion_size": 4,
    "triton.persistent_reductions": False,
}
_LARGE: dict[str, bool | int] = {  # and for a step of many operations, which takes milliseconds, but seconds to compile
    "loop_ordering_after_fusion": False,  # other orders of loops, to fuse more
}
_MANY = 2000  # nodes of a graph; ResNet-18 has 2,958 and LeNet 619
_NO_TRITON = ("TritonMissing", "GPUTooOldForTriton")  # errors of Inductor's, by name: not every torch has both
_aten = torch.ops.aten


def start_compiler() -> None:
    """Starts the compiler's processes early: it takes seconds, during which other work is done."""
    os.environ.setdefault("SYMPY_CACHE_SIZE", "100000")  # formulas it remembers, read at its import; 1,000 are too few
    with collector_paused():
        from torch._inductor import async_compile  # an import of seconds

        getattr(async_compile, "maybe_warm_pool", lambda: None)()  # older ones start as they are imported
    Thread(target=_read_triton, daemon=True).start()


def _read_triton() -> None:
    """Computes the digest of Triton, 400 MB and a part of all keys, in a thread: hashing lets others run."""
    with suppress(Exception):  # a hint only: what needs the key says what is wrong with Triton
        from torch._inductor.runtime.triton_compat import triton_key

        triton_key()


def decompositions() -> Decompositions:
    """Returns the operators that a step must be traced without, as functions of those that Inductor knows."""
    with collector_paused():
        from torch._inductor.compile_fx import select_decomp_table  # another import of seconds

    return cast(Decompositions, select_decomp_table())


def compile_graph(graph: GraphModule, example: list[object], *, apart: bool = False) -> Compiled:
    """Compiles a traced step, a graph that changes its inputs and returns nothing; torch traces it once more.

    ``apart`` joins few operations in one kernel: slower ones, for a step that Triton fails at.
    """
    import torch._inductor  # without Dynamo: the step is traced already

    compile_it = cast(Callable[..., Compiled], torch._inductor.compile)
    with _kept_for_the_next_start(_mode_of(graph)):
        return compile_it(graph, example, options=_options(apart, len(graph.graph.nodes)))


def compile_twice(again: Callable[[], GraphModule], graph: GraphModule, example: list[object]) -> Compiled:
    """Compiles a step as below and, where that fails, traced ``again`` and with smaller kernels: Triton has its bugs.

    Slower ones, but many times as fast as a step that is not compiled.
    """
    try:
        return compile_decomposed(graph, example)
    except Exception as error:
        if any(isinstance(each, torch.OutOfMemoryError) or type(each).__name__ in _NO_TRITON for each in causes(error)):
            raise
        why = first_sentence(error)
    step = compile_decomposed(again(), example, apart=True)
    warnings.warn(f"a kernel cannot be compiled ({why}): the step has smaller ones, which are slower", stacklevel=2)
    return step


def compile_decomposed(graph: GraphModule, example: list[object], *, apart: bool = False) -> Compiled:
    """Compiles a step that was traced without the operators of ``decompositions``.

    torch would trace it again, to find what it changes. A graph that plainly changes its inputs at its end, and nothing
    else that anybody sees, is compiled as it is.
    """
    pure = in_place(graph.graph)
    if pure is None:
        return compile_graph(graph, example, apart=apart)
    for node, operator_without in pure.items():
        node.target = operator_without
    with _kept_for_the_next_start(_mode_of(graph)):
        return _compile_as_it_is(graph, apart)


def in_place(graph: Graph) -> dict[Node, OpOverload] | None:
    """Finds the operators that change a tensor which nobody else sees, each with the one that makes a new tensor.

    None for a graph that changes more than these, and its inputs at its end by copies.
    """
    found, written = dict[Node, OpOverload](), set[Node]()
    for node in graph.nodes:
        if any(each in written for each in node.all_input_nodes):
            return None
        if node.op in ("placeholder", "get_attr", "output") or node.target is operator.getitem:
            continue
        if not isinstance(node.target, OpOverload):  # one of higher order: who knows what it changes
            return None
        if not node.target._schema.is_mutable:
            continue
        first = node.args[0] if node.args else None
        if not isinstance(first, Node):
            return None
        if node.target is _aten.copy_.default and first.op == "placeholder" and not node.users:
            written.add(first)
        elif (pure := _pure(node)) is not None and (first in found or _is_fresh(first)) and len(first.users) == 1:
            found[node] = pure
        else:
            return None
    return found


def _pure(node: Node) -> OpOverload | None:
    """Returns the operator that makes of the same arguments what this one makes of the first in place, if it is known.

    That holds for one that works number by number and has the same arguments, of one type each: else its result could
    have another type than the tensor that is changed.
    """
    changes = cast(OpOverload, node.target)
    packet = getattr(_aten, changes._opname.removesuffix("_"), None) if changes.namespace == "aten" else None
    pure = getattr(packet, changes._overloadname, None)
    if pure is None or torch.Tag.pointwise not in pure.tags:
        return None
    kinds = [[(each.name, str(each.type)) for each in one._schema.arguments] for one in (changes, pure)]
    types = {each.meta["val"].dtype for each in node.all_input_nodes}
    return pure if kinds[0] == kinds[1] and len(types) == 1 else None


def _is_fresh(node: Node) -> bool:
    """Says whether a tensor has memory of its own."""
    called = node.op == "call_function" and isinstance(node.target, OpOverload)
    return called and not any(each.alias_info for each in cast(OpOverload, node.target)._schema.returns)


def _compile_as_it_is(graph: GraphModule, apart: bool) -> Compiled:
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.virtualized import V

    _let_ours_share_what_they_read(graph.graph)
    constants = _as_inputs(graph)
    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    options = _options(apart, len(graph.graph.nodes))
    with V.set_fake_mode(_mode_of(graph)), config.patch(options), _simplifying_what_is_not_kept(), _forgetting():
        run = compile_fx_inner(graph, inputs, is_inference=True, static_input_idxs=[*range(len(inputs))])
    return lambda buffers: run([*pytree.tree_leaves(buffers), *constants])


def _let_ours_share_what_they_read(graph: Graph) -> None:
    """Lets Inductor write what several operators read once; for one that it does not know, it makes a copy each."""
    from torch._inductor.lowering import add_needs_realized_inputs

    targets = {node.target for node in graph.nodes if isinstance(node.target, OpOverload)}
    add_needs_realized_inputs([each for each in targets if each.namespace == NAMESPACE])


@contextmanager
def _simplifying_what_is_not_kept() -> Iterator[None]:
    """Lets Inductor look first for what it keeps, by the graph as it is, and simplify only what it must compile.

    As it does with graphs that it traces. To simplify one takes longer than all that a hit takes.
    """
    from unittest.mock import patch  # as torch does

    from torch._inductor import compile_fx
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    compile_new: Callable[..., object] = compile_fx.fx_codegen_and_compile

    def simplify_first(graph: GraphModule, *args: object, **options: object) -> object:
        joint_graph_passes(graph)
        return compile_new(graph, *args, **options)

    with patch.object(compile_fx, "fx_codegen_and_compile", simplify_first):
        yield


@contextmanager
def _forgetting() -> Iterator[None]:
    """Lets Inductor forget what nobody reads any more when an input is changed: it would prepare to compute all of it.

    A step changes each parameter, and what it makes of it on the way, for its last reader, is of no use by then.
    """
    from unittest.mock import patch  # as torch does

    from torch._inductor.graph import GraphLowering

    compute: Callable[..., None] | None = getattr(GraphLowering, "mark_buffer_mutated", None)
    if compute is None:  # another torch
        yield
        return

    def compute_what_is_read(lowering: _Lowering, name: str) -> None:
        read = {id(value) for value in pytree.tree_leaves([*lowering.env.values()])}
        users = lowering.name_to_users.get(name, [])
        lowering.name_to_users[name] = [user for user in users if id(user) in read]
        compute(lowering, name)

    with patch.object(GraphLowering, "mark_buffer_mutated", compute_what_is_read):
        yield


class _Lowering(Protocol):
    """The part of Inductor's interpreter of graphs that is used here."""

    env: Mapping[Node, object]  # values that are still read
    name_to_users: dict[str, list[object]]  # values by what they are made of


def _as_inputs(graph: GraphModule) -> list[Tensor]:
    """Makes a graph's constants its last inputs, and all inputs flat; returns the constants, which it then forgets.

    So that they are no part of what is kept, nor of its key: they are a run's data.
    """
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    found: dict[str, Node] = {}
    for node in graph.graph.find_nodes(op="get_attr"):
        if node.target not in found:
            with graph.graph.inserting_after(last):
                found[node.target] = last = graph.graph.placeholder(f"constant_{len(found)}")
            last.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(found[node.target])
        graph.graph.erase_node(node)
    for node in graph.graph.nodes:
        if node.target in (_aten.detach.default, _aten.alias.default):  # of gradients, which are taken by now
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    (end,) = graph.graph.find_nodes(op="output")
    end.args = ((),)
    graph.graph.set_codegen(CodeGen())
    constants = [getattr(graph, name).detach() for name in found]  # a step takes its own gradients
    for name in found:
        delattr(graph, name)
    graph.recompile()
    return constants


def _mode_of(graph: GraphModule) -> "FakeTensorMode":
    """Returns the mode of the tensors without values that a graph was traced with."""
    first = next(iter(graph.graph.find_nodes(op="placeholder")))
    return cast("FakeTensorMode", first.meta["val"].fake_mode)


def _options(apart: bool, operations: int) -> dict[str, bool | int]:
    """Returns the options that this torch has, for a step of so many operations."""
    from torch._inductor import config

    known = cast(Mapping[str, object], config.get_config_copy())
    wanted = {**_OPTIONS, **(_APART if apart else {}), **(_LARGE if operations >= _MANY else {})}
    return {name: value for name, value in wanted.items() if name in known}


@contextmanager
def _kept_for_the_next_start(mode: "FakeTensorMode") -> Iterator[None]:
    """Lets Inductor keep what it compiles: it would not outside of a trace with an environment for shapes."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import config

    with tracing(TracingContext(mode)), config.patch(post_grad_custom_post_pass=_unchanged()):
        yield


@cache
def _unchanged() -> object:
    """Returns a pass over graphs that changes none, but is a part of Inductor's key, and so is the digest of our code.

    A tag of keys would also be one of what it finds out about kernels; its processes do not know of such a tag, and
    what is found out in a first start was not found by the next.
    """
    from torch._inductor.custom_graph_pass import CustomGraphPass

    methods = {"__call__": lambda self, graph: None, "uuid": lambda self: _code_of_kernels()}
    return type("Unchanged", (CustomGraphPass,), methods)()


@cache
def _code_of_kernels() -> str:
    """Returns a digest of what Inductor keeps but has not in its key: our operators' shapes, and what we tell it."""
    return digest_of_code(gpu.__name__) + digest_of_code(__package__)
