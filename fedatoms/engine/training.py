"""How a client trains: its epochs and batches, its optimiser, and its learning rate with all that scales it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from torch import Tensor

from fedatoms.algorithms.base import Server
from fedatoms.core.lookup import some
from fedatoms.core.options import CONTROLS, Controls, check_numbers, one_of
from fedatoms.core.trees import Memory, Params, no_trees, unlike, unlike_trees
from fedatoms.optimisers import sgd
from fedatoms.optimisers.base import Init, Optimiser, Update, check_optimiser
from fedatoms.optimisers.schedules import OfStep, Schedule, always_one, check_schedule

_sgd = cache(sgd)


class Told(NamedTuple):
    """What a client is told by its own run, where those of several runs train in one block."""

    broadcast: Server
    rate: Tensor  # eta_t
    unit: Tensor  # the rate by which the algorithm turns a move into a gradient
    atoms_lr: Tensor
    strength: Tensor  # the algorithm's own parameter, if it has one


def first_state(init: Init, weights: Params) -> Memory:
    """Returns the state of an optimiser before a client's first step.

    >>> first_state(lambda weights: weights, {"w": Tensor()})
    Traceback (most recent call last):
    ...
    ValueError: the optimiser's init returns as its tree 'w' Tensor instead of a tree: a state has named trees of
    tensors. Let it return for example {"velocity": trees.zeros_like(weights)}.
    """
    state = init(weights)
    if wrong := no_trees(state):
        raise ValueError(
            f"the optimiser's init returns {wrong}: a state has named trees of tensors. Let it return for example "
            f'{{"velocity": trees.zeros_like(weights)}}.'
        )
    return state


def checked_moves(update: Update, gradient: Params, state: Memory, weights: Params) -> tuple[Params, Memory]:
    """Returns the moves and the state that an optimiser's update makes, if they are such.

    >>> checked_moves(lambda gradient, state, weights: gradient, {"w": 0}, {}, {"w": 0})
    Traceback (most recent call last):
    ...
    ValueError: the optimiser's update returns dict, not (moves, state), each with the names that it was given. Let it
    return moves, state, for example gradient, state.
    """
    with _naming_writes():
        made: object = update(gradient, state, weights)
    if isinstance(made, tuple) and len(made) == 2 and all(isinstance(part, dict) for part in made):
        moves, after = made
        if moves.keys() == weights.keys() and after.keys() == state.keys():
            _check_alike(moves, after, weights, state)
            return moves, after
    got = f"({', '.join(map(_names, made))})" if isinstance(made, tuple) else type(made).__name__
    raise ValueError(
        f"the optimiser's update returns {got}, not (moves, state), each with the names that it was given. Let it "
        f"return moves, state, for example gradient, state."
    )


def _check_alike(moves: Params, after: Memory, weights: Params, state: Memory) -> None:
    for what, wrong in (("moves", unlike(moves, weights)), ("a state", unlike_trees(after, state))):
        if wrong:
            raise ValueError(
                f"the optimiser's update returns {what} with {wrong}: moves have the names, shapes and types of the "
                f"weights, and a state those of the one that it was given. Use trees.apply."
            )


@contextmanager
def _naming_writes() -> Iterator[None]:
    """Says that an optimiser's update changes what it is given, if torch refuses that where clients share it."""
    try:
        yield
    except RuntimeError as error:
        if "element of the written-to tensor" not in str(error):
            raise
        raise ValueError(
            "the optimiser's update changes its state in place, which clients of a block share at first. Let it return "
            "a new state, for example 0.9 * v + g instead of v.mul_(0.9).add_(g), or use map=one_by_one."
        ) from error


def _names(part: object) -> str:
    return f"a tree of {some(list(part)) or 'nothing'}" if isinstance(part, dict) else type(part).__name__


@dataclass(frozen=True)
class Training:
    """How a client trains in a round, with an optimiser that is new in each; what none can have is refused.

    >>> Training(lr=-1)
    Traceback (most recent call last):
    ...
    ValueError: lr=-1 is negative or not finite. Use for example 0.1, or 0 for a client at rest.
    """

    epochs: int = 1
    batch_size: int = 10
    lr: float = 0.1
    lr_decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0  # largest norm of a gradient; 0 does not clip
    atoms_lr: float = 1.0  # factor on the rate of atoms and coefficients
    atoms_decay: float = 1.0  # factor on their weight decay
    controls: Controls = "current"  # the rate by which an algorithm turns a client's move into a gradient
    optimiser: Optimiser | None = None  # None: SGD with ``momentum``
    schedule: Schedule | None = None  # None: 1 in all rounds and steps
    accumulate: int = 1  # batches of one step, which sees the mean over all their samples
    rule: Optimiser = field(init=False, repr=False, compare=False)  # the optimiser that moves the weights
    of_step: OfStep | None = field(init=False, repr=False, compare=False)  # factors of a round's steps, if they differ

    def __post_init__(self) -> None:
        check_numbers(self, "training")
        one_of(CONTROLS, self.controls, "controls")
        check_optimiser(self.optimiser, self.momentum)
        check_schedule(self.schedule)
        object.__setattr__(self, "rule", _sgd(self.momentum) if self.optimiser is None else self.optimiser)
        object.__setattr__(self, "of_step", None if self.schedule is None else self.schedule.of_step)

    def _replace(self, **changes: float | str | Optimiser | Schedule) -> "Training":
        """Returns another training, as a named tuple does."""
        return replace(self, **changes)  # type: ignore[arg-type] # checked when it is made

    @property
    def samples(self) -> int:
        """The most samples of a step: those of all its batches."""
        return self.batch_size * self.accumulate

    def after_rounds(self) -> "Training":
        """Returns the training of what comes after the last round: without the schedule's factors of rounds.

        >>> from fedatoms.optimisers import cosine
        >>> Training(schedule=cosine(rounds=2)).after_rounds().schedule is None
        True
        """
        return replace(self, schedule=None if self.of_step is None else Schedule(always_one, self.of_step))
