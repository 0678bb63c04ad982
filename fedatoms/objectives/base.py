"""What an objective is: a loss per sample, metrics that are exact over any set of samples, and what targets must be."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedatoms.core.inputs import output_of as output_of
from fedatoms.core.scales import Scale

Rows = Callable[[Tensor, Tensor], Tensor]  # outputs, targets -> one row per sample
Kind = Literal["whole", "real", "any"]
_PART = 1024  # samples that are looked at together


class Running(Protocol):
    """What a metric has seen of a test set so far, for a score that is no function of means, such as a rank."""

    def update(self, outputs: Tensor, y: Tensor, /) -> None: ...

    def compute(self) -> float: ...


def no_rows(outputs: Tensor, y: Tensor) -> Tensor:
    """Returns nothing of each sample, for a metric that sees all of them.

    >>> no_rows(torch.ones(2, 3), torch.ones(2))
    tensor([0., 0.])
    """
    return torch.zeros(len(y), device=y.device)


class Metric(NamedTuple):
    """A score: statistics of each sample, and the function that turns their mean over samples into a number.

    Means of clients, weighted by their samples, are then as exact as those of one pool: a root mean squared error is
    the root of the mean square, an intersection over union the ratio of two means. With the unit "%" the number is a
    share, and written times 100. A score that means do not make has ``running``, a function without arguments that
    begins it anew, and ``no_rows`` for its statistics.
    """

    name: str
    of: Rows
    value: Callable[[Tensor], Tensor] | None = None  # None: the mean itself
    unit: str = ""
    higher: bool = True  # is better
    low: float = -math.inf  # no score is lower
    high: float = math.inf
    running: Callable[[], Running] | None = None

    @property
    def times(self) -> float:
        """The factor of the unit."""
        return 100 if self.unit == "%" else 1

    @property
    def scale(self) -> Scale:
        """What results say of it."""
        return Scale(self.name, self.unit, self.higher, self.low * self.times, self.high * self.times)

    def each(self, means: Tensor) -> Tensor:
        """Returns the number, without its factor, of each row of means (C, ...)."""
        if self.value is None:
            return means
        return torch.stack([torch.as_tensor(self.value(one), dtype=means.dtype) for one in means])


class Targets(NamedTuple):
    """What the targets of all samples must be; ``classes`` if each is one class, by which clients may be told apart.

    >>> Targets("real", dims=1).misfit(torch.zeros(3, 1))
    'shape (3, 1) has 2 dimensions, not 1'
    """

    kind: Kind = "any"
    dims: int | None = None  # of y, its rows included
    classes: bool = False
    example: str = "y of shape (n, ...)"
    low: float | None = None  # no value is lower
    high: float | None = None
    ignore: int | None = None  # a value that may lie outside
    axis: int | None = None  # of outputs, along which they have one for each class: values lie below its size
    remedy: str = "Mend it, or leave the sample out."

    def misfit(self, y: Tensor) -> str:
        """Says what is wrong with targets; empty if nothing.

        >>> Targets("whole", dims=1).misfit(torch.zeros(3))
        'type torch.float32 is not whole numbers'
        """
        if self.kind == "whole" and y.is_floating_point():
            return f"type {y.dtype} is not whole numbers"
        if self.dims is not None and y.dim() != self.dims:
            return f"shape {tuple(y.shape)} has {y.dim()} dimension{'s' * (y.dim() != 1)}, not {self.dims}"
        return ""

    def up_to(self, outputs: Tensor) -> "Targets":
        """Returns what targets must be for a model that returns these outputs.

        >>> Targets(low=0, axis=1).up_to(torch.zeros(2, 3)).high
        2
        """
        return self if self.axis is None else self._replace(high=outputs.shape[self.axis] - 1)

    def stray(self, y: Tensor) -> tuple[int, str] | None:
        """Returns the first sample with a value that is too low or too high, and what is wrong with it.

        >>> Targets(low=0, high=1).stray(torch.tensor([[0, 1], [1, 255]]))
        (1, 'holds 255, but must hold values from 0 to 1. Mend it, or leave the sample out.')
        """
        low, high = (-math.inf if self.low is None else self.low), (math.inf if self.high is None else self.high)
        if (low, high) == (-math.inf, math.inf) or not y.numel():
            return None
        least, most = y.aminmax()
        if low <= float(least) and float(most) <= high:
            return None
        for first, part in zip(range(0, len(y), _PART), y.split(_PART), strict=True):  # masks of all would take memory
            wrong = ((part < low) | (part > high)) & (True if self.ignore is None else part != self.ignore)
            if wrong.any():
                at = tuple(wrong.nonzero()[0].tolist())
                return first + at[0], self._outside(f"{float(part[at]):g}")
        return None

    def _outside(self, value: str) -> str:
        most = "up" if self.high is None else f"to {self.high:g}"
        least = "" if self.low is None else f" from {self.low:g}"
        return f"holds {value}, but must hold values{least} {most}. {self.remedy.replace('VALUE', value)}"


Check = Callable[[Tensor, Tensor, int], str]  # outputs, targets, classes -> what is wrong, or ""


def always_fits(outputs: Tensor, targets: Tensor, classes: int) -> str:
    """Finds nothing wrong: the loss itself is the test.

    >>> always_fits(torch.zeros(1), torch.zeros(1), 0)
    ''
    """
    return ""


class Objective(NamedTuple):
    """What clients minimise and models are scored by; every place of a run takes it from here.

    ``loss(outputs, targets)`` returns a loss per sample, (n,), so that padding counts nothing. The first metric is the
    headline of results; the loss is always recorded beside it.

    >>> import torch.nn.functional as F
    >>> far = lambda outputs, y: F.l1_loss(outputs[:, 0], y, reduction="none")
    >>> mine = Objective(far, (Metric("mean absolute error", far, higher=False, unit="mm"),))
    >>> mine.loss(torch.zeros(2, 1), torch.tensor([1.0, 3.0])), mine.scale.axis
    (tensor([1., 3.]), 'mean absolute error, mm')
    """

    loss: Rows
    metrics: tuple[Metric, ...]
    targets: Targets = Targets()
    read: Callable[[object], Tensor] = output_of  # from what the model returns to what loss and metrics see
    check: Check = always_fits  # of two samples, before the first round
    mean_loss: Rows | None = None  # the mean of the loss in one kernel, if there is one
    least: float = -math.inf  # no loss is lower

    @property
    def scale(self) -> Scale:
        """What the headline of results is a number of."""
        return self.metrics[0].scale


def as_shape_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns outputs in the shape of the targets: (n, 1) for (n,) is the same numbers, and would else broadcast.

    >>> as_shape_of(torch.zeros(3, 1), torch.zeros(3)).shape
    torch.Size([3])
    """
    return outputs if outputs.shape == targets.shape else outputs.reshape(targets.shape)


def over_rest(each: Tensor) -> Tensor:
    """Averages all that is of one sample.

    >>> over_rest(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    tensor([2., 0.])
    """
    return each.flatten(1).mean(1) if each.dim() > 1 else each


def quotient(a: Tensor, b: Tensor) -> Tensor:
    """Returns a / b, and 0 where b is 0.

    >>> quotient(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0]))
    tensor([0.5000, 0.0000])
    """
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), 0.0)
