"""The results of `fedatoms explain`, as values."""

from dataclasses import dataclass

from fedatoms.evidence.explain.aggregates import Aggregates
from fedatoms.evidence.explain.forks import Forked
from fedatoms.evidence.explain.latent import Latent
from fedatoms.evidence.explain.settings import Explain
from fedatoms.evidence.explain.variance import Variance
from fedatoms.experiment.fields import Experiment


@dataclass(frozen=True)
class Round:
    """The measurements of one replayed round."""

    round: int  # counted from 0, as in files; people read round + 1
    clients: list[int]
    aggregates: Aggregates
    latent: Latent | None  # None: one client, or not asked for
    variance: Variance | None  # None: one client


@dataclass(frozen=True)
class Explanation:
    """All measurements of a run."""

    run: str
    experiment: Experiment
    settings: Explain
    round: int  # of the checkpoint: rounds done
    images: int  # that models are scored on
    rounds: list[Round]
    plain: list[float] | None  # accuracies of the plain run in the same rounds
    fork: Forked | None
    provenance: dict[str, object]
