"""A client's own images: what is no such file is refused by name, before it takes memory, and never by a traceback."""

import io
import os
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedatoms.core.border import MAX_GB
from fedatoms.data.image_files import Wanted, read_images
from fedatoms.data.npz import open_npz

DIGITS = Wanted((1, 8, 8), 16, 10)
X, Y = np.arange(5 * 64, dtype=np.uint8).reshape(5, 1, 8, 8) % 17, np.arange(5)


def npz(x: object = X, y: object = Y, **more: object) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, x=x, y=y, **more)
    return file.getvalue()


def refusal(path: Path, wanted: Wanted = DIGITS, named: str = "") -> str:
    """Returns the error of reading images, which must be one printable line that names the file, and soon made."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=named or path.name) as caught:
            read_images(path, wanted)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value) and str(caught.value).isprintable()
    return str(caught.value)


def header(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zeros(shape: tuple[int, ...], size: int, descr: str = "|u1") -> Callable[[zipfile.ZipFile, str], None]:
    """Writes an entry with a header and ``size`` zeros, which take a thousandth in the file."""

    def write(archive: zipfile.ZipFile, name: str) -> None:
        with archive.open(name, "w", force_zip64=True) as entry:
            entry.write(header(shape, descr))
            for _ in range(size // 2**20):
                entry.write(bytes(2**20))
            entry.write(bytes(size % 2**20))

    return write


def bomb(path: Path, **entries: Callable[[zipfile.ZipFile, str], None]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, write in entries.items():
            write(archive, f"{name}.npy")
    return path


def test_an_array_that_does_not_fit_is_never_decompressed(tmp_path: Path) -> None:
    large, labels = 2**27, zeros((5,), 40, "<i8")
    path = bomb(tmp_path / "a.npz", x=zeros((large // 64, 8, 9), large // 64 * 72), y=labels)
    assert "does not fit" in refusal(path)
    path = bomb(tmp_path / "b.npz", x=zeros((large // 64, 8, 8), large), y=labels)
    assert "y of type int64 and shape (5,) is not 2097152 whole numbers" in refusal(path)
    path = bomb(tmp_path / "c.npz", x=zeros((5, 8, 8), large), y=labels)
    assert "takes 134,217,856 bytes, but its header promises 448" in refusal(path)
    path = bomb(tmp_path / "d.npz", x=zeros((5, 8, 8), 320), y=zeros((5,), large, "<i8"))
    assert "y.npy takes 134,217,856 bytes, but its header promises 168" in refusal(path)


def test_an_array_that_memory_is_not_meant_to_hold_says_how_to_allow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2**21
    path = bomb(tmp_path / "a.npz", x=zeros((count, 8, 8), count * 64), y=zeros((count,), count, "|u1"))
    monkeypatch.setenv(MAX_GB, "0.1")
    assert "x of" in refusal(path) and "takes 134,217,728 bytes" in refusal(path) and f"set {MAX_GB}=" in refusal(path)
    monkeypatch.setenv(MAX_GB, "1")
    assert read_images(path, DIGITS).x.shape == (count, 1, 8, 8)


def test_the_values_of_an_array_are_those_that_numpy_wrote(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "a.npz"
    for x in (X, X.astype(">i4"), np.asfortranarray(X), X[:, 0] / 16, X.transpose(0, 2, 3, 1).astype(np.float16) / 16):
        path.write_bytes(npz(x, rng.permutation(5).astype(">i2"), note="kept"))
        with open_npz(path, "x", "y") as arrays, np.load(path) as theirs:
            for name in ("x", "y"):
                ours = arrays.read(name)
                assert ours.dtype == theirs[name].dtype and np.array_equal(ours, theirs[name])
                assert ours.strides == theirs[name].strides


def test_what_numpy_2_under_python_2_wrote_is_read_without_a_warning(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header((5, 8, 8)).replace(b"(5, 8, 8), } ", b"(5L, 8, 8), }") + X.tobytes())
        archive.writestr("y.npy", header((5,), "<i8") + Y.astype("<i8").tobytes())
    assert read_images(tmp_path / "a.npz", DIGITS).y.tolist() == Y.tolist()


def flagged(content: bytes, flag: int) -> bytes:
    """Sets a flag of every entry, in its own header and in the list of all."""
    changed = bytearray(content)
    for magic, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := changed.find(magic, at + 1)) >= 0:
            changed[at + place] |= flag
    return bytes(changed)


def recompressed(how: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(npz())) as old, zipfile.ZipFile(file, "w", how) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return file.getvalue()


def with_entries(count: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as new:
        for number in range(count):
            new.writestr(f"{number:0200}", b"")
    return file.getvalue()


def twice() -> bytes:
    file = io.BytesIO(npz())
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("x.npy", b"")
    return file.getvalue()


def one_entry(content: bytes) -> Callable[[], bytes]:
    def write() -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x.npy", content)
        return file.getvalue()

    return write


WRONG: dict[str, tuple[Callable[[], bytes], str]] = {
    "encrypted": (lambda: flagged(npz(), 1), "its array x is encrypted"),
    "strong encryption": (lambda: flagged(npz(), 64), "encryption"),
    "another compression": (lambda: recompressed(zipfile.ZIP_BZIP2), "compressed in a way"),
    "two of a name": (twice, "the array x 2 times"),
    "a list of a million bytes": (lambda: with_entries(5000), "list of arrays takes 1,2"),
    "complex": (lambda: npz(X * 1j), "x holds complex128, which cannot be pixels"),
    "objects": (lambda: npz(np.array([{}], dtype=object)), "an array holds objects"),
    "a structure": (lambda: npz(np.zeros((5, 1, 8, 8), "u1,u1")), "cannot be pixels"),
    "text": (one_entry(b"hello"), "magic"),
    "an unknown version": (one_entry(b"\x93NUMPY\x03\x00"), "not an array of numbers"),
    "a header that is a deep nest": (one_entry(b"\x93NUMPY\x01\x00\x20\x1c" + b"(" * 7200), ""),
    "a negative shape": (one_entry(header((-5, 8, 8))), "is not the shape"),
    "a shape of flags": (one_entry(header((True, 8, 8))), "is not the shape"),
    "an endless shape": (one_entry(header((10**30, 8, 8))), "but its header promises"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_npz_file_is_named_with_the_reason(tmp_path: Path, name: str) -> None:
    write, words = WRONG[name]
    (tmp_path / "ann.npz").write_bytes(write())
    assert words in refusal(tmp_path / "ann.npz")


@settings(max_examples=300)
@given(data=st.data(), packed=st.booleans())
def test_a_damaged_npz_file_gives_images_or_an_error_that_names_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, packed: bool
) -> None:
    good, path = npz() if packed else recompressed(zipfile.ZIP_STORED), tmp_path_factory.getbasetemp() / "damaged.npz"
    changed = bytearray(good[: data.draw(st.integers(0, len(good)) | st.just(len(good)))])
    for place in data.draw(st.lists(st.integers(0, max(0, len(changed) - 1)), max_size=3)):
        if changed:
            changed[place] = data.draw(st.integers(0, 255))
    path.write_bytes(changed)
    try:
        assert read_images(path, DIGITS).x.shape == (5, 1, 8, 8)
    except ValueError as error:
        assert str(path) in str(error) and "\n" not in str(error)


def picture(path: Path, size: tuple[int, int] = (8, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, 5).save(path, "PNG")
    return path


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def with_chunk(png: bytes, kind: bytes, content: bytes) -> bytes:
    return png[:33] + chunk(kind, content) + png[33:]


BOMBS = {
    "one text": lambda png: with_chunk(png, b"zTXt", b"k\0\0" + zlib.compress(bytes(2**27), 9)),
    "one international text": lambda png: with_chunk(png, b"iTXt", b"k\0\1\0\0\0" + zlib.compress(bytes(2**27), 9)),
    "many texts": lambda png: png[:33] + 100 * chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(2**20 - 9), 9)) + png[33:],
    "a text at the end": lambda png: png[:-12] + chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(2**27), 9)) + png[-12:],
    "a profile": lambda png: with_chunk(png, b"iCCP", b"k\0\0" + zlib.compress(bytes(2**27), 9)),
    "many pixels": lambda png: png[:8] + chunk(b"IHDR", struct.pack(">II", 12_000, 12_000) + png[24:29]) + png[33:],
    "too many pixels": lambda png: png[:8] + chunk(b"IHDR", struct.pack(">II", 60_000, 60_000) + png[24:29]) + png[33:],
    "a long file": lambda png: png + bytes(2**24),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_picture_that_swells_is_refused_by_name_or_takes_no_memory(tmp_path: Path, name: str) -> None:
    file = picture(tmp_path / "pictures/3/a.png")
    file.write_bytes(BOMBS[name](file.read_bytes()))
    tracemalloc.start()
    try:
        assert read_images(tmp_path / "pictures", DIGITS).y.tolist() == [3]
    except ValueError as error:
        assert "pictures/3/a.png" in str(error) and "\n" not in str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**27


@settings(max_examples=200)
@given(kind=st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "PPM"]), data=st.data())
def test_a_damaged_picture_gives_an_image_or_an_error_that_names_it(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "pictures" / "3" / "a.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    Image.new("L", (8, 8), 5).save(file, kind)
    changed = bytearray(file.getvalue())
    for place in data.draw(st.lists(st.integers(0, len(changed) - 1), min_size=1, max_size=3)):
        changed[place] = data.draw(st.integers(0, 255))
    path.write_bytes(changed[: data.draw(st.integers(0, len(changed)) | st.just(len(changed)))])
    try:
        assert read_images(path.parents[1], DIGITS).x.shape == (1, 1, 8, 8)
    except ValueError as error:
        assert str(path) in str(error) and "\n" not in str(error)


def test_pipes_devices_and_sockets_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ann.npz")
    assert "is a pipe" in refusal(tmp_path / "ann.npz")
    (tmp_path / "bob.npz").symlink_to("/dev/zero")
    assert "is a device" in refusal(tmp_path / "bob.npz")
    (tmp_path / "pictures/3").mkdir(parents=True)
    os.mkfifo(tmp_path / "pictures/3/a.png")
    assert "is a pipe" in refusal(tmp_path / "pictures", named="3/a.png")
    (tmp_path / "pictures/3/a.png").unlink()
    (tmp_path / "pictures/3/a.png").symlink_to("/dev/zero")
    assert "is a device" in refusal(tmp_path / "pictures", named="3/a.png")
    (tmp_path / "pictures/3/a.png").unlink()
    (tmp_path / "pictures/3/a.png").symlink_to("nowhere")
    assert "No such file" in refusal(tmp_path / "pictures", named="3/a.png")


def test_two_folders_of_one_class_and_one_of_none_are_refused_by_name(tmp_path: Path) -> None:
    for name in ("3", "03"):
        picture(tmp_path / "twice" / name / "a.png")
    line = refusal(tmp_path / "twice")
    assert "twice/03 and" in line and "twice/3 are both class 3" in line
    picture(tmp_path / "far" / "99999999999999999999999" / "a.png")
    assert "far/99999999999999999999999 is not one of the model's classes 0..9" in refusal(tmp_path / "far")
    (tmp_path / "near" / "99999999999999999999999").mkdir(parents=True)
    picture(tmp_path / "near" / "03" / "a.png")
    assert read_images(tmp_path / "near", DIGITS).y.tolist() == [3]  # an empty folder labels nothing


def test_a_null_byte_in_a_path_is_said() -> None:
    with pytest.raises(ValueError, match=r"^images='a\\x00b.npz' has a null byte in it"):
        read_images(Path("a\0b.npz"), DIGITS)
