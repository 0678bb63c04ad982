"""One run on several processes: process 0 leads it, locks its folder and writes it; the others do their shares.

All of them see one folder: each writes the files of its own clients there, process 0 all others.
"""

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from fedatoms.core.lookup import some
from fedatoms.core.outside import naming
from fedatoms.core.run_files import CHECKPOINT, CLIENTS
from fedatoms.core.version import __version__
from fedatoms.engine.gloo import device_here
from fedatoms.engine.loop import rounds
from fedatoms.engine.peers import Peers, gather
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.experiment.build import configure, simulation, yours
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import to_json
from fedatoms.experiment.identities import trajectory
from fedatoms.experiment.weights import pinned
from fedatoms.runs.checkpoints import Checkpoints, Loaded, load_share
from fedatoms.runs.lock import FILE
from fedatoms.runs.personal_models import train_personal

Build = Callable[[Experiment, Path], Simulation]
OF_A_MACHINE = frozenset({"data_dir", "weights", "out", "device", "map", "block", "threads", "tensorboard", "watch"})
PATIENCE = 30.0  # seconds until another machine must see the folder: some file systems remember what was not there
NOTHING = -1  # what process 0 says in the place of a round if there is nothing to do


def check_alike(peers: Peers, experiment: Experiment, *, folder: str = "") -> None:
    """Refuses processes that were started with other words, or have another version of this package.

    ``folder`` is that of a run to resume. Where things lie on a machine, and its devices, may differ.
    """
    if peers.size == 1:
        return
    fields = {name: str(value) for name, value in to_json(pinned(experiment)).items() if name not in OF_A_MACHINE}
    first, *others = gather(peers, {**fields, "resume": folder, "version of fedatoms": __version__})
    for rank, other in enumerate(others, 1):
        if odd := [name for name in first if first[name] != other.get(name)]:
            raise ValueError(
                f"process {rank} was started with another {some([f'`{name}`' for name in odd])} than process 0: they "
                f"train one run. Start all of them with the same words."
            )


def here(peers: Peers) -> Build:
    """Returns what builds the simulation of an experiment on the device of this process."""

    def build(experiment: Experiment, folder: Path) -> Simulation:
        sim = simulation(experiment, folder)
        device = device_here(sim.device, peers.local) if peers.size > 1 else sim.device
        if device == sim.device:
            return sim
        torch.cuda.set_device(device)  # for kernels that are started on the current card
        return replace(sim, device=device)

    return build


def lead(peers: Peers, folder: Path, done: int) -> None:
    """Lets the other processes begin after ``done`` rounds, once all see the folder that this one has locked."""
    if peers.size > 1:
        gather(peers, done)
        _check_seen(gather(peers, ""), folder)


def dismiss(peers: Peers) -> None:
    """Lets the other processes end: there is nothing to do."""
    gather(peers, NOTHING)


def assist(peers: Peers, experiment: Experiment, folder: Path) -> None:
    """Does this process's share of a run that process 0 leads in a folder."""
    sim = here(peers)(experiment, folder / CLIENTS)
    configure(experiment)
    with naming(yours(experiment)):
        runtime = prepare(sim, peers=peers)
        if (done := gather(peers, NOTHING)[0]) == NOTHING:
            return
        _check_seen(gather(peers, _not_seen(peers, folder)), folder)
        loaded = load_share(folder / CHECKPOINT, done, runtime, trajectory=trajectory(experiment))
        state = _train(runtime, loaded, experiment, folder)
        if experiment.personal != "none":
            train_personal(experiment, runtime, state, folder)


def is_due(experiment: Experiment, done: int) -> bool:
    """Returns whether a checkpoint is written after so many rounds, before the last.

    >>> [done for done in range(1, 5) if is_due(Experiment(rounds=4, checkpoint_every=2), done)]
    [2]
    """
    return done % experiment.checkpoint_every == 0 and done < experiment.rounds


def _train(runtime: Runtime, loaded: Loaded, experiment: Experiment, folder: Path) -> State:
    """Runs the rounds that are left, as process 0 does, and writes what clients keep where it writes a checkpoint."""
    checkpoints = Checkpoints(folder / CHECKPOINT, trajectory(experiment), loaded, runtime.peers)
    state = loaded.state
    try:
        for progress in rounds(runtime, state, experiment.rounds, experiment.eval_every):
            state = progress.state
            checkpoints.note(state.clients)
            if is_due(experiment, state.round):
                checkpoints.save(state, seconds=0.0)
        checkpoints.save(state, seconds=0.0)
    except KeyboardInterrupt:  # of a save, too, as in process 0
        checkpoints.save(state, seconds=0.0)
        raise
    return state


def _not_seen(peers: Peers, folder: Path) -> str:
    """Says that this process does not see the folder, if so; process 0 holds its lock."""
    until = time.monotonic() + PATIENCE
    while not (folder / FILE).exists():
        if time.monotonic() > until:
            return f"process {peers.rank} on {socket.gethostname()}"
        time.sleep(0.05)
    return ""


def _check_seen(said: list[str], folder: Path) -> None:
    if blind := [one for one in said if one]:
        raise ValueError(
            f"{some(blind)} cannot see {folder}, which process 0 writes: all write into one folder. Use an `out` on a "
            f"disk that all machines share."
        )
