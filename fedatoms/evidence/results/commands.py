"""What to type to run an experiment again: the nearest preset, and flags for what it lacks."""

import shlex
from collections.abc import Mapping
from functools import cache

from fedatoms.experiment.fields import EXECUTION_FIELDS, OWN, Experiment
from fedatoms.experiment.files import to_json
from fedatoms.experiment.presets import PRESETS

_ANYWHERE = EXECUTION_FIELDS | {"seed", "weights_sha256"}


def command_of(experiment: Experiment, seeds: list[int]) -> str:
    """Returns the command that runs an experiment; nothing if only the caller's own code can.

    >>> command_of(Experiment(lr=0.3), [0]), command_of(PRESETS["fedprox-atoms"], [0, 1])
    ('fedatoms run fedavg --lr 0.3', 'fedatoms compare fedprox-atoms --seeds 0,1')
    """
    if experiment.dataset == OWN or experiment.weights:
        return ""
    ours = to_json(experiment)
    preset, flags = min(((name, _flags(ours, name)) for name in PRESETS), key=lambda each: len(each[1]))
    many = [f"--seeds {','.join(map(str, seeds))}"] if len(seeds) > 1 else []
    one = [f"--seed {seeds[0]}"] if len(seeds) == 1 and seeds[0] else []
    return " ".join(["fedatoms", "compare" if many else "run", preset, *flags, *many, *one])


def _flags(ours: Mapping[str, object], preset: str) -> list[str]:
    theirs = _fields(preset)
    changed = {name: value for name, value in ours.items() if name not in _ANYWHERE and value != theirs[name]}
    return [_flag(name.replace("_", "-"), value) for name, value in changed.items()]


def _flag(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{name}"
    return f"--{name} {f'{value:g}' if isinstance(value, float) else shlex.quote(str(value))}"


@cache
def _fields(preset: str) -> dict[str, object]:
    return to_json(PRESETS[preset])
