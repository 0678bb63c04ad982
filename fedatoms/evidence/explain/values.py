"""The settings of `fedatoms explain` and its results, as values."""

from dataclasses import dataclass

from fedatoms.evidence.explain.aggregates import Aggregates
from fedatoms.evidence.explain.forks import Forked
from fedatoms.evidence.explain.latent import Latent
from fedatoms.evidence.explain.variance import Variance
from fedatoms.experiment.fields import Experiment


@dataclass(frozen=True)
class Explain:
    """What to measure; the run itself is not changed."""

    rounds: int = 3
    """Rounds to replay from the run's last checkpoint."""
    crossed: int = 10
    """Most clients of a round to combine pairwise: 10 make 90 latent clients; 0: none."""
    plain: str = ""
    """Folder of a plain run of the same experiment, to split the gain between parametrisation and latent clients."""
    fork: int = 0
    """Also continue for so many rounds with and without latent clients, and score both."""
    seed: int = 0
    """Seed of the draws: which latent clients are scored, and how clients are resampled."""
    out: str = ""
    """File for the results; empty: explain.json in the run's folder."""
    data_dir: str | None = None
    """Folder that holds the data set's official files; None: the run's."""
    device: str | None = None
    """Where to compute: cpu, cuda, auto, ...; None: the run's."""
    threads: int | None = None
    """CPU threads; None: the run's."""


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
