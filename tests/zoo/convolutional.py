"""Convolutional networks of the literature at toy width: every kind of layer and wiring, few parameters."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 4


def conv_norm(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


def classifier(*features: nn.Module, width: int) -> nn.Sequential:
    return nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def vgg() -> nn.Module:
    stages = (conv_norm(3, 8), nn.MaxPool2d(2), conv_norm(8, 16), nn.MaxPool2d(2))
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, CLASSES))


class Residual(nn.Module):
    """Adds what a body computes to its input, which a shortcut fits to it."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.body(x)


def bottleneck(inputs: int, width: int, outputs: int, stride: int = 1, groups: int = 1) -> nn.Module:
    body = nn.Sequential(conv_norm(inputs, width, 1), conv_norm(width, width, 3, stride, groups))
    body.append(nn.Conv2d(width, outputs, 1, bias=False)).append(nn.BatchNorm2d(outputs))
    fits = inputs == outputs and stride == 1
    return Residual(body, None if fits else nn.Conv2d(inputs, outputs, 1, stride, bias=False))


def resnet50() -> nn.Module:
    return classifier(conv_norm(3, 8, 7, 2), bottleneck(8, 4, 16), bottleneck(16, 8, 32, 2), width=32)


def resnext() -> nn.Module:
    return classifier(conv_norm(3, 8), bottleneck(8, 8, 16, groups=4), bottleneck(16, 16, 32, 2, 8), width=32)


def wide_resnet() -> nn.Module:
    def block(inputs: int, outputs: int) -> nn.Module:
        body = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, 3, 1, 1), nn.Dropout(0.3))
        body.append(nn.ReLU()).append(nn.Conv2d(outputs, outputs, 3, 1, 1))
        return Residual(body, nn.Conv2d(inputs, outputs, 1))

    return classifier(nn.Conv2d(3, 8, 3, 1, 1), block(8, 16), nn.MaxPool2d(2), block(16, 16), width=16)


class DenseLayer(nn.Module):
    """Appends its output to its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, growth, 3, 1, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet() -> nn.Module:
    dense = [DenseLayer(8 + 4 * i, 4) for i in range(3)]
    return classifier(nn.Conv2d(3, 8, 3, 1, 1), *dense, conv_norm(20, 12, 1), nn.AvgPool2d(2), width=12)


class Branches(nn.Module):
    """Runs branches on one input, and stacks their channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class GoogLeNetOutputs(NamedTuple):
    """The logits, and those of the auxiliary classifier."""

    logits: Tensor
    aux: Tensor | None


class GoogLeNet(nn.Module):
    """Inception branches; returns a tuple with auxiliary logits while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 8)
        pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_norm(8, 4, 1))
        self.inception = Branches(conv_norm(8, 4, 1), conv_norm(8, 4), conv_norm(8, 4, 5), pooled)
        self.aux, self.head = classifier(width=8), classifier(width=16)

    def forward(self, x: Tensor) -> Tensor | GoogLeNetOutputs:
        x = self.stem(x)
        logits: Tensor = self.head(self.inception(x))
        return GoogLeNetOutputs(logits, self.aux(x)) if self.training else logits


class Excite(nn.Module):
    """Squeeze and excitation: scales each channel by a function of all their means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.squeeze, self.expand = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = F.adaptive_avg_pool2d(x, 1)
        return x * F.hardsigmoid(self.expand(F.relu(self.squeeze(means))))


class StochasticDepth(nn.Module):
    """Drops the whole of a sample's branch, as torchvision's module of this name does."""

    def __init__(self, p: float, mode: str = "row") -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = torch.rand(len(x), *[1] * (x.dim() - 1), dtype=x.dtype, device=x.device) >= self.p
        return x * kept / (1 - self.p)


class Conv2dSame(nn.Conv2d):
    """Pads as TensorFlow does: to the size of the input over the stride."""

    __module__ = "timm.layers"  # by this and its name it is known, as timm's own

    def forward(self, x: Tensor) -> Tensor:
        sides = [
            max((-(-size // stride) - 1) * stride + kernel - size, 0)
            for size, stride, kernel in zip(x.shape[-2:], self.stride, self.kernel_size, strict=True)
        ]
        x = F.pad(x, (sides[1] // 2, sides[1] - sides[1] // 2, sides[0] // 2, sides[0] - sides[0] // 2))
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def inverted(inputs: int, outputs: int, stride: int, act: Callable[[], nn.Module], excite: bool) -> nn.Module:
    """The block of MobileNets and EfficientNets: expand, filter each channel, excite, project."""
    wide = 4 * inputs
    body = [nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), act()]
    body += [nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), act()]
    body += [*([Excite(wide)] if excite else []), nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
    return Residual(nn.Sequential(*body)) if inputs == outputs and stride == 1 else nn.Sequential(*body)


def mobilenet_v2() -> nn.Module:
    blocks = (inverted(8, 8, 1, nn.ReLU6, False), inverted(8, 12, 2, nn.ReLU6, False))
    return classifier(conv_norm(3, 8, stride=2), *blocks, width=12)


def mobilenet_v3() -> nn.Module:
    blocks = (inverted(8, 8, 1, nn.Hardswish, True), inverted(8, 12, 2, nn.Hardswish, True))
    return classifier(conv_norm(3, 8, stride=2), *blocks, width=12)


class BatchNormAct2d(nn.BatchNorm2d):
    """Normalises, drops and activates, as timm's module of this name does."""

    def __init__(self, width: int, act: nn.Module, drop: nn.Module | None = None) -> None:
        super().__init__(width)
        self.drop, self.act = drop or nn.Identity(), act

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.drop(super().forward(x)))
        return out


def norm_act() -> nn.Module:
    block = (nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), BatchNormAct2d(8, nn.PReLU(8), nn.Dropout(0.2)))
    return classifier(
        nn.Conv2d(3, 8, 3, 2, bias=False),
        BatchNormAct2d(8, nn.SiLU(inplace=True)),
        Residual(nn.Sequential(*block)),
        width=8,
    )


def efficientnet() -> nn.Module:
    block = inverted(8, 8, 1, nn.SiLU, True)
    assert isinstance(block, Residual)
    block.body = nn.Sequential(block.body, StochasticDepth(0.2))
    return classifier(Conv2dSame(3, 8, 3, 2, bias=False), nn.BatchNorm2d(8), nn.SiLU(), block, width=8)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class ConvNeXtBlock(nn.Module):
    """A 7x7 filter per channel, two linear layers per pixel, a scale, and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.filter = nn.Conv2d(width, width, 7, 1, 3, groups=width)
        self.norm, self.wide, self.back = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale, self.drop = nn.Parameter(torch.full((width,), 0.1)), StochasticDepth(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.back(F.gelu(self.wide(self.norm(self.filter(x).movedim(1, -1)))))
        return x + self.drop((self.scale * y).movedim(-1, 1))


def convnext() -> nn.Module:
    stem = (nn.Conv2d(3, 8, 4, 4), ChannelNorm(8))
    return classifier(*stem, ConvNeXtBlock(8), ChannelNorm(8), nn.Conv2d(8, 16, 2, 2), ConvNeXtBlock(16), width=16)


def squeezenet() -> nn.Module:
    fire = nn.Sequential(conv_norm(8, 4, 1), Branches(conv_norm(4, 8, 1), conv_norm(4, 8)))
    return nn.Sequential(conv_norm(3, 8), fire, nn.Conv2d(16, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Shuffle(nn.Module):
    """Mixes the channels of groups."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def shufflenet() -> nn.Module:
    return classifier(conv_norm(3, 8), conv_norm(8, 8, 1, groups=2), Shuffle(), conv_norm(8, 8, groups=8), width=8)


class ScaledStdConv2d(nn.Conv2d):
    """Standardises each filter before it is used, as networks without normalisation layers do."""

    __module__ = "timm.layers"

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, kernel // 2)
        self.gain, self.scale, self.eps = (
            nn.Parameter(torch.ones(outputs, 1, 1, 1)),
            self.weight[0].numel() ** -0.5,
            1e-6,
        )

    def forward(self, x: Tensor) -> Tensor:
        rows, gain = self.weight.reshape(1, self.out_channels, -1), (self.gain * self.scale).view(-1)
        weight = F.batch_norm(rows, None, None, gain, training=True, momentum=0.0, eps=self.eps).view_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def nf_resnet() -> nn.Module:
    body = nn.Sequential(nn.ReLU(), ScaledStdConv2d(8, 8, 3), nn.ReLU(), ScaledStdConv2d(8, 8, 3))
    return classifier(ScaledStdConv2d(3, 8, 3, 2), Residual(body), nn.ReLU(), width=8)


class UNet(nn.Module):
    """Down, up and across: a class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep = conv_norm(3, 8), nn.Sequential(nn.MaxPool2d(2), conv_norm(8, 16))
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), conv_norm(16, 8)
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        shallow = self.first(x)
        scores: Tensor = self.head(self.last(torch.cat([shallow, self.up(self.deep(shallow))], 1)))
        return scores


def autoencoder() -> nn.Module:
    down = (nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
    up = (nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1))
    return nn.Sequential(*down, *up)


def audio() -> nn.Module:
    down = (nn.Conv1d(1, 8, 9, 4), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 8, 3, padding="same"), nn.ReLU())
    return nn.Sequential(*down, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, CLASSES))


def video() -> nn.Module:
    down = (nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 8, 3), nn.ReLU())
    return nn.Sequential(*down, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, CLASSES))
