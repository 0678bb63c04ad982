"""Ways to make data files bad: bombs, lies about sizes, evil pickles, wrong types, odd names."""

import gzip
import io
import pickle
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from hostile import bad_weights
from hostile.damages import BYTES, NO_FILES
from hostile.evil import Evil
from hostile.good_data import FILES, digits, write_idx

Spoil = Callable[[Path, random.Random], None]  # of the folder in which the honest data lie

BOMB = 1200 << 20  # bytes that a small file unpacks to


def _damaged(kind: str) -> dict[str, Spoil]:
    """Returns the damages that fit any file, of a file of this kind."""
    every = {**BYTES, **NO_FILES}
    return {
        name: lambda folder, draws, damage=damage: damage(folder / FILES[kind], draws, Path("/nothing"))
        for name, damage in every.items()
    }


def _at(kind: str, make: Callable[[Path], object]) -> Spoil:
    return lambda folder, draws: (make(folder / FILES[kind]), None)[1]


def _arrays(**changes: object) -> Spoil:
    return _at("npz", lambda path: np.savez(path, **{**digits(), **changes}))  # type: ignore[arg-type]


def _header_of(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape})
    padded = f"{text:<{(len(text) + 10) // 64 * 64 + 64 - 11}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded


def _zip(path: Path, members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "w", how, compresslevel=1) as file:
        for name, content in members.items():
            file.writestr(name, content)


@cache
def _bombs(name: str) -> bytes:
    """Makes an npz file with one member that unpacks to a gigabyte of zeros; once, as it takes seconds."""
    file, honest = io.BytesIO(), {"x.npy": _saved(digits()["x"]), "y.npy": _Y}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        for other in honest.keys() - {name}:
            made.writestr(other, honest[other])
        with made.open(name, "w", force_zip64=True) as member:
            member.write(_header_of((BOMB // 22500, 150, 150)))
            for _ in range(BOMB >> 22):
                member.write(bytes(1 << 22))
    return file.getvalue()


def _saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


_Y = _saved(np.arange(20) % 10)
NPZ: dict[str, Spoil] = {
    "bomb": _at("npz", lambda path: path.write_bytes(_bombs("x.npy"))),
    "bomb of labels": _at("npz", lambda path: path.write_bytes(_bombs("y.npy"))),
    "bomb beside": _at("npz", lambda path: path.write_bytes(_bombs("z.npy"))),
    "promises exabytes": _at("npz", lambda path: _zip(path, {"x.npy": _header_of((1 << 40, 8, 8)), "y.npy": _Y})),
    "promises less than nothing": _at("npz", lambda path: _zip(path, {"x.npy": _header_of((-1, 8, 8)), "y.npy": _Y})),
    "shape of 40 axes": _at("npz", lambda path: _zip(path, {"x.npy": _header_of((1,) * 40), "y.npy": _Y})),
    "no such type": _at("npz", lambda path: _zip(path, {"x.npy": _header_of((20, 8, 8), "|q9"), "y.npy": _Y})),
    "header is code": _at(
        "npz", lambda path: _zip(path, {"x.npy": _header_of((1,)).replace(b"'|u1'", b"f(1)"), "y.npy": _Y})
    ),
    "pickled": _arrays(x=np.array([Evil()] * 20, dtype=object)),
    "lzma": _at("npz", lambda path: _zip(path, {"x.npy": _saved(digits()["x"]), "y.npy": _Y}, zipfile.ZIP_LZMA)),
    "bz2": _at("npz", lambda path: _zip(path, {"x.npy": _saved(digits()["x"]), "y.npy": _Y}, zipfile.ZIP_BZIP2)),
    "encrypted": lambda folder, draws: _encrypt(folder / FILES["npz"]),
    "no x": _at("npz", lambda path: np.savez(path, y=np.arange(20))),
    "empty": _arrays(x=np.zeros((0, 8, 8), np.uint8), y=np.zeros(0, np.int64)),
    "one number": _arrays(x=np.uint8(3), y=np.int64(3)),
    "complex": _arrays(x=np.zeros((20, 8, 8), complex)),
    "text": _arrays(x=np.full((20, 8, 8), "a")),
    "times": _arrays(x=np.zeros((20, 8, 8), "datetime64[s]")),
    "records": _arrays(x=np.zeros((20, 8, 8), [("a", "u1")])),
    "truths": _arrays(x=np.zeros((20, 8, 8), bool)),
    "nan": _arrays(x=np.full((20, 8, 8), np.nan)),
    "infinite": _arrays(x=np.full((20, 8, 8), np.inf)),
    "negative": _arrays(x=np.full((20, 8, 8), -1)),
    "white is 255": _arrays(x=np.full((20, 8, 8), 255, np.uint8)),
    "other shape": _arrays(x=np.zeros((20, 7, 9), np.uint8)),
    "float labels": _arrays(y=np.zeros(20)),
    "negative labels": _arrays(y=np.full(20, -1)),
    "huge labels": _arrays(y=np.full(20, 2**62)),
    "unsigned labels": _arrays(y=np.full(20, 2**64 - 1, np.uint64)),
    "few labels": _arrays(y=np.zeros(3, np.int64)),
    "big-endian": _arrays(x=digits()["x"].astype(">u2"), y=digits()["y"].astype(">i8")),
    "float128": _arrays(x=np.zeros((20, 8, 8), np.longdouble)),
    "float16": _arrays(x=np.zeros((20, 8, 8), np.float16)),
}


def _encrypt(path: Path) -> None:
    """Sets the bit of encryption in both places where a zip file has it."""
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := content.find(mark, at + 1)) >= 0:
            content[at + place] |= 1
    path.write_bytes(bytes(content))


def _png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    first = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    pixels = (b"IDAT", zlib.compress(bytes(9 * 8)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*one) for one in (first, *chunks, pixels, (b"IEND", b"")))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@cache
def _zeros(size: int) -> bytes:
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


def _folder(old: str, new: str) -> Spoil:
    def spoil(folder: Path, draws: random.Random) -> None:
        target = folder / "images" / new
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "images" / old / "a.png", target / "b.png")

    return spoil


CLASSES: dict[str, Spoil] = {
    "text bomb": _at("classes", lambda path: path.write_bytes(_png(8, 8, (b"zTXt", b"a\0\0" + _zeros(400 << 20))))),
    "text bombs": _at(
        "classes", lambda path: path.write_bytes(_png(8, 8, *[(b"zTXt", b"a\0\0" + _zeros(1 << 20))] * 99))
    ),
    "profile bomb": _at("classes", lambda path: path.write_bytes(_png(8, 8, (b"iCCP", b"a\0\0" + _zeros(400 << 20))))),
    "promises 60,000 x 60,000": _at("classes", lambda path: path.write_bytes(_png(60_000, 60_000))),
    "promises 2 billion": _at("classes", lambda path: path.write_bytes(_png(2**31 - 1, 2**31 - 1))),
    "no pixels": _at("classes", lambda path: path.write_bytes(_png(0, 0))),
    "larger": _at("classes", lambda path: Image.new("L", (3000, 3000)).save(path)),
    "EPS": _at(
        "classes", lambda path: path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n")
    ),
    "16 bits": _at("classes", lambda path: Image.new("I;16", (8, 8)).save(path)),
    "colours": _at("classes", lambda path: Image.new("RGBA", (8, 8)).save(path)),
    "GIF of frames": _at(
        "classes",
        lambda path: Image.new("L", (8, 8)).save(
            path, "GIF", save_all=True, append_images=[Image.new("L", (8, 8), n) for n in range(50)]
        ),
    ),
    "float TIFF": _at("classes", lambda path: Image.new("F", (8, 8)).save(path, "TIFF")),
    "huge class": _folder("3", "9" * 23),
    "class twice": _folder("3", "03"),
    "Arabic class": _folder("3", "\N{ARABIC-INDIC DIGIT THREE}"),
    "superscript class": _folder("3", "\N{SUPERSCRIPT TWO}"),
    "class of a thousand digits": _folder("3", "1" * 250),
    "negative class": _folder("3", "-1"),
    "odd names": _folder("3", "\x1b[31m\n"),
    "undecodable name": _folder("3", "\udcff"),
    "no classes": lambda folder, draws: [shutil.rmtree(each) for each in (folder / "images").iterdir()] and None,
    "files only": lambda folder, draws: (folder / "images" / "a.png").touch(),
    "link to its parent": lambda folder, draws: (folder / "images" / "3" / "up").symlink_to(".."),
}


@cache
def _gzip_bomb() -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    header = bytes((0, 0, 8, 3)) + b"".join(size.to_bytes(4, "big") for size in (40, 28, 28))
    zeros = (packer.compress(bytes(1 << 22)) for _ in range(BOMB >> 22))
    return b"".join([packer.compress(header), *zeros, packer.flush()])


def _zipped(path: Path, content: bytes) -> None:
    path.with_name(f"{path.name}.gz").write_bytes(content)
    path.unlink()


def _shaped(*sizes: int) -> Spoil:
    header = bytes((0, 0, 8, len(sizes))) + b"".join(size.to_bytes(4, "big") for size in sizes)
    return _at("fashion", lambda path: path.write_bytes(header + bytes(100)))


FASHION: dict[str, Spoil] = {
    "gzip bomb": _at("fashion", lambda path: _zipped(path, _gzip_bomb())),
    "gzip, cut": _at("fashion", lambda path: _zipped(path, gzip.compress(path.read_bytes())[:-9])),
    "gzip that is none": _at("fashion", lambda path: path.rename(path.with_name(f"{path.name}.gz"))),
    "promises exabytes": _shaped(2**32 - 1, 2**32 - 1, 2**32 - 1),
    "no images": _shaped(0, 28, 28),
    "one axis": _shaped(100),
    "large images": _at(
        "fashion", lambda path: path.write_bytes(bytes((0, 0, 8, 3)) + struct.pack(">III", 1, 99, 99) + bytes(9801))
    ),
    "labels of 255": lambda folder, draws: write_idx(folder, "train", "labels-idx1-ubyte", np.full(40, 255, np.uint8)),
    "few labels": lambda folder, draws: write_idx(folder, "train", "labels-idx1-ubyte", np.zeros(3, np.uint8)),
}


def _pickled(kind: str, content: object, protocol: int = 2) -> Spoil:
    return _at(kind, lambda path: path.write_bytes(pickle.dumps(content, protocol)))


def _cifar(kind: str, key: str) -> dict[str, Spoil]:
    data, labels = np.zeros((20, 3072), np.uint8), [0] * 20
    raw = lambda content: _at(kind, lambda path: path.write_bytes(content))  # noqa: E731
    return {
        "evil": _pickled(kind, Evil()),
        "evil within": _pickled(kind, {"data": data, key: [Evil()]}),
        "evil, protocol 4": _pickled(kind, {"data": Evil()}, 4),
        "a list": _pickled(kind, [1, 2]),
        "objects": _pickled(kind, {"data": np.array([{}] * 3), key: labels}),
        "floats": _pickled(kind, {"data": data.astype(float), key: labels}),
        "labels of text": _pickled(kind, {"data": data, key: ["a"] * 20}),
        "huge labels": _pickled(kind, {"data": data, key: [10**30] * 20}),
        "labels of truth": _pickled(kind, {"data": data, key: [True] * 20}),
        "few labels": _pickled(kind, {"data": data, key: [0]}),
        "no images": _pickled(kind, {"data": data[:0], key: []}),
        "deep": raw(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."),
        "deep tuples": raw(b"\x80\x02)" + b"\x85" * 100_000 + b"."),
        "memo of gigabytes": raw(b"\x80\x02}r\xff\xff\xff\x7f."),
        "text of exabytes": raw(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fa."),
        "frame of exabytes": raw(b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}."),
        "long of megabytes": raw(b"\x80\x02\x8b\xff\xff\xff\x7f1."),
        "int of a million digits": raw(b"I" + b"9" * 1_000_000 + b"\n."),
        "billion laughs": raw(
            b"\x80\x02]q\x00" + b"".join(b"](" + b"h\x00" * 10 + b"eq\x00" for _ in range(20)) + b"."
        ),
    }


def _tiny_text(name: str, text: str) -> Spoil:
    return lambda folder, draws: ((folder / "data" / "tiny-imagenet-200" / name).write_text(text), None)[1]


TINY: dict[str, Spoil] = {
    "no names": _tiny_text("wnids.txt", ""),
    "names twice": _tiny_text("wnids.txt", "n01\nn01\nn02"),
    "name outside": _tiny_text("wnids.txt", "../../..\nn01\nn02"),
    "name with a zero": _tiny_text("wnids.txt", "n01\0\nn02"),
    "blank names": _tiny_text("wnids.txt", "n01\n\nn02\n"),
    "a long name": _tiny_text("wnids.txt", "n" * 5000),
    "no notes": _tiny_text("val/val_annotations.txt", ""),
    "note of nothing": _tiny_text("val/val_annotations.txt", "gone.JPEG\tn01\n"),
    "note outside": _tiny_text("val/val_annotations.txt", "../../../../../../../dev/zero\tn01\n"),
    "note with a zero": _tiny_text("val/val_annotations.txt", "a\0b\tn01\n"),
    "larger": _at("tiny", lambda path: Image.new("RGB", (3000, 3000)).save(path)),
    "grey": _at("tiny", lambda path: Image.new("L", (64, 64)).save(path)),
    "a PNG": _at("tiny", lambda path: Image.new("RGB", (64, 64)).save(path, "PNG")),
    "promises 65,000 x 65,000": lambda folder, draws: _larger(folder / FILES["tiny"]),
}


def _larger(path: Path) -> None:
    """Writes another size into the header of a JPEG file."""
    content = path.read_bytes()
    at = content.find(b"\xff\xc0")
    path.write_bytes(content[: at + 5] + struct.pack(">HH", 65_000, 65_000) + content[at + 9 :])


BAD: dict[str, dict[str, Spoil]] = {
    "npz": {**_damaged("npz"), **NPZ},
    "classes": {**_damaged("classes"), **CLASSES},
    "fashion": {**_damaged("fashion"), **FASHION},
    "cifar10": {**_damaged("cifar10"), **_cifar("cifar10", "labels")},
    "cifar100": {**_damaged("cifar100"), **_cifar("cifar100", "fine_labels")},
    "tiny": {**_damaged("tiny"), **TINY},
    "torch": {**_damaged("torch"), **bad_weights.TORCH},
    "safetensors": {**_damaged("safetensors"), **bad_weights.SAFE},
}


def prepare() -> None:
    """Makes what takes long to make, so that all processes have it."""
    for name in ("x.npy", "y.npy", "z.npy"):
        _bombs(name)
    _gzip_bomb()
    for size in (1 << 20, 400 << 20):
        _zeros(size)
    bad_weights.prepare()
