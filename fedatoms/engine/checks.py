"""Checks of a simulation before its first round; they build nothing."""

from fedatoms.core.lookup import counted
from fedatoms.engine.round import names_in, select
from fedatoms.engine.runtime import check_map, layout_of
from fedatoms.engine.spec import Simulation, head_of, shared_phase
from fedatoms.personal.base import Phase

LOOKED_AT = 10_000  # rounds in which someone must report: who does is drawn, so it is known before


def check_rounds(sim: Simulation) -> None:
    """Refuses a simulation whose first two rounds could not run."""
    check_map(sim)
    layout, phase = layout_of(sim), shared_phase(sim) or Phase("own")
    for t in (0, 1):
        names_in(sim, layout, t, phase)
    if phase.align or sim.algorithm.penalty:
        head_of(sim)


def check_reports(sim: Simulation, until: int) -> None:
    """Refuses a run in which no client ever reports: nothing would be learnt."""
    if sim.failures and not any(select(sim, t)[1] for t in range(min(until, LOOKED_AT))):
        raise ValueError(
            f"failures={sim.failures}: no client reports in {counted(until, 'round')}, so nothing would be learnt. Use "
            f"for example failures=0.1, or more rounds."
        )
