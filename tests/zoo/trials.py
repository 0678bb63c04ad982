"""What is tried with each network, and the table of it: decompose, train in both maps, fuse, export."""

import copy
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import fedatoms
from fedatoms.bench.report import table as markdown
from fedatoms.engine.execution.vmap import NotVectorisable
from fedatoms.engine.loop import train
from fedatoms.nn.exporting import export
from fedatoms.nn.layers import Convolution
from fedatoms.nn.models import build
from fedatoms.objectives.base import output_of
from zoo import convolutional as c
from zoo import sequences as s
from zoo.hub import HUB

PAGE, MAKER = Path(__file__).parents[2] / "docs" / "networks.md", "-m zoo"
SAME, CLOSE = 1e-9, 1e-5  # of two maps in float64, and of an exported network in float32
Inputs = Callable[[int], Tensor]


class Trial(NamedTuple):
    """A network, the inputs that it takes, and what it learns."""

    build: Callable[[], nn.Module]
    inputs: Inputs
    objective: str = "classification"
    targets: Callable[[int], Tensor] = lambda n: torch.arange(n) % c.CLASSES
    sizes: tuple[int, int] = (5, 4)  # samples of the two clients
    batch: int = 2
    device: str = "cpu"  # on a GPU data are lazy: read, pinned and sent step by step, and nothing is compiled


class Row(NamedTuple):
    """What was found: filters made of atoms, differences, and the reason where something cannot be."""

    atoms: str
    maps: str
    fused: str
    exported: str


def images(n: int, size: int = 16, channels: int = 3) -> Tensor:
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(n))


def words(n: int) -> Tensor:
    return torch.randint(0, s.WORDS, (n, 6), generator=torch.Generator().manual_seed(n))


def pixels(n: int) -> Tensor:
    return torch.randint(0, c.CLASSES, (n, 16, 16), generator=torch.Generator().manual_seed(n))


large = partial(images, size=32)
TRIALS: dict[str, Trial] = {
    "LeNet": Trial(lambda: build("lenet", classes=c.CLASSES), large),
    "ResNet-18": Trial(lambda: build("resnet18-small", classes=c.CLASSES), images),
    "ResNet-18 with GroupNorm": Trial(lambda: build("resnet18-gn-small", classes=c.CLASSES), images),
    "ResNet-50": Trial(c.resnet50, images),
    "ResNeXt": Trial(c.resnext, images),
    "Wide ResNet with dropout": Trial(c.wide_resnet, images),
    "NF-ResNet (standardised filters)": Trial(c.nf_resnet, images),
    "VGG": Trial(c.vgg, images),
    "DenseNet": Trial(c.densenet, images),
    "GoogLeNet with auxiliary logits": Trial(c.GoogLeNet, images),
    "SqueezeNet": Trial(c.squeezenet, images),
    "ShuffleNet": Trial(c.shufflenet, images),
    "MobileNet V2": Trial(c.mobilenet_v2, images),
    "MobileNet V3": Trial(c.mobilenet_v3, images),
    "EfficientNet (stochastic depth)": Trial(c.efficientnet, images),
    "normalisation with its activation, as in timm": Trial(c.norm_act, images),
    "ConvNeXt (stochastic depth)": Trial(c.convnext, images),
    "U-Net, segmentation": Trial(c.UNet, images, "segmentation", pixels),
    "autoencoder, regression": Trial(c.autoencoder, images, "regression", images),
    "sound, 1-d": Trial(c.audio, lambda n: images(n, 8, 1).reshape(n, 1, 64)),
    "film, 3-d": Trial(c.video, lambda n: images(n, 8, 8)[:, None]),
    "LSTM": Trial(s.lstm, words),
    "GRU": Trial(s.gru, words),
    "transformer encoder with dropout": Trial(s.Encoder, images),
    "convolutions and attention": Trial(s.Attended, images),
    "MLP-Mixer": Trial(s.mixer, images),
    "transformers: ViT": Trial(HUB["ViT"], images),
    "transformers: ResNet": Trial(HUB["ResNet"], large),
    "transformers: ConvNeXt V2": Trial(HUB["ConvNeXt V2"], large),
    "transformers: RegNet": Trial(HUB["RegNet"], large),
    "transformers: MobileViT": Trial(HUB["MobileViT"], large),
    "transformers: SegFormer, segmentation": Trial(HUB["SegFormer"], large, "segmentation", pixels),
    "transformers: BERT": Trial(HUB["BERT"], words),
}


def tried(trial: Trial) -> Row:
    """Tries a network in all ways."""
    torch.manual_seed(0)
    plain = trial.build()
    made, atoms = _decomposed(plain)
    return Row(atoms, _maps(trial, made), _fused(trial, made), _exported(trial, made))


def table(rows: dict[str, Row]) -> str:
    """Writes the rows as a table of Markdown."""
    heads = ("network", "convolutions made of atoms", "loop = vectorised", "fuse", "ONNX")
    return markdown(heads, [(name, *row) for name, row in rows.items()], align="---")


def _decomposed(model: nn.Module) -> tuple[nn.Module, str]:
    spatial = [one for one in model.modules() if isinstance(one, Convolution) and max(one.kernel_size) > 1]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = fedatoms.decompose(model, atoms=4, init="svd")
    except ValueError as error:
        if spatial:
            return model, str(error).split(".")[0]
        return model, "has none"
    left = sum(isinstance(one, Convolution) and max(one.kernel_size) > 1 for one in made.modules())
    return made, f"{len(spatial) - left} of {len(spatial)}"


def _maps(trial: Trial, model: nn.Module) -> str:
    """Trains two clients for a round, one by one and vectorised; in float32 both must be finite."""
    try:
        _round(trial, model, "vectorised")
    except NotVectorisable as error:
        return f"no: {error.reason}"
    _round(trial, model, "one_by_one")
    one, other = (_round(trial, copy.deepcopy(model).double(), map) for map in ("one_by_one", "vectorised"))
    far = max(float((one[name] - other[name]).abs().max()) for name in one if one[name].numel())
    return "yes" if far < SAME else f"{far:.1e} apart"


def _round(trial: Trial, model: nn.Module, map: str) -> dict[str, Tensor]:
    clients = [(trial.inputs(n), trial.targets(n)) for n in trial.sizes]
    lazy = trial.device != "cpu"
    data = fedatoms.data.federation(clients, test=(trial.inputs(4), trial.targets(4)), lazy=lazy)
    objective = getattr(fedatoms.objectives, trial.objective)()
    training = fedatoms.Training(lr=0.01, batch_size=trial.batch)
    sim = fedatoms.Simulation(model, data, objective=objective, training=training, map=map, device=trial.device)  # type: ignore[arg-type]
    params = dict(train(sim, 1).state.server.params)
    assert all(leaf.isfinite().all() for leaf in params.values())
    return params


@torch.no_grad()
def _fused(trial: Trial, model: nn.Module) -> str:
    x, model = trial.inputs(3), model.eval()
    far = float((output_of(model(x)) - output_of(fedatoms.fuse(model)(x))).abs().max())
    return "yes" if far < CLOSE else f"{far:.1e} apart"


def _exported(trial: Trial, model: nn.Module) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            export(model, f"{folder}/net.onnx", inputs=trial.inputs(3), to="onnx")
        except ValueError as error:
            return str(error).split(". ")[0]
    return "yes"
