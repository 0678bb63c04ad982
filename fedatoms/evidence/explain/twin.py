"""The plain run of the same experiment, with which the decomposed one is compared."""

from pathlib import Path

from fedatoms.engine.evaluation import score, scored_model
from fedatoms.engine.round import advance
from fedatoms.evidence.explain.replayed_round import Opened, Tick
from fedatoms.experiment.fields import ATOM_FIELDS, EXECUTION_FIELDS, LENGTH_FIELDS, Experiment
from fedatoms.experiment.files import to_json
from fedatoms.experiment.parse import fixed_groups
from fedatoms.nn.atoms import is_decomposed

# the decomposition, and how a network is run or scored
BESIDE = {*ATOM_FIELDS, *EXECUTION_FIELDS, *LENGTH_FIELDS, "score", "last_epochs"}


def differences(one: Experiment, other: Experiment) -> list[str]:
    """Returns the fields in which two experiments differ, apart from the decomposition.

    >>> differences(Experiment(lr=0.1), Experiment(lr=0.2, parametrisation="atoms", rounds=9))
    ['lr']
    >>> differences(Experiment(), Experiment(parametrisation="atoms", fixed="atoms"))
    []
    """
    left, right = ({**to_json(each), "fixed": _fixed_groups(each)} for each in (one, other))
    return [name for name in left if left[name] != right[name] and name not in BESIDE]


def check_twin(folder: Path, plain: Opened, decomposed: Opened) -> None:
    """Refuses a run that is not the plain twin of the decomposed one, after as many rounds."""
    if is_decomposed(plain.runtime.sim.model):
        raise ValueError(f"--plain {folder} is decomposed too. Give a run with --parametrisation plain.")
    if differ := differences(plain.experiment, decomposed.experiment):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in differ)
        raise ValueError(
            f"--plain {folder} differs in {flags} as well, so the gain would have several causes. Give a run that "
            f"differs in --parametrisation only."
        )
    if plain.state.round != decomposed.state.round:
        raise ValueError(
            f"--plain {folder} has run {plain.state.round} rounds, the other run {decomposed.state.round}. "
            f"Continue the shorter one with `fedatoms run --resume FOLDER --rounds N`."
        )


def plain_accuracies(plain: Opened, rounds: int, tick: Tick = lambda done, of: None) -> list[float]:
    """Continues a plain run; returns the accuracy of the mean of its clients' models after each round."""
    state, found = plain.state, []
    for done in range(rounds):
        tick(done, rounds)
        state, _ = advance(plain.runtime, state)
        found.append(score(plain.runtime, scored_model(state, "selected", len(plain.runtime.data.parts))).accuracy)
    return found


def _fixed_groups(experiment: Experiment) -> list[str]:
    """Returns the fixed groups that a plain network has as well."""
    return sorted(set(fixed_groups(experiment)) - {"atoms", "coefficients"})
