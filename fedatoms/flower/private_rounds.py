"""Private rounds on nodes: whom they ask is drawn and told to nobody, and an answer that does not come counts as zero.

Clip, noise and cost are the simulator's. What a node contributes may depend on that node alone: nothing here compares
answers, counts them, or stops because of them.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from fedatoms.core import trees
from fedatoms.core.options import Scored
from fedatoms.engine.evaluation import Score
from fedatoms.engine.loop import Progress
from fedatoms.engine.private_round import PRIVACY, added, clip_of, settled
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.server import NOTHING_YET
from fedatoms.engine.state import Record
from fedatoms.flower.judging import POLICIES
from fedatoms.flower.server_state import ServerState, with_answers
from fedatoms.flower.task import Settings
from fedatoms.flower.wire import Answer

log = logging.getLogger("flwr")
ANSWERS = "answers.log"  # in a run's folder of its nodes: whom a private run asked, and what was wrong with answers


def check_private(settings: Settings) -> None:
    """Refuses settings that would tell how many nodes a private round has asked."""
    if POLICIES[settings.far_unjudged]:
        raise ValueError(
            'far-unjudged="refuse" with differential privacy: a run that stops would tell how many answered, and '
            "updates are clipped in any case. Leave it out."
        )


def take_in_privately(
    runtime: Runtime, known: ServerState, answers: Mapping[int, Answer]
) -> tuple[ServerState, Record]:
    """Clips, sums and noises accepted answers in the order of the clients, and ends the round."""
    state, total = known.state, NOTHING_YET
    for client in sorted(answers):
        block = trees.lead(answers[client].upload["params"])
        total = added(total, block, state.server.params, clip_of(runtime.sim, state))
    new, record = settled(runtime, state, total)
    new = new._replace(held=state.held.updated(dict.fromkeys(answers, state.versions)))
    return with_answers(known, new, answers), record


def log_cost(progress: Progress) -> None:
    """Logs what a private run has spent by now, and how its model does."""
    cost = progress.record.extra[PRIVACY]
    words = (progress.state.round, cost["epsilon"], cost["delta"], written(progress.scores))
    log.info("round %d: epsilon %.3f at delta %g, %s", *words)


def written(scores: Mapping[Scored, Score]) -> str:
    """Writes scores for a log.

    >>> written({})
    'not scored'
    """
    return ", ".join(f"{name} {score.scale.write(score.value)}" for name, score in scores.items()) or "not scored"


def about_nodes(folder: Path, *, private: bool) -> logging.Logger:
    """Returns where lines about single nodes of a round go: into the log, or a file where they would tell a secret."""
    if not private:
        return log
    folder.mkdir(parents=True, exist_ok=True)
    logger = logging.Logger("fedatoms")  # of this run alone: its parent would print its lines
    logger.addHandler(_Appending(folder / ANSWERS))
    log.info("whom each round asks is a secret: lines about single answers go to %s", folder / ANSWERS)
    return logger


class _Appending(logging.Handler):
    """Adds each line to a file, which is closed in between."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{self.format(record)}\n")
