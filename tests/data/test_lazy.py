"""Lazy data: items are read when a client trains on them, and train as those in memory do; random transforms draw."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import ROOT
from support.small import difference, identical, play
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedatoms.core import trees
from fedatoms.core.inputs import leaves
from fedatoms.data.batches import received
from fedatoms.data.federations import federation
from fedatoms.engine.loop import begin, train
from fedatoms.engine.round import advance, select
from fedatoms.engine.runtime import on_device, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.objectives import regression
from fedatoms.personal import fedpac

SIZES = (1, 7, 12)


class Counted(Dataset):
    """A data set that counts what is read of it; with ``noise`` its items differ each time."""

    def __init__(self, size: int, *, noise: bool = False, labels: bool = True, bad: int = -1) -> None:
        draws = torch.Generator().manual_seed(size)
        self.x = torch.randn(size, 1, 6, 6, generator=draws)
        self.y = torch.randint(3, (size,), generator=draws) if labels else torch.randn(size, 2, generator=draws)
        self.noise, self.bad, self.read = noise, bad, list[int]()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        self.read.append(i)
        if i == self.bad:
            raise OSError("the disk is gone")
        noise = torch.randn(1, 6, 6) + np.random.rand() if self.noise else 0.0
        return self.x[i] + noise, self.y[i]


TEST = (Counted(9).x, Counted(9).y)


def simulation(*, lazy: bool, workers: int = 0, noise: bool = False, **changes: object) -> Simulation:
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2)]
    data = federation([Counted(n, noise=noise) for n in SIZES], test=TEST, lazy=lazy, workers=workers)
    sim = Simulation(nn.Sequential(*body, nn.Linear(64, 3)), data, training=Training(epochs=2, batch_size=5, lr=0.05))
    return replace(sim, **changes)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["one_by_one", "vectorised"])
def test_lazy_data_train_as_data_in_memory_to_the_bit(way: str, workers: int) -> None:
    lazy = play(simulation(lazy=True, workers=workers, map=way), 2).server.params
    assert identical(lazy, play(simulation(lazy=False, map=way), 2).server.params)


def test_random_transforms_draw_anew_but_the_same_in_every_run_and_in_both_maps() -> None:
    noisy = [play(simulation(lazy=True, noise=True, map=way), 2).server.params for way in ("one_by_one", "vectorised")]
    assert difference(*noisy) < 1e-5
    assert identical(noisy[0], play(simulation(lazy=True, noise=True, map="one_by_one"), 2).server.params)
    assert difference(noisy[0], play(simulation(lazy=False, noise=True), 2).server.params) > 1e-3  # frozen
    pool = simulation(lazy=True, noise=True).data.lazy
    (first, _), (again, _), (other, _) = (pool.read(torch.tensor([3, 4]), torch.tensor(key)) for key in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_reading_leaves_the_global_streams_as_they_were() -> None:
    sim = simulation(lazy=True)
    torch.manual_seed(1)
    np.random.seed(1)
    expected = torch.randn(1), np.random.rand()
    torch.manual_seed(1)
    np.random.seed(1)
    train(replace(sim, data=federation([Counted(7, noise=True)], test=TEST, lazy=True)), 1)
    assert (torch.randn(1), np.random.rand()) == expected


def test_items_are_read_in_the_rounds_of_their_client_and_once_in_an_epoch() -> None:
    sets = [Counted(n) for n in SIZES]
    for each in sets:
        each.targets = each.y.tolist()  # as torchvision's data sets have them
    data = federation(sets, test=TEST, lazy=True)
    assert [each.read for each in sets] == [[0], [0], [0]]  # its shape
    runtime = prepare(replace(simulation(lazy=True), data=data, fraction=0.34))
    state = begin(runtime)  # which looks at the outputs of two samples
    for each in sets:
        each.read.clear()
    (who,), _ = select(runtime.sim, 0)
    advance(runtime, state)
    assert [sorted(each.read) for each in sets] == [
        sorted([*range(n), *range(n)]) if client == who else [] for client, n in enumerate(SIZES)
    ]


def test_labels_without_targets_are_read_once_and_other_targets_never() -> None:
    labelled, numbers = Counted(7), Counted(7, labels=False)
    data = federation([labelled], test=TEST, lazy=True)
    assert len(labelled.read) == 8 and torch.equal(data.y, labelled.y) and data.classes == 3
    data = federation([numbers], test=(TEST[0], torch.randn(9, 2)), lazy=True)
    assert len(numbers.read) == 1 and data.y.shape == (7, 2) and data.y.untyped_storage().nbytes() < 7 * 8
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
    done = train(Simulation(net, data, objective=regression()), 1)
    plain = federation([(numbers.x, numbers.y)], test=(TEST[0], data.test_y))
    assert identical(
        done.state.server.params, train(Simulation(net, plain, objective=regression()), 1).state.server.params
    )


def test_targets_that_are_no_labels_stay_a_single_row_on_a_device() -> None:
    data = federation([Counted(7, labels=False)], test=(TEST[0], torch.randn(9, 2)), lazy=True)
    assert on_device(data, "meta").y.untyped_storage().nbytes() == 2 * 4 and on_device(data, "meta").y.shape == (7, 2)


def test_memory_maps_are_read_row_by_row(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(12, 1, 6, 6)).astype(np.float32), np.arange(12) % 3
    np.save(tmp_path / "x.npy", x)
    pair = np.load(tmp_path / "x.npy", mmap_mode="r"), y
    lazy = federation([pair], test=(x, y), lazy=True)
    assert identical(
        play(replace(simulation(lazy=True), data=lazy), 1).server.params,
        play(replace(simulation(lazy=True), data=federation([(x, y)], test=(x, y))), 1).server.params,
    )


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x, x), lambda x: {"a": x}])
def test_rows_of_read_only_maps_are_taken_at_once_and_without_a_warning(tmp_path: Path, form: object) -> None:
    """Warnings are errors here; and a row that is padding is repeated, as it is for items."""
    x, y = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32), (np.arange(12) % 3).astype(np.uint8)
    for name, each in (("x", x), ("y", y)):
        np.save(tmp_path / f"{name}.npy", each)
    maps, labels = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    data = federation([(form(maps[:5]), labels[:5]), (form(maps[5:]), labels[5:])], test=(form(x), y), lazy=True)
    rows = torch.tensor([[3, 1, 3], [7, 5, 5]])
    found, targets = data.lazy.read(rows, torch.tensor([0, 1]))
    for leaf in leaves(found):
        assert torch.equal(leaf, torch.tensor(x)[rows])
    assert torch.equal(targets, torch.tensor(y)[rows].long()) and torch.equal(data.y, torch.tensor(y).long())
    mixed, _ = data.lazy.read(torch.tensor([1, 7]), torch.tensor(0))
    assert all(torch.equal(leaf, torch.tensor(x)[[1, 7]]) for leaf in leaves(mixed))
    assert np.array_equal(federation([(form(maps), labels)], test=(form(x), y)).y, y)


def test_what_is_read_is_pinned_on_its_way_to_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    monkeypatch.setattr(trees, "move", lambda leaf, device: moved.append(leaf.dtype) or leaf)
    received(torch.zeros(2, 3), torch.tensor([0, 1]), torch.float64, torch.device("cuda"))
    assert moved == [torch.float64, torch.int64]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_item_that_cannot_be_read_is_named(workers: int) -> None:
    sets = [Counted(7), Counted(12, bad=3)]
    sets[1].targets = sets[1].y.tolist()
    sim = replace(simulation(lazy=True), data=federation(sets, test=TEST, lazy=True, workers=workers))
    with pytest.raises(
        ValueError, match=r"^client 1, item 3: cannot be read \(OSError: the disk is gone\). Mend the"
    ) as it:
        train(sim, 1)
    assert "\n" not in str(it.value)


def test_what_is_no_lazy_data_is_refused() -> None:
    for clients, workers, words in (
        ([iter([])], 0, "client 0: list_iterator has no length"),
        ([Counted(0)], 0, "client 0: has no samples"),
        ([Counted(3)], -1, "workers=-1 is less than 0"),
    ):
        with pytest.raises(ValueError, match=words):
            federation(clients, test=TEST, lazy=True, workers=workers)
    with pytest.raises(ValueError, match=r"test: samples of shape \(1, 5, 5\) differ from client 0's \(1, 6, 6\)"):
        federation([Counted(3)], test=(torch.zeros(2, 1, 5, 5), torch.zeros(2).long()), lazy=True)


def test_workers_without_lazy_data_are_refused() -> None:
    with pytest.raises(ValueError, match="workers=2 read lazy data, but all data are read at once"):
        federation([Counted(3)], test=TEST, workers=2)


def with_y(y: object, *, shape: tuple[int, ...] = (1, 6, 6), **more: object) -> Counted:
    made = Counted(len(y))
    made.x, made.y = torch.zeros(len(y), *shape), y
    vars(made).update(more)
    return made


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ((torch.zeros(4, 1, 6, 6), torch.zeros(3).long()), r"client 1: x of shape \(4, 1, 6, 6\) and y of sh"),
        (with_y(torch.tensor([0, 1, -1])), "client 1, sample 2: label -1 is negative"),
        (with_y(torch.tensor([0, 1, 2]), targets=[0, 1, -1]), "client 1, sample 2: label -1 is negative"),
        (with_y([0, 1, 1.5]), r"client 1: labels of type torch.float32 are not whole numbers. Use y.long\(\)"),
        (with_y(torch.zeros(3)), r"client 1: labels of type torch.float32 are not whole numbers"),
        (with_y(torch.zeros(3).long(), shape=(1, 5, 5)), r"client 1: samples of shape \(1, 5, 5\) differ from"),
        (Counted(3, bad=2), "client 1, item 2: cannot be read"),
    ],
)  # fmt: skip
def test_lazy_data_are_checked_as_those_in_memory(second: object, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        federation([Counted(7), second], test=TEST, lazy=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_item_that_is_not_finite_is_named_when_it_is_read(workers: int) -> None:
    sets = [Counted(7), Counted(12)]
    sets[1].x[3, 0, 0, 0] = torch.nan
    sim = replace(simulation(lazy=True), data=federation(sets, test=TEST, lazy=True, workers=workers))
    with pytest.raises(ValueError, match=r"^client 1, item 3: the data hold nan, but must be finite. Leave this item"):
        train(sim, 1)


def test_targets_are_those_of_the_items_where_a_data_set_says_other_ones() -> None:
    """A target_transform is applied to items, not to ``targets``."""
    items = torch.tensor([0, 1, 2, 0])
    for more in ({"targets": [5, 6, 7, 5]}, {"targets": [0, 6, 7, 5], "target_transform": abs}, {"targets": ["a"] * 4}):
        data = federation([with_y(items, **more)], test=TEST, lazy=True)
        assert torch.equal(data.y, items) and data.classes == 3
    same = with_y(items, targets=items.tolist(), target_transform=None)
    assert torch.equal(federation([same], test=TEST, lazy=True).y, items) and same.read == [0]


def test_reading_seeds_the_stream_of_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of a GPU would not be restored."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    federation([Counted(7)], test=TEST, lazy=True)
    assert not seeded


def test_features_of_lazy_data_are_those_of_the_data() -> None:
    lazy, plain = (play(simulation(lazy=way, personal=fedpac()), 2).server.params for way in (True, False))
    assert identical(lazy, plain)


MEMORY = """
import resource, torch
from torch import nn
from torch.utils.data import Dataset
import fedatoms
class Made(Dataset):
    targets = [n % 10 for n in range(2000)]
    def __len__(self): return 2000
    def __getitem__(self, i): return torch.full((3, 32, 32), i % 7 / 7), i % 10
def train(clients, **more):
    data = fedatoms.data.federation(clients, test=(torch.zeros(10, 3, 32, 32), torch.arange(10)), **more)
    net = nn.Sequential(nn.Conv2d(3, 2, 3, stride=8), nn.Flatten(), nn.Linear(32, 10))
    sim = fedatoms.Simulation(net, data, training=fedatoms.Training(batch_size=50, lr=0.01), fraction=0.1)
    fedatoms.train(sim, 1)
train([(torch.zeros(20, 3, 32, 32), torch.arange(20) % 10)] * 10)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
train([Made() for _ in range(10)], lazy=True, workers=2)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_twenty_thousand_lazy_items_add_at_most_fifty_megabytes() -> None:
    """In memory they are 246."""
    code = [sys.executable, "-W", "ignore", "-c", MEMORY]
    ran = subprocess.run(code, capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(ran.stdout) < 50_000  # in kB


def test_two_items_that_differ_are_no_pair_of_arrays() -> None:
    items = [(torch.zeros(1, 6, 6), torch.tensor(0)), (torch.zeros(1, 5, 5), torch.tensor(0))]
    with pytest.raises(ValueError, match=r"^client 0: this is not a pair of arrays. Pass \(x, y\) or a map-style"):
        federation([items], test=(torch.zeros(2, 1, 6, 6), torch.arange(2)), lazy=True)
