"""Checks of a simulation before its first round; they build nothing."""

from fedatoms.core.lookup import counted, some
from fedatoms.engine.round import names_in, select
from fedatoms.engine.runtime import check_map, layout_of
from fedatoms.engine.spec import Simulation, head_of, shared_phase
from fedatoms.nn.parameter_groups import groups
from fedatoms.nn.pure import tensor_names
from fedatoms.personal.base import Phase, names_of

LOOKED_AT = 10_000  # rounds in which someone must report: who does is drawn, so it is known before


def check_rounds(sim: Simulation) -> None:
    """Refuses a simulation whose first two rounds could not run."""
    check_map(sim)
    layout, phase = layout_of(sim), shared_phase(sim) or Phase("own")
    for t in (0, 1):
        for each in (phase, *sim.personal.phases):
            names_in(sim, layout, t, each)
    if phase.align or sim.algorithm.penalty:
        head_of(sim)


def check_last_pass(sim: Simulation) -> None:
    """Refuses a simulation whose clients have nothing to train after the last round."""
    part, labels = sim.personal.final or sim.personal.own, groups(sim.model, sim.head)  # of what is frozen, too
    names = names_of(part, sim.model, labels)
    if not names & tensor_names(sim.model)[0]:
        raise ValueError(
            f"the last pass has nothing to train: what it may change ({some(sorted(names)) or 'nothing'}) is frozen, "
            f"or statistics. Use last_epochs=0, or another `personal`."
        )
    layout_of(sim, part)


def check_reports(sim: Simulation, until: int) -> None:
    """Refuses a run in which no client ever reports: nothing would be learnt."""
    if sim.failures and not any(select(sim, t)[1] for t in range(min(until, LOOKED_AT))):
        raise ValueError(
            f"failures={sim.failures}: no client reports in {counted(until, 'round')}, so nothing would be learnt. Use "
            f"for example failures=0.1, or more rounds."
        )
