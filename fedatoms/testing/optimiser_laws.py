"""The laws of a local optimiser."""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch

from fedatoms.core import trees
from fedatoms.core.trees import Memory, Params
from fedatoms.engine.loop import train
from fedatoms.engine.spec import Simulation
from fedatoms.optimisers.base import Init, Optimiser, Update
from fedatoms.testing import laws
from fedatoms.testing.small import TRAINING, check_same, network, simulation, tensors


def check_optimiser(factory: Callable[[], Optimiser]) -> None:
    """Checks that a local optimiser keeps the laws of federated training, on a small built-in federation, in seconds.

    >>> import fedatoms
    >>> check_optimiser(fedatoms.optimisers.adamw)
    >>> check_optimiser(lambda: fedatoms.optimisers.sgd()._replace(update=lambda gradient, state, weights: ({}, state)))
    Traceback (most recent call last):
    ...
    AssertionError: <lambda> breaks the law 'pure_functions': Functions leave their arguments as they are, and return a
    move for each weight and a state of the same names, shapes and types. But moves do not fit (missing: 0.atoms,
    0.coefficients, 0.bias and 6 more)
    """
    training = TRAINING._replace(momentum=0.0, optimiser=laws.made_by(factory, Optimiser))
    # a bias before BatchNorm has no gradient but rounding, of which a rule may take the sign
    model = network(norm=False)
    laws.keep(LAWS, simulation(model, training=training), laws.name_of(factory))


def pure_functions(sim: Simulation) -> None:
    """Functions leave their arguments as they are, and return a move for each weight and a state of the same names,
    shapes and types."""
    weights = {name: leaf.detach().clone() for name, leaf in network().named_parameters()}
    (init, update), gradient = _functions(sim), trees.apply(torch.ones_like, weights)
    state = init(weights)
    before = copy.deepcopy((gradient, state, weights))
    moves, after = update(gradient, state, weights)
    _check_fit("moves do", moves, weights)
    _check_fit("the state does", _flat(after), _flat(state))
    for now, then in zip((gradient, _flat(state), weights), (before[0], _flat(before[1]), before[2]), strict=True):
        check_same(now, then)


def new_in_each_round(sim: Simulation) -> None:
    """A state starts anew: it is no function of what a state was before."""
    weights = {name: leaf.detach().clone() for name, leaf in network().named_parameters()}
    init, update = _functions(sim)
    first = init(weights)
    update(weights, first, weights)
    check_same(_flat(init(weights)), _flat(first))


def float32_stays(sim: Simulation) -> None:
    """In float32, all that is kept is float32."""
    for name, leaf in tensors(train(replace(sim, model=network().float()), 1)).items():
        if leaf.is_floating_point() and leaf.dtype != torch.float32:
            raise AssertionError(f"{name} is {leaf.dtype}")


def measured(sim: Simulation) -> None:
    """The displacement, if there is one, is how far unit gradients move."""
    (init, update), displacement, rate = _functions(sim), sim.training.rule.displacement, 0.1
    if displacement is None:
        return
    weights = {"w": torch.zeros(1, dtype=torch.float64)}
    one, state, moved = {"w": torch.ones(1, dtype=torch.float64)}, init(weights), weights
    for step in range(1, 5):
        moves, state = update(one, state, moved)
        moved = trees.add(moved, moves, -rate)
        far = displacement(torch.tensor(float(step), dtype=torch.float64), rate)
        check_same({"its displacement": far[None]}, {"its displacement": -moved["w"]}, laws.ROUNDING)


LAWS: tuple[laws.Law, ...] = (
    pure_functions,
    new_in_each_round,
    measured,
    laws.alone,
    laws.repeatable,
    float32_stays,
    laws.resumable,
    laws.vectorised,
)


def _functions(sim: Simulation) -> tuple[Init, Update]:
    rule = sim.training.rule
    return rule.init or (lambda weights: {}), rule.update or (lambda gradient, state, weights: (gradient, state))


def _check_fit(what: str, found: Params, expected: Params) -> None:
    if wrong := trees.misfit(found, expected):
        raise AssertionError(f"{what} not fit ({wrong})")


def _flat(state: Memory) -> Params:
    return {f"{kind}/{name}": leaf for kind, tree in state.items() for name, leaf in tree.items()}
