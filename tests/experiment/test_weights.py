"""Experiments that begin with the weights of a file: kept, known by their checksum, and needed only to begin."""

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedatoms
from fedatoms.cli import main
from fedatoms.experiment.build import network_of
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import from_json, load_run, to_json, without_paths
from fedatoms.experiment.identities import identity
from fedatoms.experiment.weights import pinned
from fedatoms.nn.atoms import fuse
from fedatoms.runs.execute import resume, run

SMALL = Experiment(rounds=1, epochs=1, batch_size=50, clients=5, device="cpu")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    net = fedatoms.nn.build("digits-cnn", classes=10, channels=1, seed=9)
    torch.save({"state_dict": net.state_dict()}, tmp_path / "net.pth")
    return tmp_path / "net.pth"


def trained(file: Path) -> nn.Module:
    net = fedatoms.nn.build("digits-cnn", classes=10, channels=1)
    net.load_state_dict(torch.load(file, weights_only=True)["state_dict"])
    return net


def test_a_network_begins_with_the_weights_in_both_parametrisations(file: Path) -> None:
    x = torch.rand(3, 1, 8, 8)
    for kind in ("plain", "atoms"):
        made = network_of(Experiment(parametrisation=kind, weights=str(file)), 10, (1, 8, 8))
        torch.testing.assert_close(made(x), trained(file)(x))
        assert fuse(made).state_dict().keys() == trained(file).state_dict().keys()


def test_the_start_is_svd_with_weights_and_as_ever_without(file: Path) -> None:
    assert Experiment().init == "orthonormal" and to_json(Experiment())["init"] == "orthonormal"
    assert Experiment(weights="a").init == "svd" and Experiment(weights="a", init="dct").init == "dct"
    fresh = Experiment(parametrisation="atoms", weights=str(file), init="orthonormal")
    with pytest.warns(UserWarning, match=r"init=orthonormal draws the filters afresh.*Use init=svd"):
        made = network_of(fresh, 10, (1, 8, 8))
    assert torch.equal(made.fc1.weight, trained(file).fc1.weight)
    assert not torch.allclose(fuse(made).conv1.weight, trained(file).conv1.weight)


def test_weights_that_come_later_are_kept_and_a_named_start_stays() -> None:
    assert dataclasses.replace(Experiment(), weights="a").init == "svd"
    assert dataclasses.replace(Experiment(weights="a"), weights="").init == "orthonormal"
    for named in ("orthonormal", "dct"):
        assert dataclasses.replace(Experiment(init=named), weights="a").init == named


@pytest.mark.filterwarnings("ignore:init=dct draws")
@pytest.mark.parametrize(
    "words, init",
    [
        ([], "orthonormal"),
        (["--weights", "FILE"], "svd"),
        (["--weights=FILE"], "svd"),
        (["--weights", "FILE", "--init", "dct"], "dct"),
        (["fedavg-atoms", "--weights", "FILE"], "svd"),
    ],
)
def test_the_command_line_keeps_the_weights_unless_a_start_is_typed(
    words: list[str], init: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = [word.replace("FILE", str(file)) for word in words]
    start, flags = ([typed[0]], typed[1:]) if typed and not typed[0].startswith("-") else ([], typed)
    small = ["--parametrisation", "atoms", "--rounds", "1", "--epochs", "1", "--clients", "5", "--name", "mine"]
    assert main(["run", *start, *small, *flags, "--out", str(tmp_path / "runs")]) == 0, capsys.readouterr().err
    assert load_run(tmp_path / "runs" / "mine").init == init


def test_compare_keeps_the_weights_too(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--rounds", "1", "--epochs", "1", "--clients", "5", "--out", str(tmp_path / "runs")]
    assert main(["compare", "--parametrisation", "plain,atoms", "--weights", str(file), *small]) == 0
    found = [load_run(path) for path in (tmp_path / "runs").iterdir()]
    assert {one.parametrisation for one in found} == {"plain", "atoms"} and {one.init for one in found} == {"svd"}


def test_an_experiment_is_its_weights_content_and_not_their_path(file: Path, tmp_path: Path) -> None:
    one = Experiment(weights=str(file))
    moved = tmp_path / "moved.pth"
    moved.write_bytes(file.read_bytes())
    assert identity(one) == identity(Experiment(weights=str(moved))) == identity(pinned(one))
    assert identity(one) != identity(Experiment(init="svd"))
    before = identity(one)
    file.write_bytes(file.read_bytes() + b"\0")
    assert identity(one) != before


def test_files_and_identities_from_before_the_field_stay_as_they_are() -> None:
    fields = {name: value for name, value in to_json(Experiment()).items() if not name.startswith("weights")}
    assert from_json(fields) == Experiment(beta="1/1")
    assert identity(from_json(fields)) == identity(Experiment())
    assert "weights" not in without_paths(pinned(Experiment())) and "weights_sha256" in without_paths(Experiment())


def test_a_resumed_run_refuses_another_file_and_finds_a_moved_one(file: Path, tmp_path: Path) -> None:
    one = dataclasses.replace(SMALL, weights=str(file), init="svd", out=str(tmp_path), name="mine")
    run(one)
    assert load_run(tmp_path / "mine").weights_sha256 == pinned(one).weights_sha256 != ""
    kept = file.read_bytes()
    file.write_bytes(kept.replace(b"conv1", b"conv1"[::-1]))
    with pytest.raises(ValueError, match=r"was changed: its SHA-256 is .* Restore the file, or start a new run"):
        resume(tmp_path / "mine", {"rounds": 2})
    file.unlink()
    assert fedatoms.load_model(tmp_path / "mine").conv1 is not None  # a finished model needs no other file
    with pytest.raises(ValueError, match=r"weights=\S+ does not exist"):
        resume(tmp_path / "mine", {"rounds": 2})
    (tmp_path / "moved.pth").write_bytes(kept)
    assert resume(tmp_path / "mine", {"rounds": 2, "weights": str(tmp_path / "moved.pth")}).experiment.rounds == 2


def test_a_changed_byte_of_a_file_without_checksums_is_noticed_by_resume(tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    save_file(fedatoms.nn.build("digits-cnn", classes=10, channels=1).state_dict(), file)
    run(dataclasses.replace(SMALL, weights=str(file), out=str(tmp_path), name="mine"))
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(ValueError, match=r"was changed: its SHA-256 is .* Restore the file, or start a new run"):
        resume(tmp_path / "mine", {"rounds": 2})


def test_a_path_with_a_null_byte_is_refused_by_its_name() -> None:
    for make in (pinned, run):
        with pytest.raises(ValueError, match=r"^weights='a\\x00b.pth' h\w+ a null"):
            make(dataclasses.replace(SMALL, weights="a\0b.pth"))


def test_a_run_may_not_get_weights_when_it_is_resumed(file: Path, tmp_path: Path) -> None:
    run(dataclasses.replace(SMALL, out=str(tmp_path), name="mine"))
    with pytest.raises(ValueError, match=r"`weights` cannot change in a resumed run"):
        resume(tmp_path / "mine", {"rounds": 2, "weights": str(file)})


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"weights_sha256": "abc"}, r"weights_sha256=abc is not 64 digits"),
        ({"weights": "a.pth", "parametrisation": "fedpara"}, r"parametrisation=fedpara draws its factors afresh"),
    ],
)
def test_what_no_experiment_can_have_is_refused(fields: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check(Experiment(**fields))


def test_a_result_without_its_file_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"`weights` is empty, but the run begins with a file of SHA-256 000000000000"):
        network_of(Experiment(weights_sha256="0" * 64), 10, (1, 8, 8))
