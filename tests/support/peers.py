"""Three processes that are started once, and what each of them does: run as a program, it is one of them."""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedatoms.aggregation import aggregation
from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.cli import main as cli
from fedatoms.core.trees import Params
from fedatoms.data.federations import Federation, federation
from fedatoms.engine.attacks import Attack
from fedatoms.engine.evaluation import personal_score
from fedatoms.engine.exchange import FAST, SLOW, Exchange, every_round, fast_slow
from fedatoms.engine.finetune import last_pass
from fedatoms.engine.gloo import Place, connected
from fedatoms.engine.loop import Progress, begin, rounds
from fedatoms.engine.peers import Peers
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.nn.hadamard import factorise
from fedatoms.personal import METHODS, personal
from fedatoms.runs.checkpoints import load_checkpoint, load_share, save_checkpoint
from fedatoms.testing.small import clients, network, simulation

ROUNDS, STOP = 3, 2
RUN = "--rounds 3 --epochs 1 --batch-size 50 --clients 10 --fraction 0.5 --failures 0.2 --checkpoint-every 2"
RUN += " --device cpu --threads 1"
RUNS = {  # on disk, by the command line; states in memory and on disk
    "shared": "--algorithm scaffold --parametrisation atoms --beta 1/2 --slow-local keep --client-state disk",
    "personal": "--parametrisation atoms --personal local-atoms --last-epochs 1",
}
EXCHANGES = {
    "every round": Exchange(every_round()),
    "discard": Exchange(fast_slow(FAST, SLOW, 2)),
    "freeze": Exchange(fast_slow(FAST, SLOW, 2), slow_local="freeze"),
    "keep": Exchange(fast_slow(FAST, SLOW, 2), slow_local="keep"),
    "personal head": Exchange(every_round(), personal=frozenset({"head"})),
    "personal atoms": Exchange(fast_slow({"head"}, SLOW, 2), personal=frozenset({"atoms"}), slow_local="keep"),
}


def plain() -> nn.Module:
    """Builds a network for low-rank factors."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)
        ).double()


class Seen(NamedTuple):
    """What a process has of a run in the end."""

    server: Params  # and its memory and what a collaboration remembers
    rows: dict[int, Params]  # what its clients keep
    history: list[list[float]]  # of each round: loss, clients, bytes up and down, and all scores
    personal: list[float]  # after a last pass


def everything(*, slow: bool) -> dict[str, Simulation]:
    """Returns algorithms, exchanges and personalised methods, on small data in float64; if slow, all and every pair."""
    sims = {}
    for number, name in enumerate(ALGORITHMS if slow else list(ALGORITHMS)[::3]):
        kinds = list(EXCHANGES) if slow else [list(EXCHANGES)[number % len(EXCHANGES)]]
        for kind in kinds:
            method = algorithm(name)
            more = kind != "every round" and method.uploads_models
            score = ("server", "selected", "all") if more else ("server",)
            sims[f"{name}, {kind}"] = simulation(algorithm=method, exchange=EXCHANGES[kind], score=score)
    for name in METHODS if slow else list(METHODS)[::3]:
        if name != "none":
            model = factorise(plain(), 0.5, personal=True) if name == "pfedpara" else network()
            sims[name] = simulation(model, personal=personal(name), score=("server", "personal"))
    if slow:  # torch imports much for it
        sims["vectorised"] = simulation(map="vectorised", block=2, fraction=1.0, failures=0.0)
    sims["fewer clients than processes"] = simulation(algorithm=algorithm("feddc"), fraction=0.25, failures=0.0)
    sims["most fail"] = simulation(algorithm=algorithm("scaffold"), failures=0.7, score=("server", "all"))
    sims["local"] = simulation(exchange=EXCHANGES["every round"], score=("server", "local"))
    if slow:
        sims["local, most fail"] = simulation(failures=0.7, score=("server", "all", "local"))
        sims["8-bit"] = simulation(algorithm=algorithm("scaffold"), uploads="8-bit", score=("server", "all"))
    sims["4-bit"] = simulation(algorithm=algorithm("fednova"), exchange=EXCHANGES["keep"], uploads="4-bit")
    outvoted = {"fraction": 1.0, "failures": 0.0, "score": ("server", "selected")}
    sims["median"] = simulation(algorithm=algorithm("scaffold"), aggregation=aggregation("median"), **outvoted)
    sims["attack"] = simulation(attack=Attack("noise", 0.25), aggregation=aggregation("norm-bound"), **outvoted)
    sims["read late"] = simulation(data=read_late())
    return sims


def read_late() -> Federation:
    """Makes clients whose samples are read when they train on them."""
    whole = clients()
    parts = [TensorDataset(whole.x[part], whole.y[part]) for part in whole.parts]
    return federation(parts, test=(whole.test_x, whole.test_y), lazy=True)


def on_disk(name: str, sim: Simulation, folder: Path) -> Simulation:
    """Keeps the client states of some runs on disk."""
    return replace(sim, client_state="disk", folder=folder / "clients") if "scaffold" in name else sim


def seen(progress: list[Progress], sim: Simulation, state: State, peers: Peers) -> Seen:
    """Collects what a process has, and lets methods with personal parameters train them once more."""
    server = {**state.server.params, **state.common}
    for kind, tree in state.server.memory.items():
        server |= {f"{kind} {name}": leaf for name, leaf in tree.items()}
    history = []
    for _, record, scores in progress:
        loss = record.loss if record.clients else -1.0
        size = [float(sum(count.values())) for count in (record.up, record.down)]
        numbers = [part for score in scores.values() for part in score.parts().values()]
        history.append([loss, float(record.clients), float(record.failed), *size, *numbers])
    after = []
    if "personal" in sim.scored:
        last, state = last_pass(prepare(sim, peers=peers), state, 1)
        after = list(personal_score(last, state).parts().values())
    rows = {}
    for client in state.clients.rows:
        row = state.clients.read(client)
        trees = {"own": row.own, "last": row.last, "local": row.local, **row.memory}
        rows[client] = {f"{kind} {name}": leaf for kind, tree in trees.items() for name, leaf in tree.items()}
    return Seen(server, rows, history, after)


def whole(name: str, sim: Simulation, peers: Peers, folder: Path) -> Seen:
    """Runs all rounds, and writes a checkpoint in between."""
    sim = on_disk(name, sim, folder)
    runtime, done = prepare(sim, peers=peers), []
    for progress in rounds(runtime, begin(runtime), ROUNDS):
        done.append(progress)
        if progress.state.round == STOP:
            save_checkpoint(folder, progress.state, trajectory=name, seconds=0.0, peers=peers)
    return seen(done, sim, progress.state, peers)


def rest(name: str, sim: Simulation, peers: Peers, folder: Path) -> Seen:
    """Runs what is left after a checkpoint."""
    sim = on_disk(name, sim, folder)
    runtime = prepare(sim, peers=peers)
    if peers.rank:
        state = load_share(folder, STOP, runtime, trajectory=name).state
    else:
        state = load_checkpoint(folder, runtime, trajectory=name).state
    done = list(rounds(runtime, state, ROUNDS))
    return seen(done, sim, done[-1].state, peers)


def port() -> int:
    """Finds a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def command(words: str, rank: int, size: int, at: str) -> None:
    """Types a command in one of several processes, as torchrun would start it."""
    about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": at}
    os.environ.update({name: str(value) for name, value in about.items()})
    if status := cli(["run", *words.split()]):
        raise SystemExit(status)


def chosen(number: int, name: str, what: str, *, slow: bool) -> bool:
    """Says what is run on how many processes: on three and on one all, on two all if slow, and a third else."""
    everywhere = what in ("1", "3") or (slow and what == "2")
    return everywhere or number % 3 == (1 if what == "2" else 0) or name == "fedpac"


def main() -> None:
    """Runs everything on three processes, then on two while the third is alone, and then what others have left."""
    folder, rank, slow = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[4] == "slow"
    ports, found = iter(sys.argv[3].split(",")), {}
    torch.set_num_threads(1)
    sims = everything(slow=slow)

    def play(how: Callable[..., Seen], what: str, size: int, place: int) -> None:
        os.environ["MASTER_PORT"] = next(ports)
        with connected(Place(place, size, place)) as (peers, _):
            for number, (name, sim) in enumerate(sims.items()):
                if chosen(number, name, what, slow=slow):
                    start = folder / what.split(" from ")[-1] / name.replace(" ", "-")
                    found[what, name] = tuple(how(name, sim, peers, start))

    play(whole, "3", 3, rank)
    play(whole, "2", 2, rank) if rank < 2 else play(whole, "1", 1, 0)
    play(rest, "2 from 3", 2, rank) if rank < 2 else play(rest, "1 from 3", 1, 0)
    play(rest, "3 from 1", 3, rank)
    torch.save(found, folder / f"{rank}.pt")
    for name, flags in RUNS.items():
        here = f"{RUN} {flags} --out {folder}"
        command(f"{here} --name {name}-3", rank, 3, next(ports))
        at, longer = next(ports), f"--resume {folder}/{name}-3 --rounds 5"
        command(longer, rank, 2, at) if rank < 2 else command(f"{here} --name {name}-1 --rounds 5", 0, 1, at)


if __name__ == "__main__":
    main()
