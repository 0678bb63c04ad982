"""Local optimisers, one file per rule, and schedules of their learning rate; imports core.

A new one is its file and its line in ``OPTIMISERS`` (and its import, for type checkers): no other file names it.
``fedatoms.optimisers.adamw()`` makes one; the table itself needs no torch.
"""

from typing import TYPE_CHECKING

from fedatoms.core.lazy import lazily
from fedatoms.core.methods import Method, Table

if TYPE_CHECKING:
    from fedatoms.optimisers._adamw import adamw as adamw
    from fedatoms.optimisers._sgd import sgd as sgd
    from fedatoms.optimisers.base import Optimiser as Optimiser
    from fedatoms.optimisers.schedules import Schedule as Schedule
    from fedatoms.optimisers.schedules import constant as constant
    from fedatoms.optimisers.schedules import cosine as cosine

OPTIMISERS: dict[str, Method] = {
    "sgd": Method("SGD", "_sgd:sgd", strength="momentum"),
    "adamw": Method("AdamW", "_adamw:adamw"),
}
TABLE = Table("optimiser", __name__, OPTIMISERS, field="optimiser", strength="momentum")


def optimiser(name: str, momentum: float = 0.0) -> "Optimiser":
    """Builds an optimiser by its name in the table, or "module:factory" of your own.

    ``momentum``, if there is any, is that of SGD, or a factory's first argument.

    >>> optimiser("adamw").decouples
    True
    """
    from fedatoms.optimisers.base import Optimiser

    return TABLE.build(name, momentum or None, Optimiser)


_HOMES = {**TABLE.homes(), "Optimiser": "base", **dict.fromkeys(("Schedule", "constant", "cosine"), "schedules")}
__all__ = sorted(["OPTIMISERS", "optimiser", *_HOMES])
if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
