"""What to type to run an experiment again: the nearest preset, and flags for what it lacks."""

import shlex
from collections.abc import Mapping, Sequence
from functools import cache

from fedatoms.experiment.fields import EXECUTION_FIELDS, OWN, Experiment
from fedatoms.experiment.files import to_json
from fedatoms.experiment.presets import PRESETS

_ANYWHERE = EXECUTION_FIELDS | {"seed", "weights_sha256"}


def command_of(experiment: Experiment, seeds: Sequence[int]) -> str:
    """Returns the command that runs an experiment; nothing if only the caller's own code can.

    >>> command_of(Experiment(lr=0.3), [0]), command_of(PRESETS["fedprox-atoms"], [0, 1])
    ('fedatoms run fedavg --lr 0.3', 'fedatoms compare fedprox-atoms --seeds 0,1')
    """
    return with_seeds(" ".join(_nearest(experiment)), seeds) if _can_be_typed(experiment) else ""


def with_seeds(typed: str, seeds: Sequence[int]) -> str:
    """Returns the command for a preset and its flags; that for several seeds is another one than that for one.

    >>> with_seeds("fedavg", [0]), with_seeds("fedavg", [2]), with_seeds("fedavg --lr 0.3", [0, 1])
    ('fedatoms run fedavg', 'fedatoms run fedavg --seed 2', 'fedatoms compare fedavg --lr 0.3 --seeds 0,1')
    """
    if len(seeds) > 1:
        return f"fedatoms compare {typed} {_seeds(seeds)}"
    return f"fedatoms run {typed}" + (f" --seed {seeds[0]}" if seeds and seeds[0] else "")


def together(experiments: Sequence[Experiment], seeds: Sequence[int]) -> str:
    """Returns one command that runs several experiments with the same seeds; nothing if no such one does.

    >>> together([Experiment(rounds=8), Experiment(algorithm="scaffold", rounds=8)], [0, 1])
    'fedatoms compare fedavg scaffold --rounds 8 --seeds 0,1'
    >>> together([Experiment(), Experiment(lr=0.3)], [0])
    ''
    """
    if not all(map(_can_be_typed, experiments)):
        return ""
    presets, *flags = zip(*((first, rest) for first, *rest in map(_nearest, experiments)), strict=True)
    if any(each != flags[0][0] for each in flags[0]):
        return ""
    return " ".join(["fedatoms compare", *presets, *flags[0][0], _seeds(seeds)])


def reproduce(study: str, seeds: Sequence[int]) -> str:
    """Returns the command that runs a study of the paper again.

    >>> reproduce("table1", [0, 1])
    'fedatoms reproduce table1 --data-dir data --seeds 0,1 --out again'
    """
    return again(f"fedatoms reproduce {study} --data-dir data {_seeds(seeds)}")


def again(words: str) -> str:
    """Returns a command with a new folder: where its results lie already, it would only show them.

    >>> again("fedatoms run fedavg"), again("")
    ('fedatoms run fedavg --out again', '')
    """
    return words and f"{words} --out again"


def _can_be_typed(experiment: Experiment) -> bool:
    return experiment.dataset != OWN and not experiment.weights


def _nearest(experiment: Experiment) -> list[str]:
    """Returns the preset that needs the fewest flags, and these."""
    ours = to_json(experiment)
    preset, flags = min(((name, _flags(ours, name)) for name in PRESETS), key=lambda each: len(each[1]))
    return [preset, *flags]


def _seeds(seeds: Sequence[int]) -> str:
    return f"--seeds {','.join(map(str, seeds))}"


def _flags(ours: Mapping[str, object], preset: str) -> list[str]:
    theirs = _fields(preset)
    changed = {name: value for name, value in ours.items() if name not in _ANYWHERE and value != theirs[name]}
    return [_flag(name.replace("_", "-"), value) for name, value in changed.items()]


def _flag(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{name}"
    return f"--{name} {_digits(value) if isinstance(value, float) else shlex.quote(str(value))}"


def _digits(value: float) -> str:
    """Writes a number with as many digits as tell it from all others.

    >>> _digits(0.1), _digits(1.0), _digits(0.09022398727263703)
    ('0.1', '1', '0.09022398727263703')
    """
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


@cache
def _fields(preset: str) -> dict[str, object]:
    return to_json(PRESETS[preset])
