"""Any number of labels per sample: binary cross-entropy of each, scored by F1 and by the share that is right."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatoms.objectives.base import Metric, Objective, Targets, over_rest, quotient

FLAGS = Targets("any", dims=2, example="y of shape (n, labels), of 0 and 1", low=0, high=1, remedy="Use (y > 0).")


def multi_label() -> Objective:
    """Binary cross-entropy of logits (n, labels); a label is predicted where its logit is positive.

    F1 is 2 TP / (2 TP + FP + FN), over all labels of all samples (micro).

    >>> f1, right = multi_label().metrics
    >>> y = torch.tensor([[1, 0], [1, 1]])
    >>> f1.each(f1.of(torch.tensor([[9.0, 9.0], [9.0, -9.0]]), y).mean(0)[None])
    tensor([0.6667])
    >>> right.of(torch.tensor([[9.0, 9.0], [9.0, -9.0]]), y)
    tensor([0.5000, 0.5000])
    """
    f1 = Metric("F1", hits, harmonic, unit="%", low=0.0, high=1.0)
    return Objective(loss, (f1, Metric("labels", share, unit="%", low=0.0, high=1.0)), FLAGS, check=fits, least=0.0)


def loss(logits: Tensor, y: Tensor) -> Tensor:
    """Returns the mean of each sample's binary cross-entropies.

    >>> loss(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    tensor([0.6931])
    """
    return over_rest(F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype), reduction="none"))


def hits(logits: Tensor, y: Tensor) -> Tensor:
    """Counts each sample's labels that are predicted and there, and those that are either, each counted once.

    >>> hits(torch.tensor([[9.0, 9.0, -9.0]]), torch.tensor([[1, 0, 1]]))
    tensor([[2., 4.]])
    """
    guessed, there = (logits > 0).to(logits.dtype), y.to(logits.dtype)
    return torch.stack([2 * (guessed * there).sum(1), guessed.sum(1) + there.sum(1)], 1)


def harmonic(means: Tensor) -> Tensor:
    """Returns F1 from the means of ``hits``; 1 where nothing is there and nothing is predicted.

    >>> harmonic(torch.tensor([1.0, 4.0])), harmonic(torch.zeros(2))
    (tensor(0.2500), tensor(1.))
    """
    both, either = means.unbind(-1)
    return torch.where(either > 0, quotient(both, either), 1.0)


def share(logits: Tensor, y: Tensor) -> Tensor:
    """Returns the share of each sample's labels that is right."""
    return over_rest(((logits > 0) == (y > 0)).to(logits.dtype))


def fits(logits: Tensor, y: Tensor, classes: int) -> str:
    """Says what is wrong with the logits or the targets of a few samples.

    >>> fits(torch.zeros(2, 3), torch.zeros(2, 4), classes=0)
    'the model returns (2, 3) for targets of shape (2, 4). Let it return one logit per label.'
    """
    if logits.shape != y.shape:
        shapes = f"the model returns {tuple(logits.shape)} for targets of shape {tuple(y.shape)}"
        return f"{shapes}. Let it return one logit per label."
    if not bool(((y == 0) | (y == 1)).all()):
        return f"targets go from {float(y.min()):g} to {float(y.max()):g}, but each label is 0 or 1. Use (y > 0)."
    return ""
