"""What an experiment's fields of text stand for: lists of names, and beta as a period. No torch."""

import re
from fractions import Fraction

from fedatoms.core.options import (
    ATTACKS,
    GLOBAL_MODELS,
    GROUPS,
    MERE_ATTACKS,
    MODELS_SCORED,
    TRAINED_GROUPS,
    WATCHERS,
    AttackName,
    Group,
    Scored,
    Watcher,
    check_range,
    listed,
    one_of,
    range_of,
)
from fedatoms.experiment.fields import OWN, Experiment

ADAPTIVE = "adaptive"  # a clip that follows the norms of the updates
MANY_CLIENTS = 1000  # beyond these, the last model of every client is not kept unless it is asked for


def period_of(beta: str | float) -> int:
    """Turns beta, the share of rounds in which the slow groups travel, into its period 1 / beta, which must be whole.

    >>> period_of("1/5"), period_of(0.2), period_of(1)
    (5, 5, 1)
    """
    try:  # by a float where there is an exponent: as a fraction, 1e-999999999 would take all memory
        exact = float(beta) if isinstance(beta, str) and "e" in beta.lower() else beta
        share = Fraction(exact).limit_denominator(10**6)
    except (ValueError, ZeroDivisionError, OverflowError):
        share = Fraction(0)
    if share <= 0 or share.numerator != 1:
        raise ValueError(f"beta={beta}: 1/beta must be a whole number of rounds. Use for example 1, 1/2, 1/5 or 0.1.")
    return share.denominator


def clip_text(clip: str | float) -> str:
    """Writes the largest norm of a client's update in one form, or refuses what is neither a norm nor adaptive.

    >>> clip_text(1), clip_text("0.50"), clip_text("adaptive")
    ('1', '0.5', 'adaptive')
    """
    if clip == ADAPTIVE:
        return ADAPTIVE
    try:
        norm = float(clip)
    except ValueError:
        raise ValueError(f"dp_clip={clip} is neither a number nor {ADAPTIVE}. Use for example 1.") from None
    check_range("dp_clip", norm)
    return repr(norm).removesuffix(".0")


def is_private(experiment: Experiment) -> bool:
    """Says whether an experiment asks for differential privacy.

    >>> is_private(Experiment()), is_private(Experiment(dp_noise=1.0))
    (False, True)
    """
    return experiment.dp_epsilon is not None or experiment.dp_noise is not None


def pattern_of(text: str, argument: str) -> re.Pattern[str]:
    """Compiles a regular expression, or refuses a text that is none.

    >>> pattern_of("conv[12]", "where").search("conv2") is not None
    True
    """
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{argument}={text} is not a regular expression: {error}.") from error


def scored_models(experiment: Experiment, *, means: bool = True) -> tuple[Scored, ...]:
    """Returns the models to score; without being asked no ``means`` of uploads, where these are no models.

    >>> scored_models(Experiment(clients=5000)), scored_models(Experiment(score="all, server"))
    (('server', 'selected'), ('server', 'all'))
    """
    if experiment.score == "auto":
        if experiment.personal != "none":
            return ("server", "personal")
        if is_private(experiment):
            return ("server",)
        plain = experiment.aggregation == "mean" and not experiment.attack  # no rule reaches the mean of all
        return GLOBAL_MODELS[: (3 if plain and experiment.clients <= MANY_CLIENTS else 2) if means else 1]
    wanted = listed(MODELS_SCORED, experiment.score, "score", "model to score")
    return tuple(name for name in MODELS_SCORED if name in wanted)


def fast_groups(experiment: Experiment) -> tuple[Group, ...]:
    """Returns the groups that travel in every round.

    >>> fast_groups(Experiment())
    ('atoms', 'head')
    """
    return listed(GROUPS, experiment.fast, "fast", "group")


def fixed_groups(experiment: Experiment) -> tuple[Group, ...]:
    """Returns the groups that are never trained.

    >>> fixed_groups(Experiment()), fixed_groups(Experiment(fixed="atoms, head"))
    ((), ('atoms', 'head'))
    """
    return listed(TRAINED_GROUPS, experiment.fixed, "fixed", "group") if experiment.fixed else ()


def watchers_of(experiment: Experiment) -> tuple[Watcher, ...]:
    """Returns the watchers of a run, each once.

    >>> watchers_of(Experiment(watch="mlflow, wandb")), watchers_of(Experiment(tensorboard=True))
    (('mlflow', 'wandb'), ('tensorboard',))
    """
    wanted = listed(WATCHERS, experiment.watch, "watch", "watcher") if experiment.watch else ()
    return tuple(name for name in WATCHERS if name in wanted or (name == "tensorboard" and experiment.tensorboard))


def attack_of(experiment: Experiment) -> tuple[AttackName, float, float | None] | None:
    """Returns an experiment's attack: its name, the share of clients, and its strength if one is named; None if none.

    >>> attack_of(Experiment(attack="sign-flip:0.2:9")), attack_of(Experiment(attack="noise:0.1"))
    (('sign-flip', 0.2, 9.0), ('noise', 0.1, None))
    """
    if not experiment.attack:
        return None
    name, *numbers = experiment.attack.split(":")
    kind = one_of(ATTACKS, name, "attack")
    try:
        share, strength = (*(float(number) for number in numbers), None)[:2]
    except ValueError:
        share = None
    if share is None or len(numbers) > 2:
        raise ValueError(f"attack={experiment.attack} is no name, share and strength. Use for example {name}:0.2.")
    _check_part("share", share, f"{name}:0.2", experiment.attack)
    if strength is not None and kind in MERE_ATTACKS:
        raise ValueError(f"attack={experiment.attack}: {name} has no strength. Use {name}:{numbers[0]}.")
    if strength is not None:
        usual = 1.5 if kind == "little-is-enough" else 9  # its authors' choice
        _check_part("strength", strength, f"{name}:{numbers[0]}:{usual}", experiment.attack)
    return kind, share, strength


def _check_part(part: str, number: float, use: str, attack: str) -> None:
    valid = range_of(f"attack {part}")
    if not valid.holds(number):
        raise ValueError(f"attack={attack}: a {part} of {number:g} is {valid.broken(number)}. Use for example {use}.")


def made_by_caller(experiment: Experiment) -> bool:
    """Returns whether data and network come from the caller's code: an experiment alone cannot rebuild them.

    >>> made_by_caller(Experiment()), made_by_caller(Experiment(dataset="own"))
    (False, True)
    """
    return experiment.dataset == OWN
