"""What a search is asked for, beside an experiment and the axes to search. No torch."""

from dataclasses import dataclass

from fedatoms.core.options import TOGETHER, Pruning


@dataclass(frozen=True)
class Tune:
    """How settings are searched."""

    trials: int | None = None
    """Settings to try if there is a range among the axes, 20 if none is given; a grid of lists is tried whole."""
    prune: Pruning = "median"
    """Stop a trial early that is worse than the median of those before it at the same round; none: never."""
    seeds: tuple[int, ...] = ()
    """Seeds with commas between them: each trial has a run for each, and its score is their mean."""
    search_seed: int = 0
    """Seed of the draws from ranges."""
    together: int = TOGETHER
    """Runs, such as those of several learning rates, whose clients are trained in one block where they are vectorised,
    as on a GPU: at most so many; 1, or trials that may be stopped early: one run after the other."""
