"""One client's round, a pure function: broadcast, memory and batches in; upload and new memory out."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatoms.algorithms.base import Algorithm, See, Seen, Server, Work, check_terms, corrected, reported
from fedatoms.core import trees
from fedatoms.core.inputs import Inputs, copy_of
from fedatoms.core.options import RANGES, Precision
from fedatoms.core.trees import Memory, Params
from fedatoms.data.batches import Plan, fetch, move, received
from fedatoms.data.federations import Federation
from fedatoms.engine.accumulation import Batch, Gradient, accumulated
from fedatoms.engine.training import Told, Training, checked_moves, first_state
from fedatoms.nn.pure import Network
from fedatoms.objectives.base import Objective, output_of
from fedatoms.optimisers.schedules import factor_of, step_factors, summed

T = TypeVar("T")
Rate = float | Tensor


class Alignment(NamedTuple):
    """A pull of the features that go into the head towards the client's targets, one for each class."""

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
    shared: Mapping[str, Tensor] = {}  # frozen parameters: one copy for all clients, without a client axis
    head: str | None = None  # the layer whose inputs are features, where a loss needs them
    atoms_lr: float | Tensor = 1.0  # factor on the rate of what is decomposed


class Job(NamedTuple):
    """What one client works on; a client axis, if any, leads."""

    params: Params  # the model it starts from, but for what all clients share
    memory: Memory
    plan: Plan  # of one client on the host, of a block on the device
    told: Told | tuple[()] = ()  # what all clients of a block share, unless they are of several runs


class Reply(NamedTuple):
    """What one client's round gives; a client axis, if any, leads."""

    params: Params  # the model it ends with, but for what all clients share
    upload: Memory
    memory: Memory
    losses: Tensor  # (S,) mean loss of each step, 0 where the step is padding
    steps: Tensor  # real steps
    sent: Mapping[str, Params] = {}  # the upload as it crosses, if in few bits


class Traces(NamedTuple):
    """Losses and checksums of a block of clients, for the finite check."""

    clients: list[int]
    values: Tensor  # (C, S + 1): the losses, and a sum over the model
    steps: Tensor  # (C,)
    numbers: Tensor | None = None  # (C,): sums of the scalars that are uploaded, if there are any


class Carry(NamedTuple):
    """What goes from step to step."""

    params: Params
    state: Memory  # the optimiser's


Step = Callable[[Carry, Memory, Batch, Server, Rate], tuple[Carry, Tensor]]
Loss = Callable[[Params], tuple[Tensor, Params]]
Differentiate = Callable[[Loss, Params], Gradient]


def local_round(learner: Learner, broadcast: Server, job: Job) -> Reply:
    """Trains one client: a plain loop over its steps, on its real rows only."""
    step = local_step(learner, _by_autograd)
    counts = job.plan.real.sum(-1).tolist()
    job = job._replace(plan=move(job.plan, learner.data.y.device))
    carry, losses = begin(learner, job.params), []
    for s, (count, rate) in enumerate(zip(counts, _rates_of_steps(learner, len(counts)), strict=True)):
        expect(learner, job.plan, s, counts)
        key = job.plan.key + s * learner.training.accumulate
        x, y = data_of(learner, job.plan, (s, slice(count)), key)
        # torch's BatchNorm refuses a single row; ours, which knows of padding, does not
        batch = Batch(x, y, job.plan.real[s, :1] if count == 1 else None, key)
        with torch.no_grad():
            carry, loss = step(carry, job.memory, batch, broadcast, rate)
        losses.append(loss)
    return finish(learner, broadcast, job, carry, torch.stack(losses), learner.rate)


def rate_of(training: Training, t: int) -> float:
    """Returns the learning rate of round ``t``.

    >>> rate_of(Training(lr=0.1, lr_decay=0.5), 2)
    0.025
    """
    grown = t * math.log(training.lr_decay)  # a power of floats raises where it is too large
    if grown > 0 and grown + math.log(training.lr or 1) > math.log(RANGES["lr"].high):
        what = f"lr_decay={training.lr_decay} has raised the learning rate above {RANGES['lr'].high:g}"
        raise FloatingPointError(f"round {t + 1}: {what}. Use lr_decay=1 or less.")
    return training.lr * training.lr_decay**t * (1.0 if training.schedule is None else factor_of(training.schedule, t))


def _rates_of_steps(learner: Learner, steps: int) -> list[float]:
    of_step = learner.training.of_step
    return [learner.rate * factor for factor in step_factors(of_step, steps)] if of_step else [learner.rate] * steps


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
    """Returns one step: gradient and correction, clip, weight decay, and what the optimiser makes of them."""
    algorithm, rule, size = learner.algorithm, learner.training.rule, learner.training.batch_size

    def step(carry: Carry, memory: Memory, batch: Batch, broadcast: Server, rate: Rate) -> tuple[Carry, Tensor]:
        def of_batch(params: Params, part: Batch) -> Gradient:
            weights, held = trees.restrict(params, learner.trained), {**learner.shared, **params}
            return differentiate(lambda w: _loss(learner, {**held, **w}, broadcast, memory, part), weights)

        params, weights = carry.params, trees.restrict(carry.params, learner.trained)
        one = learner.training.accumulate == 1
        gradient, loss, buffers = of_batch(params, batch) if one else accumulated(of_batch, params, batch, size)
        seen, moved = (trees.restrict(each, learner.travelling) for each in (gradient, weights))
        gradient = {**gradient, **corrected(algorithm, seen, moved, broadcast, memory)}
        gradient, decays = _decayed(learner, gradient, weights, apart=rule.decouples)
        rates = _rates(learner, weights, rate, lambda scaled: scaled)
        weights = {name: _shrunk(weight, decays[name], rates[name]) for name, weight in weights.items()}
        if rule.update is None:
            moves, state = gradient, carry.state
        else:
            moves, state = checked_moves(rule.update, gradient, carry.state, weights)
        new = {name: _down(weight, moves[name], rates[name]) for name, weight in weights.items()}
        return Carry({**params, **buffers, **new}, state), loss

    return step


def begin(learner: Learner, params: Params) -> Carry:
    """Returns what the first step of one client starts from."""
    init = learner.training.rule.init
    return Carry(params, first_state(init, trees.restrict(params, learner.trained)) if init else {})


def finish(learner: Learner, broadcast: Server, job: Job, carry: Carry, losses: Tensor, rate: Rate) -> Reply:
    """Makes the reply of one client."""
    steps = job.plan.real.any(-1).sum(-1)
    unit = rate_of(learner.training, 0) if learner.training.controls == "first" else rate
    far = _displacement(learner, steps.to(losses.dtype), unit, most=len(losses))
    work = Work(trees.restrict(job.params, learner.travelling), steps, far, _units(learner, steps, losses))
    trained, keeps = trees.restrict(carry.params, learner.travelling), learner.align is None
    upload, memory = reported(learner.algorithm, trained, broadcast, job.memory, work, keeps=keeps)
    averaged = trees.restrict(carry.params, learner.statistics)
    return Reply(carry.params, {**upload, "statistics": averaged}, memory, losses, steps)


def traces_of(reply: Reply, clients: list[int]) -> Traces:
    """Computes what ``check_finite`` checks of a block of replies, without waiting for the device."""
    # a sum is finite only if all its terms are, and costs one pass
    leaves = (reply.upload["params"] or reply.params).values()  # all of the model where nothing travels
    sums = [leaf[..., None].flatten(1).sum(1) for leaf in leaves if leaf.is_floating_point()]
    values = torch.cat([reply.losses, torch.stack(sums).sum(0)[:, None]], 1)
    scalars = [leaf.double() for leaf in reply.upload.get(trees.NUMBERS, {}).values()]
    numbers = torch.stack(scalars).sum(0) if scalars else None
    return Traces(clients, values, reply.steps.clone(), numbers)  # a CUDA graph writes the next reply to this memory


def check_finite(traces: Traces, t: int) -> list[float]:
    """Returns each client's mean loss; refuses a loss or a model that is not finite: names client, round and step."""
    values, steps = traces.values.cpu(), traces.steps.tolist()
    bad = (~torch.isfinite(values)).nonzero().tolist()
    if not bad:
        _check_numbers(traces, t)
        return [float(row[:-1].sum()) / max(count, 1) for row, count in zip(values, steps, strict=True)]
    place, step = bad[0]
    trained = step < values.shape[1] - 1
    what = f"loss is {float(values[place, step])}" if trained else "the trained model is not finite"
    step = step if trained else int(steps[place]) - 1
    who = f"client {traces.clients[place]}, round {t + 1}, step {step + 1}"
    raise FloatingPointError(f"{who}: {what}. Lower lr, set clip=10, or look at its data.")


def _check_numbers(traces: Traces, t: int) -> None:
    if traces.numbers is not None and (bad := (~torch.isfinite(traces.numbers)).nonzero().tolist()):
        who = f"client {traces.clients[bad[0][0]]}, round {t + 1}"
        raise FloatingPointError(f"{who}: a number of its upload is not finite. Let report return finite ones.")


def finite_loss(own: list[Traces], shared: list[Traces], t: int) -> float:
    """Checks that what clients computed is finite; returns the mean loss of what is uploaded, or else of the rest."""
    alone, uploaded = ([mean for each in traces for mean in check_finite(each, t)] for traces in (own, shared))
    losses = uploaded or alone
    return sum(losses) / len(losses) if losses else float("nan")


def _displacement(learner: Learner, steps: Tensor, rate: Rate, most: int) -> Params:
    """Returns how far so many unit gradients move each parameter, for an algorithm that measures; else it is empty."""
    if not learner.algorithm.measures:
        return {}
    return _rates(learner, learner.travelling, rate, lambda scaled: _far(learner, steps, scaled, most))


def _units(learner: Learner, steps: Tensor, losses: Tensor) -> Tensor:
    """Returns the displacement at the rate 1, for an algorithm that measures."""
    measures = learner.algorithm.measures
    return _far(learner, steps.to(losses.dtype), 1.0, len(losses)) if measures else losses.new_ones(())


def _far(learner: Learner, steps: Tensor, rate: Rate, most: int) -> Tensor:
    of, of_step = learner.training.rule.displacement, learner.training.of_step
    assert of is not None, "checked when the simulation is made"
    moved = of(steps, rate) if of_step is None else rate * summed(of_step, of, steps, most)
    return torch.where(moved > 0, moved, torch.inf)  # no step at all: no estimate of a gradient


def _decayed(learner: Learner, gradient: Params, weights: Params, *, apart: bool) -> tuple[Params, dict[str, float]]:
    """Clips a corrected gradient and adds decays to it; weight decay that is ``apart`` is not added but returned."""
    training, decayed, left = learner.training, dict[str, Tensor](), dict[str, float]()
    scale = _clip_scale(gradient, training.clip)
    for name, g in gradient.items():
        decay = training.weight_decay * (training.atoms_decay if name in learner.decomposed else 1.0)
        left[name], decay = (decay, 0.0) if apart else (0.0, decay)
        own = learner.algorithm.decay if name in learner.travelling else 0.0  # a part of the algorithm's loss
        g = g if scale is None else g * scale
        g = torch.add(g, weights[name], alpha=decay) if decay else g
        # added as it is where a client is told it, to the last bit: it cancels terms of the algorithm's correction
        decayed[name] = g + own * weights[name] if isinstance(own, Tensor) or own else g
    return decayed, left


def _shrunk(weight: Tensor, decay: float, rate: Rate) -> Tensor:
    return weight * (1 - rate * decay) if decay else weight


def _rates(learner: Learner, names: Iterable[str], rate: Rate, of: Callable[[Rate], T]) -> dict[str, T]:
    """Maps each parameter to a function of its rate, computed once for what is decomposed and once for the rest."""
    usual, factor = of(rate), learner.atoms_lr
    scaled = usual if not isinstance(factor, Tensor) and factor == 1 else of(factor * rate)
    return {name: scaled if name in learner.decomposed else usual for name in names}


def _down(weight: Tensor, move: Tensor, rate: Rate) -> Tensor:
    if isinstance(rate, float):
        return torch.add(weight, move, alpha=-rate)  # one pass
    return weight - rate * move  # a tensor: a new rate must not compile again


def _loss(learner: Learner, params: Params, broadcast: Server, memory: Memory, batch: Batch) -> tuple[Tensor, Params]:
    net, align, penalty = learner.network, learner.align, learner.algorithm.penalty
    with torch.autocast(batch.y.device.type, torch.bfloat16, enabled=learner.precision == "bf16"):
        if learner.head is None:
            returned, buffers = net.train(params, batch.x, batch.real, batch.key)
        else:
            returned, buffers, z = net.study(learner.head, params, copy_of(batch.x), batch.real, batch.key)
    outputs = _output(learner, returned).to(net.dtype)
    loss = _objective_loss(learner.objective, outputs, batch)
    if align is not None:
        far = F.mse_loss(z.to(net.dtype), memory["targets"]["classes"][batch.y], reduction="none").mean(1)
        loss = loss + align.strength * _mean(far, batch)
    if penalty is not None:
        seen = Seen(outputs, z.to(net.dtype))
        terms = penalty(seen, _seeing(learner, params, batch), broadcast, memory)
        loss = loss + _mean(check_terms(terms, len(batch.y)), batch)
    return loss, buffers


def _output(learner: Learner, returned: object) -> Tensor:
    if isinstance(returned, Tensor) and learner.objective.read is output_of:
        return returned
    return learner.objective.read(returned)


def _objective_loss(objective: Objective, outputs: Tensor, batch: Batch) -> Tensor:
    if batch.real is None and objective.mean_loss is not None:
        return objective.mean_loss(outputs, batch.y)
    return _mean(objective.loss(outputs, batch.y), batch)


def _seeing(learner: Learner, params: Params, batch: Batch) -> See:
    """Returns what shows a batch as the model would see it with other parameters; all else is as it is now."""
    net, still = learner.network, trees.apply(torch.detach, params)

    def see(others: Params) -> Seen:
        assert learner.head is not None, "known where there is a penalty"
        with torch.no_grad(), torch.autocast(batch.y.device.type, torch.bfloat16, enabled=learner.precision == "bf16"):
            returned, _, z = net.study(learner.head, {**still, **others}, copy_of(batch.x), batch.real, batch.key)
        return Seen(_output(learner, returned).to(net.dtype), z.to(net.dtype))

    return see


def _mean(each: Tensor, batch: Batch) -> Tensor:
    if batch.real is None:
        return each.mean()
    # in a step that is all padding the network may overflow, and 0 * inf is not 0
    return torch.where(batch.real, each, 0.0).sum() / batch.real.sum().clamp(min=1)


def _clip_scale(gradient: Params, largest: float) -> Tensor | None:
    if not largest:
        return None
    return torch.clamp(largest / (trees.norm(gradient) + 1e-6), max=1.0)  # as torch.nn.utils.clip_grad_norm_


def _by_autograd(loss: Loss, weights: Params) -> Gradient:
    """Differentiates with plain autograd: on a CPU 0.5 ms a step faster than torch.func.grad, but not under vmap."""
    leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    with torch.enable_grad():
        value, buffers = loss(leaves)
    gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True)), value.detach(), buffers
