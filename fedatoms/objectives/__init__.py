"""Objectives: what clients minimise and models are scored by, one file each; imports core and data.

A new one is its file and its line in ``OBJECTIVES`` (and its import, for type checkers).
``fedatoms.objectives.classification()`` makes one; the table itself needs no torch.
"""

from typing import TYPE_CHECKING

from fedatoms.core.lazy import lazily
from fedatoms.core.methods import Method, Table

if TYPE_CHECKING:
    from fedatoms.objectives._classification import classification as classification
    from fedatoms.objectives._multi_label import multi_label as multi_label
    from fedatoms.objectives._regression import regression as regression
    from fedatoms.objectives._segmentation import segmentation as segmentation
    from fedatoms.objectives._torchmetrics import torchmetric as torchmetric
    from fedatoms.objectives.base import Metric as Metric
    from fedatoms.objectives.base import Objective as Objective
    from fedatoms.objectives.base import Targets as Targets

OBJECTIVES: dict[str, Method] = {
    "classification": Method("Classification", "_classification:classification", strength="label_smoothing"),
    "regression": Method("Regression", "_regression:regression"),
    "multi-label": Method("Multi-label", "_multi_label:multi_label"),
    "segmentation": Method("Segmentation", "_segmentation:segmentation"),
}
TABLE = Table("objective", __name__, OBJECTIVES, field="objective", strength="objective_strength")


def objective(name: str, strength: float | None = None) -> "Objective":
    """Builds an objective by its name in the table, or "module:factory" of your own.

    >>> objective("regression").scale.name
    'rmse'
    """
    from fedatoms.objectives.base import Objective

    return TABLE.build(name, strength, Objective)


_HOMES = {**TABLE.homes(), **dict.fromkeys(("Metric", "Objective", "Targets"), "base"), "torchmetric": "_torchmetrics"}
__all__ = sorted(["OBJECTIVES", "objective", *_HOMES])
if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
