"""A federation on one machine, round after round; imports core, nn, data, algorithms and personal.

``round.advance`` is one round, ``round.select`` says which clients train in it, ``round.train_phases`` trains them,
``server.aggregate`` makes the next model, and ``loop.rounds`` goes from round to round.
"""

from typing import TYPE_CHECKING

from fedatoms.core.lazy import lazily

if TYPE_CHECKING:
    from fedatoms.engine.exchange import Exchange, every_round, fast_slow
    from fedatoms.engine.loop import Trained
    from fedatoms.engine.privacy import Privacy

__all__ = ["Exchange", "Privacy", "Trained", "every_round", "fast_slow"]
if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, {**dict.fromkeys(__all__, "exchange"), "Privacy": "privacy", "Trained": "loop"})
