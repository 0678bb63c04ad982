"""Memory of a round in which clients train the head of a frozen ResNet-18, by how many of them train at once.

Each number of clients is measured in a process of its own: the peak of all its memory, torch included. A client has one
image of 32 x 32 pixels, so that batches weigh nothing. Prints a table; takes a minute.
"""

import resource
import subprocess
import sys

import torch
from torch import nn

from fedatoms.data.federations import federation
from fedatoms.engine.loop import train
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.nn.models import resnet18

CLIENTS = (10, 100)


def frozen_backbone() -> nn.Module:
    """Makes a ResNet-18 of which only the head is trained."""
    model = resnet18(classes=10).requires_grad_(False)
    model.fc.requires_grad_(True)
    return model


def peak(clients: int) -> int:
    """Trains a round of clients in one block, and returns the most bytes that this process has had."""
    x, y = torch.rand(clients, 1, 3, 32, 32), torch.arange(clients)[:, None] % 10
    data = federation(list(zip(x, y, strict=True)), test=(x[0], y[0]))
    once = Training(batch_size=1)
    train(Simulation(frozen_backbone(), data, training=once, map="vectorised", block=clients, score=("server",)), 1)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def report() -> None:
    """Prints the peak of each number of clients."""
    print("| clients | peak, MB |\n| ---: | ---: |")
    for clients in CLIENTS:
        done = subprocess.run([sys.executable, __file__, str(clients)], check=True, capture_output=True, text=True)
        print(f"| {clients} | {int(done.stdout) / 1e6:.0f} |")


if __name__ == "__main__":
    print(peak(int(sys.argv[1]))) if len(sys.argv) > 1 else report()
