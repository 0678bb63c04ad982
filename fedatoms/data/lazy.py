"""Samples that are read when a client trains on them: for data larger than memory, and random transforms."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from fedatoms.core.inputs import Inputs, leaves, like
from fedatoms.core.lookup import one_line
from fedatoms.core.options import check_range
from fedatoms.data.samples import (
    Array,
    Arrays,
    Samples,
    are_labels,
    as_inputs,
    as_targets,
    check_alike,
    check_pairs,
    check_targets_alike,
    not_finite,
    stacked,
    tensor_of,
)

Item = tuple[Arrays, Array]
_NOTHING = torch.zeros(0)
SEEDS = 2**32  # of NumPy's global stream


class Items(Protocol):
    """A map-style data set of pairs (x, y)."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> object: ...


class Pool:
    """The items of all clients by number; ``read`` makes a batch of some of them.

    Without workers, items are read in order by the calling thread, under a seed of client, round and step: random
    transforms draw the same in every run and in both maps. With workers, threads read a batch ahead, and what
    transforms draw depends on the threads' order.
    """

    def __init__(self, data_sets: Sequence[Items], workers: int = 0) -> None:
        self.data_sets, self.workers = data_sets, workers
        self.first = np.cumsum([0, *(len(each) for each in data_sets)])
        self.wrong: Callable[[Tensor], tuple[int, str] | None] = lambda y: None  # the place of a bad target, and why
        self._threads: ThreadPoolExecutor | None = None
        self._expected: dict[bytes, list[Future[Item]]] = {}

    def read(self, rows: Tensor, key: Tensor) -> tuple[Inputs, Tensor]:
        """Returns the samples of rows (..., B), seeded by keys (...); a row that is repeated, padding, is read once."""
        many, keys = rows.cpu().reshape(-1, rows.shape[-1]), key.cpu().reshape(-1).tolist()
        parts = [self._batch(some, seed) for some, seed in zip(many, keys, strict=True)]
        if rows.dim() == 1:
            return parts[0]
        xs, ys = [x for x, _ in parts], torch.stack([y for _, y in parts])
        columns = zip(*(leaves(x) for x in xs), strict=True)
        shaped = [torch.stack(column).reshape(*rows.shape, *column[0].shape[1:]) for column in columns]
        return like(xs[0], shaped), ys.reshape(*rows.shape, *ys.shape[2:])

    def labels(self, client: int) -> Tensor:
        """Reads all items of a client for their targets."""
        with _seeded(0):
            return _stacked([(_NOTHING, self._item(client, n)[1]) for n in range(len(self.data_sets[client]))])[1]

    def expect(self, rows: Tensor) -> None:
        """Lets worker threads begin with the batches (C, B) that come next, if there are any workers."""
        if not self.workers:
            return
        for some in rows.cpu().reshape(-1, rows.shape[-1]):
            name = some.numpy().tobytes()
            if name not in self._expected:
                self._expected[name] = self._submit(some)

    def _batch(self, rows: Tensor, seed: int) -> tuple[Inputs, Tensor]:
        places = {row: n for n, row in enumerate(dict.fromkeys(rows.tolist()))}
        if self.workers:
            waiting = self._expected.pop(rows.numpy().tobytes(), None) or self._submit(rows)
            x, y = _stacked([future.result() for future in waiting])
        else:
            x, y = self._read(list(places), seed)
        self._check(x, y, list(places))
        if len(places) == len(rows):
            return x, y
        back = torch.tensor([places[row] for row in rows.tolist()], device="cpu")
        return like(x, [leaf[back] for leaf in leaves(x)]), y[back]

    def _read(self, rows: list[int], seed: int) -> tuple[Inputs, Tensor]:
        """Reads items in order; rows of arrays all at once, since they draw nothing."""
        client, number = self._address(rows[0])
        one, start = self.data_sets[client], rows[0] - number
        if min(rows) >= start and max(rows) < start + len(one):  # all of one client
            numbers = [row - start for row in rows]
            if isinstance(one, Rows):
                with suppress(TypeError, ValueError, RuntimeError, IndexError):  # then one by one, which names the row
                    return one.take(numbers)
            with _seeded(seed):
                return _stacked([self._item(client, number) for number in numbers])
        with _seeded(seed):
            return _stacked([self._item(*self._address(row)) for row in rows])

    def _submit(self, rows: Tensor) -> list[Future[Item]]:
        self._threads = self._threads or ThreadPoolExecutor(self.workers, "fedatoms-reader")
        each = dict.fromkeys(rows.tolist())
        return [self._threads.submit(self._item, *self._address(row)) for row in each]

    def _check(self, x: Inputs, y: Tensor, rows: Sequence[int]) -> None:
        """Refuses a batch that is not finite, or has targets that the objective cannot have, and names the item."""
        found = next((found for leaf in (*leaves(x), y) if (found := not_finite(leaf)) is not None), None)
        wrong = self.wrong(y)
        if found is not None:
            wrong = found[0], f"the data hold {found[1]}, but must be finite. Leave this item out."
        if wrong is not None:
            client, number = self._address(rows[wrong[0]])
            raise ValueError(f"client {client}, item {number}: {wrong[1]}")

    def again(self) -> "Pool":
        """Returns another pool of the same data sets, for another objective."""
        return Pool(self.data_sets, self.workers)

    def _address(self, row: int) -> tuple[int, int]:
        client = int(np.searchsorted(self.first, row, side="right")) - 1
        return client, row - int(self.first[client])

    def _item(self, client: int, number: int) -> Item:
        try:
            x, y = cast(Item, self.data_sets[client][number])
            return x, y
        except Exception as error:  # whatever the user's code raises
            raise ValueError(
                f"client {client}, item {number}: cannot be read ({type(error).__name__}: {one_line(error)[:200]}). "
                f"Mend the data set, or leave the item out."
            ) from error


class Rows:
    """Two arrays, such as memory maps, as a data set of their rows."""

    def __init__(self, x: Arrays, y: Array) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, number: int, /) -> object:
        x = self.x
        if isinstance(x, dict):
            return {name: _copied(leaf[number]) for name, leaf in x.items()}, _copied(self.y[number])
        if isinstance(x, tuple | list):
            return tuple(_copied(leaf[number]) for leaf in x), _copied(self.y[number])
        return _copied(cast(Array, x)[number]), _copied(self.y[number])

    def take(self, numbers: list[int]) -> tuple[Inputs, Tensor]:
        """Returns some rows at once."""
        x, y = self.x, _taken(self.y, numbers)
        y = y if y.is_floating_point() else y.long()
        if isinstance(x, dict):
            return {name: _taken(leaf, numbers) for name, leaf in x.items()}, y
        if isinstance(x, tuple | list):
            return tuple(_taken(leaf, numbers) for leaf in x), y
        return _taken(cast(Array, x), numbers), y


def _taken(leaf: Array, numbers: list[int]) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf[numbers]
    return torch.from_numpy(np.ascontiguousarray(leaf[numbers]))  # a copy, also of a read-only map


def _copied(one: Array) -> Tensor:
    return one if isinstance(one, Tensor) else torch.tensor(np.asarray(one))  # a read-only map is no tensor


def _stacked(items: Sequence[Item]) -> tuple[Inputs, Tensor]:
    try:
        x, ys = stacked([x for x, _ in items]), [y for _, y in items]
        y = torch.tensor(ys, device="cpu") if {*map(type, ys)} == {int} else torch.stack([tensor_of(y) for y in ys])
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"items of one batch are not numbers of one shape ({one_line(error)[:200]}). Give the data set a transform "
            f"to tensors of one shape."
        ) from error
    return x, y if y.is_floating_point() else y.long()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the global streams of torch, NumPy and Python for what is done within, and restores them."""
    before, others = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reset the GPU's stream
        np.random.seed(seed % SEEDS)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(others)


def pool_of(clients: Sequence[Samples], workers: int) -> Pool:
    """Makes the pool of clients' data sets, or of pairs of arrays, such as memory maps."""
    check_range("workers", workers)
    sets = []
    for number, one in enumerate(clients):
        made = _rows(*one, f"client {number}") if isinstance(one, tuple | list) and len(one) == 2 else one
        if not isinstance(made, Sized) or not hasattr(made, "__getitem__"):
            raise ValueError(
                f"client {number}: {type(one).__name__} has no length, but samples are indexed. Use a map-style "
                f"Dataset."
            )
        if len(made) == 0:
            raise ValueError(f"client {number}: has no samples, but needs at least one. Leave it out.")
        sets.append(cast(Items, made))
    return Pool(sets, workers)


def outline(pool: Pool) -> tuple[Inputs, Tensor]:
    """Returns the shape of the pool without its samples: each row is the first item, and takes no memory.

    Labels are all real: those in ``targets``, where a data set has them as torchvision's do, or read once. The first
    item of every client must have the form of client 0's.
    """
    count, key = int(pool.first[-1]), torch.zeros((), dtype=torch.int64, device="cpu")
    firsts = [pool.read(torch.tensor([row], device="cpu"), key) for row in pool.first[:-1]]
    for client, leaf in ((client, leaf) for client, (own, _) in enumerate(firsts) for leaf in leaves(own)):
        as_inputs(leaf, f"client {client}")
    check_alike({f"client {client}": one for client, one in enumerate(firsts)})
    x, y = firsts[0]
    every = like(x, [leaf.expand(count, *leaf.shape[1:]) for leaf in leaves(x)])
    if not are_labels(y):
        return every, y.expand(count, *y.shape[1:])
    return every, torch.cat([_labels(pool, client, own) for client, (_, own) in enumerate(firsts)])


def _rows(x: Arrays, y: Array, name: str) -> Rows:
    """Returns two arrays as a data set, if they have as many rows."""
    try:
        shapes, targets = _shapes(x), _no_memory(y)
    except ValueError:  # of parts that differ
        raise ValueError(f"{name}: this is not a pair of arrays. Pass (x, y) or a map-style Dataset.") from None
    check_pairs(shapes, targets, name)
    return Rows(x, y)


def _shapes(x: Arrays) -> Inputs:
    if isinstance(x, Mapping):
        return {str(key): _no_memory(part) for key, part in x.items()}
    return tuple(map(_no_memory, x)) if isinstance(x, tuple | list) else _no_memory(cast(Array, x))


def _no_memory(one: Array) -> Tensor:
    return torch.empty(np.shape(one), device="meta")


def _labels(pool: Pool, client: int, first: Tensor) -> Tensor:
    """Returns a client's labels, of which the first is known: without reading items, if its data set has them."""
    one, name = pool.data_sets[client], f"client {client}"
    known = one.y if isinstance(one, Rows) else getattr(one, "targets", None)
    if known is None or getattr(one, "target_transform", None) is not None or not _begins(known, len(one), first):
        known = pool.labels(client)
    y = tensor_of(np.asarray(known))
    check_targets_alike(y, first, name)
    return as_targets(y, name)


def _begins(known: object, count: int, first: Tensor) -> bool:
    """Says whether what a data set calls its targets are those of its items, by the first one."""
    try:
        found = np.asarray(known)
        return len(found) == count and found.dtype.kind in "biu" and bool(found[0] == first.numpy()[0])
    except (TypeError, ValueError, RuntimeError):
        return False
