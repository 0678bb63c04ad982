"""From an experiment's fields to its differential privacy: the noise is given, or found for a target epsilon."""

from fedatoms.core.accounting import noise_for
from fedatoms.engine.privacy import FIRST_CLIP, Privacy
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.parse import ADAPTIVE, clip_text, is_private


def privacy_of(experiment: Experiment, noise: float | None = None) -> Privacy | None:
    """Returns the differential privacy of an experiment, or with another noise; None if it asks for none.

    >>> privacy_of(Experiment()), privacy_of(Experiment(dp_noise=2.0, dp_clip=0.5)).clip
    (None, 0.5)
    """
    if not is_private(experiment):
        return None
    clip, delta = clip_text(experiment.dp_clip), experiment.dp_delta
    adaptive = clip == ADAPTIVE
    return Privacy(noise or _noise_of(experiment), FIRST_CLIP if adaptive else float(clip), adaptive, delta)


def _noise_of(experiment: Experiment) -> float:
    if experiment.dp_noise is not None:
        return experiment.dp_noise
    assert experiment.dp_epsilon is not None
    return noise_for(experiment.dp_epsilon, experiment.fraction, experiment.rounds, experiment.dp_delta)
