"""An experiment: one flat, frozen value that says a run whole; its fields are the command line's flags. No torch."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from fedatoms.algorithms import TABLE as ALGORITHMS
from fedatoms.core.lookup import one_line, some, unknown
from fedatoms.personal import TABLE as PERSONAL

CHOICES: dict[str, tuple[str, ...]] = {
    "parametrisation": ("plain", "atoms", "fedpara", "pfedpara"),
    "init": ("orthonormal", "dct", "fourier-bessel", "kaiming", "svd"),
    "augment": ("feddc", "fedrep", "none"),
    "partition": ("iid", "shards", "dirichlet"),
    "slow_local": ("discard", "freeze", "keep"),
    "controls": ("current", "first"),
    "own_test": ("split", "classes"),
    "precision": ("float32", "tf32", "bf16"),
    "map": ("auto", "one_by_one", "vectorised"),
    "client_state": ("device", "host", "disk"),
}
LISTS = {"fast", "fixed", "score"}  # fields whose value is words with commas between them
GLOBAL_MODELS = ("server", "selected", "all")
MODELS_SCORED = (*GLOBAL_MODELS, "personal")
HOW_NOT_WHAT = {"data_dir", "device", "map", "block", "threads", "client_state", "checkpoint_every", "tensorboard"}
HOW_NOT_WHAT |= {"name", "out"}
OF_ATOMS = ("parametrisation", "atoms", "init", "where", "atoms_lr", "atoms_decay")  # what decomposing a network says
LATER = {"fixed": ""}.items()  # no part of an identity at these values: results from before the field keep theirs
ADDED = {"holdout", "gamma", "atoms_lr", "atoms_decay", "controls", "personal", "personal_strength", "last_epochs"}
ADDED |= {"own_test", "precision", "fixed"}  # fields that files may lack, for their default: older ones do
LOCAL = ("data_dir", "out")  # where things lie on this machine: no part of a result
HOW_LONG = ("rounds", "eval_every")  # a resumed run may change these, and how it computes

_CONTROLS = (
    f"Learning rate by which {ALGORITHMS.having('controls')} turn a move into a gradient: current, or first (as in "
    "FedDC's code)."
)


@dataclass(frozen=True)
class Experiment:
    """One run: data, model, algorithm, exchange, local training, and how and where to compute it."""

    dataset: str = "digits"
    """Data set: digits (built in), cifar10, cifar100, tiny-imagenet or fashion-mnist."""
    data_dir: str = "data"
    """Folder that holds the data set's official files (digits needs none)."""
    augment: str = "feddc"
    """Normalisation and augmentation of which codebase: feddc, fedrep, or none (normalise only)."""
    holdout: float = 0.0
    """Share of the training images to hold out and score instead of the test set, to choose settings by; 0: none."""
    partition: str = "shards"
    """How data are spread over clients: iid, shards (a few classes each) or dirichlet."""
    clients: int = 20
    """Number of clients."""
    classes_per_client: int = 2
    """Shards per client, each of one class (partition shards)."""
    distinct: bool = False
    """Give each client classes that differ from each other (partition shards)."""
    dirichlet: float = 0.3
    """Concentration of the clients' class priors; smaller is more uneven (partition dirichlet)."""
    unbalanced: float = 0.0
    """Sigma of the lognormal law of client sizes; 0 makes them equal (partition dirichlet)."""
    model: str = "digits-cnn"
    """Network: digits-cnn, lenet, fedrep-cnn, fedrep-cnn100, fedpac-cnn, resnet18[-gn][-small], or module:factory."""
    head: str = ""
    """Name of the layer that is the head; empty takes the last linear layer."""
    parametrisation: str = "plain"
    """plain: layers as they are; atoms: filters as coefficients times atoms; [p]fedpara: low-rank Hadamard products."""
    atoms: int = 9
    """Atoms per layer (parametrisation atoms)."""
    init: str = "orthonormal"
    """Initial atoms and coefficients: orthonormal (random), dct or fourier-bessel (the lowest frequencies), kaiming, or
    svd (of the model's own weights)."""
    where: str = ""
    """Regular expression: replace only the layers whose name it matches; empty takes all that are suitable."""
    gamma: float = 0.4
    """Share between the least and the largest rank (parametrisation fedpara, pfedpara)."""
    atoms_lr: float = 1.0
    """Factor on the learning rate of atoms and coefficients (parametrisation atoms)."""
    atoms_decay: float = 1.0
    """Factor on the weight decay of atoms and coefficients (parametrisation atoms)."""
    algorithm: str = dataclasses.field(default="fedavg", metadata={"help": ALGORITHMS.help()})
    strength: float | None = dataclasses.field(default=None, metadata={"help": ALGORITHMS.strength_help()})
    controls: str = dataclasses.field(default="current", metadata={"help": _CONTROLS})
    personal: str = dataclasses.field(default="none", metadata={"help": PERSONAL.help()})
    personal_strength: float | None = dataclasses.field(default=None, metadata={"help": PERSONAL.strength_help()})
    last_epochs: int = 10
    """Epochs of the last local pass over every client's own part (a personalised method); 0 leaves it out."""
    own_test: str = "split"
    """A client's own test images: its split of them (same classes and shares), or all images of its classes."""
    fraction: float = 0.5
    """Share of the clients that is sampled in a round."""
    failures: float = 0.0
    """Probability that a sampled client fails to report."""
    rounds: int = 40
    """Number of rounds."""
    epochs: int = 5
    """Local epochs per round."""
    batch_size: int = 10
    """Samples in a batch."""
    lr: float = 0.1
    """Learning rate of the first round."""
    lr_decay: float = 0.998
    """Factor on the learning rate after each round."""
    momentum: float = 0.0
    """Momentum of the local SGD, new in each round."""
    weight_decay: float = 1e-3
    """Weight decay of the local SGD."""
    clip: float = 10.0
    """Largest norm of a local gradient; 0 does not clip."""
    beta: str | float = "1"
    """Share of rounds in which the slow groups travel: 1, 1/5, 0.2, ...; 1/beta must be whole."""
    fast: str = "atoms,head"
    """Groups that travel every round when beta < 1; the others are slow."""
    slow_local: str = "discard"
    """The slow part on a client in a fast round: discard what was trained, freeze it, or keep it."""
    fixed: str = ""
    """Groups that are never trained and never sent, of atoms,coefficients,head,rest; empty: none."""
    score: str = "auto"
    """Models to score, of server,selected,all,personal; auto takes what fits the method and the number of clients."""
    seed: int = 0
    """Seed of everything that is drawn."""
    device: str = "auto"
    """Where to train: cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    deterministic: bool = False
    """Use only deterministic kernels, so that a resumed run on a GPU is bit-identical (on a CPU it always is)."""
    threads: int = 0
    """CPU threads; 0 takes one for digits (they are too small for more), else torch's choice."""
    map: str = "auto"
    """How to train the clients of a round: one_by_one, vectorised, or auto (what suits device and model)."""
    block: int = 0
    """Clients trained at once when vectorised; 0 takes as many as fit into a GPU's free memory."""
    precision: str = "tf32"
    """Products on a GPU: float32, tf32 (float32 with shorter factors) or bf16; a CPU uses float32 but for bf16."""
    client_state: str = "device"
    """Where clients' states are kept: device, host or disk."""
    eval_every: int = 1
    """Score the models every so many rounds, and after the last."""
    checkpoint_every: int = 10
    """Save a checkpoint every so many rounds, and at the end or Ctrl-C."""
    tensorboard: bool = False
    """Write TensorBoard events too (needs fedatoms[tensorboard])."""
    name: str = ""
    """Name of the run's folder; empty makes one from the experiment."""
    out: str = "runs"
    """Folder that holds the runs."""


def check(experiment: Experiment) -> None:
    """Refuses values that no run can have, one line each: the value, the rule, the way out.

    >>> check(Experiment(fraction=0))
    Traceback (most recent call last):
    ...
    ValueError: --fraction 0 is not in (0, 1]. Use for example 0.1 to sample a tenth of the clients.
    """
    _check_types(experiment)
    for name, valid in CHOICES.items():
        if getattr(experiment, name) not in valid:
            raise unknown(getattr(experiment, name), valid, name.replace("_", "-"))
    counts = (
        "clients",
        "classes_per_client",
        "atoms",
        "rounds",
        "epochs",
        "batch_size",
        "eval_every",
        "checkpoint_every",
    )
    for name in counts:
        _require(experiment, name, lambda value: value >= 1, "less than 1", "a whole number from 1 up")
    _require(
        experiment,
        "fraction",
        lambda v: 0 < v <= 1,
        "not in (0, 1]",
        "for example 0.1 to sample a tenth of the clients",
    )
    _require(experiment, "failures", lambda v: 0 <= v < 1, "not in [0, 1)", "for example 0.1, or 0 for none")
    _require(experiment, "holdout", lambda v: 0 <= v < 1, "not in [0, 1)", "for example 0.1, or 0 for the test set")
    _require(experiment, "gamma", lambda v: 0 <= v <= 1, "not in [0, 1]", "for example 0.4")
    _require(experiment, "momentum", lambda v: 0 <= v < 1, "not in [0, 1)", "for example 0.9, or 0 for none")
    for name in ("lr", "lr_decay", "dirichlet", "atoms_lr"):
        _require(experiment, name, lambda v: 0 < v < math.inf, "not a positive number", "for example 0.1")
    for name in ("weight_decay", "atoms_decay", "clip", "unbalanced", "threads", "block", "last_epochs"):
        _require(experiment, name, lambda v: 0 <= v < math.inf, "negative or not finite", "0 or a positive number")
    if experiment.out == "":
        raise ValueError("--out is empty. Use for example --out runs.")
    if (
        set(experiment.name) & set("/\\")
        or experiment.name in (".", "..")
        or experiment.name != experiment.name.strip()
    ):
        raise ValueError(f"--name {experiment.name} is not a plain folder name. Put the folder into --out.")
    period_of(experiment.beta)
    scored_models(experiment)


def period_of(beta: str | float) -> int:
    """Turns beta, the share of rounds in which the slow groups travel, into its period 1 / beta, which must be whole.

    >>> period_of("1/5"), period_of(0.2), period_of(1)
    (5, 5, 1)
    """
    try:
        share = Fraction(beta).limit_denominator(10**6)
    except (ValueError, ZeroDivisionError, OverflowError):
        share = Fraction(0)
    if share <= 0 or share.numerator != 1:
        raise ValueError(f"--beta {beta}: 1/beta must be a whole number of rounds. Use for example 1, 1/2, 1/5 or 0.1.")
    return share.denominator


def scored_models(experiment: Experiment) -> tuple[str, ...]:
    """Returns the models to score.

    >>> scored_models(Experiment(clients=5000))
    ('server', 'selected')
    """
    if experiment.score == "auto":
        if experiment.personal != "none":
            return ("server", "personal")
        return GLOBAL_MODELS if experiment.clients <= 1000 else GLOBAL_MODELS[:2]
    wanted = tuple(part.strip() for part in experiment.score.split(","))
    for name in wanted:
        if name not in MODELS_SCORED:
            raise unknown(name, MODELS_SCORED, "model to score")
    return tuple(name for name in MODELS_SCORED if name in wanted)


def identity(experiment: Experiment, *, without: tuple[str, ...] = ()) -> str:
    """Hashes what an experiment computes: two with the same identity give the same result, wherever they run.

    >>> identity(Experiment()) == identity(Experiment(out="elsewhere", device="cpu"))
    True
    >>> identity(Experiment()) == identity(Experiment(seed=1))
    False
    """
    fields = {name: value for name, value in to_json(experiment).items() if name not in HOW_NOT_WHAT | set(without)}
    return hashlib.sha256(json.dumps(dict(fields.items() - LATER), sort_keys=True).encode()).hexdigest()[:16]


def trajectory(experiment: Experiment) -> str:
    """Hashes what shapes the parameters: a run may be resumed for more rounds, but not with another learning rate."""
    return identity(experiment, without=HOW_LONG)


def run_name(experiment: Experiment) -> str:
    """Names a run's folder.

    >>> run_name(Experiment(name="mine")), run_name(Experiment()).startswith("fedavg-digits-s0-")
    ('mine', True)
    """
    if experiment.name:
        return experiment.name
    kind = experiment.parametrisation
    size = {"atoms": experiment.atoms, "fedpara": experiment.gamma, "pfedpara": experiment.gamma}.get(kind)
    layers = "" if kind == "plain" else f"-{kind}{size}"
    own = "" if experiment.personal == "none" else f"-{experiment.personal}"
    method = f"{experiment.algorithm}{layers}{own}".replace(":", ".")  # module:factory, in folders of any system
    return f"{method}-{experiment.dataset}-s{experiment.seed}-{identity(experiment)[:6]}"


def to_json(experiment: Experiment) -> dict[str, object]:
    """Writes an experiment as plain values; beta in one form."""
    floats = {f.name for f in dataclasses.fields(experiment) if str(f.type) == str(float)}
    fields = {name: float(value) if name in floats else value for name, value in dataclasses.asdict(experiment).items()}
    return {**fields, "beta": f"1/{period_of(experiment.beta)}"}


def from_json(fields: Mapping[str, object]) -> Experiment:
    """Inverts ``to_json``: every field must be there, but for places on a machine and what older versions lack.

    >>> from_json(to_json(Experiment(beta=0.2))).beta
    '1/5'
    >>> from_json({})
    Traceback (most recent call last):
    ...
    ValueError: it lacks the fields dataset, augment, partition and 38 more
    """
    known = [field.name for field in dataclasses.fields(Experiment)]
    for name in fields:
        if name not in known:
            raise unknown(name, known, "field")
    if missing := [name for name in known if name not in fields and name not in (*ADDED, *LOCAL)]:
        raise ValueError(f"it lacks the field{'s' * (len(missing) > 1)} {some(missing)}")
    return Experiment(**fields)  # type: ignore[arg-type]


def load(path: Path) -> Experiment:
    """Reads an experiment file."""
    if not path.exists():
        raise ValueError(f"{path} does not exist. Give a saved experiment.json, or a preset (`fedatoms presets`).")
    try:
        fields = json.loads(path.read_text())
        if not isinstance(fields, dict):
            raise ValueError("it is not a JSON object")
        return from_json(fields)
    except (ValueError, TypeError) as error:
        said = one_line(error).rstrip(".")
        raise ValueError(f"{path} is not a whole experiment file: {said}. Write one with `fedatoms run`.") from error


def load_run(folder: Path) -> Experiment:
    """Reads the experiment of a run's folder."""
    if not (folder / "experiment.json").exists():
        raise ValueError(f"{folder} holds no run: experiment.json is missing. Give a folder that `fedatoms run` made.")
    return load(folder / "experiment.json")


def _require(experiment: Experiment, name: str, rule: Callable[[float], bool], broken: str, remedy: str) -> None:
    value = getattr(experiment, name)
    if not rule(value):
        raise ValueError(f"--{name.replace('_', '-')} {value} is {broken}. Use {remedy}.")


def _check_types(experiment: Experiment) -> None:
    for field in dataclasses.fields(experiment):
        value, kinds = getattr(experiment, field.name), _KINDS[str(field.type)]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            words = {int: "whole number", float: "number", str: "text", bool: "truth value"}
            flag = field.name.replace("_", "-")
            raise ValueError(f"--{flag} {value!r} is not a {words[kinds[0]]}. See `fedatoms run --help`.")


_KINDS: dict[str, tuple[type, ...]] = {
    str(int): (int,),
    str(float): (float, int),
    str(str): (str,),
    str(bool): (bool,),
    str(str | float): (str, int, float),
    str(float | None): (float, int, type(None)),
}
