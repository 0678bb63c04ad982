"""A real federation on Flower: translation only, the algorithms are those of the simulator."""

from fedatoms.flower.client import client_app
from fedatoms.flower.server import server_app
from fedatoms.flower.task import Own, Task, built_in

__all__ = ["Own", "Task", "built_in", "client_app", "server_app"]
