"""Says when the check for far answers cannot judge, and what then happens: a policy, never silence."""

from collections.abc import Mapping

from fedatoms.core.lookup import counted
from fedatoms.flower.checks import FEWEST

POLICIES: Mapping[str, bool] = {"accept": False, "refuse": True}  # whether what cannot be judged is refused


def unjudged(answers: int, far: float) -> str:
    """Says that a round's answers are too few to find one that is far from the others; empty if they are not.

    With ``far`` = 0 nothing is to be judged.

    >>> unjudged(2, 10.0)
    '2 answers, and it takes 3 to tell whether one is far away'
    >>> unjudged(2, 0.0), unjudged(3, 10.0)
    ('', '')
    """
    if not far or not 0 < answers < FEWEST:
        return ""
    return f"{counted(answers, 'answer')}, and it takes {FEWEST} to tell whether one is far away"
