"""What a simulated run is made of: a pure value, checked when it is made."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from fedatoms.aggregation import TABLE as AGGREGATIONS
from fedatoms.aggregation.base import Rule
from fedatoms.algorithms import TABLE as ALGORITHMS
from fedatoms.algorithms.base import Algorithm, nothing, upload_params
from fedatoms.core.accounting import check_accounting, check_delta
from fedatoms.core.lookup import article, counted, shown
from fedatoms.core.options import (
    ATTACKS,
    CHOICES,
    MEANS_SCORED,
    MODELS_SCORED,
    MOVES,
    OWN_SCORED,
    VIEWS,
    WEIGHTINGS,
    Map,
    Place,
    Precision,
    Sampling,
    Scored,
    Uploads,
    check_numbers,
    check_range,
    one_of,
)
from fedatoms.data.batches import Plan, planner
from fedatoms.data.federations import Federation, check_rows
from fedatoms.data.samples import are_labels
from fedatoms.engine.attacks import Attack, has_false_labels, malicious
from fedatoms.engine.exchange import Exchange, check_exchange, every_round
from fedatoms.engine.privacy import Privacy
from fedatoms.engine.server import keeps_uploads, sample_size
from fedatoms.engine.training import Training
from fedatoms.nn.layers import require_unwrapped
from fedatoms.nn.parameter_groups import heads
from fedatoms.nn.pure import require_real, tensor_names
from fedatoms.objectives import TABLE as OBJECTIVES
from fedatoms.objectives import classification
from fedatoms.objectives.base import Objective
from fedatoms.objectives.checks import check_objective, check_targets, warn_of_classes
from fedatoms.optimisers.schedules import step_factors
from fedatoms.personal import TABLE as METHODS
from fedatoms.personal.base import Personal, Phase

CLASSES = classification()  # one value: what is compiled for it serves every simulation


@dataclass(frozen=True)
class Simulation:
    """What a run is made of: a model, clients with data, an algorithm, an exchange, and a map over clients."""

    model: nn.Module
    data: Federation
    algorithm: Algorithm = field(default_factory=Algorithm)
    exchange: Exchange = field(default_factory=lambda: Exchange(every_round()))
    personal: Personal = field(default_factory=Personal)
    aggregation: Rule = field(default_factory=Rule)  # what makes one upload of all; by default the weighted mean
    attack: Attack | None = None  # what malicious clients do, for trials
    training: Training = field(default_factory=Training)
    objective: Objective = CLASSES
    fraction: float = 1.0
    failures: float = 0.0  # probability that a sampled client does not report
    uploads: Uploads = "exact"  # or their updates rounded to few bits
    score: tuple[Scored, ...] | None = None  # None: the server's, and the mean of uploads where they are models
    seed: int = 0
    device: str = "cpu"
    map: Map = "auto"
    block: int = 0  # clients trained at once when vectorised; 0 takes as many as fit
    precision: Precision = "tf32"  # of matrix products on a GPU
    client_state: Place = "device"
    folder: Path | None = None  # of client states on disk
    head: str | None = None
    sampling: Sampling = "fixed"  # so many clients in each round, or every client by itself (poisson)
    privacy: Privacy | None = None  # clipped updates and noise on their sum

    def __post_init__(self) -> None:
        _check_parts(self)
        for name in ("map", "client_state", "precision", "sampling", "uploads"):
            one_of(CHOICES[name], getattr(self, name), name)
        one_of(WEIGHTINGS, self.algorithm.weighting, "weighting")
        check_exchange(self.exchange)
        _check_scores(self)
        if not isinstance(self.device, str):
            raise ValueError(f"device={self.device!r} is not a text. Use for example device='cpu'.")
        check_numbers(self)
        require_unwrapped(self.model)
        require_real(self.model)
        check_rows(self.data)
        check_objective(self.objective)
        check_targets(self.objective, self.data)
        if {*OWN_SCORED} & {*self.scored}:
            warn_of_classes(self.objective, self.data)
        if self.client_state == "disk" and self.folder is None:
            raise ValueError("client_state='disk' needs a folder for the files. Add folder=Path(...).")
        if self.personal.collaboration is not None:
            _check_collaboration(self)
        _check_personal(self.personal, self.exchange)
        _check_optimiser(self)
        for phase in self.personal.phases:
            _check_phase(phase)
        _check_steps(self)
        if self.privacy is not None:
            _check_private(self, self.privacy)
        _check_uploads(self)

    @property
    def keeps_uploads(self) -> bool:
        """Whether the uploads of a round are kept until its end: a rule compares them, or an attack does."""
        return keeps_uploads(self.aggregation, self.attack)

    @property
    def scored(self) -> tuple[Scored, ...]:
        """The models to score."""
        if self.score is None:
            means = self.algorithm.uploads_models and self.privacy is None
            return ("server", "selected") if means else ("server",)
        return self.score


def check_simulation(sim: object) -> None:
    """Refuses what is no simulation."""
    if not isinstance(sim, Simulation):
        raise ValueError(f"sim={shown(sim)} is not a simulation. Use fedatoms.Simulation(model, data).")


def shared_phase(sim: Simulation) -> Phase | None:
    """Returns the phase of a round whose result is uploaded, if there is one."""
    return next((phase for phase in sim.personal.phases if phase.moves != "own"), None)


def head_of(sim: Simulation) -> str:
    """Returns the name of the head, the layer whose inputs are the features."""
    found = heads(sim.model, sim.head)
    if not found:
        raise ValueError("the model has no linear layer, so its features are unknown. Name its last layer with head.")
    return found[0]


def batches_of(sim: Simulation, client: int, t: int, phase: Phase | None = None, place: int = 0) -> Plan:
    """Draws the batches of a client in round ``t``; ``place`` tells its phases apart, 0 is the one that is uploaded."""
    epochs = (phase and phase.epochs) or sim.training.epochs
    return planner(sim.data.parts, sim.data.recipe, sim.training.samples, sim.seed)(client, t, epochs, place)


def _check_parts(sim: Simulation) -> None:
    """Refuses a part of another type, and says how that part is made."""
    parts: dict[str, tuple[type, str, str]] = {
        "data": (Federation, "federation", "fedatoms.data.federation(clients, test=(x, y))"),
        "algorithm": (Algorithm, "algorithm", ALGORITHMS.call(sim.algorithm)),
        "exchange": (Exchange, "exchange", "fedatoms.engine.Exchange(fedatoms.engine.every_round())"),
        "personal": (Personal, "personalised method", METHODS.call(sim.personal)),
        "aggregation": (Rule, "aggregation rule", AGGREGATIONS.call(sim.aggregation)),
        "training": (Training, "training", "fedatoms.Training(lr=0.1)"),
        "objective": (Objective, "objective", OBJECTIVES.call(sim.objective)),
    }
    optional: dict[str, tuple[type, str, str]] = {
        "attack": (Attack, "attack", "fedatoms.engine.attacks.Attack('noise', 0.2)"),
        "privacy": (Privacy, "Privacy", "fedatoms.engine.Privacy(noise=1.0)"),
    }
    parts |= {name: kind for name, kind in optional.items() if getattr(sim, name) is not None}
    for name, (kind, what, use) in parts.items():
        if not isinstance(value := getattr(sim, name), kind):
            raise ValueError(f"{name}={shown(value)} is not {article(what)} {what}. Use {use}.")


def _check_scores(sim: Simulation) -> None:
    scored: object = sim.scored
    if isinstance(scored, str) or not isinstance(scored, Collection):
        use = scored if scored in MODELS_SCORED else "server"
        raise ValueError(f"score={shown(scored)} is not a tuple of models to score. Use score=({use!r},).")
    for which in sim.scored:
        one_of(MODELS_SCORED, which, "model to score")
        if which in MEANS_SCORED and not sim.algorithm.uploads_models:
            raise ValueError(
                f"score={which}: it is the mean of uploads, and this algorithm's are no models (uploads_models=False). "
                f"Use score=server."
            )
        if which == "local" and sim.personal != Personal():
            raise ValueError("score=local: clients of a personalised method have own models. Use score=personal.")


def _check_phase(phase: Phase) -> None:
    one_of(MOVES, phase.moves, "part that a phase moves")
    one_of(VIEWS, phase.view, "view of a phase")
    check_range("phase epochs", phase.epochs, "epochs")
    check_range("phase lr", phase.lr, "lr")
    check_range("pull", phase.pull)
    check_range("align", phase.align)


def _check_optimiser(sim: Simulation) -> None:
    if sim.training.rule.displacement is None and sim.algorithm.measures:
        raise ValueError(
            "an algorithm that divides a client's move by that of unit gradients, with an optimiser whose moves do not "
            "grow with gradients, so that it has no meaning. Use optimiser=sgd, or an algorithm that does not divide."
        )


def _check_steps(sim: Simulation) -> None:
    """Refuses a schedule with a factor that is none, in any number of steps that a client has: no step checks it."""
    if (of_step := sim.training.of_step) is not None:
        sizes = {len(part) for part in sim.data.parts}
        epochs = {phase.epochs or sim.training.epochs for phase in sim.personal.phases}
        for steps in sorted({each * -(-size // sim.training.samples) for size in sizes for each in epochs}):
            step_factors(of_step, steps)


def _check_uploads(sim: Simulation) -> None:
    """Refuses a rule or an attack that would silently do nothing, or less than it says."""
    if sim.aggregation == Rule() and sim.attack is None:
        return
    what = "an attack" if sim.aggregation == Rule() else "an aggregation rule"
    if "all" in sim.scored:
        raise ValueError(f"score=all is the mean of all clients' last models: {what} does not reach it. Leave it out.")
    if sim.personal.collaboration is not None:
        raise ValueError(
            f"a personalised method that exchanges features beside the model: {what} does not reach them. Use another "
            f"method, or aggregation=mean and no attack."
        )
    if sim.sampling != "fixed":
        raise ValueError(f"sampling={sim.sampling}: {what} needs so many clients in every round. Use sampling=fixed.")
    count = sample_size(len(sim.data.parts), sim.fraction)
    if count < sim.aggregation.fewest:
        raise ValueError(
            f"aggregation: a round has {counted(count, 'client')}, and this rule needs {sim.aggregation.needs}. "
            f"Use more clients, a larger fraction, or aggregation=mean."
        )
    if sim.attack is not None:
        _check_attack(sim, sim.attack)


def _check_attack(sim: Simulation, attack: Attack) -> None:
    one_of(ATTACKS, attack.name, "attack")
    check_range("attack share", attack.share, "attack.share")
    check_range("attack strength", attack.strength, "attack.strength")
    if len(malicious(attack, len(sim.data.parts), sim.seed)) == len(sim.data.parts):
        raise ValueError(
            f"attack.share={attack.share}: all {len(sim.data.parts)} clients would be malicious. Use less."
        )
    if sim.uploads != "exact" and not has_false_labels(attack):
        raise ValueError(f"uploads={sim.uploads}: malicious clients lie in numbers, not in codes. Use uploads=exact.")
    if has_false_labels(attack) and (sim.data.lazy is not None or not sim.data.classes or not are_labels(sim.data.y)):
        raise ValueError("attack=label-flip needs one class per sample, in memory. Use another attack.")


def _check_collaboration(sim: Simulation) -> None:
    if not sim.objective.targets.classes:
        raise ValueError(
            f"a personalised method that compares clients' features class by class, and an objective without classes "
            f"({sim.objective.scale.name}). Use another method, or objective=fedatoms.objectives.classification()."
        )
    if sim.algorithm.client_memory is not nothing:
        raise ValueError(
            "an algorithm that keeps a memory on clients, with a personalised method that moves features and combines "
            "heads: its controls would take both for the client's drift. Use an algorithm without such a memory."
        )
    if sim.exchange.personal or sim.exchange.slow_local == "keep":
        raise ValueError(
            "a personalised method that compares clients' features, and clients with different bodies: they cannot be "
            "compared. Leave out personal groups, and use slow_local='discard' or 'freeze'."
        )


def _check_personal(personal: Personal, exchange: Exchange) -> None:
    """Refuses combinations that no round can run."""
    if personal == Personal():
        return
    if exchange.slow_local == "keep":
        raise ValueError(
            "slow_local='keep' with a personalised method: a client would keep two versions of a part. "
            "Use slow_local='discard' or 'freeze'."
        )
    shared = [phase for phase in personal.phases if phase.moves != "own"]
    if len(shared) > 1:
        raise ValueError(f"{len(shared)} phases of a round move what is shared, but one is uploaded. Leave one.")
    if personal.beside and exchange.personal:
        raise ValueError("a second version of a part, and personal groups in the exchange. Use one of the two.")
    if personal.beside and any(phase.view == "personal" for phase in shared):
        raise ValueError('beside=True: the server\'s version is trained in the global view. Use Phase(view="global").')


def _check_private(sim: Simulation, privacy: Privacy) -> None:
    """Refuses what would let something of a client leave but through the noised sum, or change who is sampled."""
    check_range("dp_noise", privacy.noise, "noise")
    check_range("dp_delta", privacy.delta, "delta")
    check_range("dp_clip", privacy.clip, "clip")
    check_delta(privacy.delta, len(sim.data.parts))
    for broken, what in _leaks(sim):
        if broken:
            raise ValueError(f"differential privacy with {what}")
    check_accounting()  # last: what is wrong is told before what is not installed


def _leaks(sim: Simulation) -> list[tuple[bool, str]]:
    """Returns what a private run cannot have: whether a simulation has it, the reason, and the way out."""
    allowed = "Use fedavg, fedprox, fedavgm or fedadam."
    unnoised, buffers = sorted({*sim.scored} - {"server"}), sorted(tensor_names(sim.model)[1])
    return [
        (
            sim.algorithm.client_memory is not nothing,
            f"an algorithm that keeps a memory on clients: it is not accounted for. {allowed}",
        ),
        (
            sim.algorithm.report is not upload_params,
            f"an algorithm that uploads more than the model: it would leave without noise. {allowed}",
        ),
        (
            sim.personal != Personal() or bool(sim.exchange.personal),
            "a personalised method: scores of clients' models would leave without noise. Use personal=none.",
        ),
        (
            sim.exchange.slow_local == "keep",
            "slow_local=keep: clients would keep slow groups of their own. Use slow_local=discard or freeze.",
        ),
        (
            bool(buffers),
            f"the buffer {', '.join(buffers[:1])}: statistics of clients' data would leave without noise. Use "
            f"GroupNorm, as in model=resnet18-gn.",
        ),
        (
            sim.sampling != "poisson",
            f"sampling={sim.sampling}: epsilon is accounted for clients that are sampled by themselves. Use "
            f"sampling=poisson.",
        ),
        (
            bool(sim.failures),
            f"failures={sim.failures}: who fails would change who is sampled, unaccounted for. Use failures=0.",
        ),
        (
            sim.aggregation != Rule() or sim.attack is not None,
            "an aggregation rule or an attack: what a client can change is known for the mean alone. Use "
            "aggregation=mean and no attack.",
        ),
        (
            sim.uploads != "exact",
            f"uploads={sim.uploads}: updates are clipped and noised as numbers, not as codes. Use uploads=exact.",
        ),
        (
            bool(unnoised),
            f"score={','.join(unnoised)}: it is made of uploads without noise. Use score=server.",
        ),
    ]
