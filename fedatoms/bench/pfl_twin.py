"""pfl-research (Granqvist et al., 2024) on its own benchmark: one of the processes that share a card.

Run as `python -m fedatoms.bench.pfl_twin JSON`; pfl reads from the environment who its peers are and which device to
use. The data lie on the device from the start, as in pfl's benchmark. What its benchmark does beside training is left
out of the timed rounds, in its favour: evaluations, the transposition of images, privacy mechanisms that do nothing.
"""

import json
import os
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedatoms.bench.machine_limits import synchronise
from fedatoms.bench.pfl_task import BATCH, LR, Task, cnn, images_of, parts_of
from fedatoms.data.batches import normalise
from fedatoms.data.datasets import Images
from fedatoms.experiment.build import configure
from fedatoms.experiment.fields import Experiment

if TYPE_CHECKING:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

NEVER = 10**9  # rounds between evaluations


class Scored(nn.Module):
    """A network with the two functions that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits."""
        logits: Tensor = self.net(x)
        return logits

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the mean loss of a batch, in training mode."""
        self.train()
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, object]:
        """Returns how many images are classified correctly."""
        from pfl.metrics import Weighted

        self.eval()
        return {"accuracy": Weighted(int((self(x).argmax(1) == y).sum()), len(y))}


def measure(task: Task) -> dict[str, object]:
    """Runs pfl's rounds; returns the seconds of the first, of each turn after it and of all, and the last accuracy."""
    began, rank = time.perf_counter(), int(os.environ.get("PFL_WORKER_RANK", 0))
    configure(Experiment(dataset="cifar10", precision=task.precision, threads=task.threads))
    _meet_by_gloo()
    np.random.seed(task.seed)  # by which pfl draws the clients of a round, alike in all processes
    torch.manual_seed(task.seed + rank)
    images = images_of(task)
    model, clock = Scored(cnn(task.seed)), _clock(task, began)
    _train(task, model, _backend(task, images), clock)
    first, *seconds = clock.seconds
    peak = torch.cuda.max_memory_allocated() / 1e6 if task.device.startswith("cuda") else None
    accuracy = _accuracy(model, images, task.device) if rank == 0 else None
    return {"first": first, "seconds": seconds, "memory": peak, "accuracy": accuracy}


def _meet_by_gloo() -> None:
    """Lets processes meet by gloo, before pfl is imported, which is when they meet.

    pfl takes NCCL wherever there is CUDA, and NCCL refuses two processes on one card; its authors advise gloo there
    (through Horovod).
    """
    meet = torch.distributed.init_process_group

    def by_gloo(**words: object) -> None:
        meet(**{**words, "backend": "gloo"})  # type: ignore[arg-type]

    torch.distributed.init_process_group = by_gloo  # type: ignore[assignment]


def _backend(task: Task, images: Images) -> "SimulatedBackend":
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.data import FederatedDataset
    from pfl.data.sampling import get_user_sampler

    parts = parts_of(task, len(images.x))
    x, y = images.x.to(task.device), images.y.to(task.device)
    x = normalise(x, images.recipe, torch.float32)
    users = {client: (x[part.to(task.device)], y[part.to(task.device)]) for client, part in enumerate(parts)}
    data = FederatedDataset.from_slices(users, get_user_sampler("random", range(len(users))))
    return SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByUser()])


def _train(task: Task, model: Scored, backend: "SimulatedBackend", clock: "TrainingProcessCallback") -> None:
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    server = torch.optim.SGD(model.parameters(), 1.0)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(1 + task.rounds, NEVER, task.cohort, 0),
        backend=backend,
        model=PyTorchModel(model, local_optimizer_create=torch.optim.SGD, central_optimizer=server),
        model_train_params=NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LR),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )


def _clock(task: Task, began: float) -> "TrainingProcessCallback":
    """Returns a callback whose ``seconds`` are those of the first round, then of a round in each turn."""
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    every = max(task.rounds // task.turns, 1)

    class Clock(TrainingProcessCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.last, self.seconds = began, list[float]()

        def after_central_iteration(
            self, aggregate_metrics: "Metrics", model: object, *, central_iteration: int
        ) -> tuple[bool, "Metrics"]:
            if central_iteration % every == 0:
                synchronise(task.device)
                now = time.perf_counter()
                self.seconds.append((now - self.last) / (every if central_iteration else 1))
                self.last = now
            return False, Metrics()

    return Clock()


@torch.no_grad()
def _accuracy(model: Scored, images: Images, device: str) -> float:
    model.eval()
    right = 0
    for x, y in zip(images.test_x.split(1000), images.test_y.split(1000), strict=True):
        logits = model(normalise(x.to(device), images.recipe, torch.float32))
        right += int((logits.argmax(1).cpu() == y).sum())
    return 100 * right / len(images.test_y)


if __name__ == "__main__":
    answer = measure(Task(**json.loads(sys.argv[1])))
    print(json.dumps(answer))
