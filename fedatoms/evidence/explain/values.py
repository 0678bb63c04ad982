"""What `fedatoms explain` is asked and what it found, as values."""

from dataclasses import dataclass

from fedatoms.evidence.explain.aggregates import Aggregates
from fedatoms.evidence.explain.fork import Forked
from fedatoms.evidence.explain.latent import Latent
from fedatoms.evidence.explain.variance import Variance
from fedatoms.experiment.fields import Experiment


@dataclass(frozen=True)
class Explain:
    """What to measure; the run itself stays as it is."""

    rounds: int = 3
    """Rounds to replay from the run's last checkpoint."""
    crossed: int = 10
    """Clients of a round, at most, whose coefficients meet each other's atoms: 10 make 90 latent clients; 0: none."""
    plain: str = ""
    """Folder of a plain run of the same experiment, to split the gain between parametrisation and latent clients."""
    fork: int = 0
    """Also go on for so many rounds with and without latent clients, and score both (fedavg, fedprox)."""
    seed: int = 0
    """Seed of the draws made here: which latent clients are scored, and the samples of clients for variances."""
    out: str = ""
    """File for all that was measured; empty makes explain.json in the run's folder."""
    data_dir: str | None = None
    """Folder that holds the data set's official files; None takes the run's."""
    device: str | None = None
    """Where to compute: cpu, cuda, auto, ...; None takes the run's."""
    threads: int | None = None
    """CPU threads; None takes the run's."""


@dataclass(frozen=True)
class Round:
    """What was measured in one replayed round."""

    round: int
    clients: list[int]
    aggregates: Aggregates
    latent: Latent | None  # None: one client, or none asked for
    variance: Variance | None  # None: one client


@dataclass(frozen=True)
class Explanation:
    """All that was measured of a run."""

    run: str
    experiment: Experiment
    settings: Explain
    round: int  # of the checkpoint
    images: int  # scored
    rounds: list[Round]
    plain: list[float] | None  # accuracies of the plain run in the same rounds
    fork: Forked | None
    provenance: dict[str, object]
