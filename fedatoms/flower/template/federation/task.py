"""What this federation is about: put your network and your data here. As it is, it learns the built-in digits."""

from torch import Tensor, nn

from fedatoms import Experiment
from fedatoms.data.datasets import load
from fedatoms.flower import Own, Task


def model() -> nn.Module:
    """A plain network; its convolutions are decomposed if pyproject.toml says parametrisation = "atoms"."""
    features = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
    return nn.Sequential(features, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))


def data(partition: int, partitions: int) -> Own:
    """The images and labels of one node, to train on and to be tested on: it sees only some of the digits."""
    (x, y), (test_x, test_y) = train_images(), test_images()
    mine, tested = y % partitions == partition, test_y % partitions == partition
    return Own(x[mine], y[mine], test_x[tested], test_y[tested])


def train_images() -> tuple[Tensor, Tensor]:
    """All images; a real node would read a file of its own."""
    digits = load("digits")
    return digits.x / 16, digits.y


def test_images() -> tuple[Tensor, Tensor]:
    """What the server scores the model on after each round; a server without images has test=None below."""
    digits = load("digits")
    return digits.test_x / 16, digits.test_y


task = Task(Experiment(dataset="own", model="own"), model, data, classes=10, shape=(1, 8, 8), test=test_images)
