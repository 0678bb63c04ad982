"""Metrics of torchmetrics, such as F1 or AUROC, in evaluation."""

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedatoms.core.extras import need
from fedatoms.core.lookup import shown
from fedatoms.objectives.base import Metric, no_rows

if TYPE_CHECKING:
    import torchmetrics

Predictions = Callable[[Tensor], Tensor]


def torchmetric(
    metric: "torchmetrics.Metric",
    *,
    name: str = "",
    unit: str = "",
    higher_is_better: bool | None = None,
    predictions: Predictions | None = None,
    by_batch: bool = False,
) -> Metric:
    """Makes a metric of one of torchmetrics, which sees all outputs and targets of a test set at once.

    ``predictions`` turns outputs into what it takes, if that is something else. With ``by_batch`` it is updated batch
    after batch, for outputs that do not fit into memory; torchmetrics may then take each batch's logits for
    probabilities or not, so give it probabilities.

    >>> from torchmetrics.classification import MulticlassF1Score
    >>> made = torchmetric(MulticlassF1Score(num_classes=3), unit="%")
    >>> made.name, made.unit, made.higher
    ('MulticlassF1Score', '%', True)
    """
    _check(metric)
    higher = metric.higher_is_better if higher_is_better is None else higher_is_better
    called = name or type(metric).__name__
    if higher is None:
        raise ValueError(f"{called} does not say which score is better. Add higher_is_better=True, or False.")
    fresh = partial(Gathered, metric, predictions, called, by_batch=by_batch)
    return Metric(called, no_rows, unit=unit, higher=higher, running=fresh)


class Gathered:
    """What a metric of torchmetrics has seen so far, on the host."""

    def __init__(
        self, metric: "torchmetrics.Metric", predictions: Predictions | None, name: str, *, by_batch: bool
    ) -> None:
        self.metric, self.predictions, self.name, self.by_batch = (
            copy.deepcopy(metric).cpu(),
            predictions,
            name,
            by_batch,
        )
        self.metric.reset()
        self.seen: list[tuple[Tensor, Tensor]] = []

    def update(self, outputs: Tensor, y: Tensor) -> None:
        """Takes a batch."""
        made = outputs if self.predictions is None else self.predictions(outputs)
        if self.by_batch:
            self.metric.update(made.cpu(), y.cpu())
            return
        if not self.seen:  # what it cannot take is found before the first round, not after the last batch
            copy.deepcopy(self.metric).update(made[:2].cpu(), y[:2].cpu())
        self.seen.append((made.cpu(), y.cpu()))

    def compute(self) -> float:
        """Returns the score of all that was seen."""
        if self.seen:
            made, y = (torch.cat(each) for each in zip(*self.seen, strict=True))
            self.metric.update(made, y)
        found = self.metric.compute()
        if not isinstance(found, Tensor) or found.numel() != 1:
            got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"{self.name} is of {got}, not one number. Give it for example average='macro'.")
        return float(found)


def _check(metric: object) -> None:
    need("this metric", "metrics", "torchmetrics")
    import torchmetrics

    if not isinstance(metric, torchmetrics.Metric):
        use = "torchmetrics.MeanSquaredError()"
        raise ValueError(f"metric={shown(metric)} is not a metric of torchmetrics. Use for example {use}.")
