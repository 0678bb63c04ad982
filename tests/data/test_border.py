"""Files of data sets that are not what their names say: refused at once, by name, and before they take memory."""

import gzip
import os
import pickle
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedatoms.data.datasets import DATASETS, load
from fedatoms.data.idx import read_idx
from fedatoms.data.safe_pickle import read_pickle

SHAPES = {
    "train-images-idx3-ubyte": (7, 28, 28),
    "train-labels-idx1-ubyte": (7,),
    "t10k-images-idx3-ubyte": (3, 28, 28),
    "t10k-labels-idx1-ubyte": (3,),
}


@contextmanager
def within(most: int) -> Iterator[None]:
    """Asserts a bound on the memory that a block takes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def idx(shape: tuple[int, ...], size: int) -> bytes:
    return bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + bytes(size)


def fashion(folder: Path) -> Path:
    for name, shape in SHAPES.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(shape, int(np.prod(shape)))))
    return folder


def cifar(folder: Path) -> Path:
    for name in DATASETS["cifar10"].files:
        batch = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def tiny(folder: Path) -> Path:
    for path in (folder / "train/n1/images/a.JPEG", folder / "val/images/b.JPEG"):
        path.parent.mkdir(parents=True)
        Image.new("RGB", (64, 64)).save(path, "JPEG")
    (folder / "wnids.txt").write_text("n1\n")
    (folder / "val/val_annotations.txt").write_text("b.JPEG\tn1\t0\t0\t62\t62\n")
    return folder


WRITE = {"fashion-mnist": fashion, "cifar10": cifar, "tiny-imagenet": tiny}
FILES = [
    ("fashion-mnist", "t10k-images-idx3-ubyte.gz"),
    ("fashion-mnist", "train-labels-idx1-ubyte"),  # goes before the zipped one
    ("cifar10", "data_batch_2"),
    ("tiny-imagenet", "wnids.txt"),
    ("tiny-imagenet", "val/val_annotations.txt"),
    ("tiny-imagenet", "train/n1/images/a.JPEG"),
    ("tiny-imagenet", "val/images/b.JPEG"),
]


@pytest.mark.parametrize(("name", "file"), FILES)
def test_no_file_may_be_a_pipe_a_device_a_folder_or_without_end(tmp_path: Path, name: str, file: str) -> None:
    path = WRITE[name](tmp_path) / file
    load(name, tmp_path)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(ValueError, match=rf"{path.name} is a pipe, not a regular file"):
        load(name, tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=rf"{path.name} is a device, not a regular file"):
        load(name, tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match=rf"{path.name} is a folder, not a regular file"):
        load(name, tmp_path)
    path.rmdir()
    with path.open("wb") as opened:
        opened.truncate(7 * 10**9)  # less than the limit on what is read at once
    with within(2**20), pytest.raises(ValueError, match=rf"{path.name} takes 7,000,000,000 bytes, but such a file has"):
        load(name, tmp_path)


@pytest.mark.parametrize(
    ("shape", "size", "words"),
    [
        ((7, 28, 28), 2**26, "more than the 5,488 bytes of data that its header promises"),
        ((60_001, 28, 28), 2**26, "shape (60001, 28, 28) is not (n, 28, 28) with n from 1 to 60,000"),
        ((2**32 - 1, 28, 28), 2**26, "with n from 1 to 60,000"),
        ((7, 2**31, 28), 2**26, "is not (n, 28, 28)"),
        ((7, 28, 28), 5487, "it has 5,487 bytes of data, but its header promises 5,488"),
    ],
)
def test_no_more_is_unzipped_than_the_header_promises(
    tmp_path: Path, shape: tuple[int, ...], size: int, words: str
) -> None:
    (fashion(tmp_path) / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(shape, size), 1))
    with within(2**23), pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz") as caught:
        load("fashion-mnist", tmp_path)
    assert words in str(caught.value)


@settings(max_examples=200)
@given(data=st.data(), zipped=st.booleans())
def test_a_damaged_idx_file_gives_its_items_or_an_error_that_names_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, zipped: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / f"labels{'.gz' * zipped}"
    good = gzip.compress(idx((9,), 9), mtime=0) if zipped else idx((9,), 9)
    changed = bytearray(good)
    for place in data.draw(st.lists(st.integers(0, len(good) - 1), max_size=3)):
        changed[place] = data.draw(st.integers(0, 255))
    path.write_bytes(changed[: data.draw(st.integers(0, len(good)) | st.just(len(good)))])
    try:
        assert read_idx(path, most=100).shape == (9,)
    except ValueError as error:
        assert str(path) in str(error) and "\n" not in str(error)


A_MILLION = b"X" + struct.pack("<I", 10**6) + b"a" * 10**6 + b"q\x00"  # letters, named 0
ENCODED = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86q\x01R"
AGAIN = b"c_codecs\nencode\nh\x01R"
START = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85X\x01\x00\x00\x00b\x87R"
DTYPE = b"cnumpy\ndtype\nX\x02\x00\x00\x00u1\x85R"
ARRAY = START + b"(K\x01J" + struct.pack("<i", 10**6) + b"\x85" + DTYPE + b"\x89h\x00tb"


def test_a_text_that_a_pickle_names_often_takes_its_memory_once(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02}X\x01\x00\x00\x00t](" + A_MILLION + ENCODED + 500 * AGAIN + b"es.")
    with within(2**24):
        assert len(read_pickle(path)["t"]) == 502
    for count, words in ((1, ""), (100, "has arrays of more bytes than the file")):
        arrays = b"".join(b"X\x04\x00\x00\x00" + f"{key:04}".encode() + ARRAY + b"s" for key in range(count))
        path.write_bytes(b"\x80\x02}X\x01\x00\x00\x00t](" + A_MILLION + b"es" + arrays + b".")
        with within(2**24), pytest.raises(ValueError, match=words) if words else nullcontext():
            assert read_pickle(path)["0000"].shape == (10**6,)


def test_a_pickle_of_countless_objects_is_refused_before_they_are_made(tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(b"\x80\x02" + b"]" * 600_000 + b".")
    with pytest.raises(ValueError, match=r"batch .*more objects than any data file needs"):
        read_pickle(tmp_path / "batch")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("wnids.txt", "n1\nn\0\n", r"wnids.txt: 'n\\x00' is not the name"),
        ("wnids.txt", "n1\n../n1\n", r"wnids.txt: '../n1' is not the name"),
        ("wnids.txt", "n1\nn1\n", r"wnids.txt names n1 more than once"),
        ("wnids.txt", "", r"val_annotations.txt: .* is not an image and a name"),
        ("val/val_annotations.txt", "b\0.JPEG\tn1\n", r"val_annotations.txt: 'b\\x00.JPEG' is not the name"),
        ("val/val_annotations.txt", "b.JPEG\tn1\n" * 1000, r"val_annotations.txt names b.JPEG more than once"),
        ("val/val_annotations.txt", "c.JPEG\tn1\n", r"c.JPEG is not a readable JPEG file"),
    ],
)
def test_wrong_lists_of_tiny_imagenet_are_named(tmp_path: Path, file: str, text: str, words: str) -> None:
    (tiny(tmp_path) / file).write_text(text)
    with pytest.raises(ValueError, match=words):
        load("tiny-imagenet", tmp_path)


def test_a_large_jpeg_is_refused_by_its_header(tmp_path: Path) -> None:
    Image.new("L", (6000, 6000)).save(tiny(tmp_path) / "train/n1/images/a.JPEG", "JPEG")
    with within(2**23), pytest.raises(ValueError, match=r"a.JPEG has shape \(6000, 6000, 3\)"):
        load("tiny-imagenet", tmp_path)


def test_a_null_byte_in_a_folder_is_said() -> None:
    with pytest.raises(ValueError, match=r"^data_dir='my\\x00data' has a null byte in it"):
        load("cifar10", "my\0data")
