"""One class per sample: cross-entropy and accuracy."""

import math
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatoms.objectives.base import Metric, Objective, Targets

ONE_CLASS = Targets(
    "whole",
    dims=1,
    classes=True,
    example="y of shape (n,), whole numbers from 0 up",
    low=0,
    axis=1,
    remedy="Number the classes from 0, and let the model have a logit for each.",
)


def classification(label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None) -> Objective:
    """Cross-entropy of logits (n, classes); ``class_weights`` multiply the losses of samples, then comes a plain mean.

    >>> smooth = classification(label_smoothing=0.1)
    >>> smooth.loss(torch.zeros(2, 4), torch.tensor([0, 3])), smooth.scale.axis
    (tensor([1.3863, 1.3863]), 'accuracy, %')
    """
    check_smoothing(label_smoothing)
    accuracy = Metric("accuracy", is_right, unit="%", low=0.0, high=1.0)
    if class_weights is not None:
        weights = check_weights(class_weights)
        loss = partial(_weighted, weights=weights, smoothing=label_smoothing)
        return Objective(loss, (accuracy,), ONE_CLASS, check=partial(fits, weights=len(weights)), least=0.0)
    loss = partial(F.cross_entropy, reduction="none", label_smoothing=label_smoothing)
    mean = partial(F.cross_entropy, label_smoothing=label_smoothing)
    return Objective(loss, (accuracy,), ONE_CLASS, check=fits, mean_loss=mean, least=0.0)


def is_right(logits: Tensor, y: Tensor) -> Tensor:
    """Says of each sample whether its class has the largest logit.

    >>> is_right(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([1, 1]))
    tensor([ True, False])
    """
    return logits.argmax(1) == y


def fits(logits: Tensor, y: Tensor, classes: int, weights: int = 0) -> str:
    """Says what is wrong with the logits of a few samples.

    >>> fits(torch.zeros(2, 3), torch.tensor([0, 1]), classes=5)
    'the model returns (2, 3) for 2 images, but labels go up to 4. Let it return one row of 5 logits per image.'
    """
    if logits.dim() != 2 or logits.shape[1] < classes:
        return (
            f"the model returns {tuple(logits.shape)} for {len(y)} images, but labels go up to {classes - 1}. "
            f"Let it return one row of {classes} logits per image."
        )
    if weights and weights != logits.shape[1]:
        return f"class_weights has {weights} numbers, but the model has {logits.shape[1]} logits. Give one for each."
    return ""


def check_smoothing(value: float) -> None:
    """Refuses a share that is none."""
    if not 0 <= value < 1:
        raise ValueError(f"label_smoothing={value} is not in [0, 1). Use for example 0.1, or 0 for none.")


def check_weights(weights: Sequence[float]) -> tuple[float, ...]:
    """Returns weights of classes as numbers.

    >>> check_weights([1, -1])
    Traceback (most recent call last):
    ...
    ValueError: class_weights=(1.0, -1.0) has a weight that is negative or not finite. Use positive numbers.
    """
    found = tuple(float(each) for each in weights)
    if not found or not all(0 <= each < math.inf for each in found):
        raise ValueError(f"class_weights={found} has a weight that is negative or not finite. Use positive numbers.")
    return found


def of_classes(weights: Sequence[float], like: Tensor) -> Tensor:
    """Makes a tensor of a few numbers without a copy from the host, which no CUDA graph can hold.

    >>> of_classes((1.0, 2.0), torch.zeros(3))
    tensor([1., 2.])
    """
    return torch.stack([torch.full((), each, dtype=like.dtype, device=like.device) for each in weights])


def _weighted(logits: Tensor, y: Tensor, *, weights: Sequence[float], smoothing: float) -> Tensor:
    each = of_classes(weights, logits)
    return F.cross_entropy(logits, y, each, reduction="none", label_smoothing=smoothing)
