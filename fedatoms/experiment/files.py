"""Experiments as JSON: written whole, read back with every field, older files included. No torch."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from fedatoms.core.border import TooLarge
from fedatoms.core.lookup import one_line, some, unknown
from fedatoms.core.records import FORMAT, fit, read_record, sealed
from fedatoms.core.run_files import EXPERIMENT
from fedatoms.experiment.fields import PATH_FIELDS, Experiment
from fedatoms.experiment.parse import clip_text, period_of

ADDED_LATER = frozenset(  # no part of an identity at their defaults: results from before them keep theirs
    {"fixed", "optimiser", "accumulate", "schedule", "warmup", "step_schedule", "warmup_steps", "weights_sha256"}
    | {"objective", "objective_strength", "uploads", "sampling", "dp_epsilon", "dp_noise", "dp_clip", "dp_delta"}
    | {"aggregation", "attack"}
)
ABSENT_IN_OLDER_FILES = ADDED_LATER | {  # such a file means the default
    *("holdout", "gamma", "atoms_lr", "atoms_decay", "controls", "personal", "personal_strength", "last_epochs"),
    *("own_test", "precision", "watch"),
}
OPTIONAL = ABSENT_IN_OLDER_FILES.union(PATH_FIELDS)
FIELDS = tuple(field.name for field in dataclasses.fields(Experiment))


def to_json(experiment: Experiment) -> dict[str, object]:
    """Returns an experiment as plain values; beta in one form."""
    fields = {name: getattr(experiment, name) for name in FIELDS}  # plain values: there is nothing to copy
    return {**fields, "beta": f"1/{period_of(experiment.beta)}", "dp_clip": clip_text(experiment.dp_clip)}


def without_paths(experiment: Experiment) -> dict[str, object]:
    """Returns an experiment as plain values, without the folders of this machine.

    >>> "data_dir" in without_paths(Experiment())
    False
    """
    return {name: value for name, value in to_json(experiment).items() if name not in PATH_FIELDS}


def from_json(fields: Mapping[str, object]) -> Experiment:
    """Inverts ``to_json``: every field must be there, but for folders of a machine and what older versions lack.

    >>> from_json(to_json(Experiment(beta=0.2))).beta
    '1/5'
    >>> from_json({})
    Traceback (most recent call last):
    ...
    ValueError: it lacks the fields dataset, augment, partition and 38 more
    """
    for name in (name for name in fields if name not in FIELDS):
        raise unknown(name, FIELDS, "field")
    if missing := [name for name in FIELDS if name not in fields and name not in OPTIONAL]:
        raise ValueError(f"it lacks the field{'s' * (len(missing) > 1)} {some(missing)}")
    return fit(fields, Experiment, "")


def sealed_fields(experiment: Experiment) -> dict[str, object]:
    """Returns what the file of a run's experiment holds."""
    return sealed({FORMAT: 2, **to_json(experiment)})


def load(path: Path) -> Experiment:
    """Reads an experiment file."""
    if not path.exists():
        raise ValueError(f"{path} does not exist. Give a saved experiment.json, or a preset (`fedatoms presets`).")
    try:
        fields = read_record(path, "it")
        return from_json({name: value for name, value in fields.items() if name != FORMAT})
    except TooLarge:
        raise
    except (ValueError, OSError) as error:
        reason = one_line(error).rstrip(".")
        mine = " If you changed it, remove its format and seal." if "checksum" in reason else ""
        raise ValueError(
            f"{path} is not a whole experiment file: {reason}.{mine} Write one with `fedatoms run`."
        ) from None


def load_run(folder: Path) -> Experiment:
    """Reads the experiment of a run's folder."""
    if not (folder / EXPERIMENT).exists():
        meant = Path(Experiment.out) / folder
        use = f"Did you mean {meant}?" if (meant / EXPERIMENT).exists() else "Give a folder that `fedatoms run` made."
        raise ValueError(f"{folder} holds no run: {EXPERIMENT} is missing. {use}")
    return load(folder / EXPERIMENT)
