"""Images that runs share: those that begin together read files once and hold one pool, and nobody holds it after."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.searches import plan_of, silent
from torch import Tensor

from fedatoms.cli import main
from fedatoms.data.datasets import DATASETS, Form, Images
from fedatoms.engine.abreast import beside
from fedatoms.engine.loop import Watch
from fedatoms.engine.runtime import prepare
from fedatoms.experiment import images as reading
from fedatoms.experiment.build import simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import run_folder
from fedatoms.experiment.images import images_for, shared_images
from fedatoms.runs import one_block
from fedatoms.runs.comparison import run_missing
from fedatoms.runs.rounds import read_rounds
from fedatoms.tuning.loop import search

TINY = Experiment(clients=10, fraction=0.3, rounds=2, epochs=1, threads=1, map="vectorised", device="cpu")
SEEDS = [replace(TINY, seed=seed) for seed in range(3)]


@contextmanager
def unseen(label: str, rounds: int) -> Iterator[Watch]:
    yield lambda progress: None


def placed(experiments: Sequence[Experiment], out: Path) -> list[Experiment]:
    return [replace(one, out=str(out)) for one in experiments]


def pool_of(images: Images) -> list[Tensor]:
    return [images.x, images.y, images.test_x, images.test_y]


def places(images: Images) -> list[int]:
    return [leaf.data_ptr() for leaf in pool_of(images)]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Returns a list that grows with each time that the file of the digits is read."""
    folders, digits = list[Path](), DATASETS["digits"]

    def read(folder: Path, form: Form) -> object:
        folders.append(folder)
        return digits.read(folder, form)

    monkeypatch.setitem(DATASETS, "digits", digits._replace(read=read))  # type: ignore[arg-type]
    return folders


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list["weakref.ref[Tensor]"]:
    """Returns a list that gets a reference, which holds nothing, to each pool of images that experiments read."""
    found, real = list["weakref.ref[Tensor]"](), reading.load

    def load(*where: str) -> Images:
        images = real(*where)
        found.append(weakref.ref(images.x))
        return images

    monkeypatch.setattr(reading, "load", load)
    return found


def alive(pools: Sequence["weakref.ref[Tensor]"]) -> int:
    gc.collect()
    return sum(pool() is not None for pool in pools)


def test_runs_in_one_block_read_their_files_once(reads: list[Path], tmp_path: Path) -> None:
    run_missing(placed(SEEDS, tmp_path), unseen, together=3)
    assert len(reads) == 1


def test_a_comparison_reads_once_to_check_its_runs_and_once_for_a_block(reads: list[Path], tmp_path: Path) -> None:
    words = "compare --clients 10 --rounds 1 --epochs 1 --threads 1 --map vectorised --seeds 0,1,2 --device cpu"
    assert main([*words.split(), "--out", str(tmp_path)]) == 0
    assert len(reads) == 2


def test_a_search_reads_once_to_check_its_values_and_once_for_a_block(reads: list[Path], tmp_path: Path) -> None:
    search(plan_of("lr=0.05,0.1,0.2", experiment=replace(TINY, holdout=0.1)), tmp_path / "study", silent)
    assert len(reads) == 2


def test_runs_that_do_not_begin_together_read_anew_what_may_have_changed(reads: list[Path], tmp_path: Path) -> None:
    run_missing(placed(SEEDS, tmp_path), unseen)
    assert len(reads) == 3
    run_missing(placed(SEEDS, tmp_path / "again"), unseen, together=2)
    assert len(reads) == 5


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_runs_that_begin_together_hold_one_pool_on_the_host_and_on_the_device(device: str) -> None:
    read = shared_images()
    one, *others = (simulation(replace(each, device=device), read=read) for each in SEEDS)
    first = prepare(one)
    for other in others:
        assert places(other.data) == places(one.data)
        runtime = beside(first, other)
        assert runtime is not None and places(runtime.data) == places(first.data)
        assert not all(torch.equal(*parts) for parts in zip(runtime.data.parts, first.data.parts, strict=True))


@pytest.mark.parametrize(
    "changes",
    [{"dataset": "other"}, {"data_dir": "there"}, {"augment": "none"}, {"holdout": 0.1}, {"holdout": 0.1, "seed": 1}],
    ids=str,
)
def test_experiments_of_other_images_get_their_own(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    digits = DATASETS["digits"]

    def backwards(folder: Path, form: Form) -> object:
        train, test, classes = digits.read(folder, form)
        return tuple(part[::-1].copy() for part in train), test, classes

    monkeypatch.setitem(DATASETS, "other", digits._replace(read=backwards))  # type: ignore[arg-type]
    read, first = shared_images(), replace(TINY, holdout=0.1 if "seed" in changes else 0.0)
    one, other = read(first), read(replace(first, **changes))  # type: ignore[arg-type]
    expected = images_for(replace(first, **changes))  # type: ignore[arg-type]
    assert other.recipe is expected.recipe and not {*places(one)} & {*places(other)}
    assert all(torch.equal(mine, its) for mine, its in zip(pool_of(other), pool_of(expected), strict=True))
    assert torch.equal(one.x, images_for(first).x)


def test_only_what_was_read_last_is_held(pools: list["weakref.ref[Tensor]"]) -> None:
    read = shared_images()
    for seed in range(3):
        read(replace(TINY, seed=seed))
    assert (len(pools), alive(pools)) == (1, 1)
    read(replace(TINY, augment="none"))
    assert (len(pools), alive(pools)) == (2, 1)
    del read
    assert alive(pools) == 0


def test_nobody_holds_the_images_of_runs_that_are_over(pools: list["weakref.ref[Tensor]"], tmp_path: Path) -> None:
    run_missing(placed(SEEDS, tmp_path), unseen, together=3)
    assert (len(pools), alive(pools)) == (1, 0)


def test_runs_leave_shared_images_as_they_are_and_are_bitwise_those_that_read_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some with clients that flip labels, which train alone on what the others share."""
    grid = [*SEEDS, *(replace(one, attack="label-flip:0.3") for one in SEEDS)]
    shared, own = placed(grid, tmp_path / "shared"), placed(grid, tmp_path / "own")
    read = shared_images()
    before = [leaf.clone() for leaf in pool_of(read(TINY))]
    monkeypatch.setattr(one_block, "shared_images", lambda: read)
    run_missing(shared, unseen, together=3)
    assert all(torch.equal(leaf, then) for leaf, then in zip(pool_of(read(TINY)), before, strict=True))
    monkeypatch.setattr(one_block, "shared_images", lambda: images_for)
    run_missing(own, unseen, together=3)
    for one, other in zip(map(run_folder, shared), map(run_folder, own), strict=True):
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
        mine, its = ([{**row, "seconds": 0} for row in read_rounds(folder)] for folder in (one, other))
        assert mine == its
