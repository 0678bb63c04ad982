"""Weights from files: whatever fits is kept bit for bit, whatever does not is listed, and no file runs code."""

import io
import os
import pickle
import tempfile
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from zoo import convolutional

import fedatoms
from fedatoms.cli import main
from fedatoms.nn.models import build
from fedatoms.nn.weights import load_weights


def net(classes: int = 10) -> nn.Module:
    return build("digits-cnn", classes=classes, channels=1, seed=classes)


def same(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


def saved(content: object, folder: Path, name: str = "net.pth", **how: bool) -> Path:
    torch.save(content, folder / name, **how)
    return folder / name


WRAPPED = {
    "a state dict": lambda state: state,
    "in state_dict": lambda state: {"epoch": 3, "state_dict": state},
    "in model": lambda state: {"model": state, "optimizer": {"lr": 0.1}},
    "nested twice": lambda state: {"model": {"state_dict": state}},
    "of DataParallel": lambda state: OrderedDict((f"module.{name}", leaf) for name, leaf in state.items()),
    "of torch.compile": lambda state: {f"_orig_mod.{name}": leaf for name, leaf in state.items()},
    "of a compiled DataParallel": lambda state: {f"_orig_mod.module.{name}": leaf for name, leaf in state.items()},
    "in half precision's double": lambda state: {name: leaf.double() for name, leaf in state.items()},
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED.keys())
@pytest.mark.parametrize("legacy", [False, True])
def test_a_torch_file_is_read_however_it_is_wrapped(wrap: object, legacy: bool, tmp_path: Path) -> None:
    trained, other = net(), build("digits-cnn", classes=10, channels=1, seed=7)
    file = saved(wrap(trained.state_dict()), tmp_path, _use_new_zipfile_serialization=not legacy)
    before = {name: leaf.clone() for name, leaf in other.state_dict().items()}
    assert same(load_weights(other, file), trained)
    assert all(torch.equal(leaf, before[name]) for name, leaf in other.state_dict().items())


def test_a_layer_may_be_called_as_a_wrapper(tmp_path: Path) -> None:
    trained, other = (nn.Sequential(OrderedDict(module=nn.Linear(2, 3))) for _ in range(2))
    for name in ("", "module."):
        file = saved({f"{name}{key}": leaf for key, leaf in trained.state_dict().items()}, tmp_path)
        assert same(load_weights(other, file), trained)


def test_buffers_must_be_finite_but_for_what_the_network_has_itself(tmp_path: Path) -> None:
    make = lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))  # noqa: E731
    masked, state = make(), make().state_dict()
    masked.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    assert load_weights(masked, saved(masked.state_dict(), tmp_path)).mask[1] == -torch.inf
    for value in (torch.nan, torch.inf):
        state["1.running_var"].fill_(value)
        with pytest.raises(ValueError, match=r"'1.running_var' holds nan or infinity. Use weights that"):
            load_weights(make(), saved(state, tmp_path))


def test_safetensors_is_read_whatever_it_is_called(tmp_path: Path) -> None:
    trained = net()
    for name in ("net.safetensors", "net.bin"):
        save_file(trained.state_dict(), tmp_path / name)
        assert same(fedatoms.nn.load_weights(net(), tmp_path / name), trained)


def test_buffers_are_read_and_old_files_may_lack_counters(tmp_path: Path) -> None:
    make = lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))  # noqa: E731
    trained = make()
    trained(torch.randn(4, 1, 5, 5))
    state = trained.state_dict()
    assert same(load_weights(make(), saved(state, tmp_path)), trained)
    del state["1.num_batches_tracked"]
    assert torch.equal(load_weights(make(), saved(state, tmp_path))[1].running_var, trained[1].running_var)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def test_tied_weights_may_be_named_once(tmp_path: Path) -> None:
    trained = tied()
    state = {name: leaf for name, leaf in trained.state_dict().items() if name != "1.weight"}
    loaded = load_weights(tied(), saved(state, tmp_path))
    assert same(loaded, trained) and loaded[0].weight is loaded[1].weight


def test_two_tensors_for_one_tied_weight_are_refused_by_both_names(tmp_path: Path) -> None:
    state = tied().state_dict()
    twice = {**state, "1.weight": state["1.weight"].clone().double()}
    assert same(load_weights(tied(), saved(twice, tmp_path)), load_weights(tied(), saved(state, tmp_path)))
    file = saved({**state, "1.weight": state["1.weight"] + 1}, tmp_path)
    with pytest.raises(ValueError, match=r"'0.weight' and '1.weight' differ, but are one parameter of Sequential. Use"):
        load_weights(tied(), file)


def test_a_head_for_other_classes_starts_afresh_and_one_line_says_so(tmp_path: Path) -> None:
    trained, ours = net(classes=10), net(classes=7)
    file = saved(trained.state_dict(), tmp_path)
    with pytest.warns(
        UserWarning, match=r"the head \(fc2.weight, fc2.bias\) starts afresh, for 7 instead of 10"
    ) as said:
        loaded = load_weights(ours, file)
    assert len(said) == 1 and torch.equal(loaded.fc2.weight, ours.fc2.weight)
    assert torch.equal(loaded.conv1.weight, trained.conv1.weight) and loaded.fc2.weight is not ours.fc2.weight


def googlenet(classes: int) -> nn.Module:
    model = convolutional.GoogLeNet()
    model.aux[-1], model.head[-1] = nn.Linear(8, classes), nn.Linear(16, classes)
    return model


def squeezenet(classes: int) -> nn.Module:
    model = convolutional.squeezenet()
    model[2] = nn.Conv2d(16, classes, 1)
    return model


@pytest.mark.parametrize(
    ("make", "head"),
    [(googlenet, ["aux.2.weight", "aux.2.bias", "head.2.weight", "head.2.bias"]), (squeezenet, ["2.weight", "2.bias"])],
)
@pytest.mark.parametrize("named", [False, True])
def test_every_last_layer_for_other_classes_starts_afresh(
    make: Callable[[int], nn.Module], head: list[str], named: bool, tmp_path: Path
) -> None:
    trained, ours = make(9), make(5)
    asked = head[-1].rpartition(".")[0] if named else None
    with pytest.warns(UserWarning) as said:
        loaded = load_weights(ours, saved(trained.state_dict(), tmp_path), head=asked).state_dict()
    (words,) = [str(each.message) for each in said]
    assert words.startswith(f"the head ({', '.join(head)}) starts afresh, for 5 instead of 9 classes")
    expected = {**trained.state_dict(), **{name: ours.state_dict()[name] for name in head}}
    assert all(torch.equal(leaf, loaded[name]) for name, leaf in expected.items())


OTHERS: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "another width inside": (lambda model: setattr(model.head, "2", nn.Linear(17, 5)), "head.2.weight"),
    "another number of outputs": (lambda model: setattr(model.aux, "2", nn.Linear(8, 6)), "aux.2.weight"),
    "other normalisation": (lambda model: setattr(model.stem, "1", nn.BatchNorm2d(9)), "stem.1.weight"),
    "another convolution": (lambda model: setattr(model.stem, "0", nn.Conv2d(3, 9, 3, bias=False)), "stem.0.weight"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_else_differs_beside_the_classes_is_refused_and_listed(what: str, tmp_path: Path) -> None:
    change, name = OTHERS[what]
    ours = googlenet(5)
    change(ours)
    with pytest.raises(ValueError, match=rf"do not fit GoogLeNet \(.* misshapen: .*{name} is "):
        load_weights(ours, saved(googlenet(9).state_dict(), tmp_path))


def test_all_that_does_not_fit_is_listed_in_one_line(tmp_path: Path) -> None:
    state = net().state_dict()
    state["conv1.weight"] = torch.zeros(16, 1, 5, 5)
    state["fc2.weight"] = torch.zeros(10, 63)  # more than the classes differ
    for name in ("conv2.weight", "conv2.bias"):
        state[f"old.{name}"] = state.pop(name)
    state |= {f"more.{n}": torch.zeros(1) for n in range(9)}
    with pytest.raises(ValueError) as caught:
        load_weights(net(), saved(state, tmp_path))
    said = str(caught.value)
    assert "\n" not in said and "2 missing: conv2.weight, conv2.bias" in said and "11 extra: " in said
    assert "and 8 more" in said and "2 misshapen: conv1.weight is (16, 1, 5, 5) instead of (16, 1, 3, 3)" in said
    assert "fc2.weight is (10, 63) instead of (10, 64)" in said and said.startswith("weights=")


def test_a_file_with_another_checksum_is_refused(tmp_path: Path) -> None:
    file = saved(net().state_dict(), tmp_path)
    with pytest.raises(ValueError, match=r"was changed: its SHA-256 is .* Restore the file"):
        load_weights(net(), file, sha256="0" * 64)


# hostile files


MARK = Path(tempfile.gettempdir()) / f"fedatoms-ran-code-{os.getpid()}"


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {MARK}",)


def _zip(path: Path, compressed: bool) -> Path:
    how = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    whole = io.BytesIO()
    torch.save(net().state_dict(), whole)
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w", how) as new:
        for each in old.namelist():
            new.writestr(each, old.read(each))
        new.writestr("archive/data/99", b"\0" * 10**6)
    return path


def _npz(path: Path) -> Path:
    np.savez_compressed(path, x=np.zeros(10**6))
    return path


def _bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _whole(folder: Path) -> bytes:
    return saved(net().state_dict(), folder, "whole.pth").read_bytes()


HOSTILE = {
    "code in a pickle": (lambda f: _bytes(f / "a.pth", pickle.dumps(Evil())), "no file of weights alone"),
    "code in a state dict": (lambda f: saved({"w": Evil()}, f), r"it asks for \w+\.system"),
    "code in a legacy file": (
        lambda f: saved({"w": Evil()}, f, _use_new_zipfile_serialization=False),
        r"it asks for \w+\.system",
    ),
    "a whole model": (lambda f: saved(net(), f), r"it asks for fedatoms\.nn.*Save them with torch.save"),
    "compressed": (lambda f: _zip(f / "a.pth", compressed=True), r"\(it is compressed\)"),
    "an npz file": (lambda f: _npz(f / "a.npz"), r"\(it is compressed\)"),
    "cut off": (lambda f: _bytes(f / "a.pth", _whole(f)[:5000]), "no file of weights alone"),
    "cut off, safetensors": (
        lambda f: (save_file(net().state_dict(), f / "b"), _bytes(f / "a", (f / "b").read_bytes()[:-9]))[1],
        "is not a safetensors file, or is cut off",
    ),
    "empty": (lambda f: _bytes(f / "a.pth", b""), "no file of weights alone"),
    "text": (lambda f: _bytes(f / "a.pth", b"these are no weights"), "no file of weights alone"),
    "a pipe": (lambda f: _fifo(f / "a.pth"), "is a pipe, not a regular file"),
    "a folder": (lambda f: f, "is a folder, not a regular file"),
    "a device": (lambda f: Path("/dev/zero"), "is a device, not a regular file"),
    "nowhere": (lambda f: f / "none.pth", r"does not exist. Name a .safetensors, .pth or .pt file"),
    "a null byte": (lambda f: "a\0b", "null byte"),
    "a tensor": (lambda f: saved(torch.ones(3), f), "holds Tensor and no named tensors"),
    "a list": (lambda f: saved([torch.ones(3)], f), "holds list and no named tensors"),
    "nothing": (lambda f: saved({}, f), "holds dict and no named tensors"),
    "lines in a name": (lambda f: saved({"a\nb\x1b": torch.ones(1)}, f), r"1 extra: 'a\\nb\\x1b'"),
    "a long name": (lambda f: saved({"a" * 99_999: torch.ones(1)}, f), r"1 extra: 'a{50,} \.\.\."),
    "numbers": (lambda f: saved({"conv1.weight": 3}, f), "'conv1.weight' is int and no plain tensor"),
    "names that are none": (lambda f: saved({3: torch.ones(1)}, f), "3 is torch.float32 and no plain tensor"),
    "sparse": (lambda f: saved({"w": torch.eye(3).to_sparse()}, f), "'w' is torch.float32 and no plain tensor"),
    "without values": (lambda f: saved({"w": torch.empty(3, device="meta")}, f), "no plain tensor"),
    "far larger than it is": (
        lambda f: saved({"conv1.weight": torch.zeros(1).expand(10**6, 10**6)}, f),
        r"conv1.weight is \(1000000, 1000000\) instead of",
    ),
    "of whole numbers": (
        lambda f: saved({n: leaf.long() for n, leaf in net().state_dict().items()}, f),
        r"conv1.weight is int64 \(16, 1, 3, 3\) instead of \(16, 1, 3, 3\)",
    ),
    "nan": (
        lambda f: saved({n: leaf * torch.nan for n, leaf in net().state_dict().items()}, f),
        "'conv1.weight' holds nan or infinity",
    ),
}


@pytest.mark.parametrize("make, said", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_costs_one_line_and_runs_no_code(make: object, said: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = make(tmp_path)
    with pytest.raises(ValueError, match=said) as caught:
        load_weights(net(), file)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert not MARK.exists()


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved(net().state_dict(), tmp_path)
    monkeypatch.setenv("FEDATOMS_MAX_GB", "0.00001")
    with pytest.raises(ValueError, match="more than the 10,000 that are read at once"):
        load_weights(net(), file)


def test_it_costs_one_line_on_the_command_line_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = saved({"w": Evil()}, tmp_path)
    assert main(["run", "--weights", str(file), "--out", str(tmp_path / "runs")]) == 2
    assert not (tmp_path / "runs").exists()
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"fedatoms: --weights {file} is no file of weights alone (it asks for ")
    assert not MARK.exists()


def test_a_network_keeps_its_tensors(tmp_path: Path) -> None:
    held: dict[str, Tensor] = {name: leaf.clone() for name, leaf in net().state_dict().items()}
    load_weights(net(), saved(held, tmp_path)).conv1.weight.data.fill_(7.0)
    assert not (held["conv1.weight"] == 7).any()


def test_a_changed_bit_of_a_torch_file_is_noticed_wherever_it_lies(tmp_path: Path) -> None:
    whole, trained = _whole(tmp_path), net()
    with zipfile.ZipFile(io.BytesIO(whole)) as file:
        places = [each.header_offset + len(whole) % 7 + each.file_size // 2 for each in file.infolist()]
        tensor = max(file.infolist(), key=lambda each: each.file_size)
    noticed = 0
    for place in (*places, *range(tensor.header_offset + 64, tensor.header_offset + tensor.file_size, 997)):
        changed = bytearray(whole)
        changed[place] ^= 1
        try:
            assert same(load_weights(net(), _bytes(tmp_path / "a.pth", bytes(changed))), trained)  # padding
        except ValueError as error:
            assert "no file of weights alone" in str(error) or "was changed" in str(error)
            noticed += 1
    assert noticed >= 20
    changed = bytearray(whole)
    changed[tensor.header_offset + tensor.file_size // 2] ^= 1
    with pytest.raises(
        ValueError, match=r"was changed: \S+/data/\d+ in it does not match its checksum. Restore the file"
    ):
        load_weights(net(), _bytes(tmp_path / "a.pth", bytes(changed)))


def test_a_file_of_atoms_is_refused_with_the_way_to_a_plain_one(tmp_path: Path) -> None:
    plain, file = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Flatten(), nn.Linear(64, 2)), tmp_path / "atoms.safetensors"
    made = fedatoms.decompose(plain, atoms=9)
    save_file(made.state_dict(), file)
    with pytest.raises(ValueError, match=r"2 extra: 0.atoms, 0.coefficients\). Its filters are atoms.*fedatoms export"):
        load_weights(plain, file)
    save_file(fedatoms.fuse(made).state_dict(), file)
    load_weights(plain, file)
