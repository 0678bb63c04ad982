"""Personal parameters of one client: fitted to its data, saved in a small file, loaded back into the model."""

import hashlib
import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedatoms.core.border import as_path
from fedatoms.core.files import read_tensors, write_named
from fedatoms.core.inputs import shapes_of
from fedatoms.core.lookup import one_line, some
from fedatoms.core.options import Group, check_range, listed
from fedatoms.core.run_files import MODEL, PERSONAL
from fedatoms.core.trees import Params, misfit, nbytes, restrict
from fedatoms.data.batches import normalise
from fedatoms.data.datasets import Recipe, recipe_of
from fedatoms.data.federations import Federation, federation
from fedatoms.data.samples import Samples, as_inputs
from fedatoms.engine.finetune import last_pass, runtime_of_last_pass
from fedatoms.engine.loop import begin
from fedatoms.engine.runtime import layout_of, prepare
from fedatoms.engine.spec import CLASSES, Simulation
from fedatoms.engine.training import Training
from fedatoms.experiment.build import assemble, objective_of
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load_run
from fedatoms.experiment.identities import identity
from fedatoms.nn.atoms import fuse
from fedatoms.nn.pure import with_params
from fedatoms.objectives.base import Objective
from fedatoms.personal.base import Part, Personal, Phase, of_groups
from fedatoms.runs.loading import ImagesOf, fill, how_to_rewrite, images_of, load_model
from fedatoms.runs.personal_models import personal_file
from fedatoms.runs.remote import LOAD_PERSONAL, is_remote
from fedatoms.runs.results import check_sealed

PARTS: tuple[Group, ...] = ("atoms", "head")
_KEY = "fedatoms"  # one key of metadata, since safetensors writes several in random order
Model = nn.Module | Path | str  # a trained network, or the folder of a finished run


class Base(NamedTuple):
    """A global model; if it is a run's, also its head, its recipe and shape of images, its experiment and objective."""

    model: nn.Module
    head: str | None = None
    recipe: Recipe | None = None
    shape: tuple[int, ...] | None = None
    experiment: str = ""
    objective: Objective = CLASSES


def personalise(
    model: Model,
    data: Samples,
    *,
    part: str = "atoms",
    epochs: int = 10,
    lr: float = 0.01,
    momentum: float = 0.9,
    batch_size: int = 10,
    weight_decay: float = 0.0,
    clip: float = 10.0,
    recipe: Recipe | None = None,
    head: str | None = None,
    objective: Objective | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Params:
    """Fits a part of a trained model to one client's data, keeps all else fixed, and returns the tensors of that part.

    ``model`` is a network, or the folder of a run: then ``data`` are raw pixels as in the run's data set, and its
    recipe turns them into inputs. ``part`` is "atoms", "head" or "atoms,head". The model itself is not changed.

    >>> from fedatoms.nn.atoms import decompose
    >>> net = decompose(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), 4, init="orthonormal")
    >>> own = personalise(net, (torch.randn(6, 1, 4, 4), torch.arange(6) % 2))
    >>> {name: tuple(leaf.shape) for name, leaf in own.items()}
    {'0.atoms': (4, 3, 3)}
    """
    check_range("lr", lr)
    base = base_of(model)
    base = base._replace(recipe=recipe or base.recipe, head=head or base.head, objective=objective or base.objective)
    client = federation([data], test=data)
    if base.shape and shapes_of(client.x) != str(base.shape):
        raise ValueError(
            f"data: images of shape {shapes_of(client.x)}, but {model} takes {base.shape}. Pass x of shape "
            f"(n, {', '.join(map(str, base.shape))})."
        )
    training = Training(epochs, batch_size, lr, momentum=momentum, weight_decay=weight_decay, clip=clip)
    return fit(simulation_of(base, client, part, training, seed=seed, device=device))


def save_personal(path: Path | str, own: Params, *, of: Model) -> Path:
    """Writes a client's personal parameters to a safetensors file that names their model; returns its path.

    >>> import tempfile
    >>> from fedatoms.nn.atoms import decompose
    >>> net = decompose(nn.Conv2d(1, 2, 3), atoms=2, init="dct")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = save_personal(f"{folder}/ann.safetensors", {"atoms": torch.ones(2, 3, 3)}, of=net)
    ...     load_personal(net, file)
    Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))
    """
    path, base = as_path(path, "path"), base_of(of)
    wrong = _misfit(base.model, own) if own else "it is empty"
    if wrong:
        raise ValueError(f"own is not a part of the model ({wrong}). Pass what personalise(model, data) returned.")
    about = {"frozen": fingerprint(base.model, own), "experiment": base.experiment}
    tensors = {name: leaf.detach().cpu().contiguous() for name, leaf in own.items()}
    write_named(path, save(tensors, metadata={_KEY: json.dumps(about)}))
    return path


def load_personal(model: Model, path: Path | str) -> nn.Module:
    """Returns one plain network for inference: the model with a client's personal parameters, its filters fused.

    ``model`` is the network or the folder of the run that the file was made with; any other is refused. The network
    takes the same inputs as the model: ``inputs_of`` makes them from raw pixels.
    """
    base = base_of(model)
    own, about = _read(as_path(path, "path"), _most(base.model))
    wrong = _misfit(base.model, own)
    if wrong or about["frozen"] != fingerprint(base.model, own):
        whose, this = (f" of experiment {name}" if name else "" for name in (about["experiment"], base.experiment))
        raise ValueError(
            f"{path} belongs to another model{whose}, not to this one{this}{wrong and f' ({wrong})'}: own atoms only "
            "fit the coefficients that they were trained with. Load it with that model, or fit new ones with "
            "`fedatoms personalize`."
        )
    return fuse(with_params(base.model, own, own)).eval()


def personal_model(folder: Path | str, client: int) -> nn.Module:
    """Returns the personal model of a client of a run with a personalised method, as one plain network."""
    folder = as_path(folder, "folder")
    model, experiment = _model_of(folder), load_run(folder)
    if experiment.personal == "none":
        raise ValueError(
            f"{folder} has no clients' own models: its method is not personalised. Run one with "
            "another `personal`, or fit a client's part with `fedatoms personalize`."
        )
    if type(client) is not int or not 0 <= client < experiment.clients:
        raise ValueError(f"client={client!r} is not a client of {folder}. Use 0 to {experiment.clients - 1}.")
    _check_clients(folder, experiment)
    path = personal_file(folder, client)
    filled = with_own(model, path, experiment, images_of(folder), how_to_rewrite(folder))
    check_sealed(folder, path, how_to_rewrite(folder))
    return fuse(filled).eval()


def with_own(model: nn.Module, path: Path, experiment: Experiment, images: ImagesOf, remedy: str) -> nn.Module:
    """Returns a run's model with the personal parameters of a client, from the file that the run wrote."""
    own = read_tensors(path, remedy, _most(model)).tree
    return fill(model, own, path, remedy, own_part(experiment, model, images))


def own_part(experiment: Experiment, model: nn.Module, images: ImagesOf) -> frozenset[str]:
    """Names the personal parameters of each client at the end of a run: the method's, or those of a last pass.

    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2))
    >>> sorted(own_part(Experiment(personal="fedper"), net, ImagesOf(2, (1, 3, 3))))
    ['2.bias', '2.weight']
    """
    nothing, none = torch.zeros(0, dtype=torch.int64), torch.zeros(0, *images.shape)
    data = Federation(none, nothing, [nothing], none, nothing, [nothing], images.classes, None)
    here = replace(experiment, device="cpu", map="one_by_one", threads=0, client_state="device", score="server")
    sim = assemble(here, model, data)
    runtime = prepare(sim)
    epochs = experiment.last_epochs
    return (runtime_of_last_pass(runtime, epochs) if epochs else runtime).layout.own


def inputs_of(folder: Path | str, x: Tensor | npt.NDArray[np.generic]) -> Tensor:
    """Turns pixels (n, C, H, W), raw whole numbers or floats from 0 to 1, into the inputs that a run's model takes.

    Grey images may come without their channel, as (n, H, W).
    """
    experiment = load_run(as_path(folder, "folder"))
    recipe = recipe_of(experiment.dataset, experiment.augment)
    x, channels = as_inputs(x, "x"), len(recipe.mean)
    x = x[:, None] if x.dim() == 3 and channels == 1 else x
    if x.dim() != 4 or x.shape[1] != channels:
        raise ValueError(f"x has the shape {tuple(x.shape)}. Pass pixels of shape (n, {channels}, height, width).")
    if x.is_floating_point():
        if not bool(((x >= 0) & (x <= 1)).all()):
            raise ValueError("x holds floats outside of 0 to 1. Scale them, or pass raw pixels as whole numbers.")
        x = x * recipe.scale
    return normalise(x, recipe, torch.float32)


def base_of(model: Model) -> Base:
    """Returns a global model with the settings of its run, if any.

    >>> base_of(nn.Linear(1, 1)).recipe is None
    True
    """
    if isinstance(model, nn.Module):
        return Base(model)
    folder = as_path(model, "model")
    experiment = load_run(folder)
    recipe = recipe_of(experiment.dataset, experiment.augment)
    head, shape, aim = experiment.head or None, images_of(folder).shape, objective_of(experiment)
    return Base(_model_of(folder), head, recipe, shape, identity(experiment), aim)


def simulation_of(
    base: Base, client: Federation, part: str, training: Training, *, seed: int = 0, device: str = "cpu"
) -> Simulation:
    """Returns the simulation of one client, which trains its personal parameters and nothing else."""
    sim = Simulation(
        base.model,
        client._replace(recipe=base.recipe),
        personal=Personal(part_of(part), beside=True, phases=(Phase("own"),)),
        training=training,
        objective=base.objective,
        score=(),
        seed=seed,
        device=device,
        map="one_by_one",  # on a GPU too: compiling a step pays for many clients, not for one
        head=base.head,
    )
    check_has_part(sim)
    return sim


def check_has_part(sim: Simulation) -> None:
    """Refuses a model without the part that is to be fitted, before anything is trained."""
    layout_of(sim)


def fit(sim: Simulation) -> Params:
    """Trains the personal parameters of a simulation's only client and returns them, on the host."""
    runtime = prepare(sim)
    try:
        last, state = last_pass(runtime, begin(runtime), sim.training.epochs)
    except FloatingPointError:
        raise FloatingPointError(
            f"the fit is not finite at a learning rate of {sim.training.lr:g}. Lower it, for example to "
            f"{sim.training.lr / 10:g}."
        ) from None
    row = state.clients.read(0)
    assert row is not None
    return {name: leaf.cpu() for name, leaf in restrict(row.own, last.layout.own).items()}


def part_of(part: str) -> Part:
    """Returns the part of a model that a text names, for example "atoms,head".

    >>> sorted(part_of("head")(nn.Linear(1, 1), {"weight": "head", "bias": "head"}))
    ['bias', 'weight']
    """
    return of_groups(*listed(PARTS, part, "part", "part"))


def fingerprint(model: nn.Module, own: Collection[str]) -> str:
    """Hashes all of a model's tensors except personal ones, which fit any model with the same hash.

    >>> net = nn.Linear(1, 1)
    >>> fingerprint(net, {"bias"}) == fingerprint(with_params(net, {"bias": torch.ones(1)}, {"bias"}), {"bias"})
    True
    >>> other = with_params(net, {"weight": 2 + net.weight}, {"weight"})
    >>> fingerprint(net, {"bias"}) == fingerprint(other, {"bias"})
    False
    """
    digest = hashlib.sha256()
    for name, leaf in sorted(model.state_dict().items()):
        if name not in own:
            digest.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}\n".encode())
            digest.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def _misfit(model: nn.Module, own: Params) -> str:
    """Describes the personal parameters that the model lacks, or has in another shape or type."""
    return misfit(own, restrict(dict(model.state_dict()), own))


def _model_of(folder: Path) -> nn.Module:
    """Loads the model of a run; a network that torch cannot build, as its file asks for, is a mistake in that file."""
    try:
        return load_model(folder)
    except (ValueError, RuntimeError, TypeError, MemoryError, OverflowError) as error:
        if isinstance(error, ValueError) and str(folder) in str(error):
            raise
        raise ValueError(
            f"{folder / MODEL} or experiment.json is damaged: its network cannot be built ({one_line(error)[:200]}). "
            f"{how_to_rewrite(folder)}"
        ) from None


def _most(model: nn.Module) -> int:
    """The bytes of the largest file with a part of a model: all of it, and names."""
    return nbytes(dict(model.state_dict())) + 2**20


def _check_clients(folder: Path, experiment: Experiment) -> None:
    if is_remote(folder):
        raise ValueError(
            f"{folder} is a run on nodes, which hold their personal parameters. Load a node's personal.safetensors "
            f"there with {LOAD_PERSONAL}."
        )
    found = {path.name for path in (folder / PERSONAL).glob("*.safetensors")}
    wanted = {personal_file(folder, client).name for client in range(experiment.clients)}
    if found != wanted:
        lists = {"missing": wanted - found, "extra": found - wanted}
        wrong = "; ".join(f"{what}: {some(sorted(names))}" for what, names in lists.items() if names)
        raise ValueError(
            f"{folder / PERSONAL} has not one file for each of {experiment.clients} clients ({wrong}). "
            f"{how_to_rewrite(folder)}"
        )


def _read(path: Path, most: int) -> tuple[Params, dict[str, str]]:
    if not path.exists():
        raise ValueError(f"{path} does not exist. Make it with `fedatoms personalize`, or with save_personal.")
    own, metadata, _ = read_tensors(path, "Make it with save_personal.", most)
    about = metadata.get(_KEY)
    if about is None:
        raise ValueError(
            f"{path} does not say which model it belongs to. Use personal_model(folder, client) for a client of a run, "
            "and files that save_personal wrote for others."
        )
    try:
        known = json.loads(about)
        return own, {name: str(known[name]) for name in ("frozen", "experiment")}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{path} is damaged: its metadata are {about[:40]!r}. Make it with save_personal.") from None
