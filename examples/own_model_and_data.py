"""Bring your own model and data: any network with convolutions, any tensors or map-style data sets, one per client."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import fedatoms


class TinyNet(nn.Module):
    """Any network of yours: nothing in it depends on fedatoms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(4))
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(8 * 4 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.drop(self.stem(x).flatten(1)))
        return logits


def stripes(kinds: list[int], n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draws noisy 16x16 pictures of stripes; the kind is their direction and colour."""
    draws = torch.Generator().manual_seed(seed)
    y = torch.tensor(kinds)[torch.randint(len(kinds), (n,), generator=draws)]
    wave = torch.sin(torch.arange(16) * 1.5)
    pictures = torch.stack([wave.expand(16, 16), wave.expand(16, 16).T])[y % 2]
    x = torch.zeros(n, 3, 16, 16)
    x[torch.arange(n), y // 2] = pictures
    return x + 0.8 * torch.randn(x.shape, generator=draws), y


def main() -> None:
    """Trains the network plain and decomposed on six clients that each know two of the four kinds."""
    clients: list[Dataset[tuple[Tensor, ...]]] = [
        TensorDataset(*stripes([k % 4, (k + 1) % 4], n=40 + 10 * k, seed=k)) for k in range(6)
    ]
    data = fedatoms.data.federation(clients, test=stripes([0, 1, 2, 3], n=400, seed=99))
    torch.manual_seed(0)
    model = TinyNet()
    for net in (model, fedatoms.decompose(model, atoms=9, init="orthonormal")):
        training = fedatoms.Training(epochs=2, lr=0.05)
        done = fedatoms.train(fedatoms.Simulation(net, data, fedatoms.algorithms.feddyn(), training=training), 10)
        kind = "decomposed" if fedatoms.nn.is_decomposed(net) else "plain"
        print(f"{kind:10} accuracy {done.scores['server'].accuracy:.1f} %")
    TinyNet().load_state_dict(fedatoms.fuse(done.model).state_dict())  # a plain network again, for deployment


if __name__ == "__main__":
    main()
