"""Blocks of clients on a GPU: each step is compiled once, kept as a CUDA graph, and replayed without the host."""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fedatoms.algorithms.base import Server
from fedatoms.core.collector import collector_paused
from fedatoms.engine.client_round import Carry, Job, Learner, Reply
from fedatoms.engine.execution.block_round import begin_block, block_step, finish_block
from fedatoms.engine.execution.inductor import Compiled, compile_graph, compile_twice, decompositions
from fedatoms.engine.execution.loop import MapClients
from fedatoms.engine.execution.vmap import naming_refusals, stack, vectorised, why
from fedatoms.engine.gpu.first_only import OnlyOnce
from fedatoms.engine.gpu.precompile import compiling_elsewhere
from fedatoms.engine.gpu.rewrite import BatchedKernels, kernel_is_missing, traced
from fedatoms.nn.vectorising import causes

T = TypeVar("T")


class Buffers(NamedTuple):
    """The memory that a graph reads and writes."""

    broadcast: Server
    jobs: Job
    carry: Carry
    shared: Mapping[str, Tensor]  # what has no client axis
    losses: Tensor  # (C, S)
    step: Tensor  # (1,): the number of the next step
    rate: Tensor


class Program(NamedTuple):
    """What is replayed over the buffers; a reply is valid until the next block begins."""

    buffers: Buffers
    step: Callable[[], object]
    finish: Callable[[], Reply]


class _Longest(NamedTuple):
    """How many samples the largest of some clients has."""

    parts: Sequence[Tensor]
    samples: int


def compiled(block: int) -> MapClients:
    """Trains ``block`` clients at once; a shorter block is filled up with idle clients."""
    programs: dict[object, Program | None] = {}  # None: the compiler refused
    longest = _Longest([], 0)

    def map_clients(learner: Learner, broadcast: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
        nonlocal longest
        rest = iter(jobs)
        if longest.parts is not learner.data.parts:  # once: to look at a thousand parts takes half a millisecond
            longest = _Longest(learner.data.parts, max(map(len, learner.data.parts)))
        steps = learner.training.epochs * -(-longest.samples // learner.training.samples)
        while some := list(itertools.islice(rest, block)):
            idle = some[0]._replace(plan=some[0].plan._replace(real=torch.zeros_like(some[0].plan.real)))
            inputs = stack(some + [idle] * (block - len(some)), steps=steps)
            # what distinguishes the steps of rounds and phases
            sets = (learner.trained, learner.travelling, learner.statistics)
            kind = (*sets, learner.algorithm, learner.training, learner.align, learner.head, bool(inputs.told))
            if kind not in programs:
                with naming_refusals(), collector_paused():
                    programs[kind] = _record_if_possible(learner, broadcast, inputs)
            program = programs[kind]
            if program is None:
                yield from vectorised(block)(learner, broadcast, itertools.chain(some, rest))
                return
            _fill(program.buffers, broadcast, inputs, learner)
            for _ in range(max(len(job.plan.rows) for job in some)):
                program.step()
            yield _map(lambda leaf: leaf[: len(some)], program.finish())

    return map_clients


class _NotCompiled(Exception):
    """The compiler refused a step."""


def _record_if_possible(learner: Learner, broadcast: Server, jobs: Job) -> Program | None:
    try:
        return _record(learner, broadcast, jobs)
    except _NotCompiled as error:
        warnings.warn(f"the step cannot be compiled ({error}): training without the compiler", stacklevel=2)
        return None


def _record(learner: Learner, broadcast: Server, jobs: Job) -> Program:
    """Traces and compiles a step over fixed buffers and, on a GPU, records it as a CUDA graph."""
    carry = begin_block(learner, jobs)
    device = jobs.plan.rows.device
    losses = torch.zeros(jobs.plan.real.shape[:2], dtype=learner.network.dtype, device=device)
    first, rate = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros((), dtype=losses.dtype, device=device)
    buffers = _map(torch.clone, Buffers(broadcast, jobs, carry, learner.shared, losses, first, rate))
    step = _compiled_step(learner, buffers)

    def finish() -> Reply:
        return finish_block(learner, buffers.broadcast, buffers.jobs, buffers.carry, buffers.losses, buffers.rate)

    if device.type == "cpu":
        return Program(buffers, lambda: step(buffers), finish)
    replay_step, _ = _captured(lambda: step(buffers))
    replay_finish, reply = _captured(finish)

    def finish_again() -> Reply:
        replay_finish()
        return reply

    return Program(buffers, replay_step, finish_again)


def _compiled_step(learner: Learner, buffers: Buffers) -> Callable[[Buffers], object]:
    step = _stepper(learner)
    if learner.precision != "float32":
        try:
            return _compile(lambda: _with_kernels(step, buffers), buffers)
        except Exception as error:
            if not (kernel_is_missing(error) or isinstance(error, OnlyOnce)):
                raise
            warnings.warn(f"convolutions go to cuDNN, which is slower: {why(error)}", stacklevel=2)
    return _compile(lambda: _traced(step, buffers), buffers)


def _with_kernels(step: Callable[[Buffers], None], buffers: Buffers) -> GraphModule:
    with BatchedKernels():
        return _traced(step, buffers)


def _traced(step: Callable[[Buffers], None], buffers: Buffers) -> GraphModule:
    """Traces a step; for a GPU in the compiler's own operators, so that it need not be traced again."""
    return traced(step, buffers, decompositions=decompositions() if buffers.step.is_cuda else None)


def _compile(trace: Callable[[], GraphModule], buffers: Buffers) -> Callable[[Buffers], object]:
    """Compiles a step and runs it; our kernels are compiled meanwhile, in other processes."""
    graph = trace()
    if not buffers.step.is_cuda:
        return _compile_by(compile_graph, graph, buffers)
    with compiling_elsewhere(graph, buffers.step.device):
        return _compile_by(partial(compile_twice, trace), graph, buffers)


def _compile_by(
    compiler: Callable[[GraphModule, list[object]], Compiled], graph: GraphModule, buffers: Buffers
) -> Compiled:
    try:
        step = compiler(graph, [buffers])
    except Exception as error:
        for each in causes(error):
            if isinstance(each, torch.OutOfMemoryError):
                raise each from None
        raise _NotCompiled(why(error)) from error
    step(buffers)
    return step


def _captured(function: Callable[[], T]) -> tuple[Callable[[], None], T]:
    """Records a function's work on the GPU as a graph; returns its replay, and the tensors that it writes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):  # lets libraries choose their kernels
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph.replay, result


def _stepper(learner: Learner) -> Callable[[Buffers], None]:
    def once(buffers: Buffers) -> None:
        broadcast, jobs, carry, shared, losses, number, rate = buffers
        step = block_step(learner._replace(shared=shared))
        new, loss = step(carry, jobs, number, broadcast, rate)
        _copy(carry, new)
        losses.copy_(losses.index_copy(1, number, loss[:, None]))
        number.copy_((number + 1).remainder(losses.shape[1]))  # never out of range, even in warm-up

    return once


def _fill(buffers: Buffers, broadcast: Server, jobs: Job, learner: Learner) -> None:
    now = broadcast, jobs, begin_block(learner, jobs), learner.shared
    old, new = (pytree.tree_leaves(each) for each in (buffers[:4], now))
    alike: dict[object, list[tuple[Tensor, Tensor]]] = {}  # a pair of unlike strides makes torch copy all one by one
    for one, other in zip(old, new, strict=True):
        alike.setdefault((one.dtype, one.stride() == other.stride()), []).append((one, other))
    for pairs in alike.values():  # few kernels instead of one per leaf
        into, tensors = zip(*pairs, strict=True)
        torch._foreach_copy_(into, tensors)
    buffers.losses.zero_()
    buffers.step.zero_()
    buffers.rate.fill_(learner.rate)


def _copy(into: object, tensors: object) -> None:
    for old, new in zip(pytree.tree_leaves(into), pytree.tree_leaves(tensors), strict=True):
        old.copy_(new)


def _map(function: Callable[[Tensor], Tensor], tree: T) -> T:
    return cast(T, pytree.tree_map(function, tree))
