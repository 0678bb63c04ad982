"""The end of a run of a personalised method: clients' own models are trained once more, scored and written."""

from pathlib import Path

from fedatoms.core.files import write_file
from fedatoms.core.run_files import PERSONAL
from fedatoms.core.trees import restrict
from fedatoms.engine.evaluation import Score, personal_score
from fedatoms.engine.finetune import last_pass
from fedatoms.engine.peers import gather, owned
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.state import State
from fedatoms.experiment.fields import Experiment
from fedatoms.runs.results import score_curves
from fedatoms.runs.rounds import read_rounds


def finish_personal(experiment: Experiment, runtime: Runtime, state: State, folder: Path) -> dict[str, float]:
    """Gives every client a last local pass, writes its personal parameters, and returns how good their models are."""
    score = train_personal(experiment, runtime, state, folder)
    return {**score_before(folder, experiment.rounds), **score_after(score)}


def train_personal(experiment: Experiment, runtime: Runtime, state: State, folder: Path) -> Score:
    """Trains, scores and writes clients' own models; each process writes those of its own clients."""
    if experiment.last_epochs:  # else there is no pass, and what follows is the last round's
        runtime, state = last_pass(runtime, state, experiment.last_epochs)
    score = personal_score(runtime, state)
    for client in owned(runtime.peers, range(len(runtime.data.parts))):
        row = state.clients.read(client)
        own = state.server.params if row is None else row.own  # who never took part has the server's, as in its score
        write_file(personal_file(folder, client), restrict(own, runtime.layout.own))
    gather(runtime.peers, score.value)  # all files are there
    return score


def personal_file(folder: Path, client: int) -> Path:
    """Returns the file of a client's personal parameters.

    >>> personal_file(Path("runs/mine"), 7).as_posix()
    'runs/mine/personal/000007.safetensors'
    """
    return folder / PERSONAL / f"{client:06d}.safetensors"


def score_before(folder: Path, rounds: int) -> dict[str, float]:
    """Returns the scores of clients' own models before a last pass, in the last of so many rounds."""
    curve = score_curves(read_rounds(folder)).get("personal", [])
    recent = [score for t, score in curve if t >= rounds - 10]
    return {"last round": recent[-1], "mean of the last ten": sum(recent) / len(recent)} if recent else {}


def score_after(score: Score) -> dict[str, float]:
    """Returns the scores of clients' own models in the end."""
    assert score.worst is not None and score.spread is not None
    return {"after the last pass": score.value, "worst tenth": score.worst, "spread": score.spread}
