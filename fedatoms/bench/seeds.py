"""Runs of several seeds whose clients train in one block, against the same runs one after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from fedatoms.bench.contest import Timing, compete
from fedatoms.bench.line_up import Cell, Contestant, Round, cell_clients, one_after_another
from fedatoms.bench.results import Event, paired
from fedatoms.bench.settings import Bench
from fedatoms.engine.peers import ALONE
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.runs.abreast import Abreast

SEEDS = 3
ONE_BLOCK, IN_TURN = f"{SEEDS} seeds in one block", f"{SEEDS} seeds in turn"
BAR = 0.75


def measure_seeds(settings: Bench, cell: Cell, where: str) -> Iterator[Event]:
    """Measures a round of each of three seeds, in one block and in turn."""
    sim, timings = cell_clients(settings, cell), dict[str, list[float]]()
    sims = [replace(sim, seed=seed) for seed in range(SEEDS)]
    ways = {ONE_BLOCK: together, IN_TURN: in_turn}
    entered = [Contestant(name, partial(way, sims), settings.repeats) for name, way in ways.items()]
    for event in compete(settings.device, entered, where):
        if isinstance(event, Timing):
            timings[event.name] = event.seconds
        else:
            yield event
    if len(timings) == len(ways):
        yield paired(f"{ONE_BLOCK} / in turn", timings[ONE_BLOCK], timings[IN_TURN], BAR, where)


def together(sims: Sequence[Simulation]) -> Round:
    """Sets simulations up that share blocks: each call runs the next round of all of them."""
    group = Abreast[None]()
    rounds = [one_after_another(group.prepare(sim, ALONE)) for sim in sims]

    def work() -> None:
        for ended in group.run(rounds):
            ended.result()

    return work


def in_turn(sims: Sequence[Simulation]) -> Round:
    """Sets simulations up that share what is compiled: each call runs the next round of one after the other."""
    first = prepare(sims[0])
    rounds = [one_after_another(first if sim is sims[0] else prepare(sim, like=first)) for sim in sims]

    def work() -> None:
        for each in rounds:
            each()

    return work
