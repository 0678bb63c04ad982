"""Federated algorithms, one file per paper; imports core.

A new one is its file, its line in ``ALGORITHMS`` (and its import, for type checkers), and its card in docs/methods: no
other file names it. ``fedatoms.algorithms.scaffold()`` makes one; the table itself needs no torch.
"""

from typing import TYPE_CHECKING

from fedatoms.core.lazy import lazily
from fedatoms.core.methods import Method, Table

if TYPE_CHECKING:
    from fedatoms.algorithms._fedavg import fedavg as fedavg
    from fedatoms.algorithms._feddc import feddc as feddc
    from fedatoms.algorithms._feddyn import feddyn as feddyn
    from fedatoms.algorithms._fedexp import fedexp as fedexp
    from fedatoms.algorithms._fednova import fednova as fednova
    from fedatoms.algorithms._fedopt import fedadam as fedadam
    from fedatoms.algorithms._fedopt import fedavgm as fedavgm
    from fedatoms.algorithms._fedprox import fedprox as fedprox
    from fedatoms.algorithms._moon import moon as moon
    from fedatoms.algorithms._scaffold import scaffold as scaffold
    from fedatoms.algorithms.base import Algorithm as Algorithm
    from fedatoms.algorithms.base import Seen as Seen
    from fedatoms.algorithms.base import Server as Server
    from fedatoms.algorithms.base import Work as Work

ALGORITHMS: dict[str, Method] = {
    "fedavg": Method("FedAvg", "_fedavg:fedavg", traits={"replaces", "baseline"}),
    "fedprox": Method("FedProx", "_fedprox:fedprox", strength="mu", traits={"replaces"}),
    "scaffold": Method("SCAFFOLD", "_scaffold:scaffold", strength="server_lr", traits={"controls"}),
    "feddyn": Method("FedDyn", "_feddyn:feddyn", strength="a"),
    "feddc": Method("FedDC", "_feddc:feddc", strength="a", traits={"controls"}),
    "fedavgm": Method("FedAvgM", "_fedopt:fedavgm", strength="momentum"),
    "fedadam": Method("FedAdam", "_fedopt:fedadam", strength="server_lr"),
    "fednova": Method("FedNova", "_fednova:fednova"),
    "fedexp": Method("FedExP", "_fedexp:fedexp", strength="epsilon"),
    "moon": Method("MOON", "_moon:moon", strength="mu", traits={"replaces"}),
}
TABLE = Table("algorithm", __name__, ALGORITHMS, field="algorithm", strength="strength")


def algorithm(name: str, strength: float | None = None) -> "Algorithm":
    """Builds an algorithm by its name in the table, or "module:factory" of your own.

    ``strength`` replaces the authors' default of the argument that the table names, or of a factory's first one.

    >>> algorithm("feddyn").decay, algorithm("feddyn", 0.1).decay
    (0.01, 0.1)
    """
    from fedatoms.algorithms.base import Algorithm, Strength

    made = TABLE.build(name, strength, Algorithm)
    found = TABLE.strength_of(name, strength)
    # one from outside may be made of ours, and changed: it has no strength that a step could be told
    return made._replace(strength=None if found is None else Strength(*found))


_HOMES = {**TABLE.homes(), **dict.fromkeys(("Algorithm", "Seen", "Server", "Work"), "base")}
__all__ = sorted(["ALGORITHMS", "algorithm", *_HOMES])
if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
