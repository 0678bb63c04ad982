"""The part `pfl`: fedatoms and pfl-research (Granqvist et al., 2024) on pfl's own benchmark: times, accuracies."""

import importlib.util
import json
import math
import socket
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from fedatoms.bench import fresh
from fedatoms.bench import line_up as who
from fedatoms.bench.contest import Timing, compete
from fedatoms.bench.line_up import Cell, Contestant, ours
from fedatoms.bench.machine_limits import timed
from fedatoms.bench.pfl_task import BATCH, IMAGES, LR, Task, cnn, images_of, parts_of
from fedatoms.bench.results import Event, Gap, Ratio, Row, numbers, paired, version_of
from fedatoms.bench.scoring import Contest, Work, guarded, row_of
from fedatoms.bench.settings import Bench
from fedatoms.core.gains import pool, student
from fedatoms.data.batches import Plan, Planner
from fedatoms.data.federations import Federation
from fedatoms.engine.loop import begin, rounds
from fedatoms.engine.runtime import on_device, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.nn.atoms import decompose

NETWORK = "pfl's CNN"
TIMED = 30  # rounds, in as many turns as --repeats
PFL_BEST = "pfl at its best / fedatoms"
ONE_PROCESS = 50.0  # times as slow as fedatoms: the bar
ATOMS_COST = 1.10  # times as slow as the plain network: the bar
APART = "difference of accuracies beyond its 95 % interval"
AS_PFL = ", images in pfl's order"  # pfl never shuffles a client's images; ours are, unless this is said
LONGEST = 3000  # seconds of a training to its accuracy
INSTALL = (
    'pfl is not installed. Use pip install --no-deps --target FOLDER pfl "dp-accounting<0.6" prv-accountant '
    "multiprocess dill mpmath absl-py attrs, and PYTHONPATH=FOLDER."
)


class Run(NamedTuple):
    """The accuracy that a training reached, in per cent, and the seconds that it took after its first round."""

    accuracy: float
    seconds: float


def measure_pfl(contest: Contest) -> Iterator[Event]:
    """Measures rounds of fedatoms and of pfl's processes, compares them, and trains both to an accuracy if asked to."""
    if importlib.util.find_spec("pfl") is None:
        yield Gap("pfl", INSTALL)
        return
    rows: list[Row] = []
    for event in _rows(contest):
        rows += [event] if isinstance(event, Row) else []
        yield event
    theirs = sorted((row for row in rows if row.contestant.startswith("pfl")), key=lambda row: row.ms_round)
    yield from _ratios({row.contestant: row for row in rows if row not in theirs}, theirs)
    if contest.settings.pfl_rounds and theirs:
        yield from guarded("accuracy on pfl's benchmark", _accuracies(contest.settings, _processes_of(theirs[0])))


def task_of(settings: Bench, *, rounds: int, turns: int, seed: int = 0) -> Task:
    """Returns pfl's benchmark in the sizes of the settings."""
    return Task(
        clients=settings.pfl_clients,
        cohort=settings.pfl_cohort,
        rounds=rounds,
        turns=turns,
        seed=seed,
        data_dir=settings.data_dir,
        device=settings.device,
        precision=settings.precision,
        threads=settings.threads,
    )


def pfl_clients(task: Task) -> Simulation:
    """Makes the same federation for fedatoms: clients, network and training of pfl's benchmark, data on the device."""
    images = images_of(task)
    parts, nothing = parts_of(task, len(images.x)), [images.test_y[:0]] * task.clients
    data = Federation(*images[:2], parts, images.test_x, images.test_y, nothing, images.classes, images.recipe)
    return Simulation(
        cnn(task.seed),
        on_device(data, task.device),
        training=Training(1, BATCH, LR),
        fraction=task.cohort / task.clients,
        score=("server",),
        seed=task.seed,
        device=task.device,
        map="vectorised",
        precision=task.precision,
    )


def _rows(contest: Contest) -> Iterator[Event]:
    settings = contest.settings
    task = task_of(settings, rounds=min(TIMED, settings.rounds), turns=settings.repeats)
    work = Work(Cell(task.cohort, BATCH), Training(1, BATCH, LR), IMAGES, NETWORK, cnn())
    for event in compete(settings.device, _our_entries(task), f"{NETWORK}, {task.cohort} of {task.clients} clients"):
        yield row_of(contest, work, event) if isinstance(event, Timing) else event
    for processes in numbers(settings.pfl_processes, "--pfl-processes"):
        yield from guarded(_name(processes), _pfl_row(contest, work, task, processes))


def _our_entries(task: Task) -> list[Contestant]:
    sim = pfl_clients(task)
    atoms = replace(sim, model=decompose(sim.model, who.ATOMS, init="orthonormal"))
    return [
        Contestant(who.PLAIN, lambda: ours(sim), task.turns),
        Contestant(who.OURS, lambda: ours(atoms), task.turns),
    ]


def _pfl_row(contest: Contest, work: Work, task: Task, processes: int) -> Iterator[Event]:
    answer = run_pfl(task, processes)
    first, memory, seconds = (answer[name] for name in ("first", "memory", "seconds"))
    assert isinstance(first, float) and isinstance(memory, float | None) and isinstance(seconds, list)
    note = f"pfl {version_of('pfl')}, a round as a mean of {max(task.rounds // task.turns, 1)}; peak of one process"
    yield row_of(contest, work, Timing(_name(processes), first, memory, seconds, note))


def run_pfl(task: Task, processes: int, longest: float = fresh.LONGEST) -> dict[str, object]:
    """Runs pfl in processes that share the device, and returns what the first of them has measured."""
    port = _free_port()
    addresses = ",".join([f"localhost:{port}"] * processes)  # pfl needs the first only, and their number
    device = {"PFL_PYTORCH_DEVICE": "cuda:0" if task.device == "cuda" else task.device}
    peers = [{"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)} for rank in range(processes)]
    envs = [{**device, **(peer if processes > 1 else {})} for peer in peers]
    return fresh.ask_together("fedatoms.bench.pfl_twin", json.dumps(task._asdict()), envs=envs, longest=longest)[0]


def _ratios(mine: dict[str, Row], theirs: Sequence[Row]) -> Iterator[Event]:
    """Compares pfl with fedatoms, plain as pfl is: first its best, then all; ``theirs`` has the fastest first."""
    plain, atoms = mine.get(who.PLAIN), mine.get(who.OURS)
    if plain is None or not theirs:
        yield Gap("pfl / fedatoms", "was not measured for both")
        return
    place = f"{NETWORK}, {plain.clients} clients x {BATCH}"
    best = theirs[0]
    yield paired(PFL_BEST, best.seconds, plain.seconds, None, f"{place}; {best.contestant}", at_least=True)
    for row in theirs:
        bar = ONE_PROCESS if row.contestant == _name(1) else None
        yield paired(f"{row.contestant} / fedatoms", row.seconds, plain.seconds, bar, place, at_least=True)
    if atoms is not None:
        yield paired(f"decomposed / plain, {NETWORK}", atoms.seconds, plain.seconds, ATOMS_COST, place)


def _accuracies(settings: Bench, processes: int) -> Iterator[Event]:
    """Trains both for the rounds that were asked for: with random images nothing can be learnt."""
    if not settings.data_dir:
        yield Gap("accuracy on pfl's benchmark", "random images cannot be learnt. Add --data-dir FOLDER of CIFAR-10.")
        return
    others = max(settings.pfl_rounds - 1, 1)  # after the first
    tasks = [task_of(settings, rounds=others, turns=1, seed=seed) for seed in range(settings.pfl_seeds)]
    mine = {how: [_train(task, in_order=bool(how)) for task in tasks] for how in ("", AS_PFL)}
    for how, runs in mine.items():
        yield _accuracy(f"fedatoms, plain{how}", runs, 1 + others)
    theirs = [_train_pfl(task, processes) for task in tasks]
    yield _accuracy(_name(processes), theirs, 1 + others)
    for how, runs in mine.items():
        yield apart([run.accuracy for run in runs], [run.accuracy for run in theirs], how)


def apart(mine: Sequence[float], theirs: Sequence[float], how: str = "") -> Ratio | Gap:
    """Compares the accuracies of two sides: by how much their difference is beyond its 95 % interval.

    The interval is that of Student's t for two samples with one spread: t · s · √(1 / m + 1 / n).

    >>> one = apart([3.0, 4.0, 5.0], [-3.0, -2.0])
    >>> one.detail, round(one.value, 2), one.verdict, apart([3.0, 4.0, 5.0], [3.0, 4.0]).value
    ('ours 6.50 ± 2.65 higher; 95 %, one spread for both', 3.85, 'missed', 0.0)
    """
    spread = pool([mine, theirs])
    if spread is None or spread.deviation == 0:
        return Gap(f"{APART}{how}", "neither side has two seeds that differ. Use --pfl-seeds 3.")
    half = student(spread.degrees) * spread.deviation * math.sqrt(1 / len(mine) + 1 / len(theirs))
    more = statistics.fmean(mine) - statistics.fmean(theirs)
    said = f"ours {abs(more):.2f} ± {half:.2f} {'higher' if more >= 0 else 'lower'}; 95 %, one spread for both"
    return Ratio(f"{APART}{how}, points", max(0.0, abs(more) - half), 0.0, said)


def unshuffled(sim: Simulation, batches: Planner) -> Planner:
    """Returns the batches of clients whose images are never shuffled, as pfl has them: always the same.

    >>> sim = pfl_clients(Task(2, 1, 1, 1, 0, "", "cpu", "float32", 1))
    >>> drawn = unshuffled(sim, prepare(sim).batches)(1, 0, 1, 0)
    >>> drawn.rows.shape, drawn.rows.flatten().equal(sim.data.parts[1])
    (torch.Size([5, 10]), True)
    """

    def draw(client: int, t: int, epochs: int, phase: int) -> Plan:
        drawn = batches(client, t, epochs, phase)
        return drawn._replace(rows=sim.data.parts[client].repeat(epochs).view_as(drawn.rows))

    return draw


def _train(task: Task, *, in_order: bool = False) -> Run:
    """Trains fedatoms; the first round, which compiles, counts for the accuracy only."""
    runtime = prepare(pfl_clients(task))
    if in_order:
        runtime = runtime._replace(batches=unshuffled(runtime.sim, runtime.batches))
    state = next(rounds(runtime, begin(runtime), 1)).state
    reached: list[float] = []

    def others() -> None:
        for progress in rounds(runtime, state, 1 + task.rounds, 1 + task.rounds):
            reached.extend(score.value for score in progress.scores.values())

    seconds = timed(task.device, others)
    return Run(reached[-1], seconds)


def _train_pfl(task: Task, processes: int) -> Run:
    answer = run_pfl(task, processes, LONGEST)
    accuracy, seconds = answer["accuracy"], answer["seconds"]
    assert isinstance(accuracy, float) and isinstance(seconds, list)
    return Run(accuracy, task.rounds * seconds[0])


def _accuracy(name: str, runs: Sequence[Run], count: int) -> Ratio:
    each = ", ".join(f"{run.accuracy:.2f}" for run in runs)
    seconds = statistics.fmean(run.seconds for run in runs)
    detail = f"CIFAR-10, {count} rounds, {len(runs)} seeds: {each}; {seconds:.0f} s each"
    return Ratio(
        f"accuracy on pfl's benchmark, {name}, %", statistics.fmean(run.accuracy for run in runs), None, detail
    )


def _name(processes: int) -> str:
    return f"pfl, {processes} process{'es' if processes > 1 else ''}"


def _processes_of(row: Row) -> int:
    return int(row.contestant.split()[1])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
    return port
