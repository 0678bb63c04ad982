"""Compiles the kernels of a traced step in the compiler's processes, while this one compiles the rest of it."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, as_completed
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

if TYPE_CHECKING:
    from fedatoms.engine.gpu.launches import Card

NAMESPACE = "fedatoms"
MODULES = {  # by operator; all others are in triton_conv
    "compose": "triton_atoms",
    "share": "triton_atoms",
    "normalise": "triton_norm",
    "normalise_back": "triton_norm",
    "squares": "triton_squares",
}


class Outline(NamedTuple):
    """A tensor's shape and type."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Call(NamedTuple):
    """An operator's arguments: tensors by shape and type."""

    operator: str
    arguments: tuple[object, ...]


@contextmanager
def compiling_elsewhere(graph: GraphModule, device: torch.device) -> "Iterator[list[Future[None]]]":
    """Lets the compiler's processes fill Triton's cache with the kernels of a graph, and loads each as it gets there.

    Nobody waits for them: what is not there in time, the first step compiles by itself. At the end none is loaded any
    more, which a recording of a CUDA graph would not survive.
    """
    try:
        from torch._inductor.async_compile import AsyncCompile

        from fedatoms.engine.gpu.launches import this_card

        card, pool = this_card(device), AsyncCompile.process_pool()
        jobs = {pool.submit(compile_call, call, card): call for call in set(calls_of(graph))}
    except Exception:  # one process only, no Triton, or another torch: the first step says so, if it matters
        yield []
        return
    loading, over = Lock(), Event()
    Thread(target=_load, args=(jobs, device, loading, over), daemon=True).start()
    try:
        yield list(jobs)
    finally:
        with loading:
            over.set()


def calls_of(graph: GraphModule) -> Iterator[Call]:
    """Yields the calls of our operators in a traced graph."""
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == NAMESPACE:
            yield Call(node.target._opname, tuple(_outline(each) for each in node.args))


def compile_call(call: Call, card: "Card") -> None:
    """Compiles, for a GPU that this process does not use, the kernel that an operator launches."""
    from fedatoms.engine.gpu.launches import compiling_for

    with compiling_for(card):
        _compile(call)


def _load(jobs: "Mapping[Future[None], Call]", device: torch.device, loading: Lock, over: Event) -> None:
    """Loads kernels as they are compiled; of one that failed or was cancelled, the first step says why."""
    with torch.cuda.device(device):  # of this thread
        for job in as_completed(jobs):
            with loading, suppress(Exception):
                if over.is_set():
                    return
                job.result()
                _compile(jobs[job])


def _compile(call: Call) -> None:
    module = import_module(f"{__package__}.{MODULES.get(call.operator, 'triton_conv')}")
    getattr(module, call.operator)(*map(_without_memory, call.arguments))


def _outline(argument: object) -> object:
    if isinstance(argument, list):
        return tuple(map(_outline, argument))
    value = argument.meta["val"] if isinstance(argument, Node) else argument
    return Outline(tuple(value.shape), value.dtype) if isinstance(value, Tensor) else value


def _without_memory(argument: object) -> object:
    if isinstance(argument, Outline):
        return torch.empty(argument.shape, dtype=argument.dtype, device="meta")
    return [*map(_without_memory, argument)] if isinstance(argument, tuple) else argument
