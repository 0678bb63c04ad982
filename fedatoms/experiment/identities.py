"""When two experiments are the same: hashes of what they compute, and the name of a run's folder. No torch."""

import hashlib
import json
from pathlib import Path

from fedatoms.algorithms import ALGORITHMS
from fedatoms.experiment.fields import EXECUTION_FIELDS, RESUMED_FIELDS, TOLD_FIELDS, Experiment
from fedatoms.experiment.files import ADDED_LATER, to_json
from fedatoms.experiment.unusual import circumstances
from fedatoms.experiment.weights import pinned


def identity(experiment: Experiment, *, without: tuple[str, ...] = ()) -> str:
    """Hashes what an experiment computes: two with the same identity give the same result, wherever they run.

    >>> identity(Experiment()) == identity(Experiment(out="elsewhere", device="cpu"))
    True
    >>> identity(Experiment()) == identity(Experiment(seed=1))
    False
    """
    left_out = EXECUTION_FIELDS.union(without)
    fields = {name: value for name, value in to_json(pinned(experiment)).items() if name not in left_out}
    unset = {name: getattr(Experiment, name) for name in ADDED_LATER}
    counted = dict(fields.items() - unset.items())
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:16]


def trajectory(experiment: Experiment) -> str:
    """Hashes what shapes the parameters: a run may be resumed for more rounds, but not with another learning rate."""
    return identity(experiment, without=tuple(resumable(experiment)))


def resumable(experiment: Experiment) -> frozenset[str]:
    """Returns the fields that a resumed run may change: not the rounds, if a rate or noise was chosen for all of them.

    >>> resumable(Experiment()) - resumable(Experiment(schedule="cosine"))
    frozenset({'rounds'})
    """
    return RESUMED_FIELDS - ({"rounds"} if why_so_long(experiment) else set())


def why_so_long(experiment: Experiment) -> str:
    """Says why an experiment must keep its number of rounds, if so.

    >>> why_so_long(Experiment()), why_so_long(Experiment(dp_epsilon=8.0))
    ('', 'whose noise was found for that many (dp_epsilon)')
    """
    if experiment.dp_epsilon is not None:
        return "whose noise was found for that many (dp_epsilon)"
    return "whose learning rate falls over all of them (schedule=cosine)" if experiment.schedule == "cosine" else ""


def block_kind(experiment: Experiment) -> tuple[object, ...]:
    """Returns what runs must have in common for their clients to be trained in one block, as far as text can tell.

    >>> block_kind(Experiment()) == block_kind(Experiment(seed=1, lr=0.5, name="mine"))
    True
    >>> block_kind(Experiment()) == block_kind(Experiment(batch_size=50))
    False
    >>> block_kind(Experiment(algorithm="feddyn")) == block_kind(Experiment(algorithm="feddyn", strength=0.1))
    True
    >>> block_kind(Experiment(algorithm="mine:own")) == block_kind(Experiment(algorithm="mine:own", strength=0.1))
    False
    """
    drawn = bool(experiment.holdout or experiment.fixed)  # a pool, or frozen parameters, that the seed draws
    own = (TOLD_FIELDS - {"seed"} if drawn else TOLD_FIELDS) | {"name"}
    if experiment.algorithm in ALGORITHMS:  # else it may want a plain number
        own |= {"strength"}
    return tuple(value for name, value in to_json(pinned(experiment)).items() if name not in own)


def run_name(experiment: Experiment) -> str:
    """Names a run's folder.

    >>> run_name(Experiment(name="mine")), run_name(Experiment()).startswith("fedavg-digits-s0-")
    ('mine', True)
    >>> run_name(Experiment(aggregation="krum:1", dp_epsilon=8.0)).rpartition("-")[0]
    'fedavg-krum.1-epsilon-8-digits-s0'
    """
    if experiment.name:
        return experiment.name
    kind = experiment.parametrisation
    size = {"atoms": experiment.atoms, "fedpara": experiment.gamma, "pfedpara": experiment.gamma}.get(kind)
    layers = "" if kind == "plain" else f"-{kind}{size}"
    own = "" if experiment.personal == "none" else f"-{experiment.personal}"
    more = "".join(f"-{words}" for words in circumstances(experiment)).replace(" ", "-")
    method = f"{experiment.algorithm}{layers}{own}{more}".replace(":", ".")  # module:factory, in folders of any system
    aim = "" if experiment.objective == "classification" else f"-{experiment.objective}".replace(":", ".")
    return f"{method}{aim}-{experiment.dataset}-s{experiment.seed}-{identity(experiment)[:6]}"


def run_folder(experiment: Experiment) -> Path:
    """Returns the folder of an experiment's run.

    >>> run_folder(Experiment(name="mine")).as_posix()
    'runs/mine'
    """
    return Path(experiment.out) / run_name(experiment)
