"""Small problems that are no classification of single images: each is learnt to a stated score within seconds."""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedatoms.data.datasets import load
from fedatoms.data.federations import Federation, federation
from fedatoms.engine.training import Training
from fedatoms.objectives import multi_label, regression, segmentation
from fedatoms.objectives.base import Objective


class Problem(NamedTuple):
    """A federation of three clients, a network for it, what it learns, and the score that it reaches."""

    data: Federation
    net: nn.Module
    objective: Objective
    training: Training
    rounds: int
    score: float


@cache
def problem(name: str) -> Problem:
    """Returns a problem by the name of its objective; the network is the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return {"regression": diabetes, "multi-label": digits, "segmentation": shapes}[name]()


def diabetes() -> Problem:
    """How a disease of 442 patients progresses in a year, from ten measurements (Efron et al., 2004)."""
    from sklearn.datasets import load_diabetes

    x, y = (torch.tensor(each, dtype=torch.float32) for each in load_diabetes(return_X_y=True))
    net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    training = Training(epochs=2, batch_size=20, lr=0.05, momentum=0.9, clip=10)
    return Problem(_spread(20 * x, (y - 152) / 77), net, regression(), training, 6, score=0.8)  # of the deviation


def digits() -> Problem:
    """Whether a digit has a loop, is odd, and is above four."""
    found = load("digits")
    x, label = found.x[:900].float() / 16, found.y[:900]
    y = torch.stack([torch.isin(label, torch.tensor([0, 6, 8, 9])), label % 2 == 1, label > 4], 1)
    body = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1)]
    net = nn.Sequential(*body, nn.Linear(288, 3))
    return Problem(_spread(x, y), net, multi_label(), Training(epochs=2, batch_size=20, lr=0.3), 5, score=90.0)


def shapes() -> Problem:
    """Bright squares and dark discs on a noisy ground, 16 x 16: which pixel is of which."""
    place = torch.randint(4, 12, (300, 2, 1, 1)).float()
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))
    far = (grid - place).abs()
    square, disc = far.amax(1) <= 2.5, (far**2).sum(1) <= 10
    kind = torch.arange(300)[:, None, None] % 2
    y = torch.where(kind == 0, square * 1, disc * 2)
    x = 0.4 * torch.randn(300, 1, 16, 16) + ((y == 1) * 1.0 - (y == 2) * 1.0)[:, None]
    training = Training(epochs=2, batch_size=10, lr=0.3, momentum=0.5, clip=10)
    return Problem(_spread(x, y), UNet(), segmentation(), training, 8, score=80.0)


class UNet(nn.Module):
    """A U-Net of one level."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.first, self.down = _block(1, 6), _block(6, 12)
        self.up, self.last = nn.ConvTranspose2d(12, 6, 2, stride=2), _block(12, 6)
        self.head = nn.Conv2d(6, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.first(x)
        deep = self.down(nn.functional.max_pool2d(wide, 2))
        return self.head(self.last(torch.cat([wide, self.up(deep)], 1)))


def _block(inside: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inside, out, 3, padding=1), nn.GroupNorm(2, out), nn.ReLU())


def _spread(x: Tensor, y: Tensor) -> Federation:
    """Gives a third of the samples, one more for each client, to three clients and the rest to the test."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y, cut = x[order], y[order], 4 * len(y) // 5
    return federation([(x[k:cut:3], y[k:cut:3]) for k in range(3)], test=(x[cut:], y[cut:]))
