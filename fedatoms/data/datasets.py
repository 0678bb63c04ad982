"""Data sets: read from their official files into tensors, each with the recipe that turns pixels into inputs."""

import fnmatch
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedatoms.core.border import as_path, read_bytes
from fedatoms.core.extras import how_to_add
from fedatoms.core.lookup import find, one_line, some
from fedatoms.data.decoded import Pixels, decoded_once
from fedatoms.data.idx import read_idx
from fedatoms.data.npz import open_npz
from fedatoms.data.pictures import OtherSize, Unreadable, read_picture
from fedatoms.data.safe_pickle import AGAIN, read_pickle

Fill = Literal["zero", "black"]

_Pixels = npt.NDArray[np.uint8]
_Labels = npt.NDArray[np.int64]
_Part = tuple[_Pixels, _Labels]
_Floats = tuple[float, ...]

# What official files hold at most: more would be no such file, and is not read.
_FASHION = 60_000  # images in one file
_LIST = 2**24  # bytes of a list of Tiny-ImageNet's classes or images


class Recipe(NamedTuple):
    """How pixels become inputs: ``(x / scale - mean) / std``, and how training images are varied."""

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool  # left-right, with probability 1/2
    pad: int  # pixels on each side before a crop of the old size
    crop: float  # probability that an image is padded and cropped
    fill: Fill  # the padding: zero after normalisation (FedDC), or a black pixel before it (FedRep)


class Images(NamedTuple):
    """A data set: ``x`` uint8 (n, C, H, W) and ``y`` int64 (n,), the official test part, and the recipe."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    recipe: Recipe


class Form(NamedTuple):
    """The form of a data set: the shape of an image (C, H, W), and the number of classes."""

    shape: tuple[int, int, int]
    classes: int


class Source(NamedTuple):
    """The source of a data set: its form, its reader, and the files that must lie in one of its folders."""

    form: Form
    read: Callable[[Path, Form], tuple[_Part, _Part, int]]  # -> training part, test part, number of classes
    folders: tuple[str, ...]
    files: tuple[str, ...]
    page: str
    recipes: dict[str, Recipe]


def load(name: str, data_dir: str | Path = "data", augment: str = "feddc") -> Images:
    """Loads a data set from ``data_dir``: the folder in which its folder lies, or that folder itself.

    ``augment`` chooses whose normalisation and augmentation the recipe follows: FedDC's, FedRep's, or FedDC's
    normalisation alone. The digits come with scikit-learn, need no folder and are never augmented.

    >>> digits = load("digits")
    >>> tuple(digits.x.shape), tuple(digits.test_x.shape), digits.classes
    ((1437, 1, 8, 8), (360, 1, 8, 8), 10)
    """
    source, recipe = find(name, DATASETS, "data set"), recipe_of(name, augment)
    train, test, classes = source.read(_folder(name, source, as_path(data_dir, "data_dir")), source.form)
    x, y, test_x, test_y = (torch.from_numpy(part) for part in (*train, *test))
    return Images(x, y, test_x, test_y, classes, recipe)


def recipe_of(name: str, augment: str = "feddc") -> Recipe:
    """Returns the recipe that turns a data set's pixels into inputs; reads no file.

    >>> recipe_of("cifar10", augment="none").mean
    (0.491, 0.482, 0.447)
    """
    return find(augment, find(name, DATASETS, "data set").recipes, "augmentation")


def _folder(name: str, source: Source, data_dir: Path) -> Path:
    """Returns the folder that holds the files; if one is missing, the error names it and where to get it."""
    folders = [data_dir / folder for folder in source.folders] + [data_dir]
    folder = next((folder for folder in folders if any(_find(folder / file) for file in source.files)), folders[0])
    missing = [file for file in source.files if not _find(folder / file)]
    if missing:
        raise FileNotFoundError(
            f"{folder / missing[0]} is missing: {name} needs {', '.join(source.files)} in {folders[0]} (or in "
            f"{data_dir} itself). Download it from {source.page} and unpack it in {data_dir}."
        )
    return folder


def _find(path: Path) -> Path | None:
    zipped = [path.with_name(path.name + ".gz")] if path.name.endswith("ubyte") else []  # only idx files come zipped
    return next((file for file in (path, *zipped) if file.exists()), None)


def _digits(_: Path, form: Form) -> tuple[_Part, _Part, int]:
    with open_npz(Path(__file__).with_name("digits.npz"), "x", "y") as digits:
        x, y = digits.read("x").astype(np.uint8).reshape(-1, *form.shape), digits.read("y").astype(np.int64)
    test = np.zeros(len(y), dtype=bool)
    test[np.argsort(y, kind="stable")[::5]] = True  # every fifth image of each class
    return (x[~test], y[~test]), (x[test], y[test]), form.classes


def _cifar10(folder: Path, form: Form) -> tuple[_Part, _Part, int]:
    batches = [_cifar(folder / f"data_batch_{number}", "labels", form, 10_000) for number in range(1, 6)]
    train = np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])
    return train, _cifar(folder / "test_batch", "labels", form, 10_000), form.classes


def _cifar100(folder: Path, form: Form) -> tuple[_Part, _Part, int]:
    train, test = (_cifar(folder / part, "fine_labels", form, 50_000) for part in ("train", "test"))
    return train, test, form.classes


def _cifar(path: Path, key: str, form: Form, images: int) -> _Part:
    content = read_pickle(path, most=8000 * images)  # 3072 pixels, of which some writers make two bytes each
    x, y, pixels = content.get("data"), content.get(key), math.prod(form.shape)
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != pixels or len(x) == 0:
        raise ValueError(f"{path}: 'data' is not a uint8 array of shape (n, {pixels}), one row per image. {AGAIN}")
    if isinstance(y, list) and all(type(label) is int and abs(label) < 2**31 for label in y):
        y = np.array(y, dtype=np.int64)
    if not isinstance(y, np.ndarray):
        raise ValueError(f"{path}: {key!r} is not a list of whole numbers. {AGAIN}")
    return x.reshape(-1, *form.shape).copy(), _labels(y, len(x), form.classes, path)


def _fashion(folder: Path, form: Form) -> tuple[_Part, _Part, int]:
    return _idx(folder, "train", form), _idx(folder, "t10k", form), form.classes


def _idx(folder: Path, part: str, form: Form) -> _Part:
    images, labels = folder / f"{part}-images-idx3-ubyte", folder / f"{part}-labels-idx1-ubyte"
    x = read_idx(_find(images) or images, _FASHION, form.shape[1:])
    y = read_idx(_find(labels) or labels, _FASHION)
    return x[:, None], _labels(y, len(x), form.classes, labels)


def _tiny(folder: Path, form: Form) -> tuple[_Part, _Part, int]:
    numbers = {name: number for number, name in enumerate(_names(folder / "wnids.txt"))}
    train = [(file, number) for name, number in numbers.items() for file in _pictures(folder, name)]
    pictures, labels = zip(*train, *_annotated(folder, numbers), strict=True)
    x, y, cut = (
        decoded_once(folder, pictures, lambda: _decode(folder, pictures, form)),
        np.array(labels, dtype=np.int64),
        len(train),
    )
    return (x[:cut], y[:cut]), (x[cut:], y[cut:]), len(numbers)


def _pictures(folder: Path, name: str) -> list[str]:
    """Lists the training pictures of a class in order, by names in the folder: paths of all take seconds to make."""
    images = os.path.join("train", name, "images", "")
    try:
        files = fnmatch.filter(os.listdir(folder / images), "*.JPEG")
    except OSError:  # of a folder that is not there, as of an empty one
        files = []
    if not files:
        raise ValueError(f"{folder / images} has no *.JPEG file, but wnids.txt names it. {AGAIN}")
    return [images + file for file in sorted(files)]


def _annotated(folder: Path, numbers: dict[str, int]) -> list[tuple[str, int]]:
    path = folder / "val" / "val_annotations.txt"
    notes = _lines(path)
    wrong = [note for note in notes if note.count("\t") < 1 or note.split("\t")[1] not in numbers]
    if wrong or not notes:
        line = wrong[0] if wrong else ""
        raise ValueError(f"{path}: {line!r} is not an image and a name of wnids.txt. {AGAIN}")
    pairs = [note.split("\t")[:2] for note in notes]
    _check_names([file for file, _ in pairs], path)
    images = os.path.join("val", "images", "")
    return [(images + file, numbers[name]) for file, name in pairs]


def _names(path: Path) -> list[str]:
    names = _lines(path)
    _check_names(names, path)
    return names


def _lines(path: Path) -> list[str]:
    return read_bytes(path, _LIST).decode("utf-8", errors="replace").splitlines()


def _check_names(names: Sequence[str], path: Path) -> None:
    wrong = [name for name in names if not name.isprintable() or "/" in name or name in ("", ".", "..")]
    if wrong:
        raise ValueError(f"{path}: {wrong[0][:40]!r} is not the name of a file or a folder. {AGAIN}")
    if len(set(names)) < len(names):
        twice = [name for name, count in Counter(names).items() if count > 1]
        raise ValueError(f"{path} names {some(twice)} more than once. {AGAIN}")


def _decode(folder: Path, files: Sequence[str], form: Form) -> Pixels:
    x = np.empty((len(files), *form.shape), dtype=np.uint8)
    for row, file in zip(x, files, strict=True):
        row[:] = _jpeg(folder / file, form)
    return x


def _jpeg(path: Path, form: Form) -> _Pixels:
    channels, height, width = form.shape
    try:
        return read_picture(path, ("JPEG",), "RGB", (width, height)).transpose(2, 0, 1)
    except ImportError:
        raise ValueError(
            f"Tiny-ImageNet is made of JPEG files, which Pillow reads. Type: {how_to_add('images')}"
        ) from None
    except (Unreadable, OSError) as error:
        raise ValueError(f"{path} is not a readable JPEG file ({one_line(error)}). {AGAIN}") from None
    except OtherSize as found:
        shape, usual = (found.height, found.width, channels), (height, width, channels)
        raise ValueError(f"{path} has shape {shape}, but Tiny-ImageNet's images have {usual}. {AGAIN}") from None


def _labels(y: npt.NDArray[np.generic], count: int, classes: int, path: Path) -> _Labels:
    if y.dtype.kind not in "iu" or y.shape != (count,):
        raise ValueError(f"{path}: labels of type {y.dtype} and shape {y.shape} are not {count} whole numbers. {AGAIN}")
    labels = y.astype(np.int64)
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise ValueError(f"{path}: label {wrong[0]} is not in 0..{classes - 1}. {AGAIN}")
    return labels


def _recipes(
    mean: _Floats, std: _Floats, *, pad: int, fedrep: tuple[_Floats, _Floats] | None = None
) -> dict[str, Recipe]:
    other_mean, other_std = fedrep or (mean, std)
    return {
        "feddc": Recipe(255, mean, std, flip=True, pad=pad, crop=0.5, fill="zero"),
        "fedrep": Recipe(255, other_mean, other_std, flip=True, pad=pad, crop=1.0, fill="black"),
        "none": Recipe(255, mean, std, flip=False, pad=0, crop=0.0, fill="zero"),
    }


_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_DIGITS = Recipe(16, (0.305754,), (0.376217,), flip=False, pad=0, crop=0.0, fill="zero")  # of the training part
_CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"

DATASETS: dict[str, Source] = {
    "digits": Source(
        form=Form((1, 8, 8), 10),
        read=_digits,
        folders=(),
        files=(),
        page="scikit-learn",
        recipes={"feddc": _DIGITS, "fedrep": _DIGITS, "none": _DIGITS},
    ),
    "cifar10": Source(
        form=Form((3, 32, 32), 10),
        read=_cifar10,
        folders=("cifar-10-batches-py",),
        files=("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"),
        page=_CIFAR_PAGE,
        recipes=_recipes((0.491, 0.482, 0.447), (0.247, 0.243, 0.262), pad=4, fedrep=_IMAGENET),
    ),
    "cifar100": Source(
        form=Form((3, 32, 32), 100),
        read=_cifar100,
        folders=("cifar-100-python",),
        files=("train", "test"),
        page=_CIFAR_PAGE,
        recipes=_recipes(
            (0.5071, 0.4867, 0.4408),
            (0.2675, 0.2565, 0.2761),
            pad=4,
            fedrep=((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
        ),
    ),
    "tiny-imagenet": Source(
        form=Form((3, 64, 64), 200),
        read=_tiny,
        folders=("tiny-imagenet-200",),
        files=("wnids.txt", "train", "val/images", "val/val_annotations.txt"),
        page="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        recipes=_recipes(*_IMAGENET, pad=8),  # 8 of 64 pixels, as 4 of 32
    ),
    "fashion-mnist": Source(
        form=Form((1, 28, 28), 10),
        read=_fashion,
        folders=("fashion-mnist", "FashionMNIST/raw"),
        files=(
            "train-images-idx3-ubyte",
            "train-labels-idx1-ubyte",
            "t10k-images-idx3-ubyte",
            "t10k-labels-idx1-ubyte",
        ),
        page="https://github.com/zalandoresearch/fashion-mnist",
        # Our choice, as neither codebase has it: clothes may face either way; they fill their 28 pixels, so they move
        # by 2 and not by 4.
        recipes=_recipes((0.2860,), (0.3530,), pad=2),
    ),
}
