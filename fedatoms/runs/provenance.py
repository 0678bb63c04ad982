"""The provenance of a result: time, hardware, versions and commit."""

import datetime
import os
import platform
from pathlib import Path

import numpy
import torch

from fedatoms.core.version import __version__
from fedatoms.runs.commit import known_commit


def provenance_of(device: str, processes: int = 1, abreast: int = 1) -> dict[str, object]:
    """Describes this machine and this code, how many processes share the work, and how many runs share their time.

    >>> provenance_of("cpu")["fedatoms"] == __version__
    True
    """
    return {
        "fedatoms": __version__,
        "commit": known_commit(),
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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
