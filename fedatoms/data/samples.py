"""Samples from outside as tensors with a row for each: what cannot be trained on is refused, with its address."""

import math
import warnings
from collections.abc import Mapping, Sequence, Sized
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedatoms.core.inputs import Inputs, leaves, like, named, shapes_of
from fedatoms.core.lookup import one_line

Array = Tensor | npt.NDArray[np.generic]
Arrays = Array | Sequence[Array] | Mapping[str, Array]
Samples = tuple[Arrays, Array] | Dataset[object]  # a pair (x, y), or a map-style data set of such pairs
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_TOKENS = (torch.int32, torch.int64)
_SMALL = (torch.uint8, torch.int8, torch.int16, torch.bool)


def pair_up(samples: Samples, name: str, if_empty: str = "Leave it out.") -> tuple[Inputs, Tensor]:
    """Returns samples and their targets as tensors; an error names ``name``, and says what to do ``if_empty``.

    >>> pair_up((torch.zeros(2, 3), torch.tensor([0, -1])), "client 0")
    Traceback (most recent call last):
    ValueError: client 0, sample 1: label -1 is negative. Number the classes from 0, or use y.float() for numbers.
    """
    pair = _materialise(samples, name, if_empty) if isinstance(samples, Dataset) else samples
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not _holds_arrays(pair[0]) or not _is_array(pair[1]):
        raise ValueError(f"{name}: {type(pair).__name__} is not a pair of tensors. Pass (x, y) or a map-style Dataset.")
    x, y = _tensors(pair[0], name), _tensor(pair[1], name)
    check_pairs(x, y, name)
    if len(y) == 0:
        raise ValueError(f"{name}: has no samples, but needs at least one. {if_empty}")
    made = [as_inputs(leaf, name) for leaf in leaves(x)]
    for leaf in made:
        check_finite(leaf, name)
    return like(x, [leaf.detach() for leaf in made]), as_targets(y, name)


def check_pairs(x: Inputs, y: Tensor, name: str) -> None:
    """Refuses inputs and targets that do not have a row for each sample."""
    if y.ndim == 0 or any(leaf.ndim == 0 or len(leaf) != len(y) for leaf in leaves(x)):
        shapes = ", ".join(f"{at} of shape {tuple(leaf.shape)}" for at, leaf in named(x).items())
        raise ValueError(
            f"{name}: {shapes} and y of shape {tuple(y.shape)} do not pair up: each sample needs a label. Pass x of "
            "shape (n, ...) and y of shape (n,) or (n, ...)."
        )


def check_alike(samples: Mapping[str, tuple[Inputs, Tensor]]) -> None:
    """Refuses clients, by name, whose samples or targets have another form than those of the first."""
    of_first, (first_x, first_y) = next(iter(samples.items()))
    for name, (x, y) in samples.items():
        if named(x).keys() != named(first_x).keys():
            raise ValueError(
                f"{name}: samples of {shapes_of(x)} differ from client 0's {shapes_of(first_x)}, but all go through "
                "one model. Give them the same parts."
            )
        if shapes_of(x) != shapes_of(first_x):
            _check_order(first_x, first_y, of_first)
            _check_order(x, y, name)
        for leaf, first in zip(leaves(x), leaves(first_x), strict=True):
            _check_shape(leaf, first, name)
            _check_kind(leaf, first, name)
        check_targets_alike(y, first_y, name)


def are_labels(y: Tensor) -> bool:
    """Says whether targets can be classes: one whole number per sample.

    >>> are_labels(torch.tensor([0, 1])), are_labels(torch.tensor([0.5])), are_labels(torch.tensor([[0, 1]]))
    (True, False, False)
    """
    return y.dim() == 1 and not y.is_floating_point()


def as_inputs(x: Array, name: str) -> Tensor:
    """Returns samples as a tensor of real numbers; an error names ``name``.

    >>> as_inputs(np.zeros((2, 3), complex), "x")
    Traceback (most recent call last):
    ValueError: x: samples of type torch.complex128 cannot be inputs. Use real numbers, such as x.float().
    """
    made = _tensor(x, name)
    if made.dtype not in (*_FLOATS, *_TOKENS, *_SMALL):
        raise ValueError(f"{name}: samples of type {made.dtype} cannot be inputs. Use real numbers, such as x.float().")
    return made


def _materialise(dataset: Dataset[object], name: str, if_empty: str) -> tuple[Inputs, Tensor]:
    if not isinstance(dataset, Sized):
        raise ValueError(
            f"{name}: {type(dataset).__name__} has no length, but samples are indexed. Use a map-style Dataset."
        )
    if len(dataset) == 0:
        raise ValueError(f"{name}: has no samples, but needs at least one. {if_empty}")
    try:
        items = [dataset[number] for number in range(len(dataset))]
        x, y = zip(*items, strict=True)
        return stacked(x), torch.stack([tensor_of(one) for one in y])
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise ValueError(
            f"{name}: the items of {type(dataset).__name__} are not pairs (x, y) of numbers, all of one shape "
            f"({str(error).splitlines()[0]}). Give the data set a transform to tensors."
        ) from error


def tensor_of(one: object) -> Tensor:
    """Returns an array or a number as a tensor; torch warns of arrays that cannot be written, and we write none.

    >>> tensor_of(2.5)
    tensor(2.5000)
    """
    if isinstance(one, Tensor):
        return one
    if isinstance(one, np.ndarray) and not one.flags.writeable:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            return torch.as_tensor(one)
    return torch.as_tensor(one)


def stacked(items: Sequence[Arrays]) -> Inputs:
    """Stacks the inputs of samples, each a tensor, or a tuple or dictionary of them."""
    first = items[0]
    if isinstance(first, Mapping):
        rows = cast(Sequence[Mapping[str, Array]], items)
        return {str(key): torch.stack([tensor_of(one[key]) for one in rows]) for key in first}
    if isinstance(first, tuple | list) and any(_is_array(part) for part in first):
        columns = zip(*cast(Sequence[Sequence[Array]], items), strict=True)
        return tuple(torch.stack([tensor_of(part) for part in column]) for column in columns)
    return torch.stack([tensor_of(one) for one in items])


def _is_array(one: object) -> bool:
    return isinstance(one, Tensor | np.ndarray)


def _holds_arrays(x: object) -> bool:
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, tuple | list) else [x]
    return bool(parts) and all(_is_array(part) for part in parts)


def _tensors(x: Arrays, name: str) -> Inputs:
    if isinstance(x, Mapping):
        return {str(key): _tensor(part, name) for key, part in x.items()}
    if isinstance(x, tuple | list):
        return tuple(_tensor(part, name) for part in x)
    return _tensor(x, name)  # type: ignore[arg-type] # an array, as was checked


def _check_order(x: Inputs, y: Tensor, name: str) -> None:
    """Refuses samples of which each is one number, with targets that are more, among samples of other shapes."""
    if isinstance(x, Tensor) and x.ndim == 1 < y.ndim:
        raise ValueError(
            f"{name}: x of shape {tuple(x.shape)} looks like labels, and y of shape {tuple(y.shape)} like samples. "
            f"Pass (x, y), not (y, x)."
        )


def _check_shape(x: Tensor, first: Tensor, name: str) -> None:
    if x.shape[1:] != first.shape[1:]:
        raise ValueError(
            f"{name}: samples of shape {tuple(x.shape[1:])} differ from client 0's {tuple(first.shape[1:])}, but all "
            "go through one model. Resize or pad them to one shape."
        )


def _check_kind(x: Tensor, first: Tensor, name: str) -> None:
    """Floats of any width mix, and token ids; but a pixel from 0 to 255 is no float, and no token id."""
    kinds = [next((kind for kind in (_FLOATS, _TOKENS) if one.dtype in kind), (one.dtype,)) for one in (x, first)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"{name}: samples of type {x.dtype} differ from client 0's {first.dtype}, but all go through one model. "
            "Convert them to one type and one scale, for example pixels by x.float() / 255."
        )


def _tensor(one: Array, name: str) -> Tensor:
    try:
        made = tensor_of(one)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name}: an array of type {getattr(one, 'dtype', type(one).__name__)} is no tensor ({one_line(error)}). "
            "Pass a plain array of numbers, for example np.ascontiguousarray(x, dtype=np.float32)."
        ) from None
    if made.layout != torch.strided or made.is_meta:
        raise ValueError(f"{name}: a {made.layout} tensor on {made.device} has no rows to choose. Use x.to_dense().")
    return made


def as_targets(y: Tensor, name: str) -> Tensor:
    """Returns targets as numbers that can be learnt: whole ones as int64; an error names ``name``."""
    if y.is_complex():
        raise ValueError(
            f"{name}: targets of type {y.dtype} are no numbers that a model returns. Use y.real or y.abs()."
        )
    if y.is_floating_point():
        check_finite(y, name)
        return y.detach()
    labels = y.detach().long()
    if are_labels(labels) and (labels < 0).any():
        sample = int((labels < 0).nonzero()[0])
        raise ValueError(
            f"{name}, sample {sample}: label {int(labels[sample])} is negative. Number the classes from 0, or use "
            f"y.float() for numbers."
        )
    return labels


def check_targets_alike(y: Tensor, first: Tensor, name: str) -> None:
    """Refuses targets of another kind or shape than those of the first client."""
    if y.is_floating_point() and are_labels(first):
        raise ValueError(
            f"{name}: labels of type {y.dtype} are not whole numbers. Use y.long(), or y.float() for all clients if "
            f"targets are numbers."
        )
    if y.is_floating_point() != first.is_floating_point() or y.shape[1:] != first.shape[1:]:
        raise ValueError(
            f"{name}: targets of type {y.dtype} and shape {tuple(y.shape)} differ from client 0's {first.dtype} and "
            f"{tuple(first.shape)}, but one model learns them all. Give them one type and one shape."
        )


def check_finite(x: Tensor, name: str) -> None:
    """Refuses numbers that are not finite, and names the sample."""
    if (found := not_finite(x)) is not None:
        sample, value = found
        raise ValueError(f"{name}, sample {sample}: the data hold {value}, but must be finite. Leave this sample out.")


def not_finite(x: Tensor) -> tuple[int, float] | None:
    """Returns the first sample that is not finite, and what it holds.

    >>> not_finite(torch.tensor([[0.0, 1.0], [2.0, float("nan")]]))
    (1, nan)
    """
    if not x.is_floating_point() or math.isfinite(x.sum().item()):  # a sum is finite only if all its terms are
        return None
    broken = ~x.isfinite().flatten(1).all(1) if x.ndim > 1 else ~x.isfinite()
    if not broken.any():
        return None
    sample = int(broken.nonzero()[0])
    values = x[sample].flatten()
    return sample, float(values[~values.isfinite()][0])
