"""What a local optimiser is: a value with two pure functions, for its state and for a step; imports core."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from fedatoms.core.lookup import shown
from fedatoms.core.trees import Memory, Params
from fedatoms.optimisers import TABLE

Init = Callable[[Params], Memory]
Update = Callable[[Params, Memory, Params], tuple[Params, Memory]]
Displacement = Callable[[Tensor, float | Tensor], Tensor]


class Optimiser(NamedTuple):
    """A rule that turns gradients into moves, of which the engine takes ``w - rate * move``.

    So learning rates and their factors need no code in a rule. Its state is named trees of tensors, made anew in each
    round; a counter is a tensor too, since clients of a block count apart. Its defaults are gradient descent.

    >>> Optimiser(update=lambda gradient, state, weights: (gradient, state)).decouples
    False
    """

    init: Init | None = None  # weights -> state; None: no state
    update: Update | None = None  # gradient, state, weights -> moves, state; None: the moves are the gradient
    displacement: Displacement | None = None  # steps, rate -> how far so many unit gradients move; None: no meaning
    decouples: bool = False  # weight decay shrinks weights by rate * decay, and is no part of the gradient


def check_optimiser(optimiser: object, momentum: float) -> None:
    """Refuses what is no optimiser, and momentum beside one; None is SGD with this momentum.

    >>> check_optimiser("adamw", 0.0)
    Traceback (most recent call last):
    ...
    ValueError: optimiser='adamw' is not an optimiser. Use fedatoms.optimisers.adamw().
    """
    if optimiser is None:
        return
    if not isinstance(optimiser, Optimiser):
        raise ValueError(f"optimiser={shown(optimiser)} is not an optimiser. Use {TABLE.call(optimiser)}.")
    if momentum:
        raise ValueError(f"momentum={momentum} is of SGD, and optimiser is another. Leave one of them out.")
