"""Frozen parameters are held once, however many clients train at once, and are those of the state that is trained."""

from collections.abc import Iterable, Iterator

import pytest
import torch
from support.small import clients_of, difference, identical, play, small_net
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fedatoms.algorithms.base import Server
from fedatoms.core import trees
from fedatoms.data.federations import federation
from fedatoms.engine import client_round
from fedatoms.engine.client_round import Job, Learner, Reply
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.execution.block_round import begin_block
from fedatoms.engine.execution.loop import one_by_one
from fedatoms.engine.execution.vmap import stack, vectorised
from fedatoms.engine.gpu.rewrite import BatchedKernels, traced
from fedatoms.engine.limits import needs_of
from fedatoms.engine.loop import begin
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.engine.training import Training
from fedatoms.nn.models import resnet18

TRAINING = Training(batch_size=10, lr=0.05, momentum=0.5)


def with_frozen_body(norm: bool = True) -> nn.Module:
    model = small_net(norm=norm).requires_grad_(False)
    model.get_submodule("fc2").requires_grad_(True)
    return model


def resnet_clients(clients: int) -> Simulation:
    model = resnet18(classes=10).requires_grad_(False)
    model.fc.requires_grad_(True)
    x, y = torch.rand(clients, 1, 3, 8, 8), torch.arange(clients)[:, None] % 10
    data = federation(list(zip(x, y, strict=True)), test=(x[0], y[0]))
    return Simulation(model, data, training=Training(), map="vectorised", block=clients, score=("server",))


def bytes_of_a_block(clients: int) -> int:
    """Counts the tensors that a block of clients begins and ends with, those included that it shares."""
    found = 0

    def counting(learner: Learner, broadcast: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
        nonlocal found
        some = list(jobs)
        (reply,) = vectorised(clients)(learner, broadcast, some)
        found = sum(map(trees.nbytes, (stack(some).params, reply.params, learner.shared)))
        yield reply

    play(prepare(resnet_clients(clients))._replace(map_clients=counting), 1)
    return found


def test_a_hundred_clients_hold_a_frozen_backbone_once() -> None:
    few, many = bytes_of_a_block(1), bytes_of_a_block(3)
    model = resnet_clients(1).model
    own = [*model.fc.parameters(), *model.buffers()]  # BatchNorm's statistics move while a client trains
    each = 2 * sum(leaf.numel() * leaf.element_size() for leaf in own)
    assert many - few == 2 * each
    assert few + 99 * each < 1.3 * (few + 9 * each)


def memory_of(tensors: object) -> int:
    """Counts the bytes of nested tensors, each piece of memory once."""
    pieces = {leaf.untyped_storage().data_ptr(): leaf.untyped_storage() for leaf in pytree.tree_leaves(tensors)}
    return sum(piece.nbytes() for piece in pieces.values())


def test_clients_that_start_alike_hold_their_start_and_momentum_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_SMALL", 0)
    held = list[tuple[int, int]]()

    def looking(learner: Learner, broadcast: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
        some = list(jobs)
        one, all_of_them = client_round.begin(learner, some[0].params), begin_block(learner, stack(some))
        held.append((memory_of(one), memory_of(all_of_them)))
        yield from vectorised(3)(learner, broadcast, some)

    sim = Simulation(small_net(atoms=4), clients_of((5, 5, 5)), training=TRAINING)
    play(prepare(sim)._replace(map_clients=looking), 2)
    assert len(held) == 2 and all(one == many > 0 for one, many in held)


def test_clients_with_parameters_of_their_own_hold_these_apart() -> None:
    shared, own = torch.zeros(trees._SMALL + 1), [torch.full((2,), float(n)) for n in range(2)]
    stacked = trees.stack([{"w": shared, "atoms": each} for each in own])
    assert trees.is_shared(stacked["w"]) and not trees.is_shared(stacked["atoms"])
    assert stacked["atoms"].tolist() == [[0.0, 0.0], [1.0, 1.0]] and len(stacked["w"]) == 2


def test_what_must_fit_into_memory_has_a_frozen_backbone_twice_and_not_for_each_client() -> None:
    few, many = (needs_of(resnet_clients(clients)) for clients in (10, 100))
    assert sum(many.values()) < 1.3 * sum(few.values())


def maps(sim: Simulation) -> dict[str, Runtime]:
    runtime = prepare(sim)
    ways = {"one_by_one": one_by_one, "vectorised": vectorised(2), "compiled": cuda_graph.compiled(2)}
    return {name: runtime._replace(map_clients=way) for name, way in ways.items()}


def test_clients_train_with_the_frozen_parameters_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with those of the network that runs it, nor with those of a state that was trained before."""
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    sim = Simulation(with_frozen_body(), clients_of((3, 12, 1)), training=TRAINING)
    for name, runtime in maps(sim).items():
        first = begin(runtime)
        other = _with_other_convolution(first)
        states = [play(runtime, 2, state) for state in (first, other, first)]
        assert identical(states[0].server.params, states[2].server.params), name
        assert difference(states[1].server.params, states[0].server.params) > 1e-3
        expected = play(prepare(sim), 2, other)  # one by one
        assert difference(states[1].server.params, expected.server.params) < 1e-10, name
        assert torch.equal(states[1].server.params["conv1.weight"], other.server.params["conv1.weight"])


def _with_other_convolution(state: State) -> State:
    params = {**state.server.params, "conv1.weight": -3 * state.server.params["conv1.weight"]}
    return state._replace(server=state.server._replace(params=params))


class KeepsNorm(nn.Module):
    """A network whose BatchNorm stays in evaluation mode, as is usual on a frozen backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.body = with_frozen_body()
        norm = self.body.get_submodule("norm1")
        norm.running_mean.fill_(0.3)
        norm.running_var.fill_(4.0)

    def train(self, mode: bool = True) -> "KeepsNorm":
        super().train(mode)
        self.body.get_submodule("norm1").eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


def test_a_norm_that_stays_in_evaluation_mode_keeps_its_statistics_in_every_map(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    sim = Simulation(KeepsNorm(), clients_of((3, 12, 1)), training=TRAINING)
    found = {name: play(runtime, 2).server.params for name, runtime in maps(sim).items()}
    for params in found.values():
        assert difference(params, found["one_by_one"]) < 1e-10
        assert bool((params["body.norm1.running_mean"] == 0.3).all())


def test_frozen_filters_stay_plain_convolutions_over_all_images() -> None:
    """Batched kernels would copy the filters for each client; vmap joins the images instead."""
    x, theirs, ours = torch.randn(3, 2, 4, 6, 6), torch.randn(3, 16, 4, 3, 3), torch.randn(16, 4, 3, 3)

    def clients(x: Tensor, weight: Tensor) -> Tensor:
        return torch.vmap(torch.conv2d, in_dims=(0, 0 if weight.dim() == 5 else None))(x, weight)

    for weight, batched in ((theirs, True), (ours, False)):
        with BatchedKernels():
            graph = traced(clients, x, weight)
        targets = {str(node.target) for node in graph.graph.nodes}
        assert ("fedatoms.convolve.default" in targets) == batched
        assert ("aten.convolution.default" in targets) != batched
        torch.testing.assert_close(graph(x, weight), clients(x, weight))
