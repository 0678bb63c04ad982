"""Checks of a simulation before its first round; they build nothing."""

from fedatoms.engine.round import names_in
from fedatoms.engine.runtime import check_map, layout_of
from fedatoms.engine.spec import Simulation, head_of, shared_phase
from fedatoms.personal.base import Phase


def check_rounds(sim: Simulation) -> None:
    """Refuses a simulation whose first two rounds could not run."""
    check_map(sim)
    layout, phase = layout_of(sim), shared_phase(sim) or Phase("own")
    for t in (0, 1):
        names_in(sim, layout, t, phase)
    if phase.align or sim.algorithm.penalty:
        head_of(sim)
