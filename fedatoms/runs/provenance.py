"""The provenance of a result: time, hardware, versions and commit."""

import datetime
import os
import platform
import subprocess
from pathlib import Path

import numpy
import torch

from fedatoms.core.version import __version__


def provenance_of(device: str, processes: int = 1, abreast: int = 1) -> dict[str, object]:
    """Describes this machine and this code, how many processes share the work, and how many runs share their time.

    >>> provenance_of("cpu")["fedatoms"] == __version__
    True
    """
    return {
        "fedatoms": __version__,
        "commit": _commit(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": processes,
        "abreast": abreast,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cuda": torch.version.cuda,
        "system": platform.platform(),
    }


def _commit() -> str | None:
    """Returns the commit of the code: FEDATOMS_COMMIT, or that of its checkout (with + if files have changed)."""
    if given := os.environ.get("FEDATOMS_COMMIT"):
        return given
    folder = Path(__file__).parent
    try:
        ask = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
        tracked = subprocess.run(
            ["git", "-C", str(folder), "ls-files", "--error-unmatch", __file__], capture_output=True, timeout=10
        )
        found = subprocess.run(ask, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None if tracked.returncode == 0 else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
