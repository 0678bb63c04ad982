"""What a run without a result says of itself: its state, and its last round's loss, scores, bytes and clients."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from fedatoms.core.ledger import total
from fedatoms.core.scales import ACCURACY, Scale
from fedatoms.evidence.results.names import method_name, setting
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load_run
from fedatoms.runs.results import metric_of, score_curves
from fedatoms.runs.rounds import Row, read_lines
from fedatoms.runs.states import Kind, state_of

ORDER: tuple[Kind, ...] = ("running", "failed", "stopped", "damaged", "finished")


class Progress(NamedTuple):
    """How far a run is, and what its rounds say until now."""

    folder: Path
    state: Kind
    done: int
    rounds: int | None  # None: its experiment cannot be read
    why: str
    experiment: Experiment | None
    rows: list[Row]

    @property
    def name(self) -> str:
        """The method, or the folder where the experiment cannot be read."""
        return method_name(self.experiment) if self.experiment else self.folder.name

    @property
    def where(self) -> str:
        """The setting and the seed."""
        return f"{setting(self.experiment)}, seed {self.experiment.seed}" if self.experiment else ""

    @property
    def metric(self) -> Scale:
        """What its scores are numbers of."""
        return metric_of(self.rows) if self.rows else ACCURACY


def progress_of(folder: Path) -> Progress:
    """Reads the state of a run and its whole lines; a line that is being written is left out."""
    found = state_of(folder)
    try:
        experiment = found.result.experiment if found.result else load_run(folder)
    except (ValueError, OSError):
        experiment = None
    return Progress(folder, found.state, found.done, found.rounds, found.why, experiment, read_lines(folder).rows)


def in_order(found: Iterable[Progress]) -> list[Progress]:
    """Sorts runs: those that are running first, then those that failed or stopped.

    >>> in_order([])
    []
    """
    return sorted(found, key=lambda each: (ORDER.index(each.state), each.folder.as_posix()))


def last_scores(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the last score of each model.

    >>> last_scores([{"round": 4, "scores": {"all": {"accuracy": 50.0}}}])
    {'all': 50.0}
    """
    return {model: line[-1][1] for model, line in score_curves(list(rows)).items()}


def last_parts(rows: Sequence[Row]) -> dict[str, Mapping[str, float | None]]:
    """Returns all that was last scored of each model: with the loss, and worst and spread over clients if known.

    >>> last_parts([{"scores": {"all": {"accuracy": 50.0}}}, {"scores": {}}])
    {'all': {'accuracy': 50.0}}
    """
    scored = next((row["scores"] for row in reversed(rows) if row["scores"]), {})
    return {name: cast(Mapping[str, float | None], parts) for name, parts in scored.items()}


def sent(rows: Sequence[Row]) -> tuple[int, int]:
    """Returns the bytes that went up and down until now.

    >>> sent([{"up": {"head": 3}, "down": {"head": 4}}])
    (3, 4)
    """
    return sum(total(row["up"]) for row in rows), sum(total(row["down"]) for row in rows)
