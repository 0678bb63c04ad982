"""The settings of `fedatoms personalize`; no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Newcomer:
    """A client that joins after training; settings that are not given are the run's."""

    images: str = ""
    """Its images: an npz file with arrays x and y, or a folder with one folder of image files per class."""
    out: str = ""
    """File for its personal parameters, for example ann.safetensors."""
    part: str = "atoms"
    """Its personal parameters: atoms, head, or atoms,head."""
    epochs: int = 10
    """Epochs over its images."""
    lr: float | None = None
    """Learning rate; None takes the run's after its last round, without its schedule over rounds."""
    momentum: float | None = None
    """Momentum of the SGD; None takes the run's."""
    batch_size: int | None = None
    """Samples in a batch; None takes the run's."""
    holdout: float = 0.2
    """Share of the images that is held out and scored; 0 fits all and scores none."""
    seed: int = 0
    """Seed of the held-out images and of the batches."""
    device: str = "auto"
    """Where to train: cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
