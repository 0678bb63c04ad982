"""A client's own images, from an npz file or a folder of image files, as pixels for a data set's recipe."""

import struct
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedatoms.core.lookup import one_line

# Formats that Pillow decodes itself; others it passes on: an EPS file is a program, which Ghostscript would run.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_DAMAGED = (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError, struct.error)

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
    if not path.exists():
        raise ValueError(f"{path} does not exist. Give an npz file with arrays x and y, or a folder of class folders.")
    x, y, labels_from = _from_folder(path, wanted) if path.is_dir() else (*_from_npz(path), "y")
    if x.size == 0:
        where = f" in a folder of its class, such as {path / '0' / 'a.png'}" if path.is_dir() else ""
        raise ValueError(f"{path} holds no image{where}, but needs at least one.")
    x = _channels_first(x, path, wanted)
    return LabelledImages(_pixels(x, path, wanted), _labels(y, len(x), path, wanted), labels_from)


def _from_npz(path: Path) -> tuple[_Pixels, _Pixels]:
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not a zip file")
        with np.load(path, allow_pickle=False) as arrays:  # without pickles a file cannot run code
            for name in ("x", "y"):
                if name not in arrays:
                    raise ValueError(f"it has no array {name}")
            return np.asarray(arrays["x"]), np.asarray(arrays["y"])
    except (ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        reason = "an array holds objects" if "allow_pickle" in str(error) else str(error).rstrip(".")
        raise ValueError(
            f"{path} is not an npz file with arrays x and y: {reason}. Write one with numpy.savez(file, x=..., y=...)."
        ) from None


def _channels_first(x: _Pixels, path: Path, wanted: Wanted) -> _Pixels:
    channels, height, width = wanted.shape
    if x.shape[1:] == wanted.shape:
        return x
    if x.shape[1:] == (height, width, channels):
        return x.transpose(0, 3, 1, 2)
    if x.shape[1:] == (height, width) and channels == 1:
        return x[:, None]
    raise ValueError(
        f"{path}: x of shape {x.shape} does not fit: the model takes images of {wanted.shape}, so x must be "
        f"(n, {channels}, {height}, {width}) or (n, {height}, {width}{f', {channels}' if channels > 1 else ''})."
    )


def _pixels(x: _Pixels, path: Path, wanted: Wanted) -> Tensor:
    whole = x.dtype.kind in "iu"
    if not whole and x.dtype.kind != "f":
        raise ValueError(f"{path}: x holds {x.dtype}, which cannot be pixels. Use uint8, or floats from 0 to 1.")
    white = wanted.white if whole else 1.0
    values = x.astype(np.float32)
    wrong = values[~((values >= 0) & (values <= white))]  # nan is neither
    if len(wrong):
        raise ValueError(
            f"{path}: x holds {wrong[0]:g}, but its {x.dtype} must go from 0 to {white:g}, as in the run's data. "
            f"Scale it, for example to floats from 0 to 1."
        )
    return torch.from_numpy(x.astype(np.uint8) if whole else values * np.float32(wanted.white))


def _labels(y: _Pixels, count: int, path: Path, wanted: Wanted) -> Tensor:
    if y.dtype.kind not in "iu" or y.shape != (count,):
        raise ValueError(
            f"{path}: y of type {y.dtype} and shape {y.shape} is not {count} whole numbers, one label per image."
        )
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
    files = [
        (file, label)
        for folder, label in zip(folders, labels, strict=True)
        for file in sorted(folder.iterdir())
        if file.is_file() and not file.name.startswith(".")
    ]
    x = [_decode(file, wanted) for file, _ in files]
    y = np.array([label for _, label in files], dtype=np.int64)
    numbering = ", ".join(f"{name} = {label}" for name, label in zip(names, labels, strict=True))
    return np.stack(x) if x else np.zeros(0), y, "folders' numbers" if numbered else f"sorted folders: {numbering}"


def _decode(path: Path, wanted: Wanted) -> _Pixels:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ValueError('Pillow reads image files, and is not here: pip install "fedatoms[images]"') from None
    channels, height, width = wanted.shape
    try:
        with Image.open(path, formats=FORMATS) as image:
            size = image.size
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB")) if size == (width, height) else None
    except UnidentifiedImageError:
        raise ValueError(
            f"{path} is not a readable image: whatever its name says, it is none of {', '.join(FORMATS)}. Convert it "
            "to PNG, or take it out of the folder."
        ) from None
    except (*_DAMAGED, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is not a readable image ({one_line(error)}). Take it out of the folder.") from None
    if pixels is None:
        raise ValueError(f"{path} has {size[0]} x {size[1]} pixels, but the model takes {width} x {height}. Resize it.")
    first = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    return first if wanted.white == 255 else first / np.float32(255)
