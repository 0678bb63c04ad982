"""The laws of a personalised method."""

import copy
from collections.abc import Callable
from dataclasses import replace

from torch import nn

from fedatoms.core import trees
from fedatoms.engine.loop import train
from fedatoms.engine.spec import Simulation
from fedatoms.nn.parameter_groups import groups
from fedatoms.personal.base import Personal
from fedatoms.testing import laws
from fedatoms.testing.small import check_same, simulation


def check_personal(factory: Callable[[], Personal], model: nn.Module | None = None) -> None:
    """Checks that a personalised method keeps the laws of federated training, on a small built-in federation.

    ``model`` is for a method that needs a network of its own: float64, 6x6 images of one channel, three classes. By
    default it is a small convolutional network with atoms, BatchNorm and dropout.

    >>> import fedatoms
    >>> check_personal(fedatoms.personal.local_atoms)
    >>> check_personal(lambda: fedatoms.personal.Personal(own=lambda model, labels: frozenset({"fc9"})))
    Traceback (most recent call last):
    ...
    AssertionError: <lambda> breaks the law 'known_parameters': Personal parameters are tensors of the model that may
    travel, the same ones each time. But fc9 is none of them
    """
    sim = replace(simulation(model), personal=laws.made_by(factory, Personal))
    laws.keep(LAWS, sim, laws.name_of(factory))


def known_parameters(sim: Simulation) -> None:
    """Personal parameters are tensors of the model that may travel, the same ones each time."""
    model, labels = copy.deepcopy(sim.model), groups(sim.model)
    for part in filter(None, (sim.personal.own, sim.personal.final)):
        found, again = part(model, labels), part(model, labels)
        if unknown := sorted(found - labels.keys()):
            raise AssertionError(f"{', '.join(unknown)} is none of them")
        if odd := sorted(found ^ again):
            raise AssertionError(f"{', '.join(odd)} is only sometimes personal")
    check_same(dict(model.state_dict()), dict(sim.model.state_dict()))


def private_stays(sim: Simulation) -> None:
    """What only clients have stays on the server to the bit; a second version leaves the server's as without it."""
    server = train(sim, laws.ROUNDS).state.server.params
    if sim.personal.beside:
        shared = tuple(phase for phase in sim.personal.phases if phase.moves != "own")
        without = train(replace(sim, personal=Personal(phases=shared)), laws.ROUNDS)
        check_same(server, without.state.server.params)
    else:
        own = sim.personal.own(sim.model, groups(sim.model))
        check_same(trees.restrict(server, own), trees.restrict(dict(sim.model.state_dict()), own))


def free_of_charge(sim: Simulation) -> None:
    """What only clients have costs no bytes."""
    if sim.personal.beside or sim.personal.collaboration is not None:
        return  # the server's version travels, or the personal parts do
    labels = groups(sim.model)
    shared = {group for name, group in labels.items() if name not in sim.personal.own(sim.model, labels)}
    for record, _ in train(sim, 1).history:
        if sent := sorted((record.up.keys() | record.down.keys()) - shared):
            raise AssertionError(f"{', '.join(sent)} was counted as sent")


LAWS: tuple[laws.Law, ...] = (
    known_parameters,
    laws.alone,
    laws.repeatable,
    private_stays,
    free_of_charge,
    laws.resumable,
    laws.without_order,
    laws.vectorised,
)
