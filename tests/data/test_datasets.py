"""Official files give the images that they hold; broken ones a one-line error; hostile ones never run code."""

import copyreg
import gzip
import hashlib
import os
import pickle
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedatoms.data import datasets, decoded
from fedatoms.data.datasets import DATASETS, load
from fedatoms.data.safe_pickle import _NAMES, read_pickle

Batch = dict[str, object]


def cifar_batch(seed: int, images: int = 20, classes: int = 10, key: str = "labels") -> Batch:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (images, 3072), dtype=np.uint8)
    return {"batch_label": f"batch {seed}", key: rng.integers(0, classes, images).tolist(), "data": pixels}


def python2(batch: Batch) -> bytes:
    """Writes a batch as Python 2 and NumPy 1 wrote the official files: byte strings, protocol 2."""

    def write(value: object) -> bytes:
        if isinstance(value, str):
            return b"U" + bytes([len(value)]) + value.encode()
        if isinstance(value, list):
            return b"](" + b"".join(b"K" + bytes([number]) for number in value) + b"e"
        assert isinstance(value, np.ndarray)
        dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        shape = struct.pack("<sisis", b"J", value.shape[0], b"J", value.shape[1], b"\x86")
        raw = value.tobytes()
        state = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
        return b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R" + state

    return b"\x80\x02}(" + b"".join(write(key) + write(value) for key, value in batch.items()) + b"u."


def numpy1(batch: Batch) -> bytes:
    return pickle.dumps(batch, protocol=2).replace(b"numpy._core", b"numpy.core")


def byte_keys(batch: Batch) -> bytes:
    return pickle.dumps({key.encode(): value for key, value in batch.items()}, protocol=4)


def fortran(batch: Batch) -> bytes:
    return pickle.dumps({k: np.asfortranarray(v) if k == "data" else v for k, v in batch.items()}, protocol=2)


PROTOCOLS = [lambda batch, p=p: pickle.dumps(batch, protocol=p) for p in range(1, pickle.HIGHEST_PROTOCOL + 1)]
WRITERS = [python2, numpy1, byte_keys, fortran, *PROTOCOLS]


def refusal(path: Path, content: bytes) -> str:
    """Returns the error of reading hostile or broken bytes, which must be one line that names the file."""
    path.write_bytes(content)
    with pytest.raises(ValueError, match=path.name) as caught:
        read_pickle(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    return str(caught.value)


@pytest.mark.parametrize("write", WRITERS)
def test_every_python_and_numpy_writes_the_same_batch(tmp_path: Path, write: Callable[[Batch], bytes]) -> None:
    batch = cifar_batch(0)
    (tmp_path / "batch").write_bytes(write(batch))
    read = read_pickle(tmp_path / "batch")
    np.testing.assert_array_equal(read.pop("data"), batch.pop("data"))
    assert read == batch


@pytest.mark.parametrize("dtype", ["<i8", ">i8", "<u4", ">f4", "|b1"])
def test_arrays_keep_their_byte_order(tmp_path: Path, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    (tmp_path / "batch").write_bytes(pickle.dumps({"data": array}, protocol=2))
    np.testing.assert_array_equal(read_pickle(tmp_path / "batch")["data"], array)


class Call:
    """Pickles as a call of ``function`` with ``arguments``; both may be calls themselves."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.function, self.arguments

    def __call__(self) -> None: ...


ATTACKS: dict[str, Callable[[Path], object]] = {
    "os.system": lambda mark: Call(os.system, f"touch {mark}"),
    "eval": lambda mark: Call(eval, f"open({str(mark)!r}, 'w').close()"),
    "getattr chain": lambda mark: Call(Call(getattr, Call(__import__, "os"), "system"), f"touch {mark}"),
    "nested in a dictionary": lambda mark: {"data": [(Call(os.mkdir, str(mark)), 1)]},
    "unlisted NumPy function": lambda mark: Call(np.save, str(mark), 1),
}


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_data_file_cannot_run_code(tmp_path: Path, attack: str, protocol: int) -> None:
    mark = tmp_path / "owned.npy"
    content = pickle.dumps(ATTACKS[attack](mark), protocol=protocol)
    assert "refuses" in refusal(tmp_path / "batch", content)
    assert not mark.exists()
    pickle.loads(content)
    assert mark.exists(), "the attack is a dud, and proves nothing"


@pytest.fixture
def registered() -> Iterator[None]:
    copyreg.add_extension("os", "system", 240)
    pickle.loads(b"\x80\x02\x82\xf0.")  # now cached: unpicklers take it without asking find_class
    yield
    copyreg.remove_extension("os", "system", 240)


@pytest.mark.parametrize("code", [b"\x82\xf0", b"\x83\xf0\x00", b"\x84\xf0\x00\x00\x00"])
@pytest.mark.usefixtures("registered")
def test_the_extension_registry_is_no_way_in(tmp_path: Path, code: bytes) -> None:
    mark = tmp_path / "owned"
    refusal(tmp_path / "batch", b"\x80\x02" + code + pickle.dumps((f"touch {mark}",), protocol=2)[2:-1] + b"R.")
    assert not mark.exists()


def value(opcodes: bytes) -> bytes:
    """Writes a file whose only fault is the value of its one key."""
    return b"\x80\x02}X\x04\x00\x00\x00data" + opcodes + b"s."


A, LATIN1, TUPLE2 = b"X\x01\x00\x00\x00a", b"X\x06\x00\x00\x00latin1", b"\x86"
DTYPE = b"cnumpy\ndtype\nX\x02\x00\x00\x00u1\x85R"
EMPTY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85X\x01\x00\x00\x00b\x87R"
FINE = {
    "bytes": b"c_codecs\nencode\n" + A + LATIN1 + TUPLE2 + b"R",
    "dtype": DTYPE + b"(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
    "array": EMPTY + b"(K\x01K\x01\x85" + DTYPE + b"\x89" + A + b"tb",
}
HOSTILE = {
    "persistent id": value(b"Pmodel\n"),
    "binary persistent id": value(A + b"Q"),
    "inst": value(b"(S'true'\nios\nsystem\n"),
    "obj": value(b"(cos\nsystem\nX\x04\x00\x00\x00trueo"),
    "new object": value(b"cnumpy\ndtype\nX\x02\x00\x00\x00u1\x85\x81"),
    "other codec": value(b"c_codecs\nencode\n" + A + b"X\x05\x00\x00\x00rot13" + TUPLE2 + b"R"),
    "codec of an object": value(b"c_codecs\nencode\n}" + LATIN1 + TUPLE2 + b"R"),
    "codec decode": value(b"c_codecs\ndecode\n" + A + LATIN1 + TUPLE2 + b"R"),
    "bytes with state": value(FINE["bytes"] + b"}b"),
    "dotted name": value(b"\x8c\x05numpy\x8c\x0endarray.tofile\x93"),
    "array class called": value(b"cnumpy\nndarray\nK\x05\x85R"),
    "object array": pickle.dumps({"data": np.array([None, "text"], dtype=object)}, protocol=2),
    "text array": pickle.dumps({"data": np.array([b"ab"])}, protocol=2),
    "structured array": pickle.dumps({"data": np.zeros(2, dtype="u1,u1")}, protocol=2),
    "dtype with fields": value(DTYPE + b"(K\x03X\x01\x00\x00\x00|N)}tb"),
    "dtype without state": value(DTYPE + b")b"),
    "too few bytes": value(EMPTY + b"(K\x01K\x63\x85" + DTYPE + b"\x89" + A + b"tb"),
    "negative shape": value(EMPTY + b"(K\x01J\xff\xff\xff\xff\x85" + DTYPE + b"\x89" + A + b"tb"),
    "objects for bytes": value(EMPTY + b"(K\x01K\x01\x85" + DTYPE + b"\x89]tb"),
    "text for dtype": value(EMPTY + b"(K\x01K\x01\x85X\x01\x00\x00\x00O\x89" + A + b"tb"),
    "state is no tuple": value(EMPTY + b"}b"),
    "memo of gigabytes": value(b"}r\xff\xff\xff\x7f"),
    "deep tuples": b"\x80\x02})" + b"\x85" * 1_000_000 + b"K\x01s.",
    "tuple as a key": b"\x80\x02})K\x01s.",
    "no dictionary": b"\x80\x02].",
    "escape sequence": value(b"c\x1b[2J\nsystem\n"),
    "empty": b"",
    "text": b"<html>404</html>",
}


@pytest.mark.parametrize("name", FINE)
def test_the_hostile_files_differ_from_fine_ones_only_in_their_fault(tmp_path: Path, name: str) -> None:
    (tmp_path / "batch").write_bytes(value(FINE[name]))
    assert list(read_pickle(tmp_path / "batch")) == ["data"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_and_broken_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    assert refusal(tmp_path / "batch", HOSTILE[name]).isprintable()


@pytest.mark.parametrize("target", sorted(_NAMES))
@pytest.mark.parametrize("state", [b"}X\x04\x00\x00\x00codeNs", b"N}X\x04\x00\x00\x00codeNs\x86"])
def test_build_leaves_the_stand_ins_alone(tmp_path: Path, target: tuple[str, str], state: bytes) -> None:
    before = dict(vars(_NAMES[target])) if isinstance(_NAMES[target], type) else None
    refusal(tmp_path / "batch", value(b"c" + "\n".join(target).encode() + b"\n" + state + b"b"))
    assert before is None or dict(vars(_NAMES[target])) == before


GOOD = [write(cifar_batch(0, images=1)) for write in (python2, *PROTOCOLS)]


@settings(max_examples=200, deadline=None)
@given(good=st.sampled_from(GOOD), data=st.data())
def test_a_truncated_file_is_always_an_error(
    tmp_path_factory: pytest.TempPathFactory, good: bytes, data: st.DataObject
) -> None:
    refusal(tmp_path_factory.getbasetemp() / "batch", good[: data.draw(st.integers(0, len(good) - 1))])


@settings(max_examples=400, deadline=None)
@given(good=st.sampled_from(GOOD), place=st.integers(0, 250), byte=st.integers(0, 255), from_end=st.booleans())
def test_a_damaged_file_is_read_or_refused_but_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, good: bytes, place: int, byte: int, from_end: bool
) -> None:
    path, broken = tmp_path_factory.getbasetemp() / "batch", bytearray(good)
    broken[-1 - place if from_end else place] = byte
    path.write_bytes(broken)
    try:
        assert isinstance(read_pickle(path), dict)
    except ValueError as error:
        assert "\n" not in str(error)


def write_cifar10(folder: Path) -> list[Batch]:
    folder.mkdir(parents=True)
    batches = [cifar_batch(seed) for seed in range(6)]
    for name, batch in zip(DATASETS["cifar10"].files, batches, strict=True):
        (folder / name).write_bytes(python2(batch))
    return batches


def test_cifar10_is_the_five_batches_in_order(tmp_path: Path) -> None:
    batches = write_cifar10(tmp_path / "cifar-10-batches-py")
    images = load("cifar10", tmp_path)
    assert images.y.tolist() == [label for batch in batches[:5] for label in batch["labels"]]
    assert images.test_y.tolist() == batches[5]["labels"]
    assert images.classes == 10 and images.x.dtype == torch.uint8 and images.y.dtype == torch.int64
    pixels = batches[1]["data"]
    assert isinstance(pixels, np.ndarray)
    assert images.x[20 + 7, 2, 5, 9] == pixels[7, 2 * 1024 + 5 * 32 + 9]


@pytest.mark.parametrize("name", ["digits", "cifar10"])
def test_the_form_of_a_data_set_is_that_of_its_files(name: str, tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    images, form = load(name, tmp_path), DATASETS[name].form
    assert tuple(images.x.shape[1:]) == tuple(images.test_x.shape[1:]) == form.shape
    assert images.classes == form.classes and int(images.y.max()) < form.classes


def test_the_folder_or_its_parent_will_do(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    parent, itself = load("cifar10", tmp_path), load("cifar10", str(tmp_path / "cifar-10-batches-py"))
    assert torch.equal(parent.x, itself.x) and torch.equal(parent.test_y, itself.test_y)


def test_cifar100_has_fine_labels(tmp_path: Path) -> None:
    for name, seed in (("train", 0), ("test", 1)):
        batch = cifar_batch(seed, classes=100, key="fine_labels")
        (tmp_path / name).write_bytes(python2(batch | {"coarse_labels": [0] * 20}))
    images = load("cifar100", tmp_path)
    assert images.y.tolist() == cifar_batch(0, classes=100, key="fine_labels")["fine_labels"] and images.classes == 100


BROKEN: dict[str, tuple[Batch, str]] = {
    "label out of range": (cifar_batch(0) | {"labels": [10] * 20}, "label 10 is not in 0..9"),
    "negative label": (cifar_batch(0) | {"labels": [-1] * 20}, "label -1 is not in 0..9"),
    "one label too few": (cifar_batch(0) | {"labels": [0] * 19}, "20 whole numbers"),
    "labels of text": (cifar_batch(0) | {"labels": ["cat"] * 20}, "'labels' is not a list of whole numbers"),
    "no labels": ({"data": cifar_batch(0)["data"]}, "'labels' is not a list of whole numbers"),
    "grey images": (cifar_batch(0) | {"data": np.zeros((20, 1024), dtype=np.uint8)}, "shape (n, 3072)"),
    "float images": (cifar_batch(0) | {"data": np.zeros((20, 3072))}, "uint8"),
    "no images": (cifar_batch(0, images=0), "shape (n, 3072)"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_batch_is_named_with_the_rule(tmp_path: Path, name: str) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    batch, words = BROKEN[name]
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(batch, protocol=4))
    with pytest.raises(ValueError, match=r"data_batch_3: .*official page") as caught:
        load("cifar10", tmp_path)
    assert words in str(caught.value)


def test_a_missing_folder_or_file_says_what_to_download(tmp_path: Path) -> None:
    for name in DATASETS:
        if name != "digits":
            with pytest.raises(FileNotFoundError, match="is missing") as caught:
                load(name, tmp_path / "nowhere")
            assert DATASETS[name].page in str(caught.value) and DATASETS[name].files[-1] in str(caught.value)
    write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-py/data_batch_4 is missing"):
        load("cifar10", tmp_path)


def test_unknown_names_get_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"'CIFAR-10'.* mean 'cifar10'\? Valid: digits, cifar10, cifar100"):
        load("CIFAR-10")
    with pytest.raises(ValueError, match=r"'FedRep'.* mean 'fedrep'\? Valid: feddc, fedrep, none"):
        load("digits", augment="FedRep")


@pytest.mark.parametrize("name", DATASETS)
def test_recipes_differ_as_the_codebases_do(name: str) -> None:
    feddc, fedrep, none = (DATASETS[name].recipes[augment] for augment in ("feddc", "fedrep", "none"))
    assert not none.flip and none.pad == 0 and none[:3] == feddc[:3]
    if name != "digits":
        assert feddc.flip and feddc.crop == 0.5 and feddc.fill == "zero" and feddc.pad > 0
        assert fedrep.flip and fedrep.crop == 1.0 and fedrep.fill == "black" and fedrep.pad == feddc.pad


def test_digits_are_those_of_scikit_learn_which_need_not_be_imported() -> None:
    code = "import sys; from fedatoms.data.datasets import load; load('digits'); assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    from sklearn.datasets import load_digits

    ours, theirs = load("digits"), load_digits()
    whole = torch.cat([ours.x, ours.test_x]).flatten(1).double().numpy()
    assert sorted(map(tuple, whole)) == sorted(map(tuple, theirs.data))
    assert torch.cat([ours.y, ours.test_y]).bincount().tolist() == np.bincount(theirs.target).tolist()


def test_digits_are_stratified_and_their_constants_are_true() -> None:
    digits = load("digits")
    recipe, x = digits.recipe, digits.x / digits.recipe.scale
    assert (len(digits.y), len(digits.test_y), int(digits.x.max())) == (1437, 360, 16)
    assert all(abs(int((digits.test_y == c).sum()) - int((digits.y == c).sum()) / 4) < 1.5 for c in range(10))
    assert recipe.mean[0] == pytest.approx(x.mean().item(), abs=1e-5)
    assert recipe.std[0] == pytest.approx(x.std(correction=0).item(), abs=1e-5)


def test_digits_are_bit_for_bit_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    theirs, ours = load_digits(), load("digits")
    rows = np.concatenate([ours.x.numpy(), ours.test_x.numpy()])[:, 0]
    labels = np.concatenate([ours.y.numpy(), ours.test_y.numpy()])
    test = np.zeros(len(labels), dtype=bool)
    test[np.argsort(theirs.target, kind="stable")[::5]] = True
    assert np.array_equal(rows, np.concatenate([theirs.images[~test], theirs.images[test]]))
    assert np.array_equal(labels, np.concatenate([theirs.target[~test], theirs.target[test]]))


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()


def write_fashion(folder: Path, zipped: bool) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    shapes = [(7, 28, 28), (7,), (3, 28, 28), (3,)]
    names = DATASETS["fashion-mnist"].files
    arrays = {name: rng.integers(0, 10, shape, dtype=np.uint8) for name, shape in zip(names, shapes, strict=True)}
    for name, array in arrays.items():
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
    return arrays


@pytest.mark.parametrize("folder", ["", "fashion-mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_fashion_mnist_is_read_from_idx_files(tmp_path: Path, folder: str, zipped: bool) -> None:
    x, y, _, test_y = write_fashion(tmp_path / folder, zipped).values()
    images = load("fashion-mnist", tmp_path)
    np.testing.assert_array_equal(images.x[:, 0], x)
    assert images.y.tolist() == y.tolist() and images.test_y.tolist() == test_y.tolist()


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("train-images-idx3-ubyte", lambda content: content[:-1], "header promises"),
        ("train-images-idx3-ubyte", lambda content: content + b"0", "header promises"),
        ("train-images-idx3-ubyte", lambda content: b"\x00\x00\x0d" + content[3:], "header of a uint8 idx file"),
        ("train-images-idx3-ubyte", lambda _: idx(np.zeros((7, 32, 32), dtype=np.uint8)), "is not (n, 28, 28)"),
        ("t10k-labels-idx1-ubyte", lambda _: idx(np.full(3, 10, dtype=np.uint8)), "label 10 is not in 0..9"),
        ("t10k-labels-idx1-ubyte", lambda _: idx(np.zeros(4, dtype=np.uint8)), "3 whole numbers"),
        ("t10k-labels-idx1-ubyte", lambda _: b"", "header of a uint8 idx file"),
    ],
)
def test_a_wrong_idx_file_is_named_with_the_rule(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes], words: str
) -> None:
    write_fashion(tmp_path, zipped=False)
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    with pytest.raises(ValueError, match=name) as caught:
        load("fashion-mnist", tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: b"?" + content, lambda _: b""])
def test_a_broken_gzip_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    write_fashion(tmp_path, zipped=True)
    file = tmp_path / "train-labels-idx1-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte.gz"):
        load("fashion-mnist", tmp_path)


def write_tiny(folder: Path) -> None:
    from PIL import Image

    def save(path: Path, mode: str, colour: int | tuple[int, int, int]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, (64, 64), colour).save(path, format="JPEG")

    save(folder / "train/n2/images/n2_0.JPEG", "RGB", (255, 0, 0))
    save(folder / "train/n1/images/n1_0.JPEG", "L", 40)
    save(folder / "train/n1/images/n1_1.JPEG", "RGB", (0, 0, 255))
    save(folder / "val/images/val_0.JPEG", "L", 200)
    (folder / "wnids.txt").write_text("n2\nn1\n")
    (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn1\t0\t0\t62\t62\n")


def test_tiny_imagenet_is_read_in_the_order_of_its_names_and_grey_becomes_rgb(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny-imagenet-200")
    images = load("tiny-imagenet", tmp_path)
    assert images.y.tolist() == [0, 1, 1] and images.test_y.tolist() == [1] and images.classes == 2
    assert images.x.shape == (3, 3, 64, 64)
    colours = torch.tensor([[255, 0, 0], [40, 40, 40], [0, 0, 255]])
    assert ((images.x[:, :, 30, 30].long() - colours).abs() <= 3).all()
    assert (images.test_x == images.test_x[0, 0, 0, 0]).all()


def test_tiny_imagenet_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path)
    first = load("tiny-imagenet", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "_jpeg", None)
        again = load("tiny-imagenet", tmp_path)
    assert torch.equal(first.x, again.x) and torch.equal(first.test_x, again.test_x) and first.y.equal(again.y)
    assert [path.name for path in tmp_path.iterdir() if "decoded" in path.name] == [decoded.NAME]


def test_the_key_of_pictures_is_that_of_their_paths_sizes_and_times(tmp_path: Path) -> None:
    """As the first version that wrote array files made it, path by path: files that it wrote are not decoded again."""
    write_tiny(tmp_path)
    shutil.copy(tmp_path / "val/images/val_0.JPEG", tmp_path / "train/n1/images/n1_10.JPEG")
    load("tiny-imagenet", tmp_path)
    train = [file for name in ("n2", "n1") for file in sorted((tmp_path / "train" / name / "images").glob("*.JPEG"))]
    digest = hashlib.sha256()
    for file in (*train, tmp_path / "val" / "images" / "val_0.JPEG"):
        known = file.stat()
        digest.update(f"{file.relative_to(tmp_path)}\0{known.st_size}\0{known.st_mtime_ns}\n".encode())
    with np.load(tmp_path / decoded.NAME) as arrays:
        assert arrays["key"].tobytes() == digest.digest()


def test_what_is_no_picture_is_left_out_of_tiny_imagenet(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    expected = load("tiny-imagenet", tmp_path)
    for name in ("n1_0.txt", "n1_0.JPEG.partial", "n1_0.jpeg"):
        (tmp_path / "train/n1/images" / name).touch()
    assert torch.equal(load("tiny-imagenet", tmp_path).x, expected.x)


@pytest.mark.parametrize("change", ["a picture", "one more", "damage", "an end", "no array"])
def test_changed_pictures_and_a_damaged_array_file_are_decoded_again(change: str, tmp_path: Path) -> None:
    write_tiny(tmp_path)
    expected, kept, picture = (
        load("tiny-imagenet", tmp_path),
        tmp_path / decoded.NAME,
        tmp_path / "val/images/val_0.JPEG",
    )
    whole = kept.read_bytes()
    if change == "a picture":
        os.utime(picture, (1, 1))
        kept.write_bytes(whole.replace(expected.test_x.numpy().tobytes(), expected.x[:1].numpy().tobytes()))
    elif change == "one more":
        shutil.copy(picture, tmp_path / "train/n1/images/n1_2.JPEG")
    else:
        broken = {"damage": whole[:5000] + b"?" + whole[5001:], "an end": whole[:5000], "no array": b"nothing"}
        kept.write_bytes(broken[change])
    found = load("tiny-imagenet", tmp_path)
    assert len(found.x) == 3 + (change == "one more") and torch.equal(found.test_x, expected.test_x)
    assert kept.read_bytes() == whole or change in ("a picture", "one more")


def test_where_no_array_file_can_be_written_pictures_are_decoded_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny(tmp_path)

    def refuse(*words: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decoded.np, "savez", refuse)
    assert len(load("tiny-imagenet", tmp_path).x) == 3
    assert not [path for path in tmp_path.iterdir() if "decoded" in path.name]


def test_wrong_tiny_imagenet_files_are_named(tmp_path: Path) -> None:
    from PIL import Image

    write_tiny(tmp_path)
    image = tmp_path / "train/n1/images/n1_1.JPEG"
    whole = image.read_bytes()
    Image.new("RGB", (64, 64)).save(image, format="PNG")
    with pytest.raises(ValueError, match=r"n1_1.JPEG is not a readable JPEG"):
        load("tiny-imagenet", tmp_path)
    Image.new("RGB", (32, 64)).save(image, format="JPEG")
    with pytest.raises(ValueError, match=r"n1_1.JPEG has shape \(64, 32, 3\)"):
        load("tiny-imagenet", tmp_path)
    image.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"n1_1.JPEG is not a readable JPEG"):
        load("tiny-imagenet", tmp_path)
    image.write_bytes(whole)
    (tmp_path / "val/val_annotations.txt").write_text("val_0.JPEG\tn3\t0\t0\t62\t62\n")
    with pytest.raises(ValueError, match=r"val_annotations.txt: 'val_0.JPEG\\tn3"):
        load("tiny-imagenet", tmp_path)
    (tmp_path / "wnids.txt").write_text("n2\nn1\nn3\n")
    with pytest.raises(ValueError, match=r"train/n3/images has no \*.JPEG"):
        load("tiny-imagenet", tmp_path)


def test_without_pillow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match=r'pip install "fedatoms\[images\]"'):
        load("tiny-imagenet", tmp_path)
