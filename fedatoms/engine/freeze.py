"""Groups that are never trained: they become constants of the network, which no algorithm, server or message sees."""

from collections.abc import Collection
from dataclasses import replace

from torch import nn

from fedatoms.core.options import TRAINED_GROUPS, Group, one_of
from fedatoms.engine.runtime import Layout, layout_of
from fedatoms.engine.spec import Simulation
from fedatoms.nn.layers import copied
from fedatoms.personal.base import names_of


def hold_fixed(sim: Simulation, fixed: Collection[Group]) -> Simulation:
    """Returns the simulation in which some groups stay as they are at the start.

    >>> from fedatoms.data.federations import federation
    >>> from torch import zeros
    >>> samples = zeros(2, 1, 3, 3), zeros(2).long()
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2))
    >>> layout_of(hold_fixed(Simulation(net, federation([samples], test=samples)), ["rest"])).labels
    {'2.weight': 'head', '2.bias': 'head'}
    """
    layout = layout_of(sim)
    _check_present(layout, fixed)
    held = replace(sim, model=_frozen(sim.model, layout, fixed))
    before = _trains_own(sim, layout)
    try:
        after = _trains_own(held, layout_of(held))
    except ValueError:  # the part is gone
        after = []
    if after != before:
        raise ValueError(f"fixed={_listed(fixed)} holds what `personal` trains on each client. Leave one of them out.")
    return held


def _check_present(layout: Layout, fixed: Collection[Group]) -> None:
    labels = {layout.labels[name] for name in layout.parameters}
    present = [group for group in TRAINED_GROUPS if group in labels]
    for name in fixed:
        one_of(TRAINED_GROUPS, name, "group in fixed")
        if name not in present:
            more = ", or parametrisation=atoms" if name in ("atoms", "coefficients") else ""
            raise ValueError(f"fixed={name}: the network has no {name}. Use one of {', '.join(present)}{more}.")
    if set(fixed) == set(present):
        raise ValueError(f"fixed={_listed(fixed)} leaves nothing to train. Leave out one of {', '.join(present)}.")


def _listed(groups: Collection[Group]) -> str:
    return ",".join(groups)


def _frozen(model: nn.Module, layout: Layout, wanted: Collection[Group]) -> nn.Module:
    model = copied(model)
    for name, parameter in model.named_parameters():
        if layout.labels.get(name) in wanted:
            parameter.requires_grad_(False)
    return model


def _trains_own(sim: Simulation, layout: Layout) -> list[bool]:
    """Says whether the personal parameters, and those of the last pass, include any that are trained."""
    parts = [part for part in (sim.personal.own, sim.personal.final) if part is not None]
    return [bool(names_of(part, sim.model, layout.labels) & layout.parameters) for part in parts]
