"""The paper's figures that need more than plain runs, one per module and a table of all; imports runs and below.

``MEASURES[name].measure(experiments, settings, watch)`` measures one, ``files`` writes and reads the result.
"""

from dataclasses import replace

from fedatoms.evidence.measures.base import Experiments, Kind, kind
from fedatoms.evidence.measures.gaussians import Gaussians, synthetic
from fedatoms.evidence.measures.loss_curves import Rounds, training_loss
from fedatoms.evidence.measures.loss_landscape import Grid, landscape
from fedatoms.evidence.measures.update_variance import Repeats, variance
from fedatoms.experiment.presets import preset


def _pair(classes: int) -> Experiments:
    """Returns FedAvg plain and with 9 atoms, with so many classes of CIFAR-10 on each client."""
    return preset(f"fedavg-cifar10-{classes}"), preset(f"fedavg-atoms-cifar10-{classes}")


QUICK: Experiments = (replace(preset("fedavg"), epochs=2), replace(preset("fedavg-atoms"), epochs=2))

MEASURES: dict[str, Kind] = {
    each.name: each
    for each in (
        kind("variance", "Variance of a round", variance, (Repeats(), Repeats((0, 1, 3), 3)), (_pair(5), QUICK)),
        kind("synthetic", "Two Gaussians", synthetic, (Gaussians(), Gaussians(rounds=15, repeats=50))),
        kind("training_loss", "Training loss", training_loss, (Rounds(), Rounds(12)), (_pair(2), QUICK)),
        kind("landscape", "Loss landscape", landscape, (Grid(), Grid(8, 13, 500)), (_pair(2), QUICK)),
    )
}

__all__ = ["MEASURES", "QUICK", "Kind"]
