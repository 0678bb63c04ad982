"""Torch's deterministic kernels, a setting of the whole process: a run that asks for them leaves it as it found it."""

import os

import torch

_before: list[int] = []  # the process's own mode, while a run has changed it


def use_deterministic_kernels(wanted: bool) -> None:
    """Takes only deterministic kernels if ``wanted``, else what the process had before it was first wanted.

    So the next run of a process is as fast as it would be alone, and who has switched them on keeps them.
    """
    if wanted:
        if not _before:
            _before.append(torch.get_deterministic_debug_mode())
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    elif _before:
        mode = _before.pop()  # 0: off, 1: warnings only
        torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)
