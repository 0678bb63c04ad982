"""The settings of `fedatoms explain`; no torch."""

from dataclasses import dataclass


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
