"""A real federation on Flower: an adapter around the engine, which has the algorithms.

Names are imported when they are first used: commands that only write files or start processes need no torch.
"""

from typing import TYPE_CHECKING

from fedatoms.core.lazy import lazily

if TYPE_CHECKING:
    from fedatoms.flower.client import client_app
    from fedatoms.flower.server import server_app
    from fedatoms.flower.strategy import FedAtoms
    from fedatoms.flower.task import Own, Task, built_in, trained

_HOMES = {"client_app": "client", "FedAtoms": "strategy", "server_app": "server"}
__all__ = ["FedAtoms", "Own", "Task", "built_in", "client_app", "server_app", "trained"]
if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, {**dict.fromkeys(__all__, "task"), **_HOMES})
