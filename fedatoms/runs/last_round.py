"""A last round without a score, of a run that was to go on and is to end there after all: it is run again."""

from pathlib import Path

from fedatoms.core.run_files import CHECKPOINT, checkpoints
from fedatoms.engine.loop import begin
from fedatoms.engine.runtime import Runtime
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import trajectory
from fedatoms.runs.checkpoints import Loaded, is_damage, load_share
from fedatoms.runs.remote import is_remote


def go_back(new: Experiment, runtime: Runtime, folder: Path, done: int) -> Loaded:
    """Loads the checkpoint before the last round, and removes later ones, which come anew; or says why it cannot."""
    if runtime.sim.privacy is not None:
        raise ValueError(_no_score(folder, done, "to run a private round again costs privacy again"))
    loaded = _earlier(new, runtime, folder, done)
    if loaded is None:
        raise ValueError(_no_score(folder, done, "no earlier checkpoint can be read from which to run it again"))
    for number in checkpoints(folder):
        if number > loaded.state.round:
            (folder / CHECKPOINT / f"{number:06d}.json").unlink()
    return loaded


def _earlier(new: Experiment, runtime: Runtime, folder: Path, done: int) -> Loaded | None:
    for number in reversed(checkpoints(folder)):
        if number < done:
            try:
                return load_share(folder / CHECKPOINT, number, runtime, trajectory=trajectory(new))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                if not is_damage(error):
                    raise
    none_was_due = done <= new.checkpoint_every and not is_remote(folder)
    return Loaded(begin(runtime), 0.0, []) if none_was_due else None


def _no_score(folder: Path, done: int, why: str) -> str:
    return f"rounds={done}: {folder} has no score after round {done}, and {why}. Use {done + 1} or more, or a new run."
