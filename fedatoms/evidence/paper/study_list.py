"""The paper's tables and figures as studies: the runs or the measure behind each, and quick stand-ins. No torch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from fedatoms.core.lookup import find
from fedatoms.evidence.paper.tables import cells
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity
from fedatoms.experiment.presets import PRESETS

Runs = dict[str, Experiment]  # by what one types after `fedatoms run`


class Study(NamedTuple):
    """A table or figure of the paper: its title, and the runs or the measure (``evidence.measures``) behind it.

    ``earlier`` runs had another setting: they are shown beside, and judged instead where more of their pairs were run.
    """

    name: str
    title: str
    runs: Runs
    measure: str = ""
    earlier: Mapping[str, Experiment] = {}


SAMPLED = (2, 5, 10, 20, 30, 40)  # clients in a round of figure (c), of 100
BETAS = ("1/2", "1/5", "1/10")  # figure (d); 1 is the run with every round
OWN_TARGET = 52.0  # per cent: the paper's target in figure (d), above what any global model of its Table 1 has
QUICK_ROUNDS = 10  # of a quick stand-in
CLIENTS = "figure-clients"
PAIR_9, PAIR_25 = ("fedavg", "fedavg-atoms"), ("fedavg", "fedavg-atoms25")  # figure (d), other partitions: run with 25


def quick(experiment: Experiment) -> Experiment:
    """Returns the quick stand-in for an experiment: the same methods on the embedded digits, in few rounds.

    >>> quick(PRESETS["fedavg-atoms25-cifar100-20"]).dataset
    'digits'
    """
    return replace(
        experiment,
        dataset="digits",
        model="digits-cnn",
        clients=20,
        classes_per_client=min(experiment.classes_per_client, 5),
        fraction=min(2 * experiment.fraction, 1.0),
        rounds=QUICK_ROUNDS,
        epochs=2,
        last_epochs=2,
        batch_size=10,
        atoms=min(experiment.atoms, 9),  # a 3 x 3 kernel has 9 numbers
        atoms_lr=1.0,
        lr=0.1,
        momentum=0.0,
        eval_every=1,
        threads=1,
    )


def studies() -> dict[str, Study]:
    """Returns all studies by name, in the order of the paper.

    >>> list(studies())[:3], len(studies()["table1"].runs)
    (['table1', 'table2', 'table3'], 40)
    """
    found = (
        Study("table1", "Table 1: accuracy of the global model", _table(1)),
        Study("table2", "Table 2: accuracy of clients' own models", _table(2)),
        Study("table3", "Table 3: number of atoms", _table(3)),
        Study("figure-convergence", "Figure (a): accuracy over rounds", _presets("feddyn", "feddyn-atoms")),
        Study("figure-variance", "Figure (b): variance of the aggregated model", {}, "variance"),
        Study(
            CLIENTS,
            "Figure (c): accuracy against clients in a round",
            _clients(*PAIR_9),
            earlier=_clients(*PAIR_25),
        ),
        Study("figure-communication", "Figure (d): parameters sent to reach an accuracy", _communication()),
        Study("figure-communication-local", f"Figure (d) by clients' own models, to {OWN_TARGET:g} %", _own_models()),
        Study("synthetic", "Two Gaussians, 5 and 25 models", {}, "synthetic"),
        Study("training-loss", "Training loss over rounds", {}, "training_loss"),
        Study("landscape", "Loss landscape of both trajectories", {}, "landscape"),
        Study("iid", "Clients with data alike", _partitioned(partition="iid")),
        Study("dirichlet", "Dirichlet clients", _partitioned(dirichlet=0.3) | _partitioned(dirichlet=0.6)),
    )
    return {each.name: each for each in found}


def study(name: str) -> Study:
    """Returns a study.

    >>> study("figure-communication").title
    'Figure (d): parameters sent to reach an accuracy'
    """
    return find(name, studies(), "study")


def distinct(runs: Runs) -> Runs:
    """Leaves out runs that compute the same as an earlier one.

    >>> distinct({"a": Experiment(), "b": Experiment(device="cpu")}).keys()
    dict_keys(['a'])
    """
    first: dict[str, str] = {}
    for name, experiment in runs.items():
        first.setdefault(identity(experiment), name)
    return {name: runs[name] for name in first.values()}


def _table(number: int) -> Runs:
    return {cell.typed: cell.experiment for cell in cells(number) if cell.experiment is not None}


def _presets(*stems: str, column: str = "cifar10-5") -> Runs:
    return {f"{stem}-{column}": PRESETS[f"{stem}-{column}"] for stem in stems}


def _clients(*stems: str) -> Runs:
    return {
        f"{name} --rounds 200 --fraction {sampled / 100:g}": replace(one, rounds=200, fraction=sampled / 100)
        for name, one in _presets(*stems).items()
        for sampled in SAMPLED
    }


def _communication() -> Runs:
    (plain, fedavg), (atoms, decomposed) = _presets(*PAIR_25, column="cifar100-20").items()
    return {
        plain: fedavg,
        f"{plain} --parametrisation fedpara": replace(fedavg, parametrisation="fedpara"),
        atoms: decomposed,
        **{f"{atoms} --beta {beta}": replace(decomposed, beta=beta) for beta in BETAS},
    }


def _own_models() -> Runs:
    """Figure (d) as we think the paper measured it: its personal regime, 9 atoms, each client's last trained model."""
    stem, flags = "fedavg-finetune-personal-cifar100-20", "--personal none --model lenet --score local --eval-every 5"
    plain = replace(PRESETS[stem], personal="none", model="lenet", score="local", eval_every=5)
    atoms, typed = replace(plain, parametrisation="atoms"), f"{stem} {flags}"
    return {
        typed: plain,
        f"{typed} --parametrisation fedpara": replace(plain, parametrisation="fedpara"),
        f"{typed} --parametrisation atoms": atoms,
        **{f"{typed} --parametrisation atoms --beta {beta}": replace(atoms, beta=beta) for beta in BETAS},
    }


def _partitioned(*, partition: str = "dirichlet", dirichlet: float = 0.3) -> Runs:
    flags = f"--partition {partition}" + (f" --dirichlet {dirichlet:g}" if partition == "dirichlet" else "")
    return {
        f"{name} {flags}": replace(one, partition=partition, dirichlet=dirichlet)
        for column in ("cifar10-5", "cifar100-20")
        for name, one in _presets(*PAIR_25, column=column).items()
    }
