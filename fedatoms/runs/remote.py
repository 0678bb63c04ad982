"""Runs whose clients train on machines of their own: only those hold the clients' states and can go on."""

from pathlib import Path

NODES = "nodes"  # in a run's folder, what the server knows of these machines
RESUME = "`flwr run` and resume=true in its run config"
LOAD = "fedatoms.flower.trained(task, folder)"
LOAD_PERSONAL = "fedatoms.flower.trained(task, folder, own=file)"


def is_remote(folder: Path) -> bool:
    """Returns whether the clients of a run train elsewhere.

    >>> is_remote(Path("runs/mine"))
    False
    """
    return (folder / NODES).is_dir()
