"""Blocks of clients: what does not fit gets smaller, what cannot be vectorised goes one by one, and nothing is lost."""

import dataclasses
import itertools
import re
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cases import some_of
from support.small import clients_of, difference, play, small_net
from torch import Tensor, nn

from fedatoms.algorithms.base import Server
from fedatoms.cli import main
from fedatoms.core import trees
from fedatoms.engine.client_round import Job, Learner, Reply
from fedatoms.engine.exchange import FAST, SLOW, Exchange, fast_slow
from fedatoms.engine.execution import block_round, blocks, cuda_graph, vmap
from fedatoms.engine.execution.blocks import even_blocks, in_blocks, room, that_fit
from fedatoms.engine.execution.loop import MapClients, one_by_one
from fedatoms.engine.execution.vmap import NotVectorisable, vectorised
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.engine.training import Training

TRAINING = Training(epochs=2, batch_size=10, lr=0.05, momentum=0.5)
MAKERS = {"vectorised": vectorised, "compiled": cuda_graph.compiled}


class Squares(torch.autograd.Function):
    """The old form of a function of one's own, which no transform takes."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        return 2 * context.saved_tensors[0] * gradient


def added_in_place(x: Tensor) -> Tensor:
    total = torch.zeros(3, dtype=x.dtype)
    total += x.detach().mean(0)
    return x + total


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "random": lambda x: nn.functional.dropout(x, 0.5),
    "item": lambda x: x * x.mean().item(),
    "control flow": lambda x: x if x.mean() > 0 else -x,
    "in place": added_in_place,
    "own function": Squares.apply,
    "shape of data": lambda x: x + x.detach()[x > 0].sum(),
    "as a list": lambda x: x + x.tolist()[0][0],
}


class Net(nn.Module):
    """A linear layer, and then what is asked for, in training only."""

    def __init__(self, after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fc, self.after = nn.Linear(36, 3).double(), after

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x.flatten(1))
        return self.after(x) if self.training else x


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)


def simulation(model: nn.Module | None = None, **changes: object) -> Simulation:
    sim = Simulation(
        small_net(norm=True, atoms=4) if model is None else model,
        clients_of((1, 7, 12, 4, 5, 3, 9)),
        exchange=Exchange(fast_slow(FAST, SLOW, 2), slow_local="keep"),
        training=TRAINING,
        score=("server", "all"),
    )
    return dataclasses.replace(sim, **changes)


def mapped(sim: Simulation, map_clients: MapClients) -> Runtime:
    return prepare(sim)._replace(map_clients=map_clients)  # on a CPU another would be chosen


def sized(size: int) -> Callable[..., int]:
    return lambda *first: size


def agree(one: State, other: State) -> bool:
    pairs = [(one.server.params, other.server.params), (one.last_sum, other.last_sum)]
    pairs += [(row.last, other.clients.rows[client].last) for client, row in one.clients.rows.items()]
    return all(difference(*pair) < 1e-10 for pair in pairs)


def full_above(clients: int, monkeypatch: pytest.MonkeyPatch, when: Iterable[bool] = ()) -> None:
    """Lets torch run out of memory with more than so many clients: always, or in those blocks that ``when`` says."""
    turns = iter(when or itertools.repeat(True))
    real = block_round.finish_block

    def finish(learner: Learner, heard: Server, jobs: Job, *more: object) -> Reply:
        if len(jobs.plan.key) > clients and next(turns):
            raise torch.OutOfMemoryError("out of memory")
        return real(learner, heard, jobs, *more)

    monkeypatch.setattr(block_round, "finish_block", finish)
    monkeypatch.setattr(cuda_graph, "finish_block", finish)


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("maker", ["vectorised", pytest.param("compiled", marks=pytest.mark.slow)])
def test_out_of_memory_halves_the_block_for_good_and_changes_no_result(
    maker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, sizes = play(simulation(), 3), []
    full_above(2, monkeypatch)

    def make(size: int) -> MapClients:
        sizes.append(size)
        return MAKERS[maker](size)

    with pytest.warns(UserWarning) as warned:
        found = play(mapped(simulation(), in_blocks(make, sized(7))), 3)
    assert agree(expected, found)
    assert sizes == [7, 4, 2]  # and not again in each round
    assert [str(each.message) for each in warned] == [
        "out of memory with 7 clients at once: going on with 4 (block=4 starts there)",
        "out of memory with 4 clients at once: going on with 2 (block=2 starts there)",
    ]


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("maker", some_of(MAKERS, "vectorised"))
def test_out_of_memory_after_some_blocks_repeats_none_of_them(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = play(simulation(), 3)
    full_above(1, monkeypatch, [False, True, False, False, True])  # in the second block, and in the second round
    with pytest.warns(UserWarning) as warned:
        found = play(mapped(simulation(), in_blocks(MAKERS[maker], sized(3))), 3)
    assert agree(expected, found)
    assert [re.findall("[0-9]+", str(each.message))[:2] for each in warned] == [["3", "2"], ["2", "1"]]


def test_a_single_client_that_does_not_fit_is_an_error_that_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full_above(0, monkeypatch)
    with pytest.warns(UserWarning, match="going on with 1"), pytest.raises(MemoryError, match="client_state='host'"):
        play(mapped(simulation(), in_blocks(vectorised, sized(2))), 1)


def test_memory_that_ends_while_something_else_fails_is_out_of_memory_too() -> None:
    """A CUDA graph whose capture runs out of memory ends in an error about the capture."""

    def make(size: int) -> MapClients:
        def fail(*arguments: object) -> Iterator[Reply]:
            try:
                raise torch.OutOfMemoryError("out of memory")
            finally:
                raise RuntimeError("capture was invalidated")

        return fail if size > 2 else vectorised(size)

    with pytest.warns(UserWarning, match="going on with 2"):
        found = play(mapped(simulation(), in_blocks(make, sized(3), one_by_one)), 1)
    assert agree(play(simulation(), 1), found)


def test_what_a_failed_attempt_held_is_free_before_the_next() -> None:
    held: list[weakref.ref[object]] = []

    class Buffers:
        """Memory that refers to itself, as graphs do."""

    def make(size: int) -> MapClients:
        assert all(each() is None for each in held)
        buffers = Buffers()
        buffers.me = buffers
        held.append(weakref.ref(buffers))

        def map_clients(learner: Learner, heard: Server, jobs: list[Job]) -> Iterator[Reply]:
            replies = list(vectorised(size)(learner, heard, jobs))
            if size > 2:
                raise torch.OutOfMemoryError(f"{len(replies)} with {buffers}")
            yield from replies

        return map_clients

    with pytest.warns(UserWarning, match="going on with"):
        play(mapped(simulation(), in_blocks(make, sized(5))), 1)
    assert len(held) == 3


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("what", REFUSED)
def test_a_model_that_cannot_be_vectorised_goes_one_by_one_and_says_why_once(what: str, maker: str) -> None:
    sim, tried = simulation(Net(REFUSED[what])), []

    def make(size: int) -> MapClients:
        tried.append(size)
        return MAKERS[maker](size)

    with pytest.warns(UserWarning, match=r"this model cannot be vectorised \(.+\): training client after") as warned:
        found = play(mapped(sim, in_blocks(make, sized(3), one_by_one)), 2)
    assert len(warned) == 1 and tried == [3] and "\n" not in str(warned[0].message)
    assert agree(play(sim, 2), found)


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("what", ["random", "item", "own function"])
def test_a_refusal_while_tracing_is_one_line(what: str) -> None:
    sim = simulation(Net(REFUSED[what]))
    with pytest.warns(UserWarning) as warned:
        found = play(mapped(sim, in_blocks(cuda_graph.compiled, sized(3), one_by_one)), 1)
    assert agree(play(sim, 1), found)
    assert [str(each.message)[:32] for each in warned] == ["this model cannot be vectorised "]


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("maker", MAKERS)
def test_asked_for_by_name_it_is_an_error(maker: str) -> None:
    with pytest.raises(NotVectorisable, match=r"draws random numbers itself.*in Net. Use map=one_by_one"):
        play(mapped(simulation(Net(REFUSED["random"])), in_blocks(MAKERS[maker], sized(3))), 1)
    with pytest.raises(ValueError, match=r"draws random numbers itself.*in Net. Use map=one_by_one"):
        play(simulation(Net(REFUSED["random"]), map="vectorised", block=2), 1)


@pytest.mark.parametrize("otherwise", [None, one_by_one])
def test_a_mistake_in_the_model_stays_what_it_is(otherwise: MapClients | None) -> None:
    def wrong(x: Tensor) -> Tensor:
        return x @ torch.ones(4, 4, dtype=x.dtype) if torch.is_grad_enabled() else x  # not in the check before

    sim = simulation(Net(wrong))
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        warnings.simplefilter("error")
        play(mapped(sim, in_blocks(vectorised, sized(3), otherwise)), 1)


def test_a_refusal_after_some_blocks_repeats_none_of_them() -> None:
    turns = iter([True, True, False])

    def make(size: int) -> MapClients:
        return lambda *arguments: (vectorised(size) if next(turns) else vmap.refusing("it is late"))(*arguments)

    with pytest.warns(UserWarning, match="it is late"):
        found = play(mapped(simulation(), in_blocks(make, sized(2), one_by_one)), 2)
    assert agree(play(simulation(), 2), found)


def test_an_error_in_making_a_job_is_raised_and_loses_nobody() -> None:
    sim = simulation()

    def jobs(real: Iterator[Job]) -> Iterator[Job]:
        yield next(real)
        raise torch.OutOfMemoryError("no room for this client's state")

    inner = in_blocks(vectorised, sized(3), one_by_one)
    with pytest.raises(torch.OutOfMemoryError, match="this client's state"):
        play(mapped(sim, lambda learner, heard, real: inner(learner, heard, jobs(real))), 1)


def test_a_layer_that_is_known_to_refuse_is_named_in_the_first_round() -> None:
    net = nn.Sequential(nn.Flatten(), nn.AlphaDropout(0.1), nn.Linear(36, 3)).double()
    sim = simulation(net, device="cpu:0")  # any but "cpu", for which auto is one by one
    map_clients = prepare(sim).map_clients  # says nothing yet: a comparison makes its simulations twice
    with pytest.warns(UserWarning, match=r"layer '1' \(AlphaDropout\) draws its own randomness") as warned:
        found = play(mapped(dataclasses.replace(sim, device="cpu"), map_clients), 2)
    assert len(warned) == 1
    assert agree(play(simulation(net), 2), found)


@given(sampled=st.integers(1, 500), fits=st.integers(1, 128))
def test_blocks_are_even(sampled: int, fits: int) -> None:
    size = even_blocks(sampled, fits)
    count = -(-sampled // size)
    assert 1 <= size <= min(fits, sampled)
    assert count == -(-sampled // fits)  # no more of them than needed
    assert size * count - sampled < count  # less than one idle client in each


@given(free=st.integers(0, 10**12), step=st.integers(0, 10**9), held=st.integers(1, 10**9))
def test_a_block_is_within_its_share_of_memory(free: int, step: int, held: int) -> None:
    size = that_fit(free, step, held)
    assert 1 <= size <= blocks.MOST
    assert size == 1 or size * (step + held) <= blocks.SHARE * free


def test_a_gpus_block_is_measured_in_one_step_of_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU played by hand: a megabyte is free, the allocator has half of one unused, a step peaks at 10,000."""
    answers = {"memory_reserved": 500_200, "memory_allocated": 200, "max_memory_allocated": 10_200}
    answers |= {"mem_get_info": (10**6, 10**9), "reset_peak_memory_stats": None}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)
    real, shapes = block_round.local_rounds, []

    def rounds(learner: Learner, heard: Server, jobs: Job) -> Reply:
        shapes.append(jobs.plan.rows.shape[:2])
        return real(learner, heard, jobs)

    monkeypatch.setattr(blocks, "local_rounds", rounds)
    sim = simulation()
    learner, heard, job = first_call(sim)
    twice, velocity = 2 * trees.nbytes(job.params), trees.nbytes(prepare(sim).network.parameters)
    plan = sum(leaf.numel() * leaf.element_size() for leaf in job.plan)
    fits = room(learner, heard, job)
    assert fits == that_fit(1_500_000, step=10_000, held=twice + velocity + plan) and 1 < fits < blocks.MOST
    assert shapes == [(1, 1)]
    kept = 1_000_000  # by a rule, until the end of the round
    assert room(learner, heard, job, kept) == that_fit(500_000, step=10_000, held=twice + velocity + plan) < fits
    assert room(learner, heard, job, 10**9) == 1


def test_a_client_whose_step_does_not_fit_is_a_block_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> int:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(blocks, "_peak_of_a_step", fail)
    assert room(*first_call(simulation())) == 1


def test_the_size_is_chosen_once_when_the_first_job_is_there() -> None:
    asked, made = [], []

    def choose(learner: Learner, heard: Server, job: Job) -> int:
        asked.append(job)
        return 3

    def make(size: int) -> MapClients:
        made.append(size)
        return vectorised(size)

    map_clients = in_blocks(make, choose)
    learner, heard, job = first_call(simulation())
    assert list(map_clients(learner, heard, [])) == [] and not asked
    assert [len(reply.steps) for reply in map_clients(learner, heard, [job] * 7)] == [3, 3, 1]
    assert [len(reply.steps) for reply in map_clients(learner, heard, [job] * 4)] == [3, 1]
    assert len(asked) == len(made) == 1


def test_a_refusal_in_the_measurement_is_one_too() -> None:
    def choose(*first: object) -> int:
        raise NotVectorisable("it was measured")

    with pytest.warns(UserWarning, match=r"cannot be vectorised \(it was measured\)"):
        found = play(mapped(simulation(), in_blocks(vectorised, choose, one_by_one)), 2)
    assert agree(play(simulation(), 2), found)


@pytest.mark.parametrize(("block", "sizes"), [(0, [20, 20]), (16, [16, 16, 8])])
def test_a_simulation_takes_the_block_that_is_asked_for_or_even_ones(block: int, sizes: list[int]) -> None:
    sim = simulation(data=clients_of((1,) * 80), fraction=0.5, map="vectorised", block=block)
    learner, heard, job = first_call(sim)
    assert [len(reply.steps) for reply in prepare(sim).map_clients(learner, heard, [job] * 40)] == sizes


def first_call(sim: Simulation) -> tuple[Learner, Server, Job]:
    """Returns what a map is called with in the first round, with the first job."""
    called: list[tuple[Learner, Server, Job]] = []

    def take(learner: Learner, heard: Server, jobs: Iterator[Job]) -> Iterator[Reply]:
        for job in jobs:
            called.append((learner, heard, job))
            yield from one_by_one(learner, heard, [job])

    advance(mapped(sim, take), begin(prepare(sim)))
    return called[0]


def test_the_command_line_shows_a_warning_as_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    full_above(4, monkeypatch)
    monkeypatch.chdir(tmp_path)
    words = "run --clients 10 --fraction 0.8 --rounds 2 --epochs 1 --threads 1 --map vectorised".split()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(words) == 0
    said = capsys.readouterr().err
    assert said == "fedatoms: out of memory with 8 clients at once: going on with 4 (--block 4 starts there)\n"


def test_the_command_line_shows_what_does_not_fit_as_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    full_above(0, monkeypatch)
    monkeypatch.chdir(tmp_path)
    words = "run --clients 10 --rounds 2 --epochs 1 --threads 1 --map vectorised --block 1".split()
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedatoms: out of memory with a single client.") and said.count("\n") == 1


def test_maps_name_a_refusal_that_is_wrapped() -> None:
    with pytest.raises(NotVectorisable, match="functorch says no"), vmap.naming_refusals():
        try:
            raise RuntimeError("functorch says no. Please.")
        except RuntimeError:
            raise torch._dynamo.exc.Unsupported("cannot trace") from None
