"""The expert's loop: clients one after another, the whole step recorded once as a CUDA graph and replayed.

Done is what an expert can do for one client at a time: forward pass, loss and backward pass are compiled; the clip
takes all gradients at once and the optimiser is fused; parameters, momentum, learning rate, the round's batches and the
number of the next one stay at fixed addresses, so that one recording serves all steps, clients and rounds; both memory
layouts are tried and the faster one is kept; the host never waits for the device. Without CUDA the step is called, not
replayed.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedatoms.data.batches import fetch
from fedatoms.engine.client_round import rate_of
from fedatoms.engine.round import select
from fedatoms.engine.spec import Simulation, batches_of

LAYOUTS = (torch.contiguous_format, torch.channels_last)
WARM_UP = 3  # steps before a recording, as torch advises
TRIED = 50  # steps by which layouts are compared
Step = Callable[[], object]


class Desk(NamedTuple):
    """What a step reads and writes, at addresses that never change."""

    model: nn.Module
    sgd: torch.optim.SGD
    rate: Tensor  # the learning rate, on the device
    images: Tensor  # (C * S, B, ...): the batches of a round, client after client
    labels: Tensor  # (C * S, B)
    place: Tensor  # int64 (1,): the next batch


def by_expert(sim: Simulation, backend: str | None = None) -> Callable[[], None]:
    """Sets the loop up, compiled if a backend is named; each call of the result runs the next round."""
    desk, t = desk_of(sim), -1
    step = fastest_step(sim, desk, backend)

    def work() -> None:
        nonlocal t
        t += 1
        expert_round(sim, desk, step, t)

    return work


def desk_of(sim: Simulation) -> Desk:
    """Lays a copy of the model, its optimiser and room for a round's batches out on the device."""
    model, training, x = copy.deepcopy(sim.model).to(sim.device), sim.training, sim.data.x
    assert isinstance(x, Tensor)
    rate = torch.tensor(training.lr, device=sim.device)
    sgd = torch.optim.SGD(
        model.parameters(), rate, momentum=training.momentum, weight_decay=training.weight_decay, fused=True
    )
    clients = select(sim, 0)[1]
    steps, batch = batches_of(sim, clients[0], 0).rows.shape
    images = torch.zeros(len(clients) * steps, batch, *x.shape[1:], device=sim.device)
    labels = torch.zeros(len(clients) * steps, batch, device=sim.device, dtype=torch.int64)
    return Desk(model, sgd, rate, images, labels, torch.zeros(1, device=sim.device, dtype=torch.int64))


def fastest_step(sim: Simulation, desk: Desk, backend: str | None = None) -> Step:
    """Returns the step, ready to run on any batch: on CUDA recorded in both memory layouts, of which the faster stays.

    The model is left as it was.
    """
    state = list(desk.model.state_dict().values())
    before = [leaf.clone() for leaf in state]
    if sim.device.startswith("cuda"):
        step = min([_recorded(desk, whole_step(sim, desk, backend, each)) for each in LAYOUTS], key=_time_on(desk))
    else:
        step = whole_step(sim, desk, backend)
        _run(desk, step, 1)  # makes the optimiser's momentum
    torch._foreach_copy_(state, before)
    return step


def whole_step(
    sim: Simulation, desk: Desk, backend: str | None = None, layout: torch.memory_format = torch.contiguous_format
) -> Step:
    """Returns one step of SGD over the next batch: gradient, clip, weight decay, momentum, all on the device."""
    params, training = list(desk.model.parameters()), sim.training

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=sim.precision == "bf16"):
            logits = desk.model(x.contiguous(memory_format=layout))
        return nn.functional.cross_entropy(logits.float(), y)

    loss = torch.compile(loss_of, backend=backend, dynamic=False) if backend else loss_of

    def step() -> None:
        x, y = (each.index_select(0, desk.place)[0] for each in (desk.images, desk.labels))
        for leaf, gradient in zip(params, torch.autograd.grad(loss(x, y), params), strict=True):
            leaf.grad = gradient.contiguous()  # as the parameter is: the fused optimiser asks for it
        if training.clip:
            nn.utils.clip_grad_norm_(params, training.clip, foreach=True)
        desk.sgd.step()
        desk.place.add_(1)

    return step


def expert_round(sim: Simulation, desk: Desk, step: Step, t: int) -> None:
    """Runs a round of FedAvg: every client from the same start, then the mean, weighted by samples."""
    clients, parts = select(sim, t)[1], sim.data.parts
    samples = sum(len(parts[client]) for client in clients)
    state = list(desk.model.state_dict().values())
    start, mean = [leaf.clone() for leaf in state], [torch.zeros_like(leaf) for leaf in state]
    velocity = [kept["momentum_buffer"] for kept in desk.sgd.state.values()] if sim.training.momentum else []
    _fetch_round(sim, desk, clients, t)
    for client in clients:
        torch._foreach_copy_(state, start)
        if velocity:
            torch._foreach_zero_(velocity)
        for _ in range(len(desk.images) // len(clients)):
            step()
        torch._foreach_add_(mean, state, alpha=len(parts[client]) / samples)
    torch._foreach_copy_(state, mean)


def _fetch_round(sim: Simulation, desk: Desk, clients: Sequence[int], t: int) -> None:
    """Draws and fetches the batches of all clients at once: a large kernel takes little longer than a small one."""
    data, plans = sim.data, [batches_of(sim, client, t) for client in clients]
    rows, flip, shift = (
        _sent(torch.cat([getattr(plan, name) for plan in plans]), sim.device) for name in ("rows", "flip", "shift")
    )
    images, labels = fetch(data.x, data.y, rows, data.recipe, torch.float32, flip, shift)
    assert isinstance(images, Tensor)
    desk.images.copy_(images)
    desk.labels.copy_(labels)
    desk.place.zero_()
    desk.rate.fill_(rate_of(sim.training, t))


def _sent(leaf: Tensor, device: str) -> Tensor:
    """Copies a tensor to the device; from pinned memory, which lets the host go on at once."""
    return leaf.pin_memory().to(device, non_blocking=True) if device.startswith("cuda") else leaf


def _recorded(desk: Desk, step: Step) -> Step:
    """Records a step as a CUDA graph and returns its replay."""
    with _aside():
        _run(desk, step, WARM_UP)  # compiles, and makes what is made once
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _aside() -> AbstractContextManager[object]:
    """Returns a stream of its own for the warm-up, as torch asks for before a recording."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(stream)


def _time_on(desk: Desk) -> Callable[[Step], float]:
    def milliseconds(step: Step) -> float:
        _run(desk, step, TRIED)
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        _run(desk, step, TRIED)
        ended.record()
        ended.synchronize()
        return float(begun.elapsed_time(ended))

    return milliseconds


def _run(desk: Desk, step: Step, times: int) -> None:
    """Runs steps over the first batches, no more than there are."""
    desk.place.zero_()
    for _ in range(min(times, len(desk.images))):
        step()
