"""TensorBoard events: a progress callback that writes them."""

import importlib.util
from pathlib import Path

from fedatoms.core import ledger
from fedatoms.engine.loop import Progress, Watch
from fedatoms.experiment.fields import Experiment


def check_tensorboard(experiment: Experiment) -> None:
    """Refuses an experiment that asks for events where TensorBoard is not installed."""
    if experiment.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("`tensorboard` needs the package tensorboard. Type: pip install tensorboard")


def tensorboard(experiment: Experiment, folder: Path, first: int) -> Watch | None:
    """Returns a progress callback that writes TensorBoard events from round ``first`` on; None if not asked for."""
    if not experiment.tensorboard:
        return None
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first + 1)

    def watch(progress: Progress) -> None:
        t, record = progress.state.round, progress.record
        writer.add_scalar("loss/train", record.loss, t)
        writer.add_scalar("bytes/up", ledger.total(record.up), t)
        writer.add_scalar("bytes/down", ledger.total(record.down), t)
        for name, score in progress.scores.items():
            writer.add_scalar(f"{score.scale.name}/{name}", score.value, t)
            writer.add_scalar(f"loss/{name}", score.loss, t)
        writer.flush()

    return watch
