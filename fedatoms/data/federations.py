"""The data of a federation: one pool of samples, and which of them each client holds."""

from collections.abc import Sequence, Sized
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedatoms.core.lookup import counted, one_line
from fedatoms.core.options import check_range
from fedatoms.core.randomness import generator
from fedatoms.data.datasets import Images, Recipe
from fedatoms.data.partitions import Split

Array = Tensor | npt.NDArray[np.generic]
Samples = tuple[Array, Array] | Dataset[object]  # a pair (x, y), or a map-style data set of such pairs
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_TOKENS = (torch.int32, torch.int64)
_SMALL = (torch.uint8, torch.int8, torch.int16, torch.bool)


class Federation(NamedTuple):
    """The data of all clients: client k trains on ``x[parts[k]]`` and is tested on ``test_x[test_parts[k]]``.

    A recipe turns the pool into inputs; without one the data are used as they are, cast to the dtype of the parameters
    (except int32 and int64, which are taken for token ids).
    """

    x: Tensor
    y: Tensor  # a row for each sample: its class, or whatever else the objective learns
    parts: list[Tensor]
    test_x: Tensor
    test_y: Tensor
    test_parts: list[Tensor]
    classes: int  # 0: targets are no classes
    recipe: Recipe | None


def hold_out(images: Images, share: float, seed: int) -> Images:
    """Moves a share of each class from the training set to a new test set, on which settings can be chosen.

    A class of two images or more keeps at least one and loses at least one. A share of 0 changes nothing.

    >>> from fedatoms.data.datasets import load
    >>> digits = hold_out(load("digits"), share=0.1, seed=0)
    >>> len(digits.y), len(digits.test_y)
    (1294, 143)
    """
    check_range("holdout", share, argument="share")
    if share == 0:
        return images
    need_labels(images.y, "holdout", "0, and a test set of your own")
    x, y, held, rng = images.x, images.y, torch.zeros(len(images.y), dtype=torch.bool), generator(seed, "holdout")
    for label in range(images.classes):
        rows = (y == label).nonzero()[:, 0]
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        held[rows[torch.randperm(len(rows), generator=rng)[: max(count, 0)]]] = True
    if not held.any():
        raise ValueError(
            f"share={share}: no class has two training images, so none can be held out. Use 0 for the test set."
        )
    return images._replace(x=x[~held], y=y[~held], test_x=x[held], test_y=y[held])


def partition(images: Images, split: Split) -> Federation:
    """Gives each client its part of a data set.

    >>> from fedatoms.data.datasets import load
    >>> from fedatoms.data.partitions import iid
    >>> digits = load("digits")
    >>> [len(part) for part in partition(digits, iid(digits.y, digits.test_y, clients=3, seed=0)).parts]
    [479, 479, 479]
    """
    x, y, test_x, test_y, classes, recipe = images
    return Federation(x, y, split.train, test_x, test_y, split.test, classes, recipe)


def federation(clients: Sequence[Samples], test: Samples) -> Federation:
    """Builds a federation from your own data: one (x, y) pair or map-style data set per client, and one for testing.

    Labels, y of shape (n,) in whole numbers, are classes: client k's part of the test set is those samples whose labels
    occur in its own data. Any other y is kept as it is, and every client's part is the whole test set.

    >>> ann, bob = (torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])), (torch.ones(3, 2), torch.tensor([2, 2, 2]))
    >>> ours = federation([ann, bob], test=(torch.zeros(3, 2), torch.tensor([0, 1, 2])))
    >>> ours.classes, [part.tolist() for part in ours.parts], [part.tolist() for part in ours.test_parts]
    (3, [[0, 1, 2, 3], [4, 5, 6]], [[0, 1], [2]])
    """
    if len(clients) == 0:
        raise ValueError("clients is empty: a federation needs at least one client. Pass [(x, y), ...].")
    pairs = [pair_up(samples, f"client {number}") for number, samples in enumerate(clients)]
    test_x, test_y = pair_up(test, "test")
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    for name, x in [*((f"client {number}", x) for number, x in enumerate(xs)), ("test", test_x)]:
        _check_shape(x, xs[0], name)
        _check_kind(x, xs[0], name)
    for name, y in [*((f"client {number}", y) for number, y in enumerate(ys)), ("test", test_y)]:
        _check_alike(y, ys[0], name)
    x, y = torch.cat(xs), torch.cat(ys)
    parts = list(torch.split(torch.arange(len(y)), [len(one) for one in ys]))
    if not are_labels(y):
        return Federation(x, y, parts, test_x, test_y, [torch.arange(len(test_y))] * len(parts), 0, None)
    classes = int(torch.cat([y, test_y]).max()) + 1
    return Federation(x, y, parts, test_x, test_y, _seen(ys, test_y), classes, None)


def pair_up(samples: Samples, name: str) -> tuple[Tensor, Tensor]:
    """Returns samples and their targets as tensors; an error names ``name``.

    >>> pair_up((torch.zeros(2, 3), torch.tensor([0, -1])), "client 0")
    Traceback (most recent call last):
    ValueError: client 0, sample 1: label -1 is negative. Number the classes from 0, or use y.float() for numbers.
    """
    pair = _materialise(samples, name) if isinstance(samples, Dataset) else samples
    if not isinstance(pair, tuple | list) or [isinstance(one, Tensor | np.ndarray) for one in pair] != [True, True]:
        raise ValueError(f"{name}: {type(pair).__name__} is not a pair of tensors. Pass (x, y) or a map-style Dataset.")
    x, y = (_tensor(one, name) for one in pair)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise ValueError(
            f"{name}: x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)} do not pair up: each sample needs a "
            "label. Pass x of shape (n, ...) and y of shape (n,) or (n, ...)."
        )
    if len(y) == 0:
        raise ValueError(f"{name}: has no samples, but needs at least one. Leave it out.")
    x = as_inputs(x, name)
    _check_finite(x, name)
    return x.detach(), _targets(y, name)


def are_labels(y: Tensor) -> bool:
    """Says whether targets can be classes: one whole number per sample.

    >>> are_labels(torch.tensor([0, 1])), are_labels(torch.tensor([0.5])), are_labels(torch.tensor([[0, 1]]))
    (True, False, False)
    """
    return y.dim() == 1 and not y.is_floating_point()


def need_labels(y: Tensor, what: str, instead: str) -> None:
    """Refuses to tell samples apart by class where their targets are none.

    >>> need_labels(torch.zeros(3), "partition shards", "iid")
    Traceback (most recent call last):
    ...
    ValueError: partition shards tells samples apart by class, but targets of type torch.float32 and shape (3,) are no
    classes. Use iid.
    """
    if not are_labels(y):
        raise ValueError(
            f"{what} tells samples apart by class, but targets of type {y.dtype} and shape {tuple(y.shape)} are no "
            f"classes. Use {instead}."
        )


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


def test_by_classes(data: Federation) -> Federation:
    """Gives each client all test samples of its classes.

    >>> from fedatoms.data.datasets import load
    >>> from fedatoms.data.partitions import shards
    >>> digits = load("digits")
    >>> ours = test_by_classes(partition(digits, shards(digits.y, digits.test_y, 5, 2, seed=0)))
    >>> set(digits.test_y[ours.test_parts[0]].tolist()) == set(digits.y[ours.parts[0]].tolist())
    True
    """
    need_labels(data.y, "own_test=classes", "own_test=split, or federation(clients, tests=...)")
    return data._replace(test_parts=_seen([data.y[part] for part in data.parts], data.test_y))


def check_rows(data: Federation) -> None:
    """Refuses a federation without clients, or with a part that names samples which are not there."""
    if not len(data.parts):
        raise ValueError("data.parts is empty: a federation needs at least one client. Use data.federation([(x, y)]).")
    for name, parts, samples in (("parts", data.parts, data.x), ("test_parts", data.test_parts, data.test_x)):
        rows = torch.cat([torch.as_tensor(part, device="cpu") for part in parts] or [torch.zeros(0)])
        wrong = rows[(rows < 0) | (rows >= len(samples))]
        if len(wrong):
            raise ValueError(
                f"data.{name} names sample {int(wrong[0])}, but there are {counted(len(samples), 'sample')}, from 0 to "
                f"{len(samples) - 1}. Make the parts of these samples, for example with fedatoms.data.iid."
            )


def check_own_tests(data: Federation) -> None:
    """Refuses a federation in which a client trains on a class that its part of the test set lacks."""
    if not are_labels(data.y):
        return
    for client, (part, test) in enumerate(zip(data.parts, data.test_parts, strict=True)):
        lacking = set(data.y[part].tolist()) - set(data.test_y[test].tolist())
        if lacking:
            raise ValueError(
                f"client {client} trains on class {min(lacking)}, which its part of the test set lacks: its own model "
                "cannot be scored fairly. Use own_test=classes."
            )


def _seen(labels: Sequence[Tensor], test_y: Tensor) -> list[Tensor]:
    kinds = [tuple(sorted(set(y.tolist()))) for y in labels]
    rows = {
        kind: torch.isin(test_y.cpu(), torch.tensor(kind)).nonzero()[:, 0] for kind in set(kinds)
    }  # shared if equal
    return [rows[kind] for kind in kinds]


def _materialise(dataset: Dataset[object], name: str) -> tuple[Tensor, Tensor]:
    if not isinstance(dataset, Sized):
        raise ValueError(
            f"{name}: {type(dataset).__name__} has no length, but samples are indexed. Use a map-style Dataset."
        )
    if len(dataset) == 0:
        raise ValueError(f"{name}: has no samples, but needs at least one. Leave it out.")
    try:
        items = [dataset[number] for number in range(len(dataset))]
        x, y = zip(*items, strict=True)
        return torch.stack([torch.as_tensor(one) for one in x]), torch.stack([torch.as_tensor(one) for one in y])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name}: the items of {type(dataset).__name__} are not pairs (x, y) of numbers, all of one shape "
            f"({str(error).splitlines()[0]}). Give the data set a transform to tensors."
        ) from error


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
        made = torch.as_tensor(one)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name}: an array of type {getattr(one, 'dtype', type(one).__name__)} is no tensor ({one_line(error)}). "
            "Pass a plain array of numbers, for example np.ascontiguousarray(x, dtype=np.float32)."
        ) from None
    if made.layout != torch.strided or made.is_meta:
        raise ValueError(f"{name}: a {made.layout} tensor on {made.device} has no rows to choose. Use x.to_dense().")
    return made


def _targets(y: Tensor, name: str) -> Tensor:
    if y.is_complex():
        raise ValueError(
            f"{name}: targets of type {y.dtype} are no numbers that a model returns. Use y.real or y.abs()."
        )
    if y.is_floating_point():
        _check_finite(y, name)
        return y.detach()
    labels = y.detach().long()
    if are_labels(labels) and (labels < 0).any():
        sample = int((labels < 0).nonzero()[0])
        raise ValueError(
            f"{name}, sample {sample}: label {int(labels[sample])} is negative. Number the classes from 0, or use "
            f"y.float() for numbers."
        )
    return labels


def _check_alike(y: Tensor, first: Tensor, name: str) -> None:
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


def _check_finite(x: Tensor, name: str) -> None:
    if not x.is_floating_point():
        return
    broken = ~x.isfinite().flatten(1).all(1) if x.ndim > 1 else ~x.isfinite()
    if broken.any():
        sample = int(broken.nonzero()[0])
        values = x[sample].flatten()
        value = values[~values.isfinite()][0]
        raise ValueError(f"{name}, sample {sample}: the data hold {value}, but must be finite. Leave this sample out.")
