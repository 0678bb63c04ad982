"""The data of a federation: one pool of samples, and which of them each client holds."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedatoms.core.inputs import Inputs, each, samples_in, take
from fedatoms.core.lookup import counted
from fedatoms.core.options import check_range
from fedatoms.core.randomness import generator
from fedatoms.data.datasets import Images, Recipe
from fedatoms.data.lazy import Pool, outline, pool_of
from fedatoms.data.partitions import Split
from fedatoms.data.samples import Samples, are_labels, check_alike, pair_up


class Federation(NamedTuple):
    """The data of all clients: client k trains on ``x[parts[k]]`` and is tested on ``test_x[test_parts[k]]``.

    A recipe turns the pool into inputs; without one the data are used as they are, cast to the dtype of the parameters
    (except int32 and int64, which are taken for token ids).
    """

    x: Inputs
    y: Tensor  # a row for each sample: its class, or whatever else the objective learns
    parts: list[Tensor]
    test_x: Inputs
    test_y: Tensor
    test_parts: list[Tensor]
    classes: int  # 0: targets are no classes
    recipe: Recipe | None
    lazy: Pool | None = None  # what is read when it is trained on; x and y then only outline it


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
    x, y, rng = images.x, images.y, generator(seed, "holdout")
    held = torch.zeros(len(y), dtype=torch.bool, device="cpu")
    for label in range(images.classes):
        rows = (y == label).nonzero()[:, 0]
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        held[rows[torch.randperm(len(rows), generator=rng, device="cpu")[: max(count, 0)]]] = True
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


def federation(
    clients: Sequence[Samples],
    test: Samples | None = None,
    *,
    tests: Sequence[Samples | None] | None = None,
    lazy: bool = False,
    workers: int = 0,
) -> Federation:
    """Builds a federation from your own data: one (x, y) pair or map-style data set per client, and one for testing.

    Labels, y of shape (n,) in whole numbers, are classes: client k's part of the test set is those samples whose labels
    occur in its own data. Any other y is kept as it is, and every client's part is the whole test set. With ``tests``,
    one for each client or None for one that has none, these are the clients' parts, and all of them the test set.

    With ``lazy`` clients' items are read each time that a client trains on them, by ``workers`` threads ahead of it if
    there are any, and their random transforms draw anew; the test set is read at once.

    >>> ann, bob = (torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])), (torch.ones(3, 2), torch.tensor([2, 2, 2]))
    >>> ours = federation([ann, bob], test=(torch.zeros(3, 2), torch.tensor([0, 1, 2])))
    >>> ours.classes, [part.tolist() for part in ours.parts], [part.tolist() for part in ours.test_parts]
    (3, [[0, 1, 2, 3], [4, 5, 6]], [[0, 1], [2]])
    >>> [part.tolist() for part in federation([ann, bob], tests=[bob, ann]).test_parts]
    [[0, 1, 2], [3, 4, 5, 6]]
    """
    if len(clients) == 0:
        raise ValueError("clients is empty: a federation needs at least one client. Pass [(x, y), ...].")
    held = _test_sets(len(clients), test, tests)
    if lazy:
        return _lazy(pool_of(clients, workers), held)
    if workers:
        raise ValueError(f"workers={workers} read lazy data, but all data are read at once. Add lazy=True, or use 0.")
    pairs = {f"client {number}": pair_up(one, f"client {number}") for number, one in enumerate(clients)}
    check_alike({**pairs, **held})
    (x, y), (test_x, test_y) = _pool(pairs), _pool(held)
    ys = [own for _, own in pairs.values()]
    parts = list(torch.arange(len(y), device="cpu").split([len(own) for own in ys]))
    classes = int(torch.cat([y, test_y]).max()) + 1 if are_labels(y) else 0
    return Federation(x, y, parts, test_x, test_y, _test_parts(ys, held), classes, None)


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
    if data.recipe is not None and not isinstance(data.x, Tensor):
        raise ValueError("data.recipe is for images, but x has several parts. Scale them yourself, and leave it out.")
    if not len(data.parts):
        raise ValueError("data.parts is empty: a federation needs at least one client. Use data.federation([(x, y)]).")
    for name, parts, x in (("parts", data.parts, data.x), ("test_parts", data.test_parts, data.test_x)):
        count = samples_in(x)
        rows = torch.cat([torch.as_tensor(part, device="cpu") for part in parts] or [torch.zeros(0, device="cpu")])
        wrong = rows[(rows < 0) | (rows >= count)]
        if len(wrong):
            raise ValueError(
                f"data.{name} names sample {int(wrong[0])}, but there are {counted(count, 'sample')}, from 0 to "
                f"{count - 1}. Make the parts of these samples, for example with fedatoms.data.iid."
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


def samples_of(data: Federation, rows: Tensor) -> tuple[Inputs, Tensor]:
    """Returns some training samples and their targets, read if they are lazy.

    >>> ann = (torch.arange(3.0)[:, None], torch.tensor([0, 1, 1]))
    >>> [samples_of(federation([ann], test=ann, lazy=lazy), torch.tensor([2]))[1] for lazy in (False, True)]
    [tensor([1]), tensor([1])]
    """
    if data.lazy is None:
        return take(data.x, rows), data.y[rows]
    x, y = data.lazy.read(rows, torch.zeros((), dtype=torch.int64, device="cpu"))
    return each(lambda leaf: leaf.to(rows.device), x), y.to(rows.device)


def _lazy(pool: Pool, held: Mapping[str, tuple[Inputs, Tensor]]) -> Federation:
    x, y = outline(pool)
    check_alike({"client 0": (take(x, slice(1)), y[:1]), **held})
    test_x, test_y = _pool(held)
    parts = list(torch.arange(len(y), device="cpu").split([len(one) for one in pool.data_sets]))
    classes = int(torch.cat([y, test_y]).max()) + 1 if are_labels(y) else 0
    return Federation(x, y, parts, test_x, test_y, _test_parts([y[part] for part in parts], held), classes, None, pool)


def _test_sets(
    count: int, test: Samples | None, tests: Sequence[Samples | None] | None
) -> dict[str, tuple[Inputs, Tensor]]:
    """Returns the test set, or those of clients, by what errors call them."""
    if tests is None and test is not None:
        return {"test": pair_up(test, "test", "Put some into it, or use tests= with a set for each client.")}
    if tests is None or test is not None:
        raise ValueError("a federation takes one of test=(x, y) and tests=[(x, y), ...], a set for each client.")
    if len(tests) != count:
        raise ValueError(
            f"tests has {len(tests)} sets for {counted(count, 'client')}. Give one for each, None for none."
        )
    named = {f"test of client {number}": one for number, one in enumerate(tests)}
    if not any(one is not None for one in tests):
        raise ValueError("tests has no set at all, so nothing could be scored. Give one client a set, or use test=.")
    return {
        name: pair_up(one, name, "Use None for a client without any.") for name, one in named.items() if one is not None
    }


def _test_parts(ys: Sequence[Tensor], held: Mapping[str, tuple[Inputs, Tensor]]) -> list[Tensor]:
    """Returns each client's part of the test set: its own, its classes, or all of it."""
    if "test" not in held:
        sizes = {name: len(y) for name, (_, y) in held.items()}
        each_size = [sizes.get(f"test of client {number}", 0) for number in range(len(ys))]
        return list(torch.arange(sum(each_size), device="cpu").split(each_size))
    test_y = held["test"][1]
    return _seen(ys, test_y) if are_labels(test_y) else [torch.arange(len(test_y), device="cpu")] * len(ys)


def _pool(pairs: Mapping[str, tuple[Inputs, Tensor]]) -> tuple[Inputs, Tensor]:
    x = each(lambda *parts: torch.cat(parts), *(x for x, _ in pairs.values()))
    return x, torch.cat([y for _, y in pairs.values()])


def _seen(labels: Sequence[Tensor], test_y: Tensor) -> list[Tensor]:
    kinds = [tuple(sorted(set(y.tolist()))) for y in labels]
    rows = {
        kind: torch.isin(test_y.cpu(), torch.tensor(kind, device="cpu")).nonzero()[:, 0] for kind in set(kinds)
    }  # shared if equal
    return [rows[kind] for kind in kinds]
