"""Weights & Biases: offline files in the run's folder, for `wandb sync`, unless WANDB_MODE says otherwise."""

import os
from collections.abc import Mapping
from pathlib import Path

from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import without_paths
from fedatoms.runs.watchers.base import Watching, lasting_name


def wandb(experiment: Experiment, folder: Path, first: int) -> Watching:
    """Logs to ``folder/wandb``; the parts of a run that was resumed have one id, so that they are one run there."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nothing leaves this machine unasked
    import wandb as theirs

    quiet = theirs.Settings(silent=True, console="off", reinit="create_new", disable_git=True, save_code=False)
    run = theirs.init(
        project="fedatoms",
        name=folder.name,
        id=lasting_name(experiment, folder),
        resume="allow",
        dir=str(folder),
        mode=None if os.environ.get("WANDB_MODE") else "offline",
        config=without_paths(experiment),
        settings=quiet,
    )

    def see(t: int, numbers: Mapping[str, float]) -> None:
        run.log(dict(numbers), step=t)

    return Watching(see, lambda ended: run.finish(exit_code=int(ended != "finished")))
