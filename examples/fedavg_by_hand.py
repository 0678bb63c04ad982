"""FedAvg as a plain loop of everyday PyTorch: what the engine computes, to read in two minutes (a test proves it)."""

import copy

import torch
from torch import Tensor, nn

from fedatoms.data.batches import fetch
from fedatoms.engine.loop import train
from fedatoms.engine.round import select
from fedatoms.engine.spec import Simulation, batches_of
from fedatoms.experiment.build import simulation
from fedatoms.experiment.fields import Experiment


def fedavg_by_hand(sim: Simulation, rounds: int) -> dict[str, Tensor]:
    """Trains the simulation's model by FedAvg; the batches are the engine's own, so the result is too."""
    data, training = sim.data, sim.training
    server, dtype = copy.deepcopy(sim.model), next(sim.model.parameters()).dtype
    for t in range(rounds):
        _, clients = select(sim, t)
        mean = {name: torch.zeros_like(leaf, dtype=torch.float64) for name, leaf in server.named_parameters()}
        samples = sum(len(data.parts[k]) for k in clients)
        for k in clients:
            model = copy.deepcopy(server)
            rate = training.lr * training.lr_decay**t
            sgd = torch.optim.SGD(model.parameters(), rate, training.momentum, weight_decay=training.weight_decay)
            for rows, real, flip, shift in zip(*batches_of(sim, k, t)[:4], strict=True):
                x, y = fetch(data.x, data.y, rows[real], data.recipe, dtype, flip[real], shift[real])
                sgd.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                if training.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), training.clip)
                sgd.step()
            for name, leaf in model.named_parameters():
                mean[name] += leaf.detach().double() * len(data.parts[k]) / samples
        server.load_state_dict({**server.state_dict(), **mean})
    return server.state_dict()


def main() -> None:
    """Compares two rounds by hand with the engine's, and prints how far they are apart."""
    sim = simulation(Experiment(rounds=2, epochs=1, device="cpu"))
    engine, hand = train(sim, 2).model.state_dict(), fedavg_by_hand(sim, 2)
    apart = max(float((engine[name] - leaf).abs().max()) for name, leaf in hand.items())
    print(f"FedAvg by hand and by the engine, 2 rounds on {len(sim.data.parts)} clients: at most {apart:.0e} apart")


if __name__ == "__main__":
    main()
