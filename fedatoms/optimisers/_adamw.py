"""AdamW, as torch's: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019."""

import torch

from fedatoms.core import trees
from fedatoms.core.options import check_range
from fedatoms.core.trees import Memory, Params
from fedatoms.optimisers.base import Optimiser

COUNT = "count"  # the only leaf of the state ``steps``


def adamw(b1: float = 0.9, b2: float = 0.999, epsilon: float = 1e-8) -> Optimiser:
    """Moves along ``m / (sqrt(v) + epsilon)``, two means of gradients and their squares without their bias.

    Unit gradients move it as far as any others, so it has no displacement. Weight decay shrinks the weights.

    >>> adamw().displacement is None, adamw().decouples
    (True, True)
    """
    for name, share in (("b1", b1), ("b2", b2)):
        check_range("momentum", share, name)
    check_range("epsilon", epsilon, command="adamw")

    def init(weights: Params) -> Memory:
        steps = next(iter(weights.values())).new_zeros(())
        return {"first": trees.zeros_like(weights), "second": trees.zeros_like(weights), "steps": {COUNT: steps}}

    def update(gradient: Params, state: Memory, weights: Params) -> tuple[Params, Memory]:
        steps = state["steps"][COUNT] + 1
        first = trees.apply(lambda m, g: torch.lerp(m, g, 1 - b1), state["first"], gradient)
        second = trees.apply(lambda v, g: b2 * v + (1 - b2) * g * g, state["second"], gradient)
        one, two = 1 - b1**steps, torch.sqrt(1 - b2**steps)
        moves = trees.apply(lambda m, v: m / one / (v.sqrt() / two + epsilon), first, second)
        return moves, {"first": first, "second": second, "steps": {COUNT: steps}}

    return Optimiser(init, update, decouples=True)
