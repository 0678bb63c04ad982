"""The file of weights that an experiment begins with: known by its content, wherever it lies. No torch."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedatoms.core.border import as_path, check_size, open_regular
from fedatoms.experiment.fields import Experiment

STEP = 2**20  # bytes that are hashed at once


def pinned(experiment: Experiment) -> Experiment:
    """Returns an experiment that knows the SHA-256 of its weights, so that no other file can take their place.

    >>> pinned(Experiment()) == Experiment()
    True
    """
    if not experiment.weights or experiment.weights_sha256:
        return experiment
    return replace(experiment, weights_sha256=_digest(Path(experiment.weights)))


def changed(experiment: Experiment, changes: Mapping[str, object]) -> Experiment:
    """Returns an experiment with other settings; weights that come with them are kept, unless they name a start too.

    >>> changed(Experiment(init="dct"), {"weights": "net.pth"}).init
    'svd'
    """
    kept = {"init": ""} if changes.get("weights") and not experiment.weights else {}
    return replace(experiment, **{**kept, **changes})  # type: ignore[arg-type]


def without_weights(experiment: Experiment) -> Experiment:
    """Returns the experiment of the same network that begins afresh: to fill it, its first weights are not needed.

    >>> without_weights(Experiment(weights="net.pth")) == Experiment()
    True
    """
    if not experiment.weights and not experiment.weights_sha256:
        return experiment
    return replace(experiment, weights="", weights_sha256="", init="")


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    try:
        with open_regular(as_path(path, "weights")) as file:
            check_size(os.fstat(file.fileno()).st_size, f"weights={path}")
            while data := file.read(STEP):
                found.update(data)
    except OSError as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise ValueError(f"weights={path} {reason}. Name a .safetensors, .pth or .pt file.") from None
    return found.hexdigest()
