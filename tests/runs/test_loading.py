"""Only a run's own trained model is loaded: whatever is missing, extra, misshapen, changed or cut off costs a line."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.cases import some_now
from support.sealed import older_manifest, rewrite
from support.small import identical
from torch import Tensor, nn

import fedatoms
from fedatoms.cli import main
from fedatoms.core.files import write_file
from fedatoms.evidence.results.finding import find
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import ABSENT_IN_OLDER_FILES, from_json, load_run, to_json
from fedatoms.nn.pure import with_params
from fedatoms.personal import METHODS
from fedatoms.runs import execute as running
from fedatoms.runs.execute import resume, run
from fedatoms.runs.results import read_result

TINY = Experiment(
    clients=5, rounds=2, epochs=1, batch_size=50, threads=1, checkpoint_every=1, parametrisation="atoms",
    personal="local-atoms", own_test="classes", last_epochs=1, name="run",
)  # fmt: skip
Tree = dict[str, Tensor]
IMAGES = {"images": json.dumps({"classes": 10, "shape": [1, 8, 8]})}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(replace(TINY, out=str(tmp_path_factory.mktemp("runs")))).folder


@pytest.fixture
def folder(done: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done, tmp_path / "run"))


def change(folder: Path, file: str, **fields: object) -> None:
    rewrite(folder / file, **fields)


def mistake(call: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


WRONG: dict[str, tuple[Callable[[Tree], Tree], list[str]]] = {
    "nothing": (lambda tree: {}, ["missing: conv1.atoms, conv1.coefficients, conv1.bias and 7 more"]),
    "one missing": (lambda tree: {n: v for n, v in tree.items() if n != "fc2.bias"}, ["missing: fc2.bias)"]),
    "extra": (lambda tree: {**tree, "fc2.scale": torch.ones(1)}, ["extra: fc2.scale)"]),
    "other names": (
        lambda tree: {f"model.{n}": v for n, v in tree.items()},
        ["missing: ", "extra: model.conv1.atoms, model.conv1.bias, "],
    ),
    "of shape (1,)": (
        lambda tree: {n: v.flatten()[:1].clone() for n, v in tree.items()},
        ["misshapen: ", "is float32 (1,) instead of float32 (", " and 7 more"],
    ),
    "transposed": (
        lambda tree: {**tree, "fc2.weight": tree["fc2.weight"].T.contiguous()},
        ["misshapen: fc2.weight is float32 (64, 10) instead of float32 (10, 64))"],
    ),
    "of another type": (
        lambda tree: {**tree, "fc2.bias": tree["fc2.bias"].double()},
        ["misshapen: fc2.bias is float64 (10,) instead of float32 (10,))"],
    ),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("checked", [True, False])
def test_a_file_that_is_not_all_of_the_model_is_refused_with_a_list(what: str, checked: bool, folder: Path) -> None:
    meddle, expected = WRONG[what]
    path = folder / "model.safetensors"
    save_file(meddle(load_file(path)), path, metadata=IMAGES)
    if not checked:
        change(folder, "result.json", model_sha256=None)
    line = mistake(lambda: fedatoms.load_model(folder))
    expected = ["but result.json says "] if checked else expected
    assert all(part in line for part in [str(path), f"`fedatoms run --resume {folder}`", *expected]), line


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (lambda data: b"", "not a safetensors file, or is cut off"),
        (lambda data: b"hello, I am no model", "not a safetensors file, or is cut off"),
        (lambda data: data[:-1], "not a safetensors file, or is cut off"),
        (lambda data: data[:100], "not a safetensors file, or is cut off"),
        (lambda data: data.replace(b'"images"', b'"pixels"'), "does not say which images"),
        (lambda data: data.replace(b"__metadata__", b"__metadatas_"), "not a safetensors file, or is cut off"),
        (lambda data: data.replace(b"[1, 8, 8]", b"[1, 8, x]"), "does not say which images"),
        (lambda data: data.replace(b"[1, 8, 8]", b"[1, 0, 8]"), "does not say which images"),
        (lambda data: data.replace(b"[1, 8, 8]", b"12345.123"), "does not say which images"),
    ],
)
def test_a_file_that_is_damaged_costs_one_line(
    content: Callable[[bytes], bytes], expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "model.safetensors"
    before, after = path.read_bytes(), content(path.read_bytes())
    assert after != before
    path.write_bytes(after)
    line = mistake(lambda: fedatoms.load_model(folder))
    assert str(path) in line and expected in line and "--resume" in line
    capsys.readouterr()
    assert main(["personalize", str(folder), "--images", "x.npz", "--out", "x.safetensors"]) == 2
    assert capsys.readouterr().err == f"fedatoms: {line}\n"
    resume(folder, {})  # what the line says to do
    assert path.read_bytes() == before
    fedatoms.load_model(folder)


def test_a_changed_number_is_noticed_by_the_checksum(folder: Path) -> None:
    path = folder / "model.safetensors"
    tree = load_file(path)
    save_file({**tree, "fc2.bias": tree["fc2.bias"] + 1e-6}, path, metadata=IMAGES)
    for call in (
        lambda: fedatoms.load_model(folder),
        lambda: fedatoms.adapt.personal_model(folder, 0),
        lambda: fedatoms.adapt.personalise(folder, (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.arange(2))),
    ):
        line = mistake(call)
        assert "has the checksum" in line and f"Write both again with `fedatoms run --resume {folder}`." in line
    shutil.rmtree(folder / "checkpoint")
    assert f"fedatoms run {folder / 'experiment.json'} --name again" in mistake(lambda: fedatoms.load_model(folder))


def test_a_run_that_was_killed_between_its_model_and_its_result_says_how_to_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(result: object) -> None:
        raise SystemExit

    monkeypatch.setattr(running, "write_result", killed)
    with pytest.raises(SystemExit):
        resume(folder, {"rounds": 3})
    monkeypatch.undo()
    line = mistake(lambda: fedatoms.load_model(folder))
    assert f"`fedatoms run --resume {folder}`" in line and "result.json, which is of 2 rounds and not of 3" in line
    model = load_file(folder / "model.safetensors")
    assert main(["run", "--resume", str(folder)]) == 0
    assert identical(dict(fedatoms.load_model(folder).state_dict()), model)
    assert read_result(folder).experiment.rounds == 3


UNCHECKED = r"result.json: the model cannot be checked \(.*[^.]\)\. Write it again with `"


def test_results_without_a_checksum_load_and_damaged_ones_do_not(folder: Path) -> None:
    text = (folder / "result.json").read_text()
    change(folder, "result.json", model_sha256=None)
    fedatoms.load_model(folder)
    older = {n: v for n, v in json.loads(text).items() if n not in ("model_sha256", "files", "format", "seal")}
    (folder / "result.json").write_text(json.dumps(older))
    fedatoms.load_model(folder)
    (folder / "result.json").unlink()
    assert "result.json is missing, and with it the model's checksum" in mistake(lambda: fedatoms.load_model(folder))
    (folder / "nodes").mkdir()  # of a run on Flower, which leaves a model when it has to stop
    fedatoms.load_model(folder)
    (folder / "nodes").rmdir()
    for content in ("", "[]", "{}", text[:-9], json.dumps({**json.loads(text), "experiment": 3})):
        (folder / "result.json").write_text(content)
        assert re.search(UNCHECKED, mistake(lambda: fedatoms.load_model(folder)))
    (folder / "result.json").unlink()
    os.mkfifo(folder / "result.json")
    assert re.search(UNCHECKED, mistake(lambda: fedatoms.load_model(folder)))
    (folder / "result.json").unlink()
    for odd in (7, {"sha": 1}, "short", "A" * 64):
        (folder / "result.json").write_text(text)
        change(folder, "result.json", model_sha256=odd)
        assert "result.json: model_sha256: expected str" in mistake(lambda: fedatoms.load_model(folder))
    resume(folder, {})
    assert read_result(folder).model_sha256 == json.loads(text)["model_sha256"]


@pytest.mark.parametrize("fields", [{}, {"rounds": 2}, [], "text"])
def test_an_experiment_that_is_not_whole_is_no_experiment(
    fields: object, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "experiment.json"
    path.write_text(json.dumps(fields))
    for call in (lambda: fedatoms.load_model(folder), lambda: load_run(folder), lambda: resume(folder, {})):
        line = mistake(call)
        assert f"{path} is not a whole experiment file: " in line
        assert not isinstance(fields, dict) or "lacks the fields dataset, augment, partition and " in line
    capsys.readouterr()
    assert main(["run", str(path)]) == main(["explain", str(folder)]) == main(["run", "--resume", str(folder)]) == 2
    assert capsys.readouterr().err.count("\n") == 3


def test_one_lost_field_is_named_and_fields_that_came_later_may_lack() -> None:
    fields = to_json(Experiment())
    line = mistake(lambda: from_json({name: value for name, value in fields.items() if name != "model"}))
    assert line == "it lacks the field model"
    first = {name: value for name, value in fields.items() if name not in ABSENT_IN_OLDER_FILES}
    assert from_json(first) == from_json(fields)


def test_a_result_of_no_experiment_is_left_out_of_a_report(folder: Path) -> None:
    change(folder, "result.json", experiment={})
    (note,) = find([folder]).left_out
    assert "lacks the fields" in note.reason


@pytest.mark.parametrize("what", ["one missing", "of shape (1,)", "extra", "nothing", "of another type"])
def test_a_clients_file_has_all_of_its_own_part_and_nothing_else(what: str, folder: Path) -> None:
    path = folder / "personal" / "000001.safetensors"
    own = load_file(path)
    first = min(own)
    meddled = {
        "one missing": {n: v for n, v in own.items() if n != first},
        "of shape (1,)": {n: v.flatten()[:1].clone() for n, v in own.items()},
        "extra": {**own, "fc2.bias": torch.zeros(10)},
        "nothing": {},
        "of another type": {n: v.double() for n, v in own.items()},
    }[what]
    save_file(meddled, path)
    line = mistake(lambda: fedatoms.adapt.personal_model(folder, 1))
    word = {"one missing": f"missing: {first})", "extra": "extra: fc2.bias)", "nothing": "missing: "}
    assert str(path) in line and word.get(what, f"misshapen: {first} is ") in line and "--resume" in line
    fedatoms.adapt.personal_model(folder, 0)
    resume(folder, {})
    assert identical(load_file(path), own)


@pytest.mark.parametrize("content", [b"", b"hello, I am no model"])
def test_a_clients_file_that_is_damaged_costs_one_line(content: bytes, folder: Path) -> None:
    path = folder / "personal" / "000001.safetensors"
    path.write_bytes(content)
    assert f"{path} is not a safetensors file" in mistake(lambda: fedatoms.adapt.personal_model(folder, 1))


def test_there_is_one_file_for_each_client(folder: Path) -> None:
    personal = folder / "personal"
    (personal / "000000.safetensors").rename(personal / "000005.safetensors")  # or client 1 would be taken for client 0
    line = mistake(lambda: fedatoms.adapt.personal_model(folder, 0))
    assert "missing: 000000.safetensors; extra: 000005.safetensors" in line
    shutil.rmtree(personal)
    line = mistake(lambda: fedatoms.adapt.personal_model(folder, 0))
    assert "not one file for each of 5 clients" in line and "and 2 more" in line and "--resume" in line


def test_a_client_of_a_run_on_nodes_is_looked_for_there(folder: Path) -> None:
    (folder / "nodes").mkdir()
    assert "trained(task, folder, own=file)" in mistake(lambda: fedatoms.adapt.personal_model(folder, 0))


def test_a_clients_state_in_a_checkpoint_is_whole_or_refused(folder: Path) -> None:
    manifest = folder / "checkpoint" / "000002.json"
    files = older_manifest(manifest)
    name, _ = next(iter(files.values()))
    path = folder / "checkpoint" / "clients" / name
    stored = write_file(path, {n: v for n, v in load_file(path).items() if n != "own/conv1.atoms"})
    rewrite(manifest, clients={k: [n, stored.checksum if n == name else c] for k, (n, c) in files.items()})
    line = mistake(lambda: resume(folder, {"rounds": 3}))
    assert f"{name}: its tensors do not fit the model (missing: own/conv1.atoms)" in line


@pytest.mark.parametrize(
    ("name", "last_epochs"), some_now([name for name in METHODS if name != "none"], [0, 1], every=2)
)
def test_every_method_s_own_models_load(
    name: str, last_epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net_of_this_test.py").write_text(
        "from torch import nn\n"
        "def net(classes):\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8),\n"
        "        nn.ReLU(), nn.Linear(8, classes))\n"
    )
    kind = "pfedpara" if name == "pfedpara" else "atoms"
    asked = replace(TINY, personal=name, last_epochs=last_epochs, parametrisation=kind, rounds=1, fraction=0.5)
    folder = run(replace(asked, model="net_of_this_test:net", out=str(tmp_path))).folder
    shared = fedatoms.load_model(folder)
    x, parts = torch.rand(3, 1, 8, 8), []
    for client in range(5):
        own = load_file(folder / "personal" / f"{client:06d}.safetensors")
        by_hand = fedatoms.fuse(with_params(shared, own, own)).eval()
        assert torch.equal(fedatoms.adapt.personal_model(folder, client)(x), by_hand(x))
        parts.append(own.keys())
    assert all(part == parts[0] for part in parts)  # of who never took part, too
    assert parts[0] or not last_epochs


def test_a_model_is_filled_whole_or_with_the_part_that_is_named() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net.register_buffer("scratch", torch.zeros(3), persistent=False)
    net[0].bias = net[1].bias  # tied: named once
    tree = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    assert "1.bias" not in tree
    ones = {name: torch.ones_like(leaf) for name, leaf in tree.items()}
    filled = with_params(net, ones)
    assert all(bool((leaf == 1).all()) for leaf in filled.state_dict().values())
    assert bool((filled.scratch == 0).all())  # as in any state dict
    assert bool((net[1].running_mean == 0).all())  # the model that was given stays
    without = {name: leaf for name, leaf in ones.items() if name != "1.num_batches_tracked"}
    assert "missing: 1.num_batches_tracked" in mistake(lambda: with_params(net, without))
    assert "extra: 0.bias, 0.weight" in mistake(lambda: with_params(net, ones, {"1.weight"}))
    assert "missing: 0.weight" in mistake(lambda: with_params(net, {}, {"0.weight"}))
