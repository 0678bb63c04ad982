"""A real federation on Flower: an adapter around the engine, which has the algorithms.

Names are imported when they are first used: commands that only write files or start processes need no torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedatoms.flower.client import client_app
    from fedatoms.flower.server import server_app
    from fedatoms.flower.strategy import FedAtoms
    from fedatoms.flower.task import Own, Task, built_in, trained

_HOME = {"client_app": "client", "FedAtoms": "strategy", "server_app": "server"}
__all__ = ["FedAtoms", "Own", "Task", "built_in", "client_app", "server_app", "trained"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedatoms.flower.{_HOME.get(name, 'task')}"), name)
