"""One client's round, a pure function: broadcast, memory and batches in; upload and new memory out."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatoms.algorithms.base import Algorithm, Server, Work
from fedatoms.core import trees
from fedatoms.core.inputs import Inputs
from fedatoms.core.options import CONTROLS, RANGES, Controls, Precision, check_numbers, one_of
from fedatoms.core.trees import Memory, Params
from fedatoms.data.batches import Plan, fetch, move, received
from fedatoms.data.federations import Federation
from fedatoms.nn.pure import Network
from fedatoms.objectives.base import Objective, output_of

T = TypeVar("T")


@dataclass(frozen=True)
class Training:
    """The local optimiser: SGD, new in each round; numbers that none can have are refused when it is made.

    >>> Training(lr=-1)
    Traceback (most recent call last):
    ...
    ValueError: lr=-1 is negative or not finite. Use for example 0.1, or 0 for a client at rest.
    """

    epochs: int = 1
    batch_size: int = 10
    lr: float = 0.1
    lr_decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0  # largest norm of a gradient; 0 does not clip
    atoms_lr: float = 1.0  # factor on the rate of atoms and coefficients
    atoms_decay: float = 1.0  # factor on their weight decay
    controls: Controls = "current"  # the rate by which an algorithm turns a client's move into a gradient

    def __post_init__(self) -> None:
        check_numbers(self, "training")
        one_of(CONTROLS, self.controls, "controls")

    def _replace(self, **changes: float | str) -> "Training":
        """Returns another optimiser, as a named tuple does."""
        return replace(self, **changes)  # type: ignore[arg-type] # checked when it is made

    def rate(self, round: int) -> float:
        """Returns the learning rate of a round.

        >>> Training(lr=0.1, lr_decay=0.5).rate(2)
        0.025
        """
        grown = round * math.log(self.lr_decay)  # a power of floats raises where it is too large
        if grown > 0 and grown + math.log(self.lr or 1) > math.log(RANGES["lr"].high):
            what = f"lr_decay={self.lr_decay} has raised the learning rate above {RANGES['lr'].high:g}"
            raise FloatingPointError(f"round {round + 1}: {what}. Use lr_decay=1 or less.")
        return self.lr * self.lr_decay**round


class Alignment(NamedTuple):
    """A pull of the features that go into a layer towards the client's targets, one for each class."""

    layer: str
    strength: float


class Learner(NamedTuple):
    """What all clients share in a phase of a round."""

    network: Network
    algorithm: Algorithm
    training: Training
    data: Federation
    trained: frozenset[str]  # parameters that move in this phase
    travelling: frozenset[str]  # parameters that the algorithm sees and the server averages
    statistics: frozenset[str]  # buffers that the server averages
    rate: float  # eta_t
    objective: Objective
    precision: Precision = "float32"
    decomposed: frozenset[str] = frozenset()  # parameters that are atoms or coefficients
    align: Alignment | None = None  # to the leaf ``classes`` of the memory ``targets``


class Job(NamedTuple):
    """What one client works on; a client axis, if any, leads."""

    params: Params  # the whole model it starts from
    memory: Memory
    plan: Plan  # of one client on the host, of a block on the device


class Reply(NamedTuple):
    """What one client's round gives; a client axis, if any, leads."""

    params: Params  # the whole model it ends with
    upload: Memory
    memory: Memory
    losses: Tensor  # (S,) mean loss of each step, 0 where the step is padding
    steps: Tensor  # real steps


class Traces(NamedTuple):
    """Losses and checksums of a block of clients, for the finite check."""

    clients: list[int]
    values: Tensor  # (C, S + 1): the losses, and a sum over the model
    steps: Tensor  # (C,)


class Batch(NamedTuple):
    """The data of one step; ``real`` marks the rows that are not padding (None: all)."""

    x: Inputs
    y: Tensor
    real: Tensor | None
    key: Tensor


class Carry(NamedTuple):
    """What goes from step to step."""

    params: Params
    velocity: Params


Step = Callable[[Carry, Memory, Batch, Server, float | Tensor], tuple[Carry, Tensor]]
Loss = Callable[[Params], tuple[Tensor, Params]]
Differentiate = Callable[[Loss, Params], tuple[Params, Tensor, Params]]


def local_round(learner: Learner, broadcast: Server, job: Job) -> Reply:
    """Trains one client: a plain loop over its steps, on its real rows only."""
    step = local_step(learner, _by_autograd)
    counts = job.plan.real.sum(-1).tolist()
    job = job._replace(plan=move(job.plan, learner.data.y.device))
    carry, losses = begin(learner, job), []
    for s, count in enumerate(counts):
        expect(learner, job.plan, s, counts)
        x, y = data_of(learner, job.plan, (s, slice(count)), job.plan.key + s)
        # torch's BatchNorm refuses a single row; ours, which knows of padding, does not
        batch = Batch(x, y, job.plan.real[s, :1] if count == 1 else None, job.plan.key + s)
        with torch.no_grad():
            carry, loss = step(carry, job.memory, batch, broadcast, learner.rate)
        losses.append(loss)
    return finish(learner, broadcast, job, carry, torch.stack(losses), learner.rate)


def data_of(learner: Learner, plan: Plan, at: tuple[int | slice, ...], key: Tensor) -> tuple[Inputs, Tensor]:
    """Fetches the inputs and targets of a step from a plan; ``key`` seeds what lazy data draw."""
    data, dtype = learner.data, learner.network.dtype
    if data.lazy is not None:
        return received(*data.lazy.read(plan.rows[at], key), dtype, data.y.device)
    return fetch(
        data.x, data.y, plan.rows[at], recipe=data.recipe, dtype=dtype, flip=plan.flip[at], shift=plan.shift[at]
    )


def expect(learner: Learner, plan: Plan, s: int, counts: Sequence[int] | None = None) -> None:
    """Lets lazy data be read for step ``s`` and the next one, of one client's real rows or of a block's all."""
    if learner.data.lazy is not None:
        steps = range(s, min(s + 2, plan.rows.shape[-2]))
        for n in steps:
            learner.data.lazy.expect(plan.rows[..., n, :] if counts is None else plan.rows[n, : counts[n]])


def local_step(learner: Learner, differentiate: Differentiate) -> Step:
    """Returns one step of SGD: gradient and correction, clip, weight decay, momentum."""
    algorithm, momentum = learner.algorithm, learner.training.momentum

    def step(
        carry: Carry, memory: Memory, batch: Batch, broadcast: Server, rate: float | Tensor
    ) -> tuple[Carry, Tensor]:
        params = carry.params
        weights = trees.restrict(params, learner.trained)
        gradient, loss, buffers = differentiate(lambda w: _loss(learner, {**params, **w}, memory, batch), weights)
        seen = trees.restrict(gradient, learner.travelling)
        gradient = {
            **gradient,
            **algorithm.correct(seen, trees.restrict(weights, learner.travelling), broadcast, memory),
        }
        moves = _moves(learner, gradient, weights, carry.velocity)
        rates = _rates(learner, weights, lambda factor: rate if factor == 1 else factor * rate)
        new = _descend(weights, moves, rates)
        return Carry({**params, **buffers, **new}, moves if momentum else {}), loss

    return step


def begin(learner: Learner, job: Job) -> Carry:
    """Returns what the first step starts from."""
    momentum = learner.training.momentum
    return Carry(job.params, trees.zeros_like(trees.restrict(job.params, learner.trained)) if momentum else {})


def finish(learner: Learner, broadcast: Server, job: Job, carry: Carry, losses: Tensor, rate: float | Tensor) -> Reply:
    """Makes the reply of one client."""
    steps = job.plan.real.any(-1).sum(-1)
    count, training = steps.to(losses.dtype), learner.training
    unit = training.lr if training.controls == "first" else rate
    far = _rates(learner, learner.travelling, lambda factor: displacement(count, factor * unit, training.momentum))
    work = Work(trees.restrict(job.params, learner.travelling), steps, far)
    upload, memory = learner.algorithm.report(
        trees.restrict(carry.params, learner.travelling), broadcast, job.memory, work
    )
    averaged = trees.restrict(carry.params, learner.statistics)
    return Reply(carry.params, {**upload, "statistics": averaged}, memory, losses, steps)


def displacement(steps: Tensor, rate: float | Tensor, momentum: float) -> Tensor:
    """Returns how far K unit gradients move a parameter: ``rate`` times the sum over j <= K of (1 - b^j) / (1 - b).

    >>> displacement(torch.tensor(2.0), rate=0.1, momentum=0.5)  # 0.1 * (1 + 1.5)
    tensor(0.2500)
    """
    b = momentum
    far = rate * (steps - b * (1 - b**steps) / (1 - b)) / (1 - b)
    return torch.where(far > 0, far, torch.inf)  # no step at all: no estimate of a gradient


def traces_of(reply: Reply, clients: list[int]) -> Traces:
    """Computes what ``check_finite`` checks of a block of replies, without waiting for the device."""
    # a sum is finite only if all its terms are, and costs one pass
    leaves = (reply.upload["params"] or reply.params).values()  # the whole model where nothing travels
    sums = [leaf[..., None].flatten(1).sum(1) for leaf in leaves if leaf.is_floating_point()]
    values = torch.cat([reply.losses, torch.stack(sums).sum(0)[:, None]], 1)
    return Traces(clients, values, reply.steps.clone())  # a CUDA graph writes the next reply to the same memory


def check_finite(traces: Traces, t: int) -> list[float]:
    """Returns each client's mean loss; refuses a loss or a model that is not finite: names client, round and step."""
    values, steps = traces.values.cpu(), traces.steps.tolist()
    bad = (~torch.isfinite(values)).nonzero().tolist()
    if not bad:
        return [float(row[:-1].sum()) / max(count, 1) for row, count in zip(values, steps, strict=True)]
    place, step = bad[0]
    trained = step < values.shape[1] - 1
    what = f"loss is {float(values[place, step])}" if trained else "the trained model is not finite"
    step = step if trained else int(steps[place]) - 1
    who = f"client {traces.clients[place]}, round {t + 1}, step {step + 1}"
    raise FloatingPointError(f"{who}: {what}. Lower lr, set clip=10, or look at its data.")


def finite_loss(own: list[Traces], shared: list[Traces], t: int) -> float:
    """Checks that what clients computed is finite; returns the mean loss of what is uploaded, or else of the rest."""
    alone, uploaded = ([mean for each in traces for mean in check_finite(each, t)] for traces in (own, shared))
    losses = uploaded or alone
    return sum(losses) / len(losses) if losses else float("nan")


def _moves(learner: Learner, gradient: Params, weights: Params, velocity: Params) -> Params:
    """Turns a corrected gradient into the moves of a step: clip, weight decay, momentum."""
    training, moves = learner.training, dict[str, Tensor]()
    scale, b = _clip_scale(gradient, training.clip), training.momentum
    for name, g in gradient.items():
        decay = training.weight_decay * (training.atoms_decay if name in learner.decomposed else 1.0)
        decay += learner.algorithm.decay if name in learner.travelling else 0.0
        move = g if scale is None else g * scale
        move = torch.add(move, weights[name], alpha=decay) if decay else move
        moves[name] = torch.add(move, velocity[name], alpha=b) if b else move
    return moves


def _rates(learner: Learner, names: Iterable[str], of_factor: Callable[[float], T]) -> dict[str, T]:
    """Maps each parameter to ``of_factor`` of the factor on its rate, computed once for each factor."""
    factor = learner.training.atoms_lr
    values = {one: of_factor(one) for one in {1.0, factor}}
    return {name: values[factor if name in learner.decomposed else 1.0] for name in names}


def _descend(weights: Params, moves: Params, rates: Mapping[str, float | Tensor]) -> Params:
    return {name: _down(weight, moves[name], rates[name]) for name, weight in weights.items()}


def _down(weight: Tensor, move: Tensor, rate: float | Tensor) -> Tensor:
    if isinstance(rate, float):
        return torch.add(weight, move, alpha=-rate)  # one pass
    return weight - rate * move  # a tensor: a new rate must not compile again


def _loss(learner: Learner, params: Params, memory: Memory, batch: Batch) -> tuple[Tensor, Params]:
    net, align = learner.network, learner.align
    with torch.autocast(batch.y.device.type, torch.bfloat16, enabled=learner.precision == "bf16"):
        if align is None:
            returned, buffers = net.train(params, batch.x, batch.real, batch.key)
        else:
            returned, buffers, z = net.study(align.layer, params, batch.x, batch.real, batch.key)
    loss = _objective_loss(learner.objective, _output(learner, returned).to(net.dtype), batch)
    if align is not None:
        far = F.mse_loss(z.to(net.dtype), memory["targets"]["classes"][batch.y], reduction="none").mean(1)
        loss = loss + align.strength * _mean(far, batch)
    return loss, buffers


def _output(learner: Learner, returned: object) -> Tensor:
    if isinstance(returned, Tensor) and learner.objective.read is output_of:
        return returned
    return learner.objective.read(returned)


def _objective_loss(objective: Objective, outputs: Tensor, batch: Batch) -> Tensor:
    if batch.real is None and objective.mean_loss is not None:
        return objective.mean_loss(outputs, batch.y)
    return _mean(objective.loss(outputs, batch.y), batch)


def _mean(each: Tensor, batch: Batch) -> Tensor:
    if batch.real is None:
        return each.mean()
    # in a step that is all padding the network may overflow, and 0 * inf is not 0
    return torch.where(batch.real, each, 0.0).sum() / batch.real.sum().clamp(min=1)


def _clip_scale(gradient: Params, largest: float) -> Tensor | None:
    if not largest:
        return None
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradient.values()]))
    return torch.clamp(largest / (norm + 1e-6), max=1.0)  # as torch.nn.utils.clip_grad_norm_


def _by_autograd(loss: Loss, weights: Params) -> tuple[Params, Tensor, Params]:
    """Differentiates with plain autograd: on a CPU 0.5 ms a step faster than torch.func.grad, but not under vmap."""
    leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    with torch.enable_grad():
        value, buffers = loss(leaves)
    gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True)), value.detach(), buffers
