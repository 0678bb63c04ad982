"""Torch's deterministic kernels, a setting of the whole process, which the next run without them finds as it was."""

import os

import torch

_before: list[int] = []  # the process's own mode, while a run has changed it


def use_deterministic_kernels(wanted: bool) -> None:
    """Takes only deterministic kernels if ``wanted``, else those that the process had before they were first wanted.

    They stay until a run that does not want them: that one is as fast as it would be alone, and a program that has
    switched them on itself keeps them.
    """
    if wanted:
        if not _before:
            _before.append(torch.get_deterministic_debug_mode())
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    elif _before:
        mode = _before.pop()  # 0: off, 1: warnings only
        torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)
