"""What a model takes: a tensor, or a tuple or dictionary of tensors, with a row for each sample in all of them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
Shape = Sequence[int] | Sequence[Sequence[int]] | dict[str, Sequence[int]]  # of a sample, or of its parts


def leaves(x: Inputs) -> list[Tensor]:
    """Returns the tensors of a batch.

    >>> len(leaves({"ids": torch.zeros(2), "mask": torch.ones(2)}))
    2
    """
    return list(named(x).values())


def named(x: Inputs) -> dict[str, Tensor]:
    """Returns the tensors of a batch by what an error calls them.

    >>> list(named((torch.zeros(1), torch.zeros(1)))), list(named({"ids": torch.zeros(1)})), list(named(torch.zeros(1)))
    (['x[0]', 'x[1]'], ["x['ids']"], ['x'])
    """
    if isinstance(x, Tensor):
        return {"x": x}
    pairs = x.items() if isinstance(x, dict) else enumerate(x)
    return {f"x[{key!r}]": leaf for key, leaf in pairs}


def each(function: Callable[..., Tensor], *many: Inputs) -> Inputs:
    """Applies a function to the tensors of batches with the form of the first, one by one.

    >>> each(torch.add, (torch.tensor(1), torch.tensor(2)), (torch.tensor(3), torch.tensor(4)))
    (tensor(4), tensor(6))
    """
    rows = zip(*(leaves(x) for x in many), strict=True)
    return like(many[0], [function(*row) for row in rows])


def like(x: Inputs, tensors: Sequence[Tensor]) -> Inputs:
    """Returns other tensors in the form of a batch."""
    if isinstance(x, Tensor):
        return tensors[0]
    return dict(zip(x, tensors, strict=True)) if isinstance(x, dict) else tuple(tensors)


def take(x: Inputs, rows: Tensor | slice) -> Inputs:
    """Returns some samples.

    >>> take({"ids": torch.arange(4)}, torch.tensor([3, 0]))
    {'ids': tensor([3, 0])}
    """
    return x[rows] if isinstance(x, Tensor) else each(lambda leaf: leaf[rows], x)


def samples_in(x: Inputs) -> int:
    """Counts the samples.

    >>> samples_in((torch.zeros(5, 2), torch.zeros(5)))
    5
    """
    return len(leaves(x)[0])


def shapes_of(x: Inputs) -> str:
    """Writes the shapes of one sample.

    >>> shapes_of(torch.zeros(2, 3)), shapes_of({"ids": torch.zeros(2, 4)})
    ('(3,)', "x['ids'] (4,)")
    """
    if isinstance(x, Tensor):
        return str(tuple(x.shape[1:]))
    return ", ".join(f"{name} {tuple(leaf.shape[1:])}" for name, leaf in named(x).items())


def no_samples(shape: Shape) -> Inputs:
    """Returns a batch of no samples.

    >>> no_samples({"ids": (4,)})["ids"].shape
    torch.Size([0, 4])
    """
    if isinstance(shape, dict):
        return {name: torch.zeros(0, *part) for name, part in shape.items()}
    sizes = [size for size in shape if isinstance(size, int)]
    parts = [part for part in shape if not isinstance(part, int)]
    return tuple(torch.zeros(0, *part) for part in parts) if parts else torch.zeros(0, *sizes)


def first_shape(shape: Shape) -> tuple[int, ...]:
    """Returns the shape of a sample, or of its first part.

    >>> first_shape((3, 8, 8)), first_shape(((4,), (2, 2)))
    ((3, 8, 8), (4,))
    """
    return tuple(leaves(no_samples(shape))[0].shape[1:])
