"""An experiment: one flat, frozen value that describes a run; its fields are the command line's flags; no torch."""

import dataclasses
from contextlib import suppress
from dataclasses import dataclass

from fedatoms.aggregation import TABLE as AGGREGATIONS
from fedatoms.algorithms import TABLE as ALGORITHMS
from fedatoms.core.methods import in_words
from fedatoms.core.options import ATTACKS, MODELS_SCORED, TRAINED_GROUPS, WATCHERS, is_number
from fedatoms.objectives import TABLE as OBJECTIVES
from fedatoms.optimisers import TABLE as OPTIMISERS
from fedatoms.personal import TABLE as PERSONAL

ATOM_FIELDS = ("parametrisation", "atoms", "init", "where", "atoms_lr", "atoms_decay")  # how a network is decomposed
EXECUTION_FIELDS = frozenset(  # how and where to compute: no part of what is computed
    {"data_dir", "weights", "device", "map", "block", "threads", "client_state", "checkpoint_every", "tensorboard"}
    | {"watch", "name", "out"}
)
LENGTH_FIELDS = ("rounds", "eval_every")
RESUMED_FIELDS = EXECUTION_FIELDS.union(LENGTH_FIELDS, {"aggregation"})  # no part of the path of the parameters so far
TOLD_FIELDS = frozenset(  # may differ among runs whose clients are trained in one block, and so may our strengths
    {"seed", "lr", "lr_decay", "atoms_lr", "partition", "clients", "classes_per_client", "distinct", "dirichlet"}
    | {"unbalanced", "fraction", "failures"}
)
LIST_FIELDS = frozenset({"fast", "fixed", "score", "watch"})  # names with commas between them
PATH_FIELDS = ("data_dir", "weights", "out")  # folders and files of this machine: no part of a result
OWN = "own"  # the data set of an experiment whose data and network only the caller's code can make

_CONTROLS = (
    f"Learning rate, of this round or of the first as in FedDC's code, by which {ALGORITHMS.having('controls')} turn a "
    "move into a gradient."
)
_AGGREGATION = (
    f"What makes one upload of a round's: {in_words(AGGREGATIONS.methods)}, with a parameter as in trimmed:0.2 "
    f"({AGGREGATIONS.strengths()}); or module:factory of your own."
)
_ATTACK = (
    f"What malicious clients do: {in_words(ATTACKS)}, with their share of all clients, and its strength where it "
    "has one, as in sign-flip:0.2:9; empty: none."
)
_FIXED = f"Groups that are never trained and never sent, of {','.join(TRAINED_GROUPS)}; empty: none."
_SCORE = f"Models to score, of {','.join(MODELS_SCORED)}; auto takes what fits the method and the number of clients."
_WATCH = f"Where to show every round too, of {','.join(WATCHERS)}; each is an extra, such as fedatoms[mlflow]."


class Implied(str):
    """A start that nobody named: the text that it is, but ``dataclasses.replace`` may find another."""


@dataclass(frozen=True)
class Experiment:
    """One run: data, model, algorithm, exchange, local training, and how and where to compute it."""

    dataset: str = "digits"
    """Data set; digits are built in."""
    data_dir: str = "data"
    """Folder that holds the data set's official files (digits needs none)."""
    augment: str = "feddc"
    """Whose code normalisation and augmentation follow; none normalises only."""
    holdout: float = 0.0
    """Share of the training images to hold out and score instead of the test set, for choosing settings; 0: none."""
    partition: str = "shards"
    """How data are split over clients; shards give a few classes to each."""
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
    weights: str = ""
    """File with the network's first weights, .safetensors, .pth or .pt; only a head for other classes starts afresh."""
    weights_sha256: str = ""
    """SHA-256 that the file of weights must have; empty takes that of the file."""
    parametrisation: str = "plain"
    """plain: layers as they are; atoms: filters as coefficients times atoms; [p]fedpara: low-rank Hadamard products."""
    atoms: int = 9
    """Atoms per layer (parametrisation atoms)."""
    init: str = ""
    """Initial atoms and coefficients: orthonormal (random), dct or fourier-bessel (the lowest frequencies), kaiming, or
    svd (of the model's own weights); if none is named, svd with --weights and orthonormal without."""
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
    objective: str = dataclasses.field(default="classification", metadata={"help": OBJECTIVES.help()})
    objective_strength: float | None = dataclasses.field(default=None, metadata={"help": OBJECTIVES.strength_help()})
    last_epochs: int = 10
    """Epochs of the last pass over each client's personal parameters (a personalised method); 0 leaves it out."""
    own_test: str = "split"
    """A client's own test images: its split of them (same classes and shares), or all images of its classes."""
    rounds: int = 40
    """Number of rounds."""
    fraction: float = 0.5
    """Share of the clients that is sampled in a round."""
    sampling: str = "fixed"
    """Who takes part in a round: fixed samples that share of the clients, poisson every client by itself with that
    probability."""
    failures: float = 0.0
    """Probability that a sampled client fails to report."""
    dp_epsilon: float | None = None
    """Differential privacy: the epsilon that all rounds may spend, from which the noise is found."""
    dp_noise: float | None = None
    """Differential privacy: standard deviation of the noise on the sum of updates, in clip norms, if it is given."""
    dp_clip: str | float = "1"
    """Largest norm of a client's update (differential privacy): a number, or adaptive for their median."""
    dp_delta: float = 1e-5
    """Probability with which epsilon may not hold (differential privacy)."""
    aggregation: str = dataclasses.field(default="mean", metadata={"help": _AGGREGATION})
    attack: str = dataclasses.field(default="", metadata={"help": _ATTACK})
    beta: str | float = "1"
    """Share of rounds in which the slow groups travel: 1, 1/5, 0.2, ...; 1/beta must be whole."""
    fast: str = "atoms,head"
    """Groups that travel every round when beta < 1; the others are slow."""
    slow_local: str = "discard"
    """The slow part on a client in a fast round: discard what was trained, freeze it, or keep it."""
    fixed: str = dataclasses.field(default="", metadata={"help": _FIXED})
    uploads: str = "exact"
    """Numbers of clients' uploads: exact, or updates rounded at random to 8 or 4 bits."""
    epochs: int = 5
    """Local epochs per round."""
    batch_size: int = 10
    """Samples in a batch."""
    accumulate: int = 1
    """Batches of one step, whose gradients are averaged: as a larger batch, with the memory of one."""
    optimiser: str = dataclasses.field(default="sgd", metadata={"help": OPTIMISERS.help()})
    lr: float = 0.1
    """Learning rate of the first round."""
    lr_decay: float = 0.998
    """Factor on the learning rate after each round."""
    schedule: str = "constant"
    """Learning rate over the rounds, before lr-decay; cosine falls to almost 0 in the last."""
    warmup: int = 0
    """Rounds in which the learning rate first rises."""
    step_schedule: str = "constant"
    """Learning rate over a client's steps in each round."""
    warmup_steps: int = 0
    """Steps in which the learning rate first rises, in each round."""
    momentum: float = 0.0
    """Momentum of the local SGD, new in each round (optimiser sgd)."""
    weight_decay: float = 1e-3
    """Weight decay of the local optimiser."""
    clip: float = 10.0
    """Largest norm of a local gradient; 0 does not clip."""
    score: str = dataclasses.field(default="auto", metadata={"help": _SCORE})
    seed: int = 0
    """Seed of everything that is drawn."""
    device: str = "auto"
    """Where to train: cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    deterministic: bool = False
    """Use only deterministic kernels, so that a resumed run on a GPU is bit-identical (on a CPU it always is)."""
    threads: int = 0
    """CPU threads; 0 takes one for digits (they are too small for more), else torch's choice."""
    map: str = "auto"
    """How to train the clients of a round; auto takes what suits device and model."""
    block: int = 0
    """Clients trained at once when vectorised; 0 takes as many as fit into a GPU's free memory."""
    precision: str = "tf32"
    """Precision of matrix products on a GPU; tf32 has shorter factors, and is float32 on a CPU."""
    client_state: str = "device"
    """Where clients' states are kept between rounds."""
    eval_every: int = 1
    """Score the models every so many rounds, and after the last."""
    checkpoint_every: int = 10
    """Save a checkpoint every so many rounds, and at the end or Ctrl-C."""
    tensorboard: bool = False
    """Write TensorBoard events too, as --watch tensorboard does."""
    watch: str = dataclasses.field(default="", metadata={"help": _WATCH})
    name: str = ""
    """Name of the run's folder; empty makes one from the experiment."""
    out: str = "runs"
    """Folder that holds the runs."""

    def __post_init__(self) -> None:
        """Names the start that is meant, and makes numbers floats: what is written, compared and read back says so."""
        for name in FLOATS:
            if type(value := getattr(self, name)) is not float and is_number(value):
                with suppress(OverflowError):  # such a whole number is refused by its range
                    object.__setattr__(self, name, float(value))
        if self.init == "" or isinstance(self.init, Implied):
            object.__setattr__(self, "init", Implied("svd" if self.weights else "orthonormal"))


FLOATS = tuple(field.name for field in dataclasses.fields(Experiment) if field.type in (float, float | None))
