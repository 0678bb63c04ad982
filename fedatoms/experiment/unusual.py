"""What of an experiment is not as usual beside its method: rule, attack, uploads and privacy, in words. No torch."""

from fedatoms.experiment.fields import Experiment


def circumstances(experiment: Experiment) -> list[str]:
    """Returns words for the aggregation rule, the attack, the uploads and the privacy that are not the default.

    >>> circumstances(Experiment(aggregation="krum:1", attack="noise:0.2", uploads="8-bit"))
    ['krum:1', 'attack noise:0.2', '8-bit uploads']
    >>> circumstances(Experiment())
    []
    """
    rule = [experiment.aggregation] if experiment.aggregation != Experiment.aggregation else []
    attack = [f"attack {experiment.attack}"] if experiment.attack else []
    uploads = [f"{experiment.uploads} uploads"] if experiment.uploads != Experiment.uploads else []
    return [*rule, *attack, *uploads, *privacy_words(experiment)]


def privacy_words(experiment: Experiment) -> list[str]:
    """Returns words for the privacy that was asked for, if any.

    >>> privacy_words(Experiment(dp_epsilon=8.0)), privacy_words(Experiment(dp_noise=1.2))
    (['epsilon 8'], ['noise 1.2'])
    """
    asked = {"epsilon": experiment.dp_epsilon, "noise": experiment.dp_noise}
    return [f"{name} {value:g}" for name, value in asked.items() if value is not None]
