"""The loop over rounds, and training in memory from Python: your model and data in, the trained model out."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedatoms.core import trees
from fedatoms.core.inputs import Inputs, shapes_of, take
from fedatoms.core.lookup import one_line
from fedatoms.core.options import Scored, check_range
from fedatoms.core.trees import Params
from fedatoms.data.batches import cast_inputs, cast_targets
from fedatoms.engine import feature_exchange, server
from fedatoms.engine.checks import check_reports
from fedatoms.engine.client_states import Clients, Held
from fedatoms.engine.evaluation import Score, evaluate
from fedatoms.engine.limits import check_machine
from fedatoms.engine.peers import will_stop
from fedatoms.engine.private_round import advance_privately, memory_of
from fedatoms.engine.round import advance, launch, settle
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation, check_simulation
from fedatoms.engine.state import Launched, Record, State
from fedatoms.nn.models import fitting
from fedatoms.nn.pure import Network, with_params
from fedatoms.objectives.checks import check_outputs, check_range_of, known_targets


class Progress(NamedTuple):
    """What is known after a round; ``scores`` is empty in rounds without an evaluation."""

    state: State
    record: Record
    scores: dict[Scored, Score]


Watch = Callable[[Progress], None]  # a progress callback


class Trained(NamedTuple):
    """A trained model (the server's), its scores, what happened in each round, and the last state."""

    model: nn.Module
    scores: dict[Scored, Score]
    history: list[tuple[Record, dict[Scored, Score]]]
    state: State


def train(sim: Simulation, rounds: int, *, eval_every: int = 1, watch: Watch | None = None) -> Trained:
    """Trains a simulation's model for some rounds.

    >>> import torch
    >>> from fedatoms.data.federations import federation
    >>> x, y = torch.randn(8, 1, 4, 4), torch.arange(8) % 2
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    >>> done = train(Simulation(net, federation([(x[:4], y[:4]), (x[4:], y[4:])], test=(x, y))), 3)
    >>> len(done.history), sorted(done.scores)
    (3, ['selected', 'server'])
    """
    check_simulation(sim)
    check_range("rounds", rounds)
    check_range("eval_every", eval_every)
    check_reports(sim, rounds)
    check_machine(sim, rounds)
    return _trained(prepare(sim), rounds, eval_every, watch)


def begin(runtime: Runtime) -> State:
    """Returns the state before the first round."""
    sim, net, layout = runtime.sim, runtime.network, runtime.layout
    params = {**net.parameters, **net.statistics, **net.constants}
    _check_outputs(runtime, params)
    clients = Clients({}, sim.client_state, sim.folder, torch.device(sim.device))
    last_sum = None
    if "all" in sim.scored:
        last_sum = trees.apply(lambda leaf: leaf.double() * len(sim.data.parts), trees.restrict(params, layout.labels))
    versions = dict.fromkeys(layout.labels.values(), 0)
    common = memory_of(sim) if sim.personal.collaboration is None else feature_exchange.common_of(runtime, params)
    return State(0, server.start(params, sim.algorithm, net.parameters), clients, versions, Held(), last_sum, common)


def rounds(runtime: Runtime, state: State, until: int, eval_every: int = 1, *, unscored: int = 0) -> Iterator[Progress]:
    """Runs rounds up to number ``until`` and scores the models every ``eval_every`` of them, and after the last.

    The first ``unscored`` rounds are not scored: what a table takes of a run's end does not need them.
    """

    def due(t: int) -> bool:
        return (t % eval_every == 0 and t > unscored) or t == until

    for new, record in _advanced(runtime, state, until, due):
        scores = evaluate(runtime, new) if due(new.round) else {}
        if what := diverged(runtime, scores):
            raise FloatingPointError(
                f"round {record.round + 1}: {what}. Lower lr, set clip=10, or look at the test set."
            )
        yield Progress(new, record, scores)
        if new.round < until and will_stop(runtime.peers):
            raise KeyboardInterrupt


def _advanced(runtime: Runtime, state: State, until: int, due: Callable[[int], bool]) -> Iterator[tuple[State, Record]]:
    """Runs round after round; on a GPU the next is launched before a round is settled, unless its scores are due."""
    one_round = advance if runtime.sim.privacy is None else advance_privately
    ahead = None
    while state.round < until:
        if not runs_ahead(runtime):
            state, record = one_round(runtime, state)
        else:
            now = launch(runtime, state) if ahead is None else ahead._replace(began=time.perf_counter())
            ahead = None if due(now.state.round) else _launched_if_possible(runtime, now.state)
            if runtime.pause is not None:  # other runs go on while a GPU computes
                runtime.pause()
            state, record = settle(now)
        yield state, record


def runs_ahead(runtime: Runtime) -> bool:
    """Returns whether a round can be launched before the last one is settled: nothing in it waits for the device."""
    sim = runtime.sim
    alone = runtime.peers.size == 1 and sim.privacy is None
    waits = sim.keeps_uploads or sim.personal.collaboration is not None or sim.data.lazy is not None
    return sim.device.startswith("cuda") and sim.client_state == "device" and alone and not waits


def _launched_if_possible(runtime: Runtime, state: State) -> Launched | None:
    try:
        return launch(runtime, state)
    except Exception:  # raised again when its turn comes: the round before it is complete
        return None


def _trained(runtime: Runtime, until: int, eval_every: int, watch: Watch | None) -> Trained:
    history = []
    for progress in rounds(runtime, begin(runtime), until, eval_every):
        history.append((progress.record, progress.scores))
        if watch is not None:
            watch(progress)
    model = with_params(runtime.sim.model, progress.state.server.params)
    return Trained(model, progress.scores, history, progress.state)


def diverged(runtime: Runtime, scores: Mapping[Scored, Score]) -> str | None:
    """Says that the server's score is not finite; where parameters are private, the server's model has no meaning."""
    score = scores.get("server")
    if score is None or runtime.layout.private:
        return None
    parts = {"loss": score.loss, score.scale.name: score.value}
    return next((f"the server's {name} is {part}" for name, part in parts.items() if not math.isfinite(part)), None)


@torch.no_grad()
def _check_outputs(runtime: Runtime, params: Params) -> None:
    """Refuses a model whose outputs for two samples the objective cannot use, and targets that they cannot have."""
    data, net = runtime.data, runtime.network
    for x, y, trains in ((data.test_x, data.test_y, False), (data.x, data.y, True)):
        if not len(y):  # a server that has no images
            continue
        rows = torch.tensor([0, len(y) > 1], device=y.device)  # two: torch's BatchNorm trains on no single one
        images, targets = cast_inputs(take(x, rows), data.recipe, net.dtype), cast_targets(y[rows], net.dtype)
        with _untouched(net, params), _fitting(images), torch.random.fork_rng(_gpus(y)):
            returned = net.train(params, images, None, torch.tensor(0, device=y.device))[0] if trains else None
            returned = returned if trains else net.predict(params, images)
        aim = runtime.sim.objective
        possible = aim.targets.up_to(check_outputs(aim, returned, targets, data.classes))
        if trains:
            _check_gradient(runtime, params, images, targets)
        check_range_of(possible, known_targets(data) if trains else y, "y" if trains else "test_y")
        if data.lazy is not None:
            data.lazy.wrong = possible.stray  # of what is read later


def _check_gradient(runtime: Runtime, params: Params, images: Inputs, targets: Tensor) -> None:
    """Refuses a loss that depends on no parameter: a transform would take its gradient for 0, without a word."""
    net, aim = runtime.network, runtime.sim.objective
    leaves = {name: params[name].detach().requires_grad_() for name in net.parameters}
    with torch.enable_grad(), torch.random.fork_rng(_gpus(targets)):
        outputs = aim.read(net.train({**params, **leaves}, images, None, torch.tensor(0, device=targets.device))[0])
        if not aim.loss(outputs, targets).requires_grad:
            where = "the objective's loss" if outputs.requires_grad else "what the model returns"
            raise ValueError(
                f"{where} does not depend on the model's parameters, so nothing can be learnt. Leave .detach(), .data "
                f"and torch.no_grad() out of it."
            )


@contextmanager
def _untouched(net: Network, params: Params) -> Iterator[None]:
    """Refuses a forward pass within that changes the parameters that it is given, which are the server's."""
    before = {name: (params[name]._version, params[name].clone()) for name in (*net.parameters, *sorted(net.frozen))}
    yield
    for name, (version, old) in before.items():
        # what is written through .data has no new version, and what needs no change yet has no new value
        if params[name]._version != version or not torch.allclose(params[name], old, rtol=0, atol=0, equal_nan=True):
            raise ValueError(
                f"the model's forward pass changes the parameter '{name}', so that a score would change the model. "
                f"Leave max_norm out, or bound weights outside of forward."
            )


@contextmanager
def _fitting(x: Inputs) -> Iterator[None]:
    """Says that samples do not fit the model, if what is done within fails."""
    if isinstance(x, Tensor):
        with fitting(tuple(x.shape[1:])):
            yield
        return
    try:
        yield
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        how = "by these names" if isinstance(x, dict) else "in this order"
        raise ValueError(
            f"samples of {shapes_of(x)} do not fit the model ({one_line(error)[:300]}). Its forward must take them "
            f"{how}."
        ) from error


def _gpus(y: Tensor) -> list[torch.device]:
    return [y.device] if y.is_cuda else []
