"""Refuses an objective that is none, targets that it cannot have, and outputs that it cannot read, in one line each."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedatoms.core.lookup import one_line, shown
from fedatoms.data.federations import Federation, test_by_classes
from fedatoms.data.samples import are_labels
from fedatoms.objectives.base import Metric, Objective, Rows, Targets

RESERVED = ("loss", "worst", "spread", "round", "num-examples")  # columns of results


def check_objective(objective: Objective) -> None:
    """Refuses an objective without a metric, or with two of one name.

    >>> from fedatoms.objectives import regression
    >>> check_objective(regression()._replace(metrics=()))
    Traceback (most recent call last):
    ...
    ValueError: the objective has no metric, so no model can be scored. Give it metrics=(Metric("error", loss,
    higher=False),).
    """
    given: object = objective.metrics
    several = isinstance(given, tuple | list) and not isinstance(given, Metric)
    if not several or not all(isinstance(each, Metric) for each in objective.metrics):
        raise ValueError(f"metrics={shown(given)} is not a tuple of metrics. Use (metric,), with a comma.")
    if not objective.metrics:
        raise ValueError(
            "the objective has no metric, so no model can be scored. Give it "
            'metrics=(Metric("error", loss, higher=False),).'
        )
    names = [metric.name for metric in objective.metrics]
    for name in names:
        if name in RESERVED or names.count(name) > 1 or not name:
            raise ValueError(f"a metric is named {name!r}, which is taken or no name. Use another, such as 'rmse'.")


def check_targets(objective: Objective, data: Federation) -> None:
    """Refuses a federation with targets of another type, shape or range than the objective's."""
    for name, y in (("y", known_targets(data)), ("test_y", data.test_y)):
        if len(y):
            check_some_targets(objective, y, name)


def check_some_targets(objective: Objective, y: Tensor, name: str) -> None:
    """Refuses targets that the objective cannot have, and says which objective they would fit.

    >>> from fedatoms.objectives import classification
    >>> check_some_targets(classification(), Tensor([0.5]), "y")
    Traceback (most recent call last):
    ...
    ValueError: y: type torch.float32 is not whole numbers, but accuracy needs y of shape (n,), whole numbers from 0 up.
    Use y.long(), or objective=fedatoms.objectives.regression().
    """
    if wrong := objective.targets.misfit(y):
        raise ValueError(
            f"{name}: {wrong}, but {objective.scale.name} needs {objective.targets.example}. Use "
            f"{_cast(objective, y)}objective=fedatoms.objectives.{_meant(y)}()."
        )
    check_range_of(objective.targets, y, name)


def check_range_of(targets: Targets, y: Tensor, name: str) -> None:
    """Refuses targets that are too low or too high, and names the sample."""
    if (found := targets.stray(y)) is not None:
        raise ValueError(f"{name}, sample {found[0]}: {found[1]}")


def warn_of_classes(objective: Objective, data: Federation) -> None:
    """Says that numbers were taken for classes, where clients are tested on the numbers that occur in their data."""
    if objective.targets.classes or not are_labels(data.y):
        return
    if all(len(part) == len(data.test_y) for part in data.test_parts):
        return
    both = zip(data.test_parts, test_by_classes(data).test_parts, strict=True)
    if all(torch.equal(torch.as_tensor(part, device="cpu"), by_class) for part, by_class in both):
        warnings.warn(
            f"whole numbers in y were taken for classes, so each client is tested only on those that occur in its own "
            f"data, but {objective.scale.name} has no classes: use y.float(), or Targets(classes=True) in an objective "
            f"of your own",
            stacklevel=4,  # where the simulation is made
        )


def known_targets(data: Federation) -> Tensor:
    """Returns the targets of training samples; of lazy ones those that are known, the labels or the first target."""
    return data.y if data.lazy is None or are_labels(data.y) else data.y[:1]


def check_outputs(objective: Objective, returned: object, y: Tensor, classes: int) -> Tensor:
    """Returns the outputs in what a model returns for a few samples, if the objective makes losses of them."""
    outputs = returned
    with _failing("read", f"what the model returns, {type(returned).__name__},"):
        outputs = objective.read(returned)
    if not isinstance(outputs, Tensor) or outputs.dim() == 0 or len(outputs) != len(y):
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"the model returns {got} for {len(y)} samples. Let it return a row for each.")
    if wrong := objective.check(outputs, y, classes):
        raise ValueError(wrong)
    shapes = f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(y.shape)}"
    _check_rows(objective.loss, outputs, y, "loss", shapes)
    for metric in objective.metrics:
        _check_rows(metric.of, outputs, y, f"metric {metric.name!r}", shapes, alone=metric.value is None)
        if metric.running is not None:
            with _failing(f"metric {metric.name!r}", shapes):
                metric.running().update(outputs, y)
    return outputs


def _check_rows(function: Rows, outputs: Tensor, y: Tensor, name: str, shapes: str, *, alone: bool = True) -> None:
    with _failing(name, shapes):
        each = function(outputs, y)
    if not isinstance(each, Tensor) or each.shape[:1] != (len(y),) or (alone and each.dim() != 1):
        got = f"shape {tuple(each.shape)}" if isinstance(each, Tensor) else f"type {type(each).__name__}"
        raise ValueError(
            f"the objective's {name} is of {got} for {shapes}: it must have one number per sample, ({len(y)},). Use "
            f'for example F.mse_loss(outputs, y, reduction="none").flatten(1).mean(1).'
        )


@contextmanager
def _failing(name: str, given: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        if isinstance(error, ValueError) and str(error).startswith("the model returns"):
            raise
        raise ValueError(
            f"the objective's {name} fails on {given} ({one_line(error)[:200]}). Change the objective, the model or y."
        ) from error


def _cast(objective: Objective, y: Tensor) -> str:
    """Says how targets would fit the objective, if they nearly do."""
    if not objective.targets.classes:
        return ""
    row = "y[:, 0]" if y.dim() == 2 and y.shape[1] == 1 else "y" if y.dim() == 1 else ""
    return row and f"{row}{'.long()' * y.is_floating_point()}, or "


def _meant(y: Tensor) -> str:
    """Guesses the objective that targets are made for."""
    if y.is_floating_point():
        return "regression"
    return {1: "classification", 2: "multi_label"}.get(y.dim(), "segmentation")
