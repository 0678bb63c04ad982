"""The paper's networks, each a factory of (classes, channels) in one readable table, and networks of your own.

All return logits, for images of 32x32 pixels unless stated otherwise.
"""

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedatoms.core import lookup
from fedatoms.core.memory import is_out_of_memory
from fedatoms.core.options import check_range
from fedatoms.core.outside import Factory, check_is_no_file, from_outside, naming
from fedatoms.core.randomness import address
from fedatoms.nn.layers import copied

Activation = Callable[[], nn.Module]
Norm = Callable[[int], nn.Module]

RULE = "Type module:factory, as mynet:build for build(classes) in mynet.py of this folder"


def digits_cnn(classes: int = 10, channels: int = 1) -> "CNN":
    """A small network for 8x8 digits: two 3x3 convolutions and two linear layers, 13,706 parameters.

    >>> digits_cnn()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    convs = [nn.Conv2d(channels, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)]
    return _cnn(convs, [nn.Linear(128, 64), nn.Linear(64, classes)])


def lenet(classes: int = 10, channels: int = 3) -> "CNN":
    """The LeNet of FedDyn (Acar et al., 2021) and FedDC (Gao et al., 2022).

    >>> lenet()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    convs = [nn.Conv2d(channels, 64, 5), nn.Conv2d(64, 64, 5)]
    return _cnn(convs, [nn.Linear(1600, 384), nn.Linear(384, 192), nn.Linear(192, classes)])


def fedrep_cnn(classes: int = 10, channels: int = 3) -> "CNN":
    """The CIFAR-10 network of FedRep (Collins et al., 2021).

    >>> fedrep_cnn()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    convs = [nn.Conv2d(channels, 64, 5), nn.Conv2d(64, 64, 5)]
    return _cnn(convs, [nn.Linear(1600, 120), nn.Linear(120, 64), nn.Linear(64, classes)])


def fedrep_cnn100(classes: int = 100, channels: int = 3) -> "CNN":
    """The CIFAR-100 network of FedRep (Collins et al., 2021), with dropout 0.6.

    >>> fedrep_cnn100()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 100])
    """
    convs = [nn.Conv2d(channels, 64, 5), nn.Conv2d(64, 128, 5)]
    return _cnn(convs, [nn.Linear(3200, 256), nn.Linear(256, 128), nn.Linear(128, classes)], dropout=0.6)


def fedpac_cnn(classes: int = 10, channels: int = 3) -> "CNN":
    """The network of FedPAC (Xu et al., 2023); its ``features`` have 128 dimensions.

    >>> fedpac_cnn().features(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 128])
    """
    convs = [nn.Conv2d(channels, 16, 5), nn.Conv2d(16, 32, 5, padding=1), nn.Conv2d(32, 64, 3, padding=1)]
    return _cnn(convs, [nn.Linear(576, 128), nn.Linear(128, classes)], activation=nn.LeakyReLU)


def resnet18(classes: int = 200, channels: int = 3, *, norm: Norm = nn.BatchNorm2d, small: bool = False) -> "ResNet18":
    """ResNet-18 (He et al., 2016) with torchvision's names; ``small`` is the stem for small images.

    >>> resnet18(small=True)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 200])
    """
    return ResNet18(classes, channels, norm, small)


GROUP_NORM: Norm = functools.partial(nn.GroupNorm, 2)  # two groups, in the place of BatchNorm as in FedDyn and FedDC
MODELS: dict[str, Callable[..., nn.Module]] = {
    "digits-cnn": digits_cnn,
    "lenet": lenet,
    "fedrep-cnn": fedrep_cnn,
    "fedrep-cnn100": fedrep_cnn100,
    "fedpac-cnn": fedpac_cnn,
    "resnet18": resnet18,
    "resnet18-small": functools.partial(resnet18, small=True),
    "resnet18-gn": functools.partial(resnet18, norm=GROUP_NORM),
    "resnet18-gn-small": functools.partial(resnet18, norm=GROUP_NORM, small=True),
}


def build(name: str, *, classes: int, channels: int = 3, seed: int = 0) -> nn.Module:
    """Builds a network of the table, or "module:factory" of your own; the weights depend on the seed alone.

    A factory of your own gets ``classes=`` if it takes that; its module may lie in the current folder.

    >>> build("lenet", classes=10).conv2
    Conv2d(64, 64, kernel_size=(5, 5), stride=(1, 1))
    """
    check_range("classes", classes)
    if ":" in name:
        make = _own(name, classes)
    else:
        check_range("channels", channels)
        if name not in MODELS:
            check_is_no_file(name, "model")
        make = functools.partial(lookup.find(name, MODELS, "model"), classes=classes, channels=channels)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(
            address(seed, "model")
        )  # torch.manual_seed would also reset the GPU's stream
        model = make()
    if not isinstance(model, nn.Module):
        raise ValueError(f"model={name!r} returns {type(model).__name__}: a factory must return a torch.nn.Module")
    return model


def check_input(
    model: nn.Module,
    image_shape: tuple[int, ...],
    classes: int,
    read: Callable[[object], object] = lambda it: it,
    device: str = "",
) -> None:
    """Refuses a model that does not turn images of ``image_shape`` into ``classes`` logits, which ``read`` finds.

    With ``device`` it is tried there: on "meta" images of any size take no memory.

    >>> check_input(lenet(classes=10), (3, 32, 32), classes=100)
    Traceback (most recent call last):
    ...
    ValueError: two images of shape (3, 32, 32) give outputs of shape (2, 10) where (2, 100) is needed: build the
    model with classes=100
    """
    like = next(model.parameters(), torch.zeros(()))
    with fitting(image_shape), torch.no_grad():
        images = torch.zeros(2, *image_shape, dtype=like.dtype, device=device or like.device)
        returned = copied(model).to(images.device).eval()(images)
    logits = read(returned)
    if not isinstance(logits, Tensor):
        raise ValueError(
            f"the model returns {type(logits).__name__}: return the logits alone, a (batch, classes) tensor"
        )
    if logits.shape != (2, classes):
        raise ValueError(
            f"two images of shape {image_shape} give outputs of shape {tuple(logits.shape)} where (2, {classes}) is "
            f"needed: build the model with classes={classes}"
        )


@contextmanager
def fitting(image_shape: tuple[int, ...]) -> Iterator[None]:
    """Says that samples of a shape do not fit the model, if what is done within fails; of images, what may fit.

    >>> with fitting((8, 8)):
    ...     _ = nn.Conv2d(1, 2, 3)(torch.zeros(2, 8, 8))
    Traceback (most recent call last):
    ...
    ValueError: samples of shape (8, 8) do not fit the model (Given groups=1, weight of size [2, 1, 3, 3], expected
    input[1, 2, 8, 8] to have 1 channels, but got 2 channels instead). If they are images, they lack the axis of
    channels: x[:, None].
    """
    try:
        yield
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if is_out_of_memory(error):
            raise
        why = f"of shape {image_shape} do not fit the model ({lookup.one_line(error)})"
        if len(image_shape) != 3:
            axis = " If they are images, they lack the axis of channels: x[:, None]." if len(image_shape) == 2 else ""
            raise ValueError(f"samples {why}.{axis}") from error
        raise ValueError(
            f"images {why}. Build it with the channels of the images, and use digits-cnn for 8x8, lenet, fedrep-cnn or "
            f"fedpac-cnn for 32x32, resnet18-small for any size"
        ) from error


class CNN(nn.Sequential):
    """A chain of layers whose last one is the classifier."""

    def features(self, x: Tensor) -> Tensor:
        """Returns the inputs of the classifier.

        >>> lenet().features(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 192])
        """
        for layer in list(self)[:-1]:
            x = layer(x)
        return x


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut.

    >>> BasicBlock(64, 128, 2, nn.BatchNorm2d)(torch.zeros(2, 64, 8, 8)).shape
    torch.Size([2, 128, 4, 4])
    """

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = norm(width)
        shortcut = [nn.Conv2d(inputs, width, 1, stride, bias=False), norm(width)] if inputs != width else []
        self.downsample = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """Adds the shortcut to the two convolutions."""
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet18(nn.Module):
    """ResNet-18; with ``small`` its stem is a 3x3 convolution of stride 1 and no pooling.

    >>> ResNet18(10, 3, nn.BatchNorm2d, small=False).features(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 512])
    """

    def __init__(self, classes: int, channels: int, norm: Norm, small: bool) -> None:
        super().__init__()
        kernel, stride, padding = (3, 1, 1) if small else (7, 2, 3)
        self.conv1 = nn.Conv2d(channels, 64, kernel, stride, padding, bias=False)
        self.bn1 = norm(64)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1, norm), BasicBlock(64, 64, 1, norm))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2, norm), BasicBlock(128, 128, 1, norm))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2, norm), BasicBlock(256, 256, 1, norm))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2, norm), BasicBlock(512, 512, 1, norm))
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")  # as torchvision does

    def features(self, x: Tensor) -> Tensor:
        """Returns the 512 averaged features that the classifier sees."""
        x = self.maxpool(functional.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits."""
        logits: Tensor = self.fc(self.features(x))
        return logits


def _cnn(
    convs: Sequence[nn.Conv2d], linears: Sequence[nn.Linear], activation: Activation = nn.ReLU, dropout: float = 0.0
) -> CNN:
    """Chains convolutions (each with activation and 2x2 max pooling) and linear layers (activation in between)."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, conv in enumerate(convs, 1):
        layers |= {f"conv{i}": conv, f"conv{i}_act": activation(), f"conv{i}_pool": nn.MaxPool2d(2)}
    layers["flatten"] = nn.Flatten()
    for i, linear in enumerate(linears[:-1], 1):
        layers |= {f"fc{i}": linear, f"fc{i}_act": activation()}
    if dropout:
        layers["dropout"] = nn.Dropout(dropout)
    layers[f"fc{len(linears)}"] = linears[-1]
    return CNN(layers)


def _own(name: str, classes: int) -> Callable[[], object]:
    """Imports "module:factory" and hands it ``classes=`` if it takes that."""
    factory = from_outside(name, "model", RULE)
    if isinstance(factory, nn.Module):
        why = "is a network, not a factory: name its class, or a function that makes it"
        raise ValueError(f"model={name!r} {why}. {RULE}")
    signature = inspect.signature(factory)
    takes = any(p.name == "classes" or p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    bare = getattr(factory, "__init__", None) is nn.Module.__init__  # it seems to take anything, and takes nothing
    arguments = {"classes": classes} if takes and not bare else {}
    return functools.partial(_call, name, factory, signature, arguments)


def _call(name: str, factory: Factory, signature: inspect.Signature, arguments: dict[str, int]) -> object:
    try:
        signature.bind(**arguments)
        with naming({"model": name}):  # an error of its own code has a line there
            return factory(**arguments)
    except TypeError as error:
        why = f"{lookup.one_line(error)}, but a factory gets classes= or nothing"
        raise ValueError(f"model={name!r}: {why}. {RULE}") from error
