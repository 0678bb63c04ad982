"""What a model takes: a tensor, or a tuple or dictionary of them, with a row for each sample; and what it returns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
Shape = Sequence[int] | Sequence[Sequence[int]] | dict[str, Sequence[int]]  # of a sample, or of its parts
NAMES = ("logits", "out")  # of the tensor that counts, in a dictionary or a dataclass


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


def copy_of(x: Inputs) -> Inputs:
    """Copies a batch, so that a forward pass that changes it changes no other's.

    >>> copy_of({"ids": torch.tensor([3])})
    {'ids': tensor([3])}
    """
    return each(torch.clone, x)


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


def output_of(returned: object) -> Tensor:
    """Returns the tensor that counts of what a model returns: ``logits`` or ``out``, the only one, or a tuple's first.

    >>> output_of({"hidden": torch.zeros(2, 3), "logits": torch.zeros(2, 5)}).shape
    torch.Size([2, 5])
    >>> output_of((torch.zeros(2, 4), None)).shape
    torch.Size([2, 4])
    >>> output_of({"a": 1})
    Traceback (most recent call last):
    ...
    ValueError: the model returns dict without a tensor called logits. Let it return a tensor, a tuple that begins with
    one, or a dictionary or dataclass with logits.
    """
    found = next((each for each in _parts(returned) if isinstance(each, Tensor)), None)
    if found is None:
        raise ValueError(
            f"the model returns {type(returned).__name__} without a tensor called logits. Let it return a tensor, a "
            f"tuple that begins with one, or a dictionary or dataclass with logits."
        )
    return found


def _parts(returned: object) -> Iterator[object]:
    if isinstance(returned, Mapping):
        yield from (returned[name] for name in NAMES if name in returned)
        tensors = [each for each in returned.values() if isinstance(each, Tensor)]
        yield from tensors if len(tensors) == 1 else []  # of several, none is named
    elif isinstance(returned, tuple | list):
        yield from (getattr(returned, name) for name in NAMES if hasattr(returned, name))
        yield from returned[:1]
    elif is_dataclass(returned) and not isinstance(returned, type):
        own = {field.name: getattr(returned, field.name) for field in fields(returned)}
        yield from _parts(own)
    else:
        yield returned
