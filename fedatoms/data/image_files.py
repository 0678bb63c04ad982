"""A client's own images, from an npz file or a folder of image files, as pixels for a data set's recipe."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedatoms.core.border import as_path
from fedatoms.core.extras import how_to_add
from fedatoms.core.lookup import one_line
from fedatoms.data.npz import Header, open_npz
from fedatoms.data.pictures import OtherSize, Unreadable, read_picture

# Formats that Pillow decodes itself; others it passes on: an EPS file is a program, which Ghostscript would run.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_STEP = 2**20  # pixels that are checked at once

_Pixels = npt.NDArray[np.generic]


class Wanted(NamedTuple):
    """The images that a model takes: their shape (C, H, W), the value of white, and the number of classes."""

    shape: tuple[int, ...]
    white: float
    classes: int


class LabelledImages(NamedTuple):
    """Images (n, C, H, W) from black, 0, to white, their labels (n,), and a phrase on where the labels come from."""

    x: Tensor
    y: Tensor
    labels_from: str


def read_images(path: Path, wanted: Wanted) -> LabelledImages:
    """Reads ``x`` and ``y`` of an npz file, or a folder with one folder of image files per class.

    Whole numbers in ``x`` are pixels from 0 to white, others go from 0 to 1. Class folders are numbers, or one name for
    each of the model's classes, numbered in sorted order.
    """
    if not as_path(path, "images").exists():
        raise ValueError(f"{path} does not exist. Give an npz file with arrays x and y, or a folder of class folders.")
    x, y, labels_from = _from_folder(path, wanted) if path.is_dir() else (*_from_npz(path, wanted), "y")
    _check_some(x.shape, path)
    return LabelledImages(_pixels(_channels_first(x, wanted), path, wanted), _labels(y, path, wanted), labels_from)


def _from_npz(path: Path, wanted: Wanted) -> tuple[_Pixels, _Pixels]:
    """Reads arrays that fit the model and each other by their headers."""
    with open_npz(path, "x", "y") as arrays:
        x, y = arrays.headers["x"], arrays.headers["y"]
        _check_some(x.shape, path)
        _check_shape(x.shape, path, wanted)
        _check_kinds(x, y, path)
        return arrays.read("x"), arrays.read("y")


def _check_some(shape: Sequence[int], path: Path) -> None:
    if math.prod(shape) == 0:
        where = f" in a folder of its class, such as {path / '0' / 'a.png'}" if path.is_dir() else ""
        raise ValueError(f"{path} holds no image{where}, but needs at least one.")


def _check_kinds(x: Header, y: Header, path: Path) -> None:
    if x.dtype.kind not in "iuf":
        raise ValueError(f"{path}: x holds {x.dtype}, which cannot be pixels. Use uint8, or floats from 0 to 1.")
    if y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
        raise ValueError(
            f"{path}: y of type {y.dtype} and shape {y.shape} is not {x.shape[0]} whole numbers, one label per image."
        )


def _check_shape(shape: tuple[int, ...], path: Path, wanted: Wanted) -> None:
    channels, height, width = wanted.shape
    fitting = [wanted.shape, (height, width, channels), *([(height, width)] if channels == 1 else [])]
    if shape[1:] not in fitting:
        raise ValueError(
            f"{path}: x of shape {shape} does not fit: the model takes images of {wanted.shape}, so x must be "
            f"(n, {channels}, {height}, {width}) or (n, {height}, {width}{f', {channels}' if channels > 1 else ''})."
        )


def _channels_first(x: _Pixels, wanted: Wanted) -> _Pixels:
    if x.shape[1:] == wanted.shape:
        return x
    return x.transpose(0, 3, 1, 2) if x.ndim == 4 else x[:, None]


def _pixels(x: _Pixels, path: Path, wanted: Wanted) -> Tensor:
    """Checks pixels and turns floats into their values from black to white, some images at a time."""
    whole = x.dtype.kind in "iu"
    white = wanted.white if whole else 1.0
    pixels = np.empty_like(x, dtype=np.uint8 if whole else np.float32)
    many = max(1, _STEP // math.prod(x.shape[1:]))
    for at in range(0, len(x), many):
        values = x[at : at + many].astype(np.float32)
        wrong = values[~((values >= 0) & (values <= white))]  # nan is neither
        if len(wrong):
            raise ValueError(
                f"{path}: x holds {wrong[0]:g}, but its {x.dtype} must go from 0 to {white:g}, as in the run's data. "
                f"Scale it, for example to floats from 0 to 1."
            )
        pixels[at : at + many] = values if whole else values * np.float32(wanted.white)
    return torch.from_numpy(pixels)


def _labels(y: _Pixels, path: Path, wanted: Wanted) -> Tensor:
    labels = y.astype(np.int64)
    wrong = labels[(labels < 0) | (labels >= wanted.classes)]
    if len(wrong):
        raise ValueError(f"{path}: label {wrong[0]} is not one of the model's classes 0..{wanted.classes - 1}.")
    return torch.from_numpy(labels)


def _from_folder(path: Path, wanted: Wanted) -> tuple[_Pixels, _Pixels, str]:
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    names = [folder.name for folder in folders]
    numbered = all(name.isdecimal() for name in names)
    if not numbered and len(names) != wanted.classes:
        raise ValueError(
            f"{path} has {len(names)} class folders, but the model {wanted.classes} classes: their names alone do not "
            f"tell which. Name them by number, 0..{wanted.classes - 1}, or add the missing ones, empty."
        )
    labels = [int(name) if numbered else place for place, name in enumerate(names)]
    _check_once(folders, labels)
    files = [(file, label) for folder, label in zip(folders, labels, strict=True) for file in _files(folder)]
    _check_known([(file.parent, label) for file, label in files], wanted)
    x = [_decode(file, wanted) for file, _ in files]
    y = np.array([label for _, label in files], dtype=np.int64)
    numbering = ", ".join(f"{name} = {label}" for name, label in zip(names, labels, strict=True))
    return np.stack(x) if x else np.zeros(0), y, "folders' numbers" if numbered else f"sorted folders: {numbering}"


def _files(folder: Path) -> list[Path]:
    """Lists all but folders and hidden files: pipes and devices too, so that the border can refuse them by name."""
    return [file for file in sorted(folder.iterdir()) if not file.is_dir() and not file.name.startswith(".")]


def _check_once(folders: Sequence[Path], labels: Sequence[int]) -> None:
    first: dict[int, Path] = {}
    for folder, label in zip(folders, labels, strict=True):
        if label in first:
            raise ValueError(f"{first[label]} and {folder} are both class {label}. Put their images into one folder.")
        first[label] = folder


def _check_known(found: Sequence[tuple[Path, int]], wanted: Wanted) -> None:
    for folder, label in found:
        if label >= wanted.classes:
            known = f"0..{wanted.classes - 1}"
            raise ValueError(f"{folder} is not one of the model's classes {known}. Name it by its class, or move it.")


def _decode(path: Path, wanted: Wanted) -> _Pixels:
    channels, height, width = wanted.shape
    try:
        pixels = read_picture(path, FORMATS, "L" if channels == 1 else "RGB", (width, height))
    except ImportError:
        raise ValueError(f"Pillow reads image files, and is not here. Type: {how_to_add('images')}") from None
    except (Unreadable, OSError) as error:
        raise ValueError(
            f"{path} is not a readable image: {one_line(error)}. Convert it to PNG, or take it out of the folder."
        ) from None
    except OtherSize as found:
        raise ValueError(
            f"{path} has {found.width} x {found.height} pixels, but the model takes {width} x {height}. Resize it."
        ) from None
    first = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    return first if wanted.white == 255 else first / np.float32(255)
