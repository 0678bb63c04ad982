"""Replays a run's next rounds from its checkpoint with the engine itself, and keeps the clients' uploads."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fedatoms.algorithms.base import Server
from fedatoms.core import trees
from fedatoms.core.lookup import as_word
from fedatoms.core.run_files import CHECKPOINT, EXPERIMENT, RESULT, checkpoints
from fedatoms.core.trees import Params
from fedatoms.engine.client_round import Job, Learner, Reply
from fedatoms.engine.codes import rounded
from fedatoms.engine.round import advance, select, weights_of
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.state import Record, State
from fedatoms.experiment.build import configure, simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load_run
from fedatoms.experiment.identities import trajectory
from fedatoms.experiment.parse import made_by_caller
from fedatoms.runs.checkpoints import load_checkpoint
from fedatoms.runs.lock import writer
from fedatoms.runs.remote import is_remote

Tick = Callable[[int, int], None]  # progress callback: steps done, of how many


class Opened(NamedTuple):
    """A run at its last checkpoint; its folder is only read."""

    experiment: Experiment
    runtime: Runtime
    state: State
    notes: list[str]


class Replay(NamedTuple):
    """A round: the states before and after it, and the clients that reported, with their weights and models."""

    before: State
    after: State
    record: Record
    clients: list[int]
    weights: Tensor  # (C,) in float64, their sum is 1
    models: list[Params]  # the server's model with the client's upload in it


def open_run(run: Path, changes: Mapping[str, object], scratch: Path) -> Opened:
    """Loads a run's last checkpoint; ``changes`` may set another device or data folder.

    ``scratch`` receives client states that are kept on disk.
    """
    experiment = replace(load_run(run), **changes)  # type: ignore[arg-type] # fields by name
    _check(run, experiment)
    configure(experiment)
    scored = replace(experiment, score="server")  # others cost memory and change no parameter
    runtime = prepare(simulation(scored, scratch))
    loaded = load_checkpoint(run / CHECKPOINT, runtime, trajectory=trajectory(experiment), set_aside=False)
    return Opened(experiment, runtime, loaded.state, loaded.notes)


def replay(runtime: Runtime, state: State) -> Replay:
    """Runs the next round as the run itself would, bit for bit, and keeps the clients' uploads."""
    sim, uploads = runtime.sim, list[Params]()
    clients = select(sim, state.round)[1]
    waiting = iter(clients)

    def listening(learner: Learner, broadcast: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
        for reply in runtime.map_clients(learner, broadcast, jobs):
            if learner.algorithm is sim.algorithm:  # not a phase that trains what stays on the client
                block = [next(waiting) for _ in reply.steps]
                exact = sim.uploads == "exact"
                uploads.extend(_uploads(reply if exact else rounded(runtime, state, block, reply)))
            yield reply

    after, record = advance(runtime._replace(map_clients=listening), state)
    weights = weights_of(sim, clients).double()
    models = [{**state.server.params, **upload} for upload in uploads]
    return Replay(state, after, record, clients, weights / weights.sum(), models)


def _uploads(reply: Reply) -> list[Params]:
    both = {**reply.upload["params"], **reply.upload["statistics"]}
    return [trees.unstack(both, i) for i in range(len(reply.steps))]


def _check(run: Path, experiment: Experiment) -> None:
    if is_remote(run) or made_by_caller(experiment):
        raise ValueError(
            f"{run} is a run on nodes, which hold its clients' data and states: they cannot be replayed here. Explain "
            f"a run of `fedatoms run`."
        )
    if experiment.aggregation != "mean" or experiment.attack:
        raise ValueError(f"{run} has another aggregation than the mean, or an attack. Explain a run without them.")
    if not checkpoints(run):
        again = f"Make the run again: `fedatoms run {as_word(run / EXPERIMENT)} --name again`"
        more = f"Go on with `fedatoms run --resume {as_word(run)}`, which saves one in the end or at Ctrl-C"
        by = writer(run)
        way = f"It is running ({by}): wait for its first" if by else again if (run / RESULT).exists() else more
        raise ValueError(f"{run} has no checkpoint to replay from. {way}.")
