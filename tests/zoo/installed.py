"""The networks of torchvision and timm themselves, as they are published, where both are installed."""

from collections.abc import Callable
from functools import partial
from importlib import import_module, metadata

import torch
from torch import nn

from zoo.convolutional import CLASSES
from zoo.trials import Row, Trial, images, tried

MAKER = "-m zoo installed"
TORCHVISION = (
    *("resnet18", "resnet50", "regnet_y_400mf", "vgg11_bn", "densenet121", "googlenet", "squeezenet1_1", "mnasnet0_5"),
    *("shufflenet_v2_x0_5", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "convnext_tiny"),
    *("swin_t", "vit_b_32"),
)
TIMM = (
    *("nf_resnet26", "tf_efficientnet_b0", "mobilenetv3_small_100", "resnetv2_50", "rexnet_100", "ghostnet_100"),
    *("convnext_atto", "vit_tiny_patch16_224"),
)


def trials(device: str = "cpu") -> dict[str, Trial]:
    """Returns what is tried: whole networks, on batches large enough that few equal rows do not decide the result."""
    return {
        **{f"torchvision: {name}": _trial(partial(_torchvision, name), device) for name in TORCHVISION},
        **{f"timm: {name}": _trial(partial(_timm, name), device) for name in TIMM},
    }


def found(name: str, device: str) -> Row:
    """Tries one of them, in a process of its own."""
    return tried(trials(device)[name])


def versions(device: str) -> str:
    """Says which versions are tried, and where."""
    named = ", ".join(f"{name} {metadata.version(name).split('+')[0]}" for name in ("torchvision", "timm"))
    where = "a CPU" if device == "cpu" else f"one {torch.cuda.get_device_name(device)}, data lazy"
    return f"{named}, torch {torch.__version__.split('+')[0]}, trained on {where}."


def _trial(build: Callable[[], nn.Module], device: str) -> Trial:
    return Trial(build, partial(images, size=64), sizes=(8, 6), batch=4, device=device)


def _torchvision(name: str) -> nn.Module:
    sized = {"image_size": 64} if name.startswith("vit") else {}
    net: nn.Module = import_module("torchvision.models").get_model(name, weights=None, num_classes=CLASSES, **sized)
    return net


def _timm(name: str) -> nn.Module:
    sized = {"img_size": 64} if name.startswith("vit") else {}
    net: nn.Module = import_module("timm").create_model(name, num_classes=CLASSES, **sized)
    return net
