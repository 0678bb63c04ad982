"""The contest on one CUDA card: fedatoms, four loops, JAX and pfl on the same work, one after another.

The code takes any device, so that a CPU can test it; numbers mean something on a GPU only.
"""

import importlib.util
import json
import statistics
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

from fedatoms.algorithms import algorithm
from fedatoms.bench import fresh, seeds
from fedatoms.bench import line_up as who
from fedatoms.bench.contest import Timing, compete
from fedatoms.bench.jax_twin import Task
from fedatoms.bench.line_up import Cell, Contestant, cell_clients, contestants, ours, training_of
from fedatoms.bench.machine_limits import clean, limits, timed
from fedatoms.bench.pfl_part import measure_pfl
from fedatoms.bench.results import Event, Gap, Ratio, find_row, numbers, paired, parts_of
from fedatoms.bench.scoring import Contest, guarded, row_of, where, work_of
from fedatoms.bench.settings import Bench
from fedatoms.core.options import GLOBAL_MODELS, Precision
from fedatoms.engine.loop import begin, rounds
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.experiment.build import configure, device_of
from fedatoms.experiment.fields import Experiment
from fedatoms.personal import personal

EVALUATED_EVERY = 10
LONGER = 10  # epochs of the personal regime (Table 2), where the grid has one
EXPERT_BARS = {Cell(10, 50): 6.0, Cell(10, 10): 9.0}
ALGORITHMS = ("fedavg", "scaffold", "feddyn", "feddc")  # the others are compared with the first


def measure(settings: Bench) -> Iterator[Event]:
    """Measures part by part and yields each result at once; a part that fails becomes a gap."""
    contest = _contest(settings)
    events: list[Event] = []
    for event in _all_parts(contest._replace(so_far=events), parts_of(settings)):
        events.append(event)
        yield event


def _contest(settings: Bench) -> Contest:
    """Checks the settings and measures the limits of the card."""
    device_of(Experiment(device=settings.device))
    clients, batches = numbers(settings.clients, "--clients"), numbers(settings.batch, "--batch")
    _set_up(settings, settings.precision)
    cells = [Cell(count, batch) for count in clients for batch in batches]
    best = limits(settings.device, settings.precision)
    return Contest(settings, best, cells, Cell(settings.against, max(batches)), [])


def _all_parts(contest: Contest, chosen: Sequence[str]) -> Iterator[Event]:
    precision = contest.settings.precision
    yield Ratio(
        "arithmetic limit, TFLOP/s", contest.limits.arithmetic / 1e12, None, f"a large matrix product, {precision}"
    )
    yield Ratio("bandwidth limit, TB/s", contest.limits.bandwidth / 1e12, None, "a large copy, bytes read and written")
    parts: dict[str, Callable[[Contest], Iterator[Event]]] = {
        "grid": _grid,
        "jax": _jax,
        "pfl": measure_pfl,
        "rounds": _rounds,
        "algorithms": _algorithms,
        "personal": _personal,
        "seeds": _seeds,
        "deterministic": _deterministic,
        "cold": _cold,
    }
    for name in chosen:
        clean(contest.settings.device)
        _set_up(contest.settings, precision)
        yield from guarded(name, parts[name](contest))


def _grid(contest: Contest) -> Iterator[Event]:
    for cell in contest.cells:
        clean(contest.settings.device)
        yield from guarded(where(cell), _cell(contest, cell))
    yield from _compared(contest)


def _cell(contest: Contest, cell: Cell) -> Iterator[Event]:
    settings, sim = contest.settings, cell_clients(contest.settings, cell)
    entered = contestants(settings, sim, baselines=cell.clients == settings.against)
    for event in compete(settings.device, entered, where(cell)):
        yield row_of(contest, work_of(settings, cell), event) if isinstance(event, Timing) else event


def _compared(contest: Contest) -> Iterator[Event]:
    special = contest.special
    for name, over, under, bar, at_least in (
        ("decomposed / plain", who.OURS, who.PLAIN, 1.05, False),
        ("eager loop / fedatoms", who.EAGER, who.OURS, 22.0, True),
        ("compiled loop / fedatoms", who.COMPILED, who.OURS, None, True),
        ("reduce-overhead loop / fedatoms", who.REDUCED, who.OURS, None, True),
    ):
        yield _ratio(contest, special, (name, over, under), bar, at_least=at_least)
    for cell in [cell for cell in contest.cells if cell.clients == special.clients]:
        name = f"expert loop / fedatoms, {cell.clients} x {cell.batch}"
        yield _ratio(contest, cell, (name, who.EXPERT, who.OURS), EXPERT_BARS.get(cell), at_least=True)


def _ratio(
    contest: Contest, cell: Cell, named: tuple[str, str, str], bar: float | None, *, at_least: bool
) -> Ratio | Gap:
    """Compares two contestants of a cell; ``named`` has the ratio's name and theirs."""
    name, over, under = named
    a, b = (find_row(contest.so_far, each, *cell) for each in (over, under))
    if a and b:
        return paired(name, a.seconds, b.seconds, bar, where(cell), at_least=at_least)
    return Gap(name, f"{where(cell)} was not measured for both")


def _jax(contest: Contest) -> Iterator[Event]:
    if importlib.util.find_spec("jax") is None:
        yield Gap(who.JAX, 'not installed. Use pip install "jax[cuda12]".')
        return
    for cell in [cell for cell in contest.cells if cell.clients == contest.settings.against]:
        yield from guarded(f"{who.JAX}, {where(cell)}", _jax_cell(contest, cell))


def _jax_cell(contest: Contest, cell: Cell) -> Iterator[Event]:
    """Runs the twin in its own process, with memory taken as needed; on a CUDA card it must be JAX for CUDA."""
    settings, training = contest.settings, training_of(contest.settings, cell.batch)
    task = Task(
        clients=cell.clients,
        samples=settings.samples,
        batch=cell.batch,
        epochs=training.epochs,
        turns=settings.repeats,
        lr=training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        clip=training.clip,
        precision=settings.precision,
    )
    env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_PLATFORMS": settings.device}
    timing = _jax_timing(fresh.ask("fedatoms.bench.jax_twin", json.dumps(task._asdict()), env=env))
    yield row_of(contest, work_of(settings, cell), timing)


def _jax_timing(answer: dict[str, object]) -> Timing:
    first, memory, seconds = (answer[name] for name in ("first", "memory", "seconds"))
    assert isinstance(first, float) and isinstance(memory, float | None) and isinstance(seconds, list)
    return Timing(who.JAX, first, memory, seconds, f"JAX {answer['jax']}, crop and flip included")


def _rounds(contest: Contest) -> Iterator[Event]:
    """Rounds as in a run: a tenth of the clients, three models scored every ten rounds."""
    settings, cell = contest.settings, contest.special
    precisions: tuple[Precision, ...] = ("tf32", "bf16")
    for precision in precisions:
        _set_up(settings, precision)
        sim = cell_clients(settings, cell, population=10 * cell.clients, precision=precision)
        ms = 1e3 * _seconds_with_evaluation(replace(sim, score=GLOBAL_MODELS), settings.rounds)
        detail = f"{settings.rounds} rounds, {where(cell)} of {10 * cell.clients}, 3 models scored every 10 rounds"
        yield Ratio(f"round with evaluation, ms, {precision}", ms, 45.0, detail)


def _seconds_with_evaluation(sim: Simulation, count: int) -> float:
    runtime = prepare(sim)
    state = begin(runtime)
    for progress in rounds(runtime, state, 1):  # compiles
        state = progress.state

    def all_rounds() -> None:
        for _ in rounds(runtime, state, 1 + count, EVALUATED_EVERY):
            pass

    return timed(sim.device, all_rounds) / count


def _algorithms(contest: Contest) -> Iterator[Event]:
    """The cost that an algorithm adds to a round of FedAvg."""
    sim, (first, *others) = cell_clients(contest.settings, contest.special), ALGORITHMS
    versions = {name: replace(sim, algorithm=algorithm(name)) for name in ALGORITHMS}
    yield from _costs(contest, contest.special, versions, {f"{name} / {first}": (name, first, 1.25) for name in others})


def _personal(contest: Contest) -> Iterator[Event]:
    """The personal regime, ten times the epochs of the grid: a step of it, and what local atoms add to a round."""
    cell = Cell(contest.special.clients, min(cell.batch for cell in contest.cells))
    short = cell_clients(contest.settings, cell)
    sim = replace(short, training=short.training._replace(epochs=LONGER * short.training.epochs))
    versions = {"fedavg": sim, "local atoms": replace(sim, personal=personal("local-atoms"))}
    bars = {"local atoms / fedavg": ("local atoms", "fedavg", 2.2)}
    timings = yield from _costs(contest, cell, versions, bars)
    if "fedavg" in timings:
        steps = sim.training.epochs * -(-contest.settings.samples // cell.batch)
        ms = 1e3 * statistics.median(timings["fedavg"]) / steps
        yield Ratio("personal regime, ms a step", ms, 0.27, f"{where(cell)}, momentum, {steps} steps a round")


def _costs(
    contest: Contest,
    cell: Cell,
    versions: dict[str, Simulation],
    ratios: dict[str, tuple[str, str, float]],
) -> Generator[Event, None, dict[str, list[float]]]:
    """Lets versions of a simulation take turns; a ratio has a name, numerator, denominator and bar.

    Returns the seconds of each version's rounds.
    """
    settings, timings = contest.settings, dict[str, list[float]]()
    entered = [_entry(sim, name, settings.repeats) for name, sim in versions.items()]
    for event in compete(settings.device, entered, where(cell)):
        if isinstance(event, Timing):
            timings[event.name] = event.seconds
        else:
            yield event
    for ratio, (over, under, bar) in ratios.items():
        if over in timings and under in timings:
            yield paired(ratio, timings[over], timings[under], bar, where(cell))
    return timings


def _entry(sim: Simulation, name: str, turns: int) -> Contestant:
    return Contestant(name, lambda: ours(sim), turns)


def _seeds(contest: Contest) -> Iterator[Event]:
    cell = Cell(contest.special.clients, min(cell.batch for cell in contest.cells))
    yield from seeds.measure_seeds(contest.settings, cell, where(cell))


def _deterministic(contest: Contest) -> Iterator[Event]:
    usual = find_row(contest.so_far, who.OURS, *contest.special)
    if usual is None:
        yield Gap("deterministic / usual", f"{where(contest.special)} was not measured. Add grid to --parts.")
        return
    seconds = fresh.deterministic_rounds(contest.settings)
    yield paired("deterministic / usual", seconds, usual.seconds, None, f"{where(contest.special)}, own process")


def _cold(contest: Contest) -> Iterator[Event]:
    seconds = fresh.cold_start(contest.settings)
    yield Ratio("start to end of first round, seconds", seconds, 20.0, f"{where(contest.special)}, no compiler cache")


def _set_up(settings: Bench, precision: Precision) -> None:
    configure(Experiment(dataset="cifar10", precision=precision, threads=settings.threads))
