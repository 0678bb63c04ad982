"""The training loss of the server's model on all clients' images, round by round, plain and decomposed."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedatoms.evidence.measures.base import Experiments, Watch, counting
from fedatoms.evidence.measures.files import Values
from fedatoms.evidence.measures.networks import loss, prepared, scored_on_training, states


@dataclass(frozen=True)
class Rounds:
    """The number of rounds that are scored."""

    rounds: int = 100

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds={self.rounds} is less than 1. Use for example 100.")


def training_loss(experiments: Experiments, settings: Rounds, watch: Watch) -> Values:
    """Measures each experiment at the start and after each round, and from which round on the last one is lower."""
    tick = counting(watch, len(experiments) * (settings.rounds + 1))
    lines = []
    for experiment in experiments:
        sim, line = prepared(experiment), list[float]()
        scored = scored_on_training(sim)
        for state in states(sim, settings.rounds):
            line.append(loss(scored, state.server.params))
            tick("rounds")
        lines.append(line)
    return {"lines": lines, "lower_from": lower_from(lines[0], lines[-1])}


def lower_from(first: Sequence[float], second: Sequence[float]) -> int | None:
    """Returns the index from which on the second line stays below the first; None if it ends above.

    >>> lower_from([3, 2, 2, 2], [4, 1, 3, 1]), lower_from([1, 1], [2, 2])
    (3, None)
    """
    place = len(first)
    while place and second[place - 1] < first[place - 1]:
        place -= 1
    return place if place < len(first) else None
