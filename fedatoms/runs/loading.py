"""The model of a run, written and read back: a file that is damaged, does not fit or is another run's is refused."""

import hashlib
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict

from msgspec import Meta
from safetensors.torch import save
from torch import nn

from fedatoms.core.files import read_tensors, replace_file
from fedatoms.core.inputs import leaves
from fedatoms.core.lookup import as_word, one_line
from fedatoms.core.records import fit, parse
from fedatoms.core.run_files import EXPERIMENT, MODEL, RESULT, checkpoints
from fedatoms.core.trees import Params
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.experiment.build import network_of
from fedatoms.experiment.files import load_run
from fedatoms.experiment.parse import made_by_caller
from fedatoms.experiment.weights import without_weights
from fedatoms.nn.pure import with_params
from fedatoms.runs.lock import writer
from fedatoms.runs.remote import LOAD, RESUME, is_remote
from fedatoms.runs.results import read_result


class ImagesOf(NamedTuple):
    """The images of a run's model: the number of classes, and their shape (C, H, W)."""

    classes: int
    shape: tuple[int, ...]


def load_model(folder: Path | str) -> nn.Module:
    """Returns the trained model of a run, in the experiment's parametrisation; ``fuse`` makes it plain."""
    folder = Path(folder)
    experiment = load_run(folder)
    if made_by_caller(experiment):
        raise ValueError(f"{folder} is a run with data and a network of its own. Use {LOAD} with the task that it ran.")
    return trained(folder, lambda images: network_of(without_weights(experiment), *images))


def trained(folder: Path, network: Callable[[ImagesOf], nn.Module]) -> nn.Module:
    """Returns the network for a run's images with the run's tensors in it."""
    written = _read(folder)
    _check_sum(folder, written.sha256)  # first: a damaged file may ask for a network of any size
    return fill(network(written.images), written.params, folder / MODEL, how_to_rewrite(folder))


def fill(
    network: nn.Module, params: Params, path: Path, remedy: str, names: Collection[str] | None = None
) -> nn.Module:
    """Returns a run's network with the tensors of a file: exactly all of them, or exactly those in ``names``."""
    try:
        return with_params(network, params, names)
    except ValueError as error:
        raise ValueError(
            f"{path}: {error}. {remedy} If experiment.json or the network's code was changed, restore that."
        ) from None


def write_model(folder: Path, sim: Simulation, state: State) -> str:
    """Writes the server's model of a run, and returns its checksum."""
    images = json.dumps({"classes": sim.data.classes, "shape": list(leaves(sim.data.x)[0].shape[1:]) or [1]})
    tensors = {name: leaf.cpu().contiguous() for name, leaf in state.server.params.items()}  # tied ones once
    data = save(tensors, metadata={"images": images})  # one key: their order is random
    replace_file(folder / MODEL, data)
    return hashlib.sha256(data).hexdigest()


def images_of(folder: Path | str) -> ImagesOf:
    """Reads which images a finished run's model takes."""
    return _read(Path(folder)).images


def how_to_rewrite(folder: Path, what: str = "it") -> str:
    """Returns the remedy for a file of a run that is damaged or missing.

    >>> how_to_rewrite(Path("runs/mine"))
    'Write it again with `fedatoms run --resume runs/mine`.'
    """
    if by := writer(folder):
        return f"It is running ({by}): wait for it."
    how = how_to_resume(folder)
    if not is_remote(folder) and (folder / RESULT).exists() and not checkpoints(folder):
        how = f"`fedatoms run {as_word(folder / EXPERIMENT)} --name again`, as there is no checkpoint"
    return f"Write {what} again with {how}."


def how_to_resume(folder: Path) -> str:
    """Returns what to type to continue a run.

    >>> how_to_resume(Path("runs/mine"))
    '`fedatoms run --resume runs/mine`'
    """
    return RESUME if is_remote(folder) else f"`fedatoms run --resume {as_word(folder)}`"


_Size = Annotated[int, Meta(gt=0)]


class _Images(TypedDict):
    classes: Annotated[int, Meta(ge=0)]
    shape: Annotated[list[_Size], Meta(min_length=1)]


class _Written(NamedTuple):
    params: Params
    images: ImagesOf
    sha256: str


def _read(folder: Path) -> _Written:
    load_run(folder)
    path = folder / MODEL
    if not path.exists():
        raise ValueError(f"{path} is missing: the run is not finished, or the file was moved. {how_to_rewrite(folder)}")
    params, about, checksum = read_tensors(path, how_to_rewrite(folder))
    try:
        images = fit(parse(about["images"], "its metadata"), _Images, "its metadata")
    except (KeyError, ValueError):
        raise ValueError(f"{path} does not say which images the model takes. {how_to_rewrite(folder)}") from None
    return _Written(params, ImagesOf(images["classes"], tuple(images["shape"])), checksum)


def _check_sum(folder: Path, found: str) -> None:
    """Refuses a model whose checksum is not the one in the run's result; older results have none."""
    path = folder / RESULT
    if not path.exists():
        if is_remote(folder):  # one that had to stop leaves the model of the rounds so far
            return
        raise ValueError(f"{path} is missing, and with it the model's checksum. {how_to_rewrite(folder, 'both')}")
    try:
        result = read_result(folder)
    except (ValueError, OSError) as error:
        said = one_line(error).rstrip(".")
        raise ValueError(f"{path}: the model cannot be checked ({said}). {how_to_rewrite(folder)}") from None
    expected, rounds = result.model_sha256, result.experiment.rounds
    if expected in (None, found):
        return
    asked = load_run(folder).rounds
    older = f" Or remove result.json, which is of {rounds} rounds and not of {asked}." if rounds != asked else ""
    raise ValueError(
        f"{folder / MODEL} has the checksum {found[:12]}..., but result.json says {expected[:12]}...: one was "
        f"changed, or the run was stopped before it had written both. {how_to_rewrite(folder, 'both')}{older}"
    )
