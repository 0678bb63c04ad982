"""From an experiment to a simulation: loads data, spreads them over clients, builds and parametrises the network."""

import os
import re
from pathlib import Path
from textwrap import shorten
from typing import cast

import torch
from torch import nn

from fedatoms.algorithms import algorithm
from fedatoms.core.lookup import unknown
from fedatoms.core.options import GROUPS, Controls, Group, Init, Map, Place, Precision, Scored, SlowLocal
from fedatoms.core.randomness import generator
from fedatoms.data.datasets import Images, load
from fedatoms.data.federation import Federation, check_own_tests, hold_out, partition, test_by_classes
from fedatoms.data.partitions import Split, dirichlet, iid, shards
from fedatoms.engine.client_round import Training
from fedatoms.engine.exchange import Exchange, every_round, fast_slow
from fedatoms.engine.freeze import hold_fixed
from fedatoms.engine.spec import Simulation, learner_of
from fedatoms.experiment.fields import Experiment, check, period_of, scored_models
from fedatoms.nn.atoms import decompose
from fedatoms.nn.hadamard import factorise
from fedatoms.nn.models import build, check_input
from fedatoms.personal import personal

THREADS = torch.get_num_threads()  # torch's choice, or what the program asked for before


def simulation(experiment: Experiment, folder: Path | None = None) -> Simulation:
    """Builds what an experiment describes, or says in one line why that cannot be; writes nothing.

    >>> sim = simulation(Experiment(parametrisation="atoms", clients=10))
    >>> len(sim.data.parts), sorted(set(sim.labels.values()))
    (10, ['atoms', 'coefficients', 'head', 'rest'])
    """
    check(experiment)
    algorithm(experiment.algorithm, experiment.strength), device_of(experiment)  # before data are read
    images = load(experiment.dataset, experiment.data_dir, experiment.augment)
    images = hold_out(images, experiment.holdout, experiment.seed)
    model = network_of(experiment, images.classes, tuple(images.x.shape[1:]))
    return assemble(experiment, model, data_of(experiment, images), folder)


def assemble(experiment: Experiment, model: nn.Module, data: Federation, folder: Path | None = None) -> Simulation:
    """Puts a network and data together as an experiment says; an error belongs here, before anything is written."""
    sim = Simulation(
        model=model,
        data=data,
        algorithm=algorithm(experiment.algorithm, experiment.strength),
        exchange=exchange_of(experiment),
        personal=personal(experiment.personal, experiment.personal_strength),
        training=training_of(experiment),
        fraction=experiment.fraction,
        failures=experiment.failures,
        score=cast(tuple[Scored, ...], scored_models(experiment)),
        seed=experiment.seed,
        device=device_of(experiment),
        map=cast(Map, experiment.map),
        block=experiment.block,
        precision=cast(Precision, experiment.precision),
        client_state=cast(Place, experiment.client_state),
        folder=folder,
        head=experiment.head or None,
    )
    if experiment.fixed:
        sim = hold_fixed(sim, experiment.fixed)
    _ = sim.map_clients, learner_of(sim, 0), learner_of(sim, 1)
    return sim


def training_of(experiment: Experiment) -> Training:
    """Takes the local optimiser out of an experiment.

    >>> training_of(Experiment(lr=0.5)).lr
    0.5
    """
    return Training(
        experiment.epochs,
        experiment.batch_size,
        experiment.lr,
        experiment.lr_decay,
        experiment.momentum,
        experiment.weight_decay,
        experiment.clip,
        experiment.atoms_lr,
        experiment.atoms_decay,
        cast(Controls, experiment.controls),
    )


def network_of(experiment: Experiment, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Builds the network for images of a shape, in the parametrisation of the experiment."""
    model = build(experiment.model, classes=classes, channels=shape[0], seed=experiment.seed)
    check_input(model, shape, classes)
    return parametrise(experiment, model)


def parametrise(experiment: Experiment, model: nn.Module) -> nn.Module:
    """Gives a plain network the parametrisation of the experiment.

    >>> type(parametrise(Experiment(parametrisation="atoms"), nn.Sequential(nn.Conv2d(3, 8, 3)))[0]).__name__
    'AtomConv2d'
    """
    if experiment.parametrisation == "plain":
        return model
    try:
        pattern = re.compile(experiment.where)
    except re.error as error:
        raise ValueError(f"--where {experiment.where} is not a regular expression: {error}.") from error
    where = (lambda name, module: bool(pattern.search(name))) if experiment.where else None
    if experiment.parametrisation != "atoms":
        return factorise(
            model,
            experiment.gamma,
            personal=experiment.parametrisation == "pfedpara",
            where=where,
            head=experiment.head or None,
            generator=generator(experiment.seed, "factorise"),
        )
    return decompose(
        model,
        experiment.atoms,
        where=where,
        init=cast(Init, experiment.init),
        generator=generator(experiment.seed, "decompose"),
    )


def data_of(experiment: Experiment, images: Images) -> Federation:
    """Spreads a data set over the clients, and gives each its own test images."""
    data = partition(images, split_of(experiment, images))
    if experiment.own_test == "classes":
        return test_by_classes(data)
    if experiment.personal != "none" or "personal" in scored_models(experiment):
        check_own_tests(data)
    return data


def split_of(experiment: Experiment, images: Images) -> Split:
    """Spreads a data set over the clients."""
    labels, clients, seed = (images.y, images.test_y), experiment.clients, experiment.seed
    if experiment.partition == "iid":
        return iid(*labels, clients, seed)
    if experiment.partition == "shards":
        return shards(*labels, clients, experiment.classes_per_client, seed, distinct=experiment.distinct)
    return dirichlet(*labels, clients, experiment.dirichlet, seed, unbalanced=experiment.unbalanced)


def exchange_of(experiment: Experiment) -> Exchange:
    """Makes the exchange: all groups every round, or fast and slow ones.

    >>> sorted(exchange_of(Experiment(beta="1/2")).schedule(1))
    ['atoms', 'head']
    """
    fast = {part.strip() for part in experiment.fast.split(",")}
    for name in fast:
        if name not in GROUPS:
            raise unknown(name, GROUPS, "group in --fast")
    period = period_of(experiment.beta)
    slow = [group for group in GROUPS if group not in fast]
    schedule = fast_slow(cast(set[Group], fast), slow, period) if period > 1 else every_round()
    return Exchange(schedule, slow_local=cast(SlowLocal, experiment.slow_local))


def device_of(experiment: Experiment) -> str:
    """Chooses the device.

    >>> device_of(Experiment(device="cpu"))
    'cpu'
    """
    name = experiment.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = shorten(str(error).strip().splitlines()[0], 120, placeholder=" ...")  # some list all they know
        raise ValueError(f"--device {name} cannot be used here ({reason}). Use --device cpu.") from error
    cores = os.cpu_count() or 1
    if experiment.threads > cores:
        raise ValueError(
            f"--threads {experiment.threads} is more than this machine's {cores} cores. Use {cores} or fewer."
        )
    return name


def configure(experiment: Experiment) -> None:
    """Sets torch up for an experiment: threads, precision, determinism. They belong to the whole process."""
    few = 1 if experiment.dataset == "digits" else THREADS  # 8x8 pixels: a second thread would only wait
    torch.set_num_threads(experiment.threads or few)
    torch.set_float32_matmul_precision("highest" if experiment.precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = experiment.precision != "float32"
    torch.backends.cudnn.benchmark = not experiment.deterministic  # a step has the same shapes each time
    if experiment.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
