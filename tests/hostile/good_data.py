"""Honest data files, small ones, of every kind that is read."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from hostile import bad_weights

Make = Callable[[Path], None]  # writes honest data into the folder of a case

SIZES = {"train": 40, "t10k": 20}


def _npz(folder: Path) -> None:
    np.savez(folder / "i.npz", **digits())


def digits() -> dict[str, np.ndarray]:
    draws = np.random.default_rng(0)
    return {"x": draws.integers(0, 17, (20, 8, 8), dtype=np.uint8), "y": np.arange(20) % 10}


def _classes(folder: Path) -> None:
    for number in range(10):
        (folder / "images" / str(number)).mkdir(parents=True)
        Image.new("L", (8, 8), 20 * number).save(folder / "images" / str(number) / "a.png")


def _fashion(folder: Path) -> None:
    (folder / "data" / "fashion-mnist").mkdir(parents=True)
    for part, size in SIZES.items():
        images, labels = np.zeros((size, 28, 28), np.uint8), (np.arange(size) % 10).astype(np.uint8)
        write_idx(folder, part, "images-idx3-ubyte", images)
        write_idx(folder, part, "labels-idx1-ubyte", labels)


def write_idx(folder: Path, part: str, name: str, array: np.ndarray) -> None:
    header = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    (folder / "data" / "fashion-mnist" / f"{part}-{name}").write_bytes(header + array.tobytes())


def _cifar10(folder: Path) -> None:
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        _batch(folder / "data" / "cifar-10-batches-py" / name, "labels", 10)


def _cifar100(folder: Path) -> None:
    for name, size in (("train", 200), ("test", 100)):
        _batch(folder / "data" / "cifar-100-python" / name, "fine_labels", size)


def _batch(path: Path, key: str, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    classes = 100 if key == "fine_labels" else 10
    content = {b"data": np.zeros((size, 3072), np.uint8), key.encode(): [label % classes for label in range(size)]}
    path.write_bytes(pickle.dumps(content, protocol=2))


def _tiny(folder: Path) -> None:
    home, names = folder / "data" / "tiny-imagenet-200", ["n01", "n02"]
    (home / "val" / "images").mkdir(parents=True)
    for name in names:
        (home / "train" / name / "images").mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (64, 64)).save(home / "train" / name / "images" / f"{number}.JPEG")
        Image.new("RGB", (64, 64)).save(home / "val" / "images" / f"{name}.JPEG")
    (home / "wnids.txt").write_text("\n".join(names))
    (home / "val" / "val_annotations.txt").write_text("".join(f"{name}.JPEG\t{name}\t0\t0\t9\t9\n" for name in names))


HONEST: dict[str, Make] = {
    "npz": _npz, "classes": _classes, "fashion": _fashion, "cifar10": _cifar10, "cifar100": _cifar100, "tiny": _tiny,
    "torch": bad_weights.write_torch, "safetensors": bad_weights.write_safe,
}  # fmt: skip
FILES = {  # one of each that is damaged
    "npz": "i.npz",
    "classes": "images/3/a.png",
    "fashion": "data/fashion-mnist/train-images-idx3-ubyte",
    "cifar10": "data/cifar-10-batches-py/data_batch_3",
    "cifar100": "data/cifar-100-python/train",
    "tiny": "data/tiny-imagenet-200/train/n02/images/1.JPEG",
    "torch": bad_weights.TORCH_FILE,
    "safetensors": bad_weights.SAFE_FILE,
}
