"""A class for each pixel: cross-entropy over pixels, scored by the mean intersection over union and by pixels."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatoms.core.lookup import shown
from fedatoms.core.options import is_whole
from fedatoms.objectives.base import Metric, Objective, Targets, quotient

A_MAP = Targets(
    "whole",
    example="y of shape (n, height, width), whole numbers from 0 up",
    low=0,
    axis=1,
    remedy="Number the classes from 0, let the model have logits for each, or pass ignore=VALUE.",
)


def segmentation(ignore: int = 255) -> Objective:
    """Cross-entropy of logits (n, classes, height, width); pixels of the class ``ignore`` count nowhere.

    A sample's loss is the mean over its pixels that count. The mean intersection over union (mIoU) is that of all
    pixels of all samples, class by class, then averaged over the classes that occur.

    >>> miou, pixels = segmentation().metrics
    >>> logits = F.one_hot(torch.tensor([[[0, 0, 1, 1]]]), 2).movedim(3, 1).float()
    >>> y = torch.tensor([[[0, 1, 1, 255]]])
    >>> miou.each(miou.of(logits, y).mean(0)[None]), pixels.each(pixels.of(logits, y).mean(0)[None])
    (tensor([0.5000]), tensor([0.6667]))
    """
    if not is_whole(ignore):
        raise ValueError(f"ignore={shown(ignore)} is not a whole number. Use for example ignore=255.")
    miou = Metric("mIoU", partial(overlaps, ignore=ignore), mean_ratio, unit="%", low=0.0, high=1.0)
    pixels = Metric("pixels", partial(right, ignore=ignore), ratio, unit="%", low=0.0, high=1.0)
    targets = A_MAP._replace(ignore=ignore)
    return Objective(
        partial(loss, ignore=ignore), (miou, pixels), targets, check=partial(fits, ignore=ignore), least=0.0
    )


def loss(logits: Tensor, y: Tensor, ignore: int) -> Tensor:
    """Returns the mean cross-entropy over the pixels of each sample that count."""
    counts = (y != ignore).to(logits.dtype).flatten(1)
    each = F.cross_entropy(logits, torch.where(y == ignore, 0, y), reduction="none").flatten(1)
    return (each * counts).sum(1) / counts.sum(1).clamp(min=1)


def overlaps(logits: Tensor, y: Tensor, ignore: int) -> Tensor:
    """Counts the pixels of each sample in the intersection and in the union of each class: (n, classes, 2)."""
    count = (y != ignore).flatten(1)
    guessed, there = logits.argmax(1).flatten(1), torch.where(y == ignore, 0, y).flatten(1)

    def pixels(of: Tensor, which: Tensor) -> Tensor:
        return torch.zeros(len(y), logits.shape[1], device=y.device).scatter_add_(1, of, which.float())

    both = pixels(there, count & (guessed == there))
    return torch.stack([both, pixels(guessed, count) + pixels(there, count) - both], 2)


def mean_ratio(means: Tensor) -> Tensor:
    """Returns the mean over classes of intersection / union, of the classes that occur.

    >>> mean_ratio(torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]))
    tensor(0.6250)
    """
    both, either = means.unbind(-1)
    return quotient(both, either).sum() / (either > 0).sum().clamp(min=1)


def right(logits: Tensor, y: Tensor, ignore: int) -> Tensor:
    """Counts the pixels of each sample that are right, and those that count."""
    counts = y != ignore
    return torch.stack([((logits.argmax(1) == y) & counts).flatten(1).sum(1), counts.flatten(1).sum(1)], 1).float()


def ratio(means: Tensor) -> Tensor:
    """Returns the share of pixels that is right.

    >>> ratio(torch.tensor([1.0, 4.0]))
    tensor(0.2500)
    """
    return quotient(*means.unbind(-1))


def fits(logits: Tensor, y: Tensor, classes: int, ignore: int) -> str:
    """Says what is wrong with the logits of a few samples.

    >>> fits(torch.zeros(2, 3, 4, 4), torch.zeros(2, 8, 8), classes=0, ignore=255)
    'the model returns (2, 3, 4, 4) for targets of shape (2, 8, 8). Let it return (2, classes, 8, 8).'
    """
    if logits.dim() != y.dim() + 1 or logits.shape[2:] != y.shape[1:]:
        shapes = f"the model returns {tuple(logits.shape)} for targets of shape {tuple(y.shape)}"
        return f"{shapes}. Let it return ({len(y)}, classes, {', '.join(map(str, y.shape[1:]))})."
    strange = y[(y != ignore) & ((y < 0) | (y >= logits.shape[1]))]
    if len(strange):
        return (
            f"targets hold the class {int(strange[0])}, but the model has {logits.shape[1]} logits per pixel. Let it "
            f"have more, or pass ignore={int(strange[0])}."
        )
    return ""
