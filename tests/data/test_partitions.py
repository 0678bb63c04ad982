"""A partition gives every sample to exactly one client, by its rule; a federation checks what it is given."""

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fedatoms.data.datasets import Images, Recipe
from fedatoms.data.federations import federation, hold_out, partition
from fedatoms.data.partitions import Split, dirichlet, iid, shards


class Case(NamedTuple):
    y: Tensor
    test_y: Tensor
    clients: int
    classes_per_client: int
    alpha: float
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draws unequal classes in random order, with as many clients as divide into shards."""
    classes = draw(st.integers(1, 6))
    per_client = draw(st.integers(1, classes))
    clients = draw(st.integers(1, 4)) * classes // math.gcd(classes, per_client)
    fewest = clients * per_client // classes
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)

    def labels(least: int) -> Tensor:
        sizes = draw(st.lists(st.integers(least, least + 12), min_size=classes, max_size=classes))
        return torch.from_numpy(rng.permutation(np.repeat(np.arange(classes), sizes)))

    y = labels(math.ceil(max(fewest, clients / classes)))
    return Case(y, labels(0), clients, per_client, draw(st.floats(1e-320, 1e300)), seed)


RULES: dict[str, Callable[[Case], Split]] = {
    "iid": lambda c: iid(c.y, c.test_y, c.clients, c.seed),
    "shards": lambda c: shards(c.y, c.test_y, c.clients, c.classes_per_client, c.seed),
    "distinct shards": lambda c: shards(c.y, c.test_y, c.clients, c.classes_per_client, c.seed, distinct=True),
    "dirichlet": lambda c: dirichlet(c.y, c.test_y, c.clients, c.alpha, c.seed),
    "unbalanced dirichlet": lambda c: dirichlet(c.y, c.test_y, c.clients, c.alpha, c.seed, unbalanced=1.0),
}
CIFAR = Case(torch.arange(10).repeat(5000), torch.arange(10).repeat(1000), 100, 5, 0.3, 0)


def mix(y: Tensor, parts: list[Tensor]) -> Tensor:
    """Counts the samples of each client and class: (clients, classes)."""
    return torch.stack([torch.bincount(y[part], minlength=6) for part in parts])


@pytest.mark.parametrize("rule", RULES)
@settings(deadline=None, max_examples=50)
@given(case=cases())
def test_each_sample_goes_to_exactly_one_client_and_each_client_gets_one(rule: str, case: Case) -> None:
    split = RULES[rule](case)
    for parts, labels in ((split.train, case.y), (split.test, case.test_y)):
        assert len(parts) == case.clients and all(part.dtype == torch.int64 for part in parts)
        assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(labels)))
    assert min(len(part) for part in split.train) >= 1


@pytest.mark.parametrize("rule", RULES)
def test_the_seed_decides_everything_and_nothing_else_does(rule: str) -> None:
    once, again, other = (RULES[rule](CIFAR._replace(seed=seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(once.train + once.test, again.train + again.test, strict=True))
    assert not all(a.equal(b) for a, b in zip(once.train, other.train, strict=True))


@settings(deadline=None)
@given(case=cases())
def test_iid_sizes_differ_by_at_most_one(case: Case) -> None:
    for parts in RULES["iid"](case):
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_iid_gives_every_client_every_class() -> None:
    assert all(len(CIFAR.y[part].unique()) == 10 for part in RULES["iid"](CIFAR).train)


@pytest.mark.parametrize("distinct", [False, True])
@settings(deadline=None)
@given(case=cases())
def test_a_client_owns_whole_shards_as_many_as_agreed_and_the_same_classes_in_the_test_set(
    distinct: bool, case: Case
) -> None:
    split = RULES["distinct shards" if distinct else "shards"](case)
    per_class = case.clients * case.classes_per_client // len(case.y.unique())
    for parts, labels in ((split.train, case.y), (split.test, case.test_y)):
        owned = torch.zeros(case.clients, 6, dtype=torch.int64)
        for label in labels.unique():
            for shard in (labels == label).nonzero()[:, 0].tensor_split(per_class):
                if len(shard):
                    (owner,) = (k for k, part in enumerate(parts) if torch.isin(shard, part).any())
                    assert torch.isin(shard, parts[owner]).all()
                    owned[owner, label] += 1
        complete = torch.bincount(labels, minlength=6) >= per_class
        if parts is split.train:
            matrix = owned
            assert (owned.sum(1) == case.classes_per_client).all()
        assert torch.equal(owned[:, complete], matrix[:, complete]) and (owned <= matrix).all()
    assert not distinct or int(matrix.max()) == 1


def test_leftover_samples_go_one_each_to_shards() -> None:
    y = torch.zeros(11, dtype=torch.int64)
    assert sorted(len(part) for part in shards(y, y, 4, 1, seed=0).train) == [2, 3, 3, 3]


def test_each_client_may_get_any_shard_of_its_class() -> None:
    y = torch.zeros(8, dtype=torch.int64)
    splits = [shards(y, y, 4, 1, seed) for seed in range(60)]
    assert all({int(split.train[k][0]) for split in splits} == {0, 2, 4, 6} for k in range(4))


def test_rows_of_the_label_matrix_repeat_a_class_as_often_as_chance_says() -> None:
    splits = [shards(CIFAR.y, CIFAR.test_y, 100, 2, seed) for seed in range(30)]
    kinds = [len(CIFAR.y[part].unique()) for split in splits for part in split.train]
    assert np.mean(kinds) == pytest.approx(1.90, abs=0.02)  # 1 + 180 / 199: the chance that two shards differ in class


@pytest.mark.parametrize(("clients", "per_client", "classes"), [(20, 50, 200), (7, 6, 7), (5, 5, 5), (1000, 9, 10)])
def test_distinct_rows_are_found_where_they_are_rare(clients: int, per_client: int, classes: int) -> None:
    y = torch.arange(classes).repeat_interleave(clients)
    split = shards(y, y, clients, per_client, seed=0, distinct=True)
    assert {len(y[part].unique()) for part in split.train} == {per_client}


@settings(deadline=None)
@given(case=cases())
def test_balanced_dirichlet_sizes_differ_by_at_most_one(case: Case) -> None:
    sizes = [len(part) for part in RULES["dirichlet"](case).train]
    assert max(sizes) - min(sizes) <= 1


def test_unbalanced_dirichlet_sizes_are_lognormal() -> None:
    split = dirichlet(CIFAR.y, CIFAR.test_y, 500, 100.0, seed=0, unbalanced=0.4)
    logarithms = np.log([len(part) for part in split.train])
    assert logarithms.std() == pytest.approx(0.4, abs=0.04)
    skew = ((logarithms - logarithms.mean()) ** 3).mean() / logarithms.std() ** 3
    assert abs(skew) < 0.35


@pytest.mark.parametrize("rule", ["dirichlet", "unbalanced dirichlet"])
@settings(deadline=None)
@given(case=cases())
def test_the_test_set_is_shared_in_proportion_to_the_training_samples(rule: str, case: Case) -> None:
    split = RULES[rule](case)
    train, test = mix(case.y, split.train).double(), mix(case.test_y, split.test).double()
    assert ((test - train * test.sum(0) / train.sum(0).clamp(min=1)).abs() < 1 + 1e-9).all()


def slow_dirichlet(y: Tensor, clients: int, alpha: float, seed: int) -> np.ndarray:
    """Deals as FedDyn and FedDC do: redraws full clients and exhausted classes; returns counts (clients, classes)."""
    rng = np.random.default_rng(seed)
    left = np.bincount(y.numpy())
    room, counts = np.full(clients, len(y) // clients), np.zeros((clients, len(left)))
    prior = rng.dirichlet(np.full(len(left), alpha), size=clients).cumsum(1)
    while room.sum():
        client = rng.integers(clients)
        while room[client]:
            label = min(int((prior[client] <= rng.random()).sum()), len(left) - 1)
            if left[label]:
                left[label] -= 1
                room[client] -= 1
                counts[client, label] += 1
                break
    return counts


@pytest.mark.parametrize("alpha", [1.0, 8.0])
def test_dirichlet_follows_the_law_of_the_loop_it_replaces(alpha: float) -> None:
    y = torch.arange(4).repeat(12)
    ours = np.array(
        [(mix(y, dirichlet(y, y, 6, alpha, s).train)[:, :4] ** 2).sum().item() for s in range(400)], dtype=float
    )
    loop = np.array([(slow_dirichlet(y, 6, alpha, s) ** 2).sum() for s in range(400)])
    noise = math.sqrt(ours.var() / 400 + loop.var() / 400)
    assert abs(ours.mean() - loop.mean()) < 4 * noise
    assert ours.std() == pytest.approx(loop.std(), rel=0.25)


def test_smaller_alpha_means_fewer_classes_per_client() -> None:
    kinds = [
        np.mean([len(CIFAR.y[part].unique()) for part in dirichlet(CIFAR.y, CIFAR.test_y, 100, alpha, seed=0).train])
        for alpha in (1e-9, 0.1, 1.0, 100.0)
    ]
    assert kinds[0] < kinds[1] < kinds[2] < kinds[3] == 10


def test_ten_thousand_clients_take_seconds() -> None:
    start = time.perf_counter()
    split = dirichlet(CIFAR.y, CIFAR.test_y, 10_000, 0.3, seed=0)
    assert {len(part) for part in split.train} == {5} and time.perf_counter() - start < 10


Y = torch.arange(10).repeat(4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: iid(Y, Y, 0, 0), r"clients=0 is less than 1.*Use clients="),
        (lambda: iid(Y, Y, 41, 0), r"clients=41 is more than the 40 training samples.*Use clients=40 or fewer"),
        (lambda: dirichlet(Y, Y, 41, 0.3, 0), r"clients=41 is more"),
        (lambda: shards(Y, Y, 41, 10, 0), r"clients=41 is more"),
        (
            lambda: shards(Y, Y, 7, 4, 0),
            r"clients=7 times .*=4 is not a multiple of the 10 classes.*Use clients=10, .*5\.",
        ),
        (lambda: shards(Y, Y, 10, 11, 0), r"classes_per_client=11 is not in 1..10.*Use classes_per_client=10"),
        (lambda: shards(Y, Y, 10, 0, 0), r"classes_per_client=0 is not in 1..10.*Use classes_per_client=1"),
        (lambda: shards(Y, Y, 10, 5, 0), r"need 5 shards per class, but class 0 has only 4 samples.*Use fewer"),
        (lambda: shards(Y + 1, Y, 10, 1, 0), r"training labels 1, 2, 3, 4, 5, \.\.\. are not 0..9.*Renumber"),
        (lambda: shards(Y[Y != 3], Y, 9, 1, 0), r"are not 0..8"),
        (lambda: dirichlet(Y, Y + 3, 5, 1.0, 0), r"test labels 10, 11, 12 are not among .* 0..9.*Leave"),
        (lambda: dirichlet(Y, Y, 5, 0.0, 0), r"alpha=0.0 is not a positive number.*Use for example 0.3"),
        (lambda: dirichlet(Y, Y, 5, math.nan, 0), r"alpha=nan"),
        (lambda: dirichlet(Y, Y, 5, 1.0, 0, unbalanced=-1.0), r"unbalanced=-1.0 is negative.*Use 0"),
    ],
)
def test_errors_say_value_rule_and_way_out(call: Callable[[], Split], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_partition_is_the_images_with_the_split() -> None:
    recipe = Recipe(255, (0.5,), (0.5,), flip=False, pad=0, crop=0.0, fill="zero")
    images = Images(torch.zeros(40, 1, 2, 2, dtype=torch.uint8), Y, torch.ones(40, 1, 2, 2), Y.flip(0), 10, recipe)
    split = iid(images.y, images.test_y, 4, seed=0)
    fed = partition(images, split)
    assert fed.x is images.x and fed.test_y is images.test_y and fed.classes == 10 and fed.recipe is recipe
    assert fed.parts is split.train and fed.test_parts is split.test


def numbered(y: Tensor) -> Images:
    """Training images that show their own number from 0 up, and a test set that shows negative ones."""
    recipe = Recipe(1, (0.0,), (1.0,), flip=False, pad=0, crop=0.0, fill="zero")
    x = torch.arange(len(y))[:, None, None, None]
    return Images(x, y, -1 - x, y, int(y.max()) + 1, recipe)


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=5).filter(lambda counts: max(counts) > 1),
    share=st.floats(0, 1, exclude_min=True, exclude_max=True),
    seed=st.integers(0, 99),
)
def test_held_out_and_kept_images_partition_the_training_set_class_by_class(
    counts: list[int], share: float, seed: int
) -> None:
    y = torch.cat([torch.full((n,), label) for label, n in enumerate(counts)])
    images = numbered(y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))])
    some = hold_out(images, share, seed)
    kept, held = some.x.flatten(), some.test_x.flatten()
    assert torch.cat([kept, held]).sort().values.tolist() == list(range(len(y)))  # and no official test image
    assert torch.equal(some.y, images.y[kept]) and torch.equal(some.test_y, images.y[held])
    for label, n in enumerate(counts):
        taken = int((some.test_y == label).sum())
        assert taken == 0 if n == 1 else 1 <= taken <= n - 1
        assert abs(taken - share * n) <= 0.5 or taken in (0, 1, n - 1)
    assert some[4:] == images[4:]


def test_the_seed_decides_what_is_held_out() -> None:
    images = numbered(torch.arange(10).repeat(20))
    first, again, other = (hold_out(images, 0.1, seed).test_x for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert hold_out(images, 0.0, seed=0) is images


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
def test_a_share_that_cannot_be_held_out_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=r"is not in \[0, 1\)\. Use for example 0\.1"):
        hold_out(numbered(torch.arange(10).repeat(2)), share, seed=0)
    with pytest.raises(ValueError, match=r"share=0\.5: no class has two training images.*Use 0"):
        hold_out(numbered(torch.arange(10)), 0.5, seed=0)


@pytest.mark.parametrize("per_client", [2, 5])
def test_what_a_tenth_leaves_of_cifar10_still_makes_even_shards(per_client: int) -> None:
    images = hold_out(numbered(torch.arange(10).repeat(5000)), 0.1, seed=0)
    split = shards(images.y, images.test_y, 100, per_client, seed=0)
    assert {len(part) for part in split.train} == {450} and {len(part) for part in split.test} == {50}


class Pairs(Dataset[object]):
    """A map-style data set that ends by its length alone, with items of the given kind."""

    def __init__(self, x: Tensor, y: Tensor, kind: Callable[[Tensor], object]) -> None:
        self.x, self.y, self.kind = x, y, kind

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[object, object]:
        return self.kind(self.x[index]), int(self.y[index])


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_pairs_and_data_sets_make_the_same_federation(sizes: list[int], seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    data = [(torch.randn(n, 2, 3, generator=draws), torch.randint(4, (n,), generator=draws)) for n in (*sizes, 6)]
    pairs = federation(data[:-1], data[-1])
    kinds = (lambda x: x, lambda x: x.numpy(), lambda x: x.tolist())
    sets = [TensorDataset(*data[0]), *(Pairs(*pair, kinds[n % 3]) for n, pair in enumerate(data[1:]))]
    same = federation(sets[:-1], sets[-1])
    for a, b in ((pairs.parts, same.parts), (pairs.test_parts, same.test_parts)):
        assert all(map(torch.equal, a, b))
    assert all(
        map(torch.equal, (pairs.x, pairs.y, pairs.test_x, pairs.test_y), (same.x, same.y, same.test_x, same.test_y))
    )
    for (x, y), part, test_part in zip(data[:-1], pairs.parts, pairs.test_parts, strict=True):
        assert torch.equal(pairs.x[part], x) and torch.equal(pairs.y[part], y)
        assert test_part.tolist() == [n for n, label in enumerate(data[-1][1]) if label in y]
    assert pairs.classes == max(int(y.max()) for _, y in data) + 1


class Stream(IterableDataset[object]):
    def __iter__(self) -> Iterator[object]:
        return iter([])


X, LABELS = torch.zeros(3, 2), torch.tensor([0, 1, 2])
NAN = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, math.nan]])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ((X[:0], LABELS[:0]), r"client 1: has no samples"),
        (TensorDataset(X[:0], LABELS[:0]), r"client 1: has no samples"),
        ((X[:2], LABELS), r"client 1: x of shape \(2, 2\) and y of shape \(3,\) do not pair up.*Pass"),
        ((X, LABELS[:, None]), r"client 1: targets of type torch.int64 and shape \(3, 1\) differ from client 0.s"),
        ((torch.zeros(3, 5), LABELS), r"client 1: samples of shape \(5,\) differ from client 0's \(2,\).*Resize"),
        ((X, LABELS.double()), r"client 1: labels of type torch.float64 are not whole numbers. Use y.long"),
        ((X, LABELS - 1), r"client 1, sample 0: label -1 is negative. Number the classes from 0"),
        ((NAN, LABELS), r"client 1, sample 2: the data hold nan, but must be finite"),
        ((torch.tensor([[0.0, 1.0], [-math.inf, 0.0], [0.0, 0.0]]), LABELS), r"client 1, sample 1: the data hold -inf"),
        (TensorDataset(NAN, LABELS), r"client 1, sample 2: the data hold nan"),
        (Pairs(X, LABELS, lambda _: "text"), r"client 1: the items of Pairs are not pairs .*transform"),
        (TensorDataset(X), r"client 1: the items of TensorDataset are not pairs"),
        (Stream(), r"client 1: Stream has no length.*map-style"),
        (X, r"client 1: Tensor is not a pair of tensors. Pass \(x, y\)"),
        ((X, [0, 1, 2]), r"client 1: tuple is not a pair of tensors"),
    ],
)
def test_wrong_data_are_refused_with_their_address(bad: object, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        federation([(X, LABELS), bad], (X, LABELS))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=words.replace("client 1", "test")):
        federation([(X, LABELS)], bad)


def test_what_has_no_samples_is_refused_with_what_to_do() -> None:
    whole, empty = (X, LABELS), (X[:0], LABELS[:0])
    for clients, sets, words in (
        ([whole, empty], {"test": whole}, "client 1: has no samples, but needs at least one. Leave it out."),
        ([whole], {"test": empty}, "test: has no samples, but needs at least one. Put some into it, or use tests="),
        ([whole], {"tests": [empty]}, "test of client 0: has no samples, but needs at least one. Use None"),
    ):
        with pytest.raises(ValueError) as caught:
            federation(clients, **sets)  # type: ignore[arg-type]
        assert words in str(caught.value)


@pytest.mark.parametrize("swapped", [(0, 1), (0,), (1,), (2,)])
def test_whoever_has_labels_for_samples_is_named(swapped: tuple[int, ...]) -> None:
    pairs = [(LABELS, torch.zeros(3, 1, 4)) if n in swapped else (torch.zeros(3, 1, 4), LABELS) for n in range(3)]
    name = ["client 0", "client 1", "test"][swapped[0]]
    with pytest.raises(ValueError, match=rf"^{name}: x of .* looks like labels.* Pass \(x, y\), not \(y, x\)"):
        federation(pairs[:2], pairs[2])


def test_a_federation_needs_clients() -> None:
    with pytest.raises(ValueError, match="clients is empty"):
        federation([], (X, LABELS))
