"""Laws of leaving: what is written is plain, computes what the network does for any batch, or is not written."""

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.cases import some_now
from support.small import small_net
from torch import Tensor, nn
from zoo.sequences import Recurrent

from fedatoms import decompose, fuse
from fedatoms.core.inputs import Inputs, output_of, samples_in, take
from fedatoms.core.options import EXPORTS
from fedatoms.nn import exporting as exports
from fedatoms.nn.exporting import SUFFIXES, export
from fedatoms.nn.hadamard import factorise
from fedatoms.nn.pure import run_on
from fedatoms.nn.summaries import summary

SHAPE = (1, 6, 6)


class Tied(nn.Module):
    """A layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(36, 36)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x.flatten(1)))
        return out


class Refused(nn.Module):
    """A network whose path depends on its data: no exporter takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x.flatten(1))
        return out if out.sum() > 0 else -out


NETS: dict[str, Callable[[], nn.Module]] = {
    "atoms, BatchNorm and dropout": lambda: small_net(norm=True, dropout=True, atoms=4).float(),
    "factors": lambda: factorise(
        nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 3))
    ),
    "in training mode": lambda: small_net(norm=True).float().train(),
    "tied": Tied,
}


def path_of(folder: Path, to: str) -> Path:
    return folder / f"net{SUFFIXES[to]}"


def outputs_of(path: Path, model: nn.Module, x: Tensor) -> Tensor:
    """Runs a file as a user without fedatoms would; weights need the network that they belong to."""
    if path.suffix == ".onnx":
        runtime = pytest.importorskip("onnxruntime")
        (found,) = runtime.InferenceSession(path).run(None, {"input": x.numpy()})
        return torch.from_numpy(found)
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(x)
    from safetensors.torch import load_file

    plain = fuse(model).eval()
    for leaf in plain.parameters():
        nn.init.zeros_(leaf)
    plain.load_state_dict(load_file(path))
    return plain(x)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's own
@pytest.mark.parametrize(("name", "to"), some_now(NETS, EXPORTS))
def test_a_file_computes_what_the_network_does_for_any_batch(name: str, to: str, tmp_path: Path) -> None:
    if to == "onnx":
        pytest.importorskip("onnxscript")
    model = NETS[name]()
    mode = model.training
    done = export(model, path_of(tmp_path, to), shape=SHAPE, to=to)
    assert done.difference is not None and done.difference < 1e-5 and done.size == done.path.stat().st_size
    assert model.training == mode
    model.eval()
    for rows in (1, 2, 7):
        x = torch.randn(rows, *SHAPE, dtype=next(model.parameters()).dtype)
        torch.testing.assert_close(outputs_of(done.path, model, x), model(x), rtol=0, atol=1e-5)


def test_no_file_holds_atoms(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    net = small_net(norm=True).float()
    export(decompose(net, atoms=4, init="orthonormal"), tmp_path / "net.safetensors", shape=SHAPE, to="safetensors")
    assert load_file(tmp_path / "net.safetensors").keys() == net.state_dict().keys()


@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_a_network_that_torch_cannot_export_is_refused_in_one_line(
    to: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if to == "onnx":
        pytest.importorskip("onnxscript")
    with pytest.raises(ValueError, match=f"to={to}: this network cannot be exported .*Use to=.*safetensors") as told:
        export(Refused(), path_of(tmp_path, to), shape=SHAPE, to=to)
    assert str(told.value).isprintable() and not list(tmp_path.iterdir())
    assert "data-dependent" in str(told.value) and capfd.readouterr() == ("", "")
    export(Refused(), path_of(tmp_path, "safetensors"), shape=SHAPE, to="safetensors")


def test_what_no_runtime_computes_is_refused_too(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(ValueError, match=r"to=onnx: this network cannot be exported .*Conv.*Use to=torch-export"):
        export(small_net().double(), tmp_path / "net.onnx", shape=SHAPE)
    export(small_net().double(), tmp_path / "net.pt2", shape=SHAPE, to="torch-export")


def test_a_file_with_other_outputs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "_written", lambda model, batches, to: (b"", lambda x: model(x) + 1e-4))
    with pytest.raises(ValueError, match=r"lie 1.0e-04 from the network's.*Nothing is written"):
        export(small_net(), tmp_path / "net.onnx", shape=SHAPE)
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("onnx") else find(name))
    with pytest.raises(
        ValueError, match=r'to=onnx needs onnx and onnxscript. Type: pip install "fedatoms\[export\]", or'
    ):
        export(small_net(), tmp_path / "net.onnx", shape=SHAPE)


def test_without_a_runtime_onnx_is_written_and_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    done = export(small_net().float(), tmp_path / "net.onnx", shape=SHAPE)
    assert done.difference is None and done.path.exists()


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.body(x)
        return {"features": features, "logits": self.head(features)}


@pytest.mark.parametrize("to", EXPORTS)
def test_of_several_outputs_the_one_that_counts_is_exported(to: str, tmp_path: Path) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    net, x = Several(), torch.randn(4, 5)
    export(net, path_of(tmp_path, to), shape=(5,), to=to)
    found = outputs_of(path_of(tmp_path, to), Several(), x)
    torch.testing.assert_close(found["logits"] if to == "safetensors" else found, net(x)["logits"])


@pytest.mark.parametrize("to", EXPORTS)
@pytest.mark.parametrize(
    ("net", "told"),
    [
        (nn.Linear(6, 2), r"of shape \(5,\) do not fit the model \(mat1 and mat2 shapes"),
        (nn.Embedding(9, 2), r"shape=\(5,\): the network takes tokens, not real numbers. Give inputs=x with a batch"),
    ],
)
def test_inputs_that_a_network_does_not_take_are_refused(net: nn.Module, told: str, to: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=told) as found:
        export(net, path_of(tmp_path, to), shape=(5,), to=to)
    assert "\n" not in str(found.value) and not list(tmp_path.iterdir())


class Pair(nn.Module):
    """Takes token ids and real numbers, and returns a dictionary."""

    def __init__(self, alone: bool = False) -> None:
        super().__init__()
        self.words, self.linear, self.alone = nn.Embedding(9, 4), nn.Linear(2, 4), alone

    def forward(self, ids: Tensor, rest: Tensor) -> dict[str, Tensor] | Tensor:
        logits = self.words(ids).mean(1) + self.linear(rest)
        return logits if self.alone else {"ids": ids, "logits": logits}


IDS, REST = torch.arange(12).reshape(4, 3) % 9, torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
INPUTS: dict[str, tuple[nn.Module, Inputs]] = {
    "tokens": (nn.Sequential(nn.Embedding(9, 4), nn.Flatten()), IDS),
    "a single row": (nn.Sequential(nn.Embedding(9, 4), nn.Flatten()), IDS[:1]),
    "recurrent": (Recurrent(nn.LSTM), IDS),
    "a tuple": (Pair(alone=True), (IDS, REST)),
    "by name": (Pair(alone=True), {"ids": IDS, "rest": REST}),
    "a tuple, of several outputs": (Pair(), (IDS, REST)),
    "by name, in another order": (Pair(alone=True), {"rest": REST, "ids": IDS}),
    "by name, of several outputs": (Pair(), {"rest": REST, "ids": IDS}),
}


@pytest.mark.parametrize(("what", "to"), some_now(INPUTS, EXPORTS))
def test_tokens_and_several_inputs_are_exported_by_an_example(what: str, to: str, tmp_path: Path) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    model, x = INPUTS[what]
    done = export(model, path_of(tmp_path, to), inputs=x, to=to)
    assert done.difference is not None and done.difference < 1e-5
    if to == "torch-export":
        program, more = torch.export.load(done.path).module(), take(x, torch.arange(7) % samples_in(x))
        expected = output_of(run_on(model.eval(), more))
        torch.testing.assert_close(output_of(run_on(program, more)), expected, rtol=0, atol=1e-5)


def test_inputs_of_a_graph_have_their_names(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    names = {"tokens": ["input"], "a tuple": ["input_0", "input_1"], "by name": ["ids", "rest"]}
    for what, expected in names.items():
        model, x = INPUTS[what]
        found = runtime.InferenceSession(export(model, tmp_path / "net.onnx", inputs=x).path).get_inputs()
        assert [each.name for each in found] == expected


def test_weights_need_no_input(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    done = export(Pair(), tmp_path / "net.safetensors", to="safetensors")
    assert done.difference is None and load_file(done.path).keys() == Pair().state_dict().keys()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, r"neither shape nor inputs is given, .* Use for example shape=\(3, 32, 32\), or inputs=x"),
        ({"shape": (3,), "inputs": IDS}, "shape and inputs are both given"),
        ({"shape": 5}, "shape=5 is not the shape of one input"),
        ({"shape": "3x4"}, "shape='3x4' is not the shape of one input"),
        ({"shape": (3, -1)}, r"shape=\(3, -1\) is not the shape of one input"),
        ({"shape": {"a": (3,), "b": (2,)}}, r"shape=.* is not the shape of one input, .*inputs=x with a batch"),
        ({"inputs": [1, 2]}, "inputs=list is no batch: give a tensor"),
        ({"inputs": ()}, "inputs=tuple is no batch: give a tensor"),
        ({"inputs": (IDS, REST[:2])}, r"but x\[0\] has 4, x\[1\] has 2. Give as many of each"),
        ({"inputs": torch.tensor(1)}, "x has 0"),
        ({"inputs": REST}, r"inputs of shape \(2,\) do not fit the model \(.*\). Give a batch that it takes"),
    ],
)
def test_examples_that_are_none_are_refused_in_one_line(given: dict[str, object], told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=told) as found:
        export(nn.Embedding(9, 2), tmp_path / "net.onnx", **given)
    assert "\n" not in str(found.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("net.pt", {}, r"net.pt does not end in .onnx. Use for example net.onnx"),
        ("net.onnx", {"to": "tflite"}, "to 'tflite'"),
        ("/no/such/net.onnx", {}, "there is no folder /no/such"),
    ],
)
def test_slips_cost_one_line(name: str, more: dict[str, str], told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=told):
        export(small_net(), name if name.startswith("/") else tmp_path / name, shape=SHAPE, **more)


NO_NETWORKS = (None, nn.Linear, "net", nn.LazyLinear(2), nn.Linear(2, 2, device="meta"))


@pytest.mark.parametrize("model", NO_NETWORKS, ids=str)
def test_what_is_no_network_is_refused(model: object, tmp_path: Path) -> None:
    for use in (summary, lambda one: export(one, tmp_path / "net.onnx", shape=SHAPE)):
        with pytest.raises(ValueError, match=r"is not a network|is lazy|has no values"):
            use(model)


def test_a_program_of_torch_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):  # torch.jit will go
        program = torch.jit.script(small_net())
    for use in (summary, lambda one: export(one, tmp_path / "net.onnx", shape=SHAPE)):
        with pytest.raises(ValueError, match=r"is a ScriptModule, whose layers are closed. Pass the network"):
            use(program)


@pytest.mark.parametrize("shape", [3, (1, -6, 6), ("1", 6, 6), (1, 6.5, 6), (1, 10**9, 10**9)], ids=str)
def test_what_is_no_shape_or_fits_nowhere_is_refused(shape: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"shape=.* is not the shape of one input|most of it for three inputs"):
        export(small_net(), tmp_path / "net.safetensors", shape=shape, to="safetensors")
