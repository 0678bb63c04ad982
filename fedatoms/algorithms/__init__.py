"""Federated algorithms, one file per paper. A new one is its file, a line in ``ALGORITHMS`` and a card in the docs."""

import inspect
from collections.abc import Callable

from fedatoms.algorithms.base import Algorithm, Server, Work
from fedatoms.algorithms.fedavg import fedavg
from fedatoms.algorithms.feddc import feddc
from fedatoms.algorithms.feddyn import feddyn
from fedatoms.algorithms.fedopt import fedadam, fedavgm
from fedatoms.algorithms.fedprox import fedprox
from fedatoms.algorithms.scaffold import scaffold
from fedatoms.core.lookup import find

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {  # the first argument, if any, is what --strength sets
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "feddc": feddc,
    "fedavgm": fedavgm,
    "fedadam": fedadam,
}


def algorithm(name: str, strength: float | None = None) -> Algorithm:
    """Builds an algorithm by name; ``strength`` replaces its authors' default (mu, a, server rate or momentum).

    >>> algorithm("feddyn").decay, algorithm("feddyn", 0.1).decay
    (0.01, 0.1)
    """
    factory = find(name, ALGORITHMS, "algorithm")
    if strength is None:
        return factory()
    if not inspect.signature(factory).parameters:
        raise ValueError(f"strength={strength}, but {name} has none. Leave it out, or use another algorithm.")
    return factory(strength)


__all__ = ["ALGORITHMS", "Algorithm", "Server", "Work", "algorithm"]
