"""The plain run of the same experiment: what the decomposed one is held against."""

from pathlib import Path

from fedatoms.engine.evaluate import score, scored_model
from fedatoms.engine.round import advance
from fedatoms.evidence.explain.replay import Opened, Tick
from fedatoms.experiment.fields import ATOM_FIELDS, EXECUTION_FIELDS, LENGTH_FIELDS, Experiment
from fedatoms.experiment.files import to_json
from fedatoms.experiment.parse import fixed_groups
from fedatoms.nn.atoms import is_decomposed

# the decomposition, and how a network is run or scored
BESIDE = {*ATOM_FIELDS, *EXECUTION_FIELDS, *LENGTH_FIELDS, "score", "last_epochs"}


def differences(one: Experiment, other: Experiment) -> list[str]:
    """Names what sets two experiments apart beside the decomposition.

    >>> differences(Experiment(lr=0.1), Experiment(lr=0.2, parametrisation="atoms", rounds=9))
    ['lr']
    >>> differences(Experiment(), Experiment(parametrisation="atoms", fixed="atoms"))
    []
    """
    left, right = ({**to_json(each), "fixed": _fixed_beside(each)} for each in (one, other))
    return [name for name in left if left[name] != right[name] and name not in BESIDE]


def check_twin(folder: Path, plain: Opened, decomposed: Opened) -> None:
    """Refuses a run that is not the plain twin of another one at the same round."""
    if is_decomposed(plain.sim.model):
        raise ValueError(f"--plain {folder} is decomposed too. Give a run with --parametrisation plain.")
    if differ := differences(plain.experiment, decomposed.experiment):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in differ)
        raise ValueError(
            f"--plain {folder} differs in {flags} as well, so the gain would have several causes. Give a run that "
            f"differs in --parametrisation only."
        )
    if plain.state.round != decomposed.state.round:
        raise ValueError(
            f"--plain {folder} stands at round {plain.state.round}, the other run at {decomposed.state.round}. "
            f"Continue the shorter one with `fedatoms run --resume FOLDER --rounds N`."
        )


def plain_accuracies(plain: Opened, rounds: int, tick: Tick = lambda done, of: None) -> list[float]:
    """Goes on with a plain run and returns the accuracy of the mean of its clients' models after each round."""
    state, found = plain.state, []
    for done in range(rounds):
        tick(done, rounds)
        state, _ = advance(plain.sim, state)
        found.append(score(plain.sim, scored_model(state, "selected", len(plain.sim.data.parts))).accuracy)
    return found


def _fixed_beside(experiment: Experiment) -> list[str]:
    """Lists the fixed groups that a plain network has too."""
    return sorted(set(fixed_groups(experiment)) - {"atoms", "coefficients"})
