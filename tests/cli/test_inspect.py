"""fedatoms inspect: a table, lines that say what stays plain and what a round costs, or one JSON object."""

import json
import resource
import shlex
import time
from pathlib import Path

import pytest
import torch

import fedatoms
from fedatoms.cli import main
from fedatoms.data.datasets import DATASETS, Form

NETWORK = """
from torch import nn

class Own(nn.Conv2d):
    def forward(self, x):
        return super().forward(x.abs())

def build(classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3), Own(4, 4, 3), nn.Conv2d(4, 4, 1), nn.AlphaDropout(), nn.Flatten(),
                         nn.Linear(64, classes))
"""


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["inspect", *words]) == 0
    return capsys.readouterr().out


def test_it_tells_layers_parameters_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "lenet", "--atoms", "9")
    assert "conv2" in out and "102,400" in out and "37,089" in out
    assert "797,962 plain, 729,804 decomposed" in out
    assert "2,919,216 decomposed in a full round, 9,520 in a fast one" in out
    assert "(vectorised): yes" in out and "next:" in out


def test_it_tells_what_stays_plain_and_why(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mynet_inspected.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    out = said(capsys, "mynet_inspected:build", "--image", "3x8x8", "--classes", "5")
    assert "1 convolution, plain (Own has a forward pass of its own): 1" in out
    assert "1 convolution, plain (its kernel has one entry): 2" in out
    assert "(vectorised): no: layer '3' (AlphaDropout) draws its own randomness" in out


OWN_DRAWS = """
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.linear = nn.Linear(30, classes)

    def forward(self, x):
        assert x.shape[1:] == (30,)
        return F.dropout(self.linear(x), training=self.training)
"""


def test_it_says_yes_only_of_what_it_tried(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mynet_drawing.py").write_text(OWN_DRAWS)
    monkeypatch.chdir(tmp_path)
    assert "(vectorised): nothing in its layers is against it (not tried)" in said(capsys, "mynet_drawing:Net")
    assert "(vectorised): yes" in said(capsys, "digits-cnn")


@pytest.mark.parametrize("image", ["", "3x8x8"])
def test_it_finds_what_only_a_forward_pass_tells(
    image: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mynet_drawing_too.py").write_text(
        OWN_DRAWS.replace("(30,)", "(3, 8, 8)").replace("linear(x)", "linear(x.flatten(1)[:, :30])")
    )
    monkeypatch.chdir(tmp_path)
    out = said(capsys, "mynet_drawing_too:Net", *(["--image", image] if image else []))
    assert "(vectorised): no: its forward pass draws random numbers itself, as F.dropout does, in Net" in " ".join(
        out.split()
    )


def test_json_is_the_same_as_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, "digits-cnn", "--image", "1x8x8", "--json"))
    network = fedatoms.nn.build("digits-cnn", classes=10, channels=1)
    expected = fedatoms.nn.summary(network, inputs=torch.zeros(2, 1, 8, 8))
    layers = [{**layer._asdict(), "kernel": list(layer.kernel)} for layer in expected.layers]
    assert found == {**expected._asdict(), "layers": layers}


def test_the_error_is_of_the_weights_of_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net = fedatoms.nn.build("lenet", classes=10)
    low = fedatoms.fuse(fedatoms.decompose(net, 5, init="dct"))
    torch.save(low.state_dict(), tmp_path / "low.pth")
    fresh = json.loads(said(capsys, "lenet", "--atoms", "5", "--json"))
    kept = json.loads(said(capsys, "lenet", "--atoms", "5", "--json", "--weights", str(tmp_path / "low.pth")))
    assert all(layer["error"] > 0.5 for layer in fresh["layers"])
    assert all(layer["error"] < 1e-5 for layer in kept["layers"])


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        ("lenet", "fedatoms run --dataset cifar10 --model lenet --parametrisation atoms"),
        ("digits-cnn --atoms 6 --where conv2", "fedatoms run --parametrisation atoms --atoms 6 --where conv2"),
        ("resnet18-small --image 3x48x48", ""),
        ("flat_inspected:build", ""),  # it has no convolution
    ],
)
def test_what_is_suggested_can_be_typed(
    words: str, suggested: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flat_inspected.py").write_text(
        "from torch import nn\ndef build(classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    assert said(capsys, *words.split()).partition("next:  ")[2] == (f"{suggested}  # trains it\n" if suggested else "")


def test_what_is_suggested_follows_the_table_of_data_sets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    larger = DATASETS["cifar100"]._replace(form=Form((3, 48, 48), 100))
    monkeypatch.setitem(DATASETS, "cifar100", larger)
    assert "--dataset cifar100" in said(capsys, "resnet18-small", "--image", "3x48x48")


def test_what_is_suggested_begins_with_the_same_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(fedatoms.nn.build("digits-cnn", classes=10, channels=1).state_dict(), "my net.pth")
    out = said(capsys, "digits-cnn", "--image", "1x8x8", "--weights", "my net.pth")
    words = shlex.split(out.partition("next:  fedatoms ")[2], comments=True)
    assert words[words.index("--weights") + 1] == "my net.pth"
    assert main([*words, "--rounds", "1", "--epochs", "1"]) == 0


@pytest.mark.parametrize(
    "words, message",
    [
        (["nosuch"], "unknown model 'nosuch'"),
        (["lenet", "--atoms", "0"], "--atoms 0 is less than 1"),
        (["lenet", "--classes", "0"], "--classes 0 is less than 1"),
        (["lenet", "--image", "3x"], "--image 3x is not the shape of an image. Use for example 3x32x32."),
        (["lenet", "--image", "3x8x8"], "do not fit the model"),
        (["lenet", "--where", "("], "--where ( is not a regular expression"),
        (["lenet", "--weights", "none.pth"], "--weights none.pth does not exist"),
        (["lenet", "--head", "nosuch"], "unknown head module 'nosuch'"),
    ],
)
def test_a_mistake_costs_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


LARGE = {
    "channels": (
        ["resnet18", "--image", "999999x3x3"],
        "--image 999999x3x3: channels=999999 is more than 4096. Use for example 3",
    ),
    "sides": (["resnet18", "--image", "1x800000x800000"], "side=800000 is more than 100000. Use for example 3x32x32"),
    "classes": (["resnet18", "--classes", "1000000"], "--classes 1000000 is more than 100000. Use for example 10"),
    "an image that fits": (["resnet18", "--image", "3x20000x20000", "--atoms", "1"], ""),
    "one that does not": (
        ["lenet", "--image", "3x20000x20000"],
        "images of shape (3, 20000, 20000) do not fit the model",
    ),
}


@pytest.mark.parametrize("words, message", LARGE.values(), ids=LARGE)
def test_no_shape_takes_the_machine(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    assert main(["inspect", *words]) == (2 if message else 0)
    assert message in capsys.readouterr().err
    assert time.monotonic() - began < 20 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # kB


def test_the_ranges_are_the_same_in_python() -> None:
    for wrong in ({"classes": 10**6}, {"classes": -1}, {"classes": 10, "channels": 10**6}):
        with pytest.raises(ValueError, match=r"(classes|channels)=-?\d+ is (more|less) than"):
            fedatoms.nn.build("lenet", **wrong)


def test_memory_that_runs_out_is_said_in_words_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedatoms.nn.summaries.summary", lambda *what, **how: (_ for _ in ()).throw(MemoryError))
    assert main(["inspect", "lenet"]) == 2
    told = capsys.readouterr().err
    assert "Use fewer `classes`, a smaller `image` or a smaller network" in told and "batch" not in told
