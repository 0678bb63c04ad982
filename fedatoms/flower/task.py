"""The task of a federation: the same on the server and on every node, each with its own data."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedatoms.adapt.fitting import with_own
from fedatoms.core.inputs import Inputs, Shape, first_shape, no_samples, shapes_of, take
from fedatoms.core.lookup import unknown
from fedatoms.data.datasets import Images, Recipe
from fedatoms.data.federations import Federation
from fedatoms.data.samples import are_labels, pair_up
from fedatoms.engine.spec import Simulation
from fedatoms.experiment.build import assemble, data_of, objective_of, parametrise
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load_run
from fedatoms.experiment.images import images_for
from fedatoms.experiment.parse import is_private, scored_models
from fedatoms.experiment.weights import changed, without_weights
from fedatoms.nn.models import build
from fedatoms.objectives.base import Objective
from fedatoms.objectives.checks import check_some_targets
from fedatoms.runs.loading import ImagesOf
from fedatoms.runs.loading import trained as loaded
from fedatoms.runs.remote import RESUME

# A node holds its samples in memory: this many CIFAR images take 123 GB. Weights, in float32, are exact up to 2^24.
MOST = 10_000_000
AT_LEAST_ONE = ("min_train_nodes", "max_examples")  # of the settings; others may be 0


class Own(NamedTuple):
    """The data of one node: what it trains on, and what it is tested on."""

    x: Inputs
    y: Tensor
    test_x: Inputs
    test_y: Tensor


class Task(NamedTuple):
    """An experiment, the plain network, and where each node finds its data; a server may have test images too."""

    experiment: Experiment
    model: Callable[[], nn.Module]
    data: Callable[[int, int], Own]  # partition-id, num-partitions -> that node's data
    classes: int  # 0: targets are no classes
    shape: Shape  # of a sample; of each part of it where x is a tuple or a dictionary
    test: Callable[[], tuple[Inputs, Tensor]] | None = None
    recipe: Recipe | None = None
    objective: Objective | None = None  # None: the experiment's


class Settings(NamedTuple):
    """How a federation is run, beside its experiment; each is a key of Flower's run config, with dashes."""

    min_train_nodes: int = 1  # fewer good answers end the run
    timeout: float = 3600.0  # seconds for the answers of a round
    wait: float = 120.0  # seconds for sampled nodes to appear
    max_examples: int = MOST  # a node that reports more samples is not taken
    far: float = 10.0  # an update longer than so many times the median of the others' is refused; 0 refuses none
    far_unjudged: str = "accept"  # or refuse: what happens to a round with too few answers to find a far one
    resume: bool = False
    node_keys: str = "auto"  # or fixed, new: whether a client belongs to the key that first held it, see ``membership``
    roster: str = ""  # a file on the server: whose key each client has, and how many samples; see ``roster``
    free: str = ""  # clients of a resumed run that may have other keys from now on, as "2" or "0, 2"
    state_dir: str = ""  # of nodes whose own config has none: on a cluster, a folder that all machines share


def built_in(experiment: Experiment) -> Task:
    """Makes the task that is the simulator's experiment, spread over nodes: client k is the node of partition k.

    >>> task = built_in(Experiment(clients=3, partition="iid"))
    >>> len(task.data(0, 3).y)
    479
    """

    def own(partition: int, partitions: int) -> Own:
        pool = _data(experiment)[1]
        if partitions != len(pool.parts):
            raise ValueError(
                f"{partitions} nodes for an experiment of {len(pool.parts)} clients. Use one node for each."
            )
        rows, tested = pool.parts[partition], pool.test_parts[partition]
        return Own(take(pool.x, rows), pool.y[rows], take(pool.test_x, tested), pool.test_y[tested])

    def model() -> nn.Module:
        images = _data(experiment)[0]
        return build(experiment.model, classes=images.classes, channels=images.x.shape[1], seed=experiment.seed)

    def test() -> tuple[Tensor, Tensor]:
        images = _data(experiment)[0]
        return images.test_x, images.test_y

    images = _data(experiment)[0]
    return Task(experiment, model, own, images.classes, tuple(images.x.shape[1:]), test, images.recipe)


@lru_cache(1)  # here and not in a task, which Ray must be able to send
def _data(experiment: Experiment) -> tuple[Images, Federation]:
    images = images_for(experiment)
    return images, data_of(experiment, images)


def configured(task: Task, config: Mapping[str, object]) -> tuple[Experiment, Settings]:
    """Reads Flower's run config: every field of an experiment and every setting, with dashes.

    >>> task = built_in(Experiment(clients=3, partition="iid"))
    >>> experiment, settings = configured(task, {"lr": 0.5, "min-train-nodes": 2})
    >>> experiment.lr, settings.min_train_nodes
    (0.5, 2)
    """
    names = {name.replace("-", "_"): value for name, value in config.items()}
    experiments, settings = {field.name for field in fields(Experiment)}, set(Settings._fields)
    for name in (name for name in names if name not in experiments | settings):
        valid = sorted(each.replace("_", "-") for each in experiments | settings)
        raise unknown(name.replace("_", "-"), valid, "key in the run config")
    experiment = changed(task.experiment, {name: value for name, value in names.items() if name in experiments})
    check(experiment)
    return experiment, _checked(Settings()._replace(**{name: names[name] for name in names.keys() & settings}))  # type: ignore[arg-type]


def _checked(settings: Settings) -> Settings:
    """Refuses settings of a wrong type or out of range."""
    for name, value in settings._asdict().items():
        default, flag = Settings._field_defaults[name], name.replace("_", "-")
        kinds = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, kinds) or isinstance(value, bool) != isinstance(default, bool):
            raise ValueError(f"{flag}={value!r} in the run config is not like {default!r}. Leave it out for that.")
        if not isinstance(value, str) and not value >= (name in AT_LEAST_ONE):
            raise ValueError(f"{flag}={value} in the run config is too small. Leave it out for {default}.")
    return settings


def trained(task: Task, folder: Path | str, own: Path | str | None = None) -> nn.Module:
    """Returns the model of a run on Flower, in the experiment's parametrisation; ``fuse`` makes it plain.

    ``own`` is a node's ``personal.safetensors``: with it, the model is that node's.
    """
    folder = Path(folder)
    experiment = load_run(folder)
    model = loaded(folder, lambda images: parametrise(without_weights(experiment), task.model()))
    if own is None:
        return model
    again = f"Let the node write it again: {RESUME}."
    return with_own(model, Path(own), experiment, ImagesOf(task.classes, first_shape(task.shape)), again)


def server_simulation(task: Task, experiment: Experiment) -> Simulation:
    """Makes the simulation of a server: the network and the number of clients, but none of their data."""
    nothing = torch.zeros(0, dtype=torch.int64, device="cpu")
    pool = no_samples(task.shape)
    test = (pool, nothing) if task.test is None else _fitting(task, experiment, task.test(), "the server's test images")
    nobody = [nothing] * experiment.clients
    return _simulation(task, experiment, Federation(pool, nothing, nobody, *test, nobody, task.classes, task.recipe))


def node_simulation(task: Task, experiment: Experiment, partition: int) -> Simulation:
    """Makes the simulation of a node: the network and its own data, as one of many clients."""
    x, y, test_x, test_y = own_data(task, experiment, partition)
    x, y = _fitting(task, experiment, (x, y), f"partition {partition}")
    if len(test_y):
        test_x, test_y = _fitting(task, experiment, (test_x, test_y), f"test images of partition {partition}")
    parts, tests = ([torch.zeros(0, dtype=torch.int64, device="cpu")] * experiment.clients for _ in range(2))
    parts[partition], tests[partition] = (torch.arange(len(each), device="cpu") for each in (y, test_y))
    data = Federation(x, y, parts, test_x, test_y, tests, task.classes, task.recipe)
    return _simulation(task, _without_privacy(experiment), data)


def _without_privacy(experiment: Experiment) -> Experiment:
    """Returns an experiment as a node sees it: the server alone draws, clips and noises."""
    if not is_private(experiment):
        return experiment
    return replace(experiment, sampling="fixed", dp_epsilon=None, dp_noise=None, dp_clip=Experiment.dp_clip)


def own_data(task: Task, experiment: Experiment, partition: int) -> Own:
    """Loads the data of a node, and refuses a node without training samples."""
    own = task.data(partition, experiment.clients)
    if not len(own.y):
        raise ValueError(f"partition {partition} has no training samples. Leave this node out of the federation.")
    return own


def _fitting(task: Task, experiment: Experiment, samples: tuple[Inputs, Tensor], name: str) -> tuple[Inputs, Tensor]:
    """Refuses samples that do not fit the task."""
    x, y = pair_up(samples, name)
    check_some_targets(task.objective or objective_of(experiment), y, name)
    if shapes_of(x) != shapes_of(no_samples(task.shape)):
        raise ValueError(
            f"{name}: samples have shape {shapes_of(x)}, but the task says shape={task.shape}. Change one of them."
        )
    if task.classes and are_labels(y) and (label := int(y.max())) >= task.classes:
        raise ValueError(
            f"{name}: label {label} is too large: the task says classes={task.classes}, from 0 to {task.classes - 1}."
        )
    return x, y


def _simulation(task: Task, experiment: Experiment, data: Federation) -> Simulation:
    if experiment.failures:
        raise ValueError("--failures simulates nodes that fail; here they fail by themselves. Leave it out.")
    if experiment.sampling != "fixed" and not is_private(experiment):
        raise ValueError(
            "--sampling poisson without --dp-epsilon or --dp-noise: a round may ask nobody, and nothing is gained. "
            "Leave it out, or add one of them."
        )
    if experiment.attack:
        raise ValueError("--attack lets simulated clients lie; nodes would really do it. Use it in the simulator.")
    if "local" in scored_models(experiment):
        raise ValueError("--score local needs each node's last trained model, which nodes do not keep. Leave it out.")
    with torch.random.fork_rng(devices=[]):  # the same network everywhere, also where its parts never travel
        torch.manual_seed(experiment.seed)
        model = parametrise(experiment, task.model())
    score = experiment.score if is_private(experiment) else "server"  # with privacy others are refused
    sim = assemble(replace(experiment, map="one_by_one", score=score), model, data, objective=task.objective)
    _check_metrics(sim, experiment)
    if sim.personal.collaboration is not None:
        raise ValueError(
            f"--personal {experiment.personal} needs a step on the server that compares clients, which Flower's nodes "
            f"do not send. Use it in the simulator, or another method here."
        )
    return sim


def _check_metrics(sim: Simulation, experiment: Experiment) -> None:
    whole = [metric.name for metric in sim.objective.metrics if metric.running is not None]
    if whole and experiment.personal != "none":
        raise ValueError(
            f"metric {whole[0]!r} needs the outputs of all test samples, which nodes do not send, so --personal "
            f"{experiment.personal} cannot be scored. Use a metric that is a mean over samples."
        )
