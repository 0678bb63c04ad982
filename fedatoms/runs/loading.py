"""The model of a run, read back: a file that is damaged, that does not fit or that another run wrote is refused."""

import json
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from torch import nn

from fedatoms.core.files import read_tensors
from fedatoms.core.lookup import one_line
from fedatoms.core.trees import Params
from fedatoms.experiment.build import network_of
from fedatoms.experiment.fields import load_run
from fedatoms.nn.layers import with_params
from fedatoms.runs.lock import writer


class ImagesOf(NamedTuple):
    """What a run's model takes and gives: its number of classes, and the shape (C, H, W) of an image."""

    classes: int
    shape: tuple[int, ...]


def load_model(folder: Path | str) -> nn.Module:
    """Returns the trained model of a run, in the experiment's parametrisation; ``fuse`` makes it plain."""
    folder = Path(folder)
    experiment = load_run(folder)
    if experiment.dataset == "own":
        raise ValueError(
            f"{folder} is a run on Flower with a network of its own. Use fedatoms.flower.trained(task, ...)."
        )
    return trained(folder, lambda images: network_of(experiment, *images))


def trained(folder: Path, network: Callable[[ImagesOf], nn.Module]) -> nn.Module:
    """Returns the network for a run's images with the run's tensors in it."""
    written = _read(folder)
    model = fill(network(written.images), written.params, folder / _MODEL, anew(folder))
    _check_sum(folder, written.sha256)
    return model


def fill(
    network: nn.Module, params: Params, path: Path, remedy: str, names: Collection[str] | None = None
) -> nn.Module:
    """Puts the tensors of a run's file into its network: all of them, or the part that has ``names``, and no others."""
    try:
        return with_params(network, params, names)
    except ValueError as error:
        raise ValueError(
            f"{path}: {error}. {remedy} If experiment.json or the network's code was changed, restore that."
        ) from None


def images_of(folder: Path | str) -> ImagesOf:
    """Reads which images a finished run's model is for."""
    return _read(Path(folder)).images


def anew(folder: Path, what: str = "it") -> str:
    """Says how a run writes its files anew, or for the first time.

    >>> anew(Path("runs/mine"))
    'Write it anew with `fedatoms run --resume runs/mine`.'
    """
    if by := writer(folder):
        return f"It is running ({by}): wait for it."
    how, nodes = resuming(folder), (folder / "nodes").is_dir()
    if not nodes and (folder / "result.json").exists() and not any((folder / "checkpoint").glob("*.json")):
        how = f"`fedatoms run {folder / 'experiment.json'} --name again`, as there is no checkpoint"
    return f"Write {what} anew with {how}."


def resuming(folder: Path) -> str:
    """Says what to type to go on with a run.

    >>> resuming(Path("runs/mine"))
    '`fedatoms run --resume runs/mine`'
    """
    if (folder / "nodes").is_dir():
        return "`flwr run` and resume=true in its run config"
    return f"`fedatoms run --resume {folder}`"


_MODEL = "model.safetensors"


class _Written(NamedTuple):
    params: Params
    images: ImagesOf
    sha256: str


def _read(folder: Path) -> _Written:
    load_run(folder)
    path = folder / _MODEL
    if not path.exists():
        raise ValueError(f"{path} is missing: the run is not finished, or the file was moved. {anew(folder)}")
    params, about, checksum = read_tensors(path, anew(folder))
    try:
        images = json.loads(about["images"])
        sizes = [images["classes"], *images["shape"]]
    except (KeyError, ValueError, TypeError):
        sizes = []
    if len(sizes) < 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError(f"{path} does not say which images the model takes. {anew(folder)}")
    return _Written(params, ImagesOf(sizes[0], tuple(sizes[1:])), checksum)


def _check_sum(folder: Path, found: str) -> None:
    """Refuses a model that is not the one that the run's result is about; an older result says of none."""
    path = folder / "result.json"
    if not path.exists():
        if (folder / "nodes").is_dir():  # a run on Flower that had to stop leaves the model of the rounds so far
            return
        raise ValueError(f"{path} is missing, and with it the model's checksum. {anew(folder, 'both')}")
    try:
        fields = json.loads(path.read_text())
        said, rounds = fields.get("model_sha256"), fields["experiment"]["rounds"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged ({one_line(error)}): the model cannot be checked. {anew(folder)}"
        ) from None
    if said in (None, found):
        return
    if not isinstance(said, str) or not re.fullmatch("[0-9a-f]{64}", said):
        raise ValueError(f"{path}: model_sha256 {str(said)[:20]!r} is not a checksum of 64 hex digits. {anew(folder)}")
    asked = load_run(folder).rounds
    older = f" Or remove result.json, which is of {rounds} rounds and not of {asked}." if rounds != asked else ""
    raise ValueError(
        f"{folder / _MODEL} has the checksum {found[:12]}..., but result.json says {said[:12]}...: one was changed, or "
        f"the run was stopped before it had written both. {anew(folder, 'both')}{older}"
    )
