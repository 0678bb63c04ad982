"""What a line of a run's progress says of its rounds."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedatoms.engine.loop import Progress

WIDE = 120  # columns of a terminal that has room for all that is known of a round


def summary_in(width: int) -> Callable[["Progress"], str]:
    """Returns a function that sums a round up: its loss or privacy, the last score, and clients per second so far.

    A score of an earlier round is said to be one; a narrow terminal has the loss and the score alone.
    """
    trained, seconds, scored, when = 0, 0.0, "score -", 0

    def summary(progress: "Progress") -> str:
        nonlocal trained, seconds, scored, when
        trained, seconds = trained + progress.record.clients, seconds + progress.record.seconds
        if progress.scores:
            name, score = list(progress.scores.items())[-1]
            which = "" if score.scale.is_accuracy else f"{score.scale.name} "
            scored, when = f"{name} {which}{score.scale.write(score.value)}", progress.state.round
        privacy = progress.record.extra.get("privacy")
        first = f"epsilon {privacy['epsilon']:.4g}" if privacy else f"loss {progress.record.loss:.3f}"
        if width < WIDE:
            return f"{first}  {scored}"
        ago = "" if when in (0, progress.state.round) else f" (round {when})"
        return f"{first}  {scored}{ago}  {trained / seconds:.1f} clients/s"

    return summary
