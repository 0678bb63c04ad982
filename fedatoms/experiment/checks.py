"""What no experiment can have: refused in one line each, with the value, the rule and the way out. No torch."""

import dataclasses
import os
import re

from fedatoms.algorithms import TABLE as ALGORITHMS
from fedatoms.core.accounting import check_delta
from fedatoms.core.lookup import article
from fedatoms.core.options import CHOICES, check_numbers, one_of
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.parse import (
    attack_of,
    clip_text,
    fast_groups,
    fixed_groups,
    is_private,
    pattern_of,
    period_of,
    scored_models,
    watchers_of,
)
from fedatoms.personal import TABLE as PERSONAL


def check(experiment: Experiment) -> None:
    """Refuses values that no run can have.

    >>> check(Experiment(fraction=0))
    Traceback (most recent call last):
    ...
    ValueError: fraction=0.0 is not in (0, 1]. Use for example 0.1 to sample a tenth of the clients.
    """
    _check_types(experiment)
    for name, valid in CHOICES.items():
        one_of(valid, getattr(experiment, name), name)
    check_numbers(experiment)
    _check_folder(experiment)
    _check_methods(experiment)
    _check_weights(experiment)
    _check_privacy(experiment)
    pattern_of(experiment.where, "where")
    period_of(experiment.beta)
    for parse in (scored_models, fast_groups, fixed_groups, attack_of, watchers_of):
        parse(experiment)


def has_last_pass(experiment: Experiment) -> bool:
    """Says whether clients train once more after the last round.

    >>> has_last_pass(Experiment(personal="fedbn")), has_last_pass(Experiment(personal="fedbn", last_epochs=0))
    (True, False)
    """
    return experiment.personal != "none" and experiment.last_epochs > 0


def check_threads(threads: int) -> None:
    """Refuses more threads than the machine has cores."""
    cores = os.cpu_count() or 1
    if threads > cores:
        raise ValueError(f"threads={threads} is more than this machine's {cores} cores. Use {cores} or fewer.")


def _check_folder(experiment: Experiment) -> None:
    if experiment.out == "":
        raise ValueError("`out` is empty. Use for example out=runs.")
    name = experiment.name
    if set(name) & set("/\\") or name in (".", "..") or name != name.strip():
        raise ValueError(f"name={name} is not a plain folder name. Put the folder into `out`.")


def _check_methods(experiment: Experiment) -> None:
    """Refuses a method of the other table, and says which field it belongs to."""
    for mine, other in ((ALGORITHMS, PERSONAL), (PERSONAL, ALGORITHMS)):
        name = getattr(experiment, mine.field)
        if name in other.methods and name not in (*mine.methods, "none"):
            what = f"{article(other.kind)} {other.kind}"
            raise ValueError(f"{mine.field}={name!r} is {what}. Use {other.field}={name!r}.")


def _check_weights(experiment: Experiment) -> None:
    found = experiment.weights_sha256
    if found and not re.fullmatch("[0-9a-f]{64}", found):
        raise ValueError(f"weights_sha256={found} is not 64 digits of 0-9 and a-f. Leave it out to take the file's.")
    if experiment.weights and experiment.parametrisation not in ("plain", "atoms"):
        raise ValueError(
            f"parametrisation={experiment.parametrisation} draws its factors afresh, so weights={experiment.weights} "
            f"would be lost. Use parametrisation=atoms."
        )


def _check_privacy(experiment: Experiment) -> None:
    """Refuses privacy that is told twice, or half of it: a clip without noise protects nobody."""
    if experiment.dp_epsilon is not None and experiment.dp_noise is not None:
        both = f"dp_epsilon={experiment.dp_epsilon} and dp_noise={experiment.dp_noise}"
        raise ValueError(f"{both}: the one gives the other. Leave one out.")
    clip, delta = clip_text(experiment.dp_clip), experiment.dp_delta
    for given, usual, name in ((clip, Experiment.dp_clip, "dp_clip"), (delta, Experiment.dp_delta, "dp_delta")):
        if given != usual and not is_private(experiment):
            raise ValueError(f"{name}={given} without noise protects nobody. Add dp_epsilon=8 or dp_noise=1.")
    if is_private(experiment):
        _check_private(experiment)


def _check_private(experiment: Experiment) -> None:
    """Refuses what a private run cannot have, as far as text can tell."""
    check_delta(experiment.dp_delta, experiment.clients, "dp_delta")
    if seen := ",".join(watchers_of(experiment)):
        raise ValueError(
            f"watch={seen}: the end of a private round tells how many took part. Leave one of the two out."
        )
    if experiment.deterministic:
        raise ValueError(
            "`deterministic`: who takes part in a private round, and its noise, come from the operating system, so "
            "no run of it can be repeated. Leave one of the two out."
        )


def _check_types(experiment: Experiment) -> None:
    for field in dataclasses.fields(experiment):
        value, kinds = getattr(experiment, field.name), _KINDS[str(field.type)]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            words = {int: "whole number", float: "number", str: "text", bool: "truth value"}
            raise ValueError(f"{field.name}={value!r} is not a {words[kinds[0]]}. See `fedatoms run --help`.")
        if isinstance(value, str) and "\0" in value:
            raise ValueError(f"{field.name}={value!r} holds a null character, which no name has. Leave it out.")


_KINDS: dict[str, tuple[type, ...]] = {
    str(int): (int,),
    str(float): (float, int),
    str(str): (str,),
    str(bool): (bool,),
    str(str | float): (str, int, float),
    str(float | None): (float, int, type(None)),
}
