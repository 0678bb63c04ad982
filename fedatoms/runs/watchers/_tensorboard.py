"""TensorBoard: events in the run's folder."""

from collections.abc import Mapping
from pathlib import Path

from fedatoms.experiment.fields import Experiment
from fedatoms.runs.watchers.base import Watching


def tensorboard(experiment: Experiment, folder: Path, first: int) -> Watching:
    """Writes events to ``folder/tensorboard``; a resumed run takes back those after round ``first``."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first + 1)

    def see(t: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, t)
        writer.flush()

    return Watching(see, lambda ended: writer.close())
