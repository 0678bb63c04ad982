"""A client that joins after training: its images and a run's folder in, its personal parameters and scores out."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from fedatoms.adapt.fitting import Base, base_of, fit, part_of, save_personal, simulation_of
from fedatoms.adapt.settings import Newcomer
from fedatoms.core.border import as_path
from fedatoms.core.outputs import check_output
from fedatoms.core.run_files import MODEL
from fedatoms.data.datasets import Images
from fedatoms.data.federations import hold_out, partition
from fedatoms.data.image_files import Wanted, read_images
from fedatoms.data.partitions import Split
from fedatoms.engine.client_round import rate_of
from fedatoms.engine.evaluation import Score, score
from fedatoms.engine.loop import begin
from fedatoms.engine.runtime import layout_of
from fedatoms.engine.runtime import prepare as prepare_runtime
from fedatoms.engine.spec import Simulation
from fedatoms.experiment.build import configure, device_of, training_of
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load_run
from fedatoms.nn.parameter_groups import groups
from fedatoms.runs.loading import images_of


class Ready(NamedTuple):
    """A newcomer that has passed all checks and can be fitted."""

    run: Path
    out: Path
    sim: Simulation
    numbers: int  # parameters to fit
    held_out: bool
    labels_from: str


class Joined(NamedTuple):
    """A client's personal parameters in their file, and scores on the held-out images, if any."""

    ready: Ready
    scores: dict[str, Score]  # of the global and of the personal model
    size: int  # of the file, in bytes
    seconds: float


def prepare(run: Path, newcomer: Newcomer) -> Ready:
    """Builds the simulation of a newcomer, or refuses it in one line; writes nothing."""
    base = base_of(run)
    part_of(newcomer.part)(base.model, groups(base.model, base.head))  # refuses a model without that part first
    out = _check_files(newcomer)
    asked = _as_experiment(newcomer, load_run(run))
    check(asked)
    device = device_of(asked)
    images, labels_from = _images(newcomer, run, base)
    split = Split([torch.arange(len(images.y))], [torch.arange(len(images.test_y))])
    configure(asked)
    client = partition(images, split)
    sim = simulation_of(base, client, newcomer.part, training_of(asked), seed=newcomer.seed, device=device)
    tensors, own = dict(sim.model.named_parameters()), layout_of(sim).own
    numbers = sum(tensors[name].numel() for name in own)
    return Ready(run, out, sim, numbers, newcomer.holdout > 0, labels_from)


def join(ready: Ready) -> Joined:
    """Fits the personal parameters, scores them if images were held out, and writes their file."""
    began, sim = time.perf_counter(), ready.sim
    own, runtime = fit(sim), prepare_runtime(sim)
    before = begin(runtime).server.params
    after = {**before, **{name: leaf.to(sim.device) for name, leaf in own.items()}}
    scores = {"global": score(runtime, before), "personal": score(runtime, after)} if ready.held_out else {}
    path = save_personal(ready.out, own, of=ready.run)
    return Joined(ready, scores, path.stat().st_size, time.perf_counter() - began)


def _images(newcomer: Newcomer, run: Path, base: Base) -> tuple[Images, str]:
    """Reads a newcomer's images, with the held-out ones as test set, and where their labels come from."""
    (classes, shape), recipe, share = images_of(run), base.recipe, newcomer.holdout
    assert recipe is not None
    if len(shape) != 3:
        raise ValueError(f"{run / MODEL}: the model takes {shape}, which are no images. Use a run on images.")
    x, y, labels_from = read_images(Path(newcomer.images), Wanted(shape, recipe.scale, classes))
    if share and int(torch.bincount(y).max()) < 2:
        raise ValueError(
            f"holdout={share}: no class of {newcomer.images} has two images, so none can be held out. Use holdout=0."
        )
    return hold_out(Images(x, y, x, y, classes, recipe), share, newcomer.seed), labels_from


def _check_files(newcomer: Newcomer) -> Path:
    if not newcomer.images:
        raise ValueError("--images is missing. Give an npz file with arrays x and y, or a folder of class folders.")
    if not newcomer.out:
        raise ValueError("--out is missing. Give a file for the personal parameters, for example ann.safetensors.")
    as_path(newcomer.images, "images")
    out = as_path(newcomer.out, "out")
    if out.suffix != ".safetensors":
        raise ValueError(f"out={out} does not end in .safetensors. Use for example {out.stem}.safetensors.")
    if out.exists():
        raise ValueError(f"out={out} exists, and is not replaced. Use another `out`, or remove it.")
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise ValueError(f"out={out}: {out.parent} is not a folder to write to. Make it, or use another `out`.")
    check_output(out)
    return out


def _as_experiment(newcomer: Newcomer, experiment: Experiment) -> Experiment:
    """Returns the run's experiment with a newcomer's settings, for its checks and its training."""
    last = rate_of(training_of(experiment).after_rounds(), experiment.rounds)
    return replace(
        experiment,
        epochs=newcomer.epochs,
        lr=last if newcomer.lr is None else newcomer.lr,
        lr_decay=1.0,
        schedule="constant",
        warmup=0,
        momentum=experiment.momentum if newcomer.momentum is None else newcomer.momentum,
        batch_size=experiment.batch_size if newcomer.batch_size is None else newcomer.batch_size,
        holdout=newcomer.holdout,
        seed=newcomer.seed,
        device=newcomer.device,
        threads=0,
    )
