"""From an experiment to a simulation: loads data, splits them over clients, builds and parametrises the network."""

import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from fedatoms.aggregation import aggregation
from fedatoms.algorithms import algorithm
from fedatoms.core.allocator import keep_freed_memory
from fedatoms.core.deterministic import use_deterministic_kernels
from fedatoms.core.options import (
    CONTROLS,
    GROUPS,
    INITS,
    MAPS,
    OWN_SCORED,
    PLACES,
    PRECISIONS,
    SAMPLINGS,
    SLOW_LOCALS,
    UPLOADS,
    check_range,
    one_of,
)
from fedatoms.core.outside import naming
from fedatoms.core.randomness import generator
from fedatoms.data.datasets import Images
from fedatoms.data.federations import Federation, check_own_tests, partition, test_by_classes
from fedatoms.data.partitions import Split, dirichlet, iid, shards
from fedatoms.engine.attacks import STRENGTHS, Attack
from fedatoms.engine.checks import check_last_pass, check_reports, check_rounds
from fedatoms.engine.exchange import Exchange, every_round, fast_slow
from fedatoms.engine.freeze import hold_fixed
from fedatoms.engine.limits import check_device, check_memory
from fedatoms.engine.spec import CLASSES, Simulation
from fedatoms.engine.training import Training
from fedatoms.experiment.checks import check, check_threads, has_last_pass
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.images import Read, images_for
from fedatoms.experiment.parse import attack_of, fast_groups, fixed_groups, pattern_of, period_of, scored_models
from fedatoms.experiment.privacy import privacy_of
from fedatoms.nn.atoms import decompose
from fedatoms.nn.hadamard import factorise
from fedatoms.nn.models import build, check_input
from fedatoms.nn.weights import load_weights
from fedatoms.objectives import objective as objective_by_name
from fedatoms.objectives.base import Objective
from fedatoms.optimisers import optimiser
from fedatoms.optimisers.base import Optimiser
from fedatoms.optimisers.schedules import Schedule, schedule
from fedatoms.personal import personal

THREADS = torch.get_num_threads()  # torch's choice, or the program's own from before the import
SMALL_BATCH = 100_000  # images that a batch may have in any data


def simulation(experiment: Experiment, folder: Path | None = None, *, read: Read = images_for) -> Simulation:
    """Builds what an experiment describes, or refuses it in one line; writes nothing.

    >>> from fedatoms.engine.runtime import layout_of
    >>> sim = simulation(Experiment(parametrisation="atoms", clients=10))
    >>> len(sim.data.parts), sorted(set(layout_of(sim).labels.values()))
    (10, ['atoms', 'coefficients', 'head', 'rest'])
    """
    check(experiment)
    _check_before_data(experiment)
    images = read(experiment)
    _check_batch(experiment, len(images.y))
    with naming(yours(experiment)):
        model = network_of(experiment, images.classes, tuple(images.x.shape[1:]))
        sim = assemble(experiment, model, data_of(experiment, images), folder)
        check_reports(sim, experiment.rounds)
        check_memory(sim, experiment.rounds, experiment.last_epochs if has_last_pass(experiment) else 0)
    return sim


def yours(experiment: Experiment) -> dict[str, str]:
    """Returns what of an experiment may be the user's own code, by what it is.

    >>> yours(Experiment(algorithm="mine:leashed"))
    {'model': 'digits-cnn', 'algorithm': 'mine:leashed', 'personalised method': 'none', 'optimiser': 'sgd', 'objective':
    'classification'}
    """
    methods = {"algorithm": experiment.algorithm, "personalised method": experiment.personal}
    return {"model": experiment.model, **methods, "optimiser": experiment.optimiser, "objective": experiment.objective}


def assemble(
    experiment: Experiment,
    model: nn.Module,
    data: Federation,
    folder: Path | None = None,
    objective: Objective | None = None,
) -> Simulation:
    """Builds the simulation of an experiment from a network and data; its mistakes come before any file."""
    check_threads(experiment.threads)
    method = algorithm(experiment.algorithm, experiment.strength)
    sim = Simulation(
        model=model,
        data=data,
        algorithm=method,
        exchange=exchange_of(experiment),
        personal=personal(experiment.personal, experiment.personal_strength),
        aggregation=aggregation(experiment.aggregation),
        attack=attack_in(experiment),
        training=training_of(experiment),
        objective=objective_of(experiment) if objective is None else objective,
        fraction=experiment.fraction,
        sampling=one_of(SAMPLINGS, experiment.sampling, "sampling"),
        failures=experiment.failures,
        privacy=privacy_of(experiment, noise=1.0),  # its own is found once all else is right
        uploads=one_of(UPLOADS, experiment.uploads, "uploads"),
        score=scored_models(experiment, means=method.uploads_models),
        seed=experiment.seed,
        device=device_of(experiment),
        map=one_of(MAPS, experiment.map, "map"),
        block=experiment.block,
        precision=one_of(PRECISIONS, experiment.precision, "precision"),
        client_state=one_of(PLACES, experiment.client_state, "client_state"),
        folder=folder,
        head=experiment.head or None,
    )
    if sim.privacy is not None:
        sim = replace(sim, privacy=privacy_of(experiment))
    if fixed := fixed_groups(experiment):
        sim = hold_fixed(sim, fixed)
    check_rounds(sim)
    if has_last_pass(experiment):
        check_last_pass(sim)
    return sim


def attack_in(experiment: Experiment) -> Attack | None:
    """Returns what malicious clients do in an experiment, if there are any.

    >>> attack_in(Experiment(attack="little-is-enough:0.2"))
    Attack(name='little-is-enough', share=0.2, strength=1.5)
    """
    if (found := attack_of(experiment)) is None:
        return None
    name, share, strength = found
    return Attack(name, share, strength or STRENGTHS.get(name, 9.0))


def training_of(experiment: Experiment) -> Training:
    """Returns the local training of an experiment.

    >>> training_of(Experiment(lr=0.5)).lr
    0.5
    """
    rule = optimiser_of(experiment)
    return Training(
        epochs=experiment.epochs,
        batch_size=experiment.batch_size,
        accumulate=experiment.accumulate,
        lr=experiment.lr,
        lr_decay=experiment.lr_decay,
        momentum=0.0 if rule else experiment.momentum,
        weight_decay=experiment.weight_decay,
        clip=experiment.clip,
        atoms_lr=experiment.atoms_lr,
        atoms_decay=experiment.atoms_decay,
        controls=one_of(CONTROLS, experiment.controls, "controls"),
        optimiser=rule,
        schedule=schedule_of(experiment),
    )


def schedule_of(experiment: Experiment) -> Schedule | None:
    """Returns the schedule of an experiment's learning rate; None if it is constant but for ``lr_decay``.

    >>> schedule_of(Experiment()), schedule_of(Experiment(warmup=1)).of_round(0)
    (None, 0.5)
    """
    over, within = (experiment.schedule, experiment.rounds), (experiment.step_schedule, experiment.warmup_steps)
    return schedule(*over, experiment.warmup, *within)


def optimiser_of(experiment: Experiment) -> Optimiser | None:
    """Returns the local optimiser of an experiment; None for the default, SGD with its momentum.

    >>> optimiser_of(Experiment()), optimiser_of(Experiment(optimiser="adamw")).decouples
    (None, True)
    """
    made = optimiser(experiment.optimiser, experiment.momentum)
    return None if experiment.optimiser == Experiment.optimiser else made


def objective_of(experiment: Experiment) -> Objective:
    """Returns the objective of an experiment; always the same value for the default, which others are built alike for.

    >>> objective_of(Experiment()) is CLASSES, objective_of(Experiment(objective="regression")).scale.name
    (True, 'rmse')
    """
    if experiment.objective == "classification" and experiment.objective_strength is None:
        return CLASSES
    return objective_by_name(experiment.objective, experiment.objective_strength)


def network_of(experiment: Experiment, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Builds the network for images of a shape, in the parametrisation of the experiment."""
    model = build(experiment.model, classes=classes, channels=shape[0], seed=experiment.seed)
    if experiment.objective == "classification":  # others are checked with their targets, before the first round
        check_input(model, shape, classes, objective_of(experiment).read)
    return parametrise(experiment, model)


def parametrise(experiment: Experiment, model: nn.Module) -> nn.Module:
    """Gives a plain network the weights and the parametrisation of the experiment.

    >>> type(parametrise(Experiment(parametrisation="atoms"), nn.Sequential(nn.Conv2d(3, 8, 3)))[0]).__name__
    'AtomConv2d'
    """
    model = _weighted(experiment, model)
    if experiment.parametrisation == "plain":
        return model
    pattern = pattern_of(experiment.where, "where")
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
        init=one_of(INITS, experiment.init, "init"),
        generator=generator(experiment.seed, "decompose"),
    )


def data_of(experiment: Experiment, images: Images) -> Federation:
    """Splits a data set over the clients, and gives each its own test images."""
    data = partition(images, split_of(experiment, images))
    if experiment.own_test == "classes":
        return test_by_classes(data)
    if experiment.personal != "none" or {*OWN_SCORED} & {*scored_models(experiment)}:
        check_own_tests(data)
    return data


def split_of(experiment: Experiment, images: Images) -> Split:
    """Assigns the samples of a data set to clients."""
    labels, clients, seed = (images.y, images.test_y), experiment.clients, experiment.seed
    if experiment.partition == "iid":
        return iid(*labels, clients, seed)
    if experiment.partition == "shards":
        return shards(*labels, clients, experiment.classes_per_client, seed, distinct=experiment.distinct)
    return dirichlet(*labels, clients, experiment.dirichlet, seed, unbalanced=experiment.unbalanced)


def exchange_of(experiment: Experiment) -> Exchange:
    """Returns the exchange: all groups in every round, or fast and slow ones.

    >>> sorted(exchange_of(Experiment(beta="1/2")).schedule(1))
    ['atoms', 'head']
    """
    fast, period = fast_groups(experiment), period_of(experiment.beta)
    slow = [group for group in GROUPS if group not in fast]
    schedule = fast_slow(fast, slow, period) if period > 1 else every_round()
    return Exchange(schedule, slow_local=one_of(SLOW_LOCALS, experiment.slow_local, "slow_local"))


def device_of(experiment: Experiment) -> str:
    """Chooses the device, and refuses one that is not there.

    >>> device_of(Experiment(device="cpu"))
    'cpu'
    """
    name = experiment.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return check_device(name)


def configure(experiment: Experiment) -> None:
    """Sets torch's threads, precision and determinism for an experiment, and keeps memory; for the whole process."""
    keep_freed_memory()
    check_range("threads", experiment.threads)
    check_threads(experiment.threads)
    default = 1 if experiment.dataset == "digits" else THREADS  # 8x8 pixels are too few for a second thread
    torch.set_num_threads(experiment.threads or default)
    torch.set_float32_matmul_precision("highest" if experiment.precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = experiment.precision != "float32"
    torch.backends.cudnn.benchmark = not experiment.deterministic  # a step has the same shapes each time
    use_deterministic_kernels(experiment.deterministic)


def _weighted(experiment: Experiment, model: nn.Module) -> nn.Module:
    """Gives a network the weights that the experiment begins with, if there are some."""
    if not experiment.weights:
        if sha256 := experiment.weights_sha256:
            raise ValueError(
                f"`weights` is empty, but the run begins with a file of SHA-256 {sha256[:12]}.... Name it."
            )
        return model
    if experiment.parametrisation == "atoms" and experiment.init != "svd":
        warnings.warn(
            f"init={experiment.init} draws the filters afresh: of weights={experiment.weights} the other tensors are "
            f"kept. Use init=svd to keep all.",
            stacklevel=2,
        )
    return load_weights(model, experiment.weights, head=experiment.head or None, sha256=experiment.weights_sha256)


def _check_before_data(experiment: Experiment) -> None:
    """Refuses what no data are needed for: reading them takes a while."""
    algorithm(experiment.algorithm, experiment.strength)
    personal(experiment.personal, experiment.personal_strength)
    aggregation(experiment.aggregation)
    optimiser_of(experiment)
    schedule_of(experiment)
    objective_of(experiment)
    device_of(experiment)
    check_threads(experiment.threads)


def _check_batch(experiment: Experiment, images: int) -> None:
    """Refuses a batch that no client can fill, unless it is small: it would only hold padding; and endless warm-up."""
    size, batches, warmup = experiment.batch_size, experiment.accumulate, experiment.warmup_steps
    if size > max(images, SMALL_BATCH):
        raise ValueError(f"batch_size={size} is more than the {images:,} training images. Use {images} or fewer.")
    if batches > (most := -(-images // size)):
        raise ValueError(
            f"accumulate={batches} batches of {size} are more than the {images:,} training images. Use {most} or fewer."
        )
    steps = max(experiment.epochs, experiment.last_epochs) * -(-images // (size * batches))
    if warmup > steps:
        raise ValueError(
            f"warmup_steps={warmup} is more than the {steps:,} steps that a client can take in a round, so the rate "
            f"would never rise to lr. Use for example {min(10, steps)}, or 0 for none."
        )
