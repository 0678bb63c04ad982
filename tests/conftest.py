"""How every test runs: warnings are errors (pyproject.toml), draws repeat, one thread, and kernels interpreted."""

import gc
import os

import pytest
import torch
from hypothesis import settings

pytest.register_assert_rewrite("support")
settings.register_profile("fedatoms", deadline=None, derandomize=True)
settings.load_profile("fedatoms")
torch.set_num_threads(1)  # small tensors: a second thread only waits
os.environ["OMP_NUM_THREADS"] = "1"  # and so in the processes that tests start
os.environ["COLUMNS"] = "200"
os.environ["TRITON_INTERPRET"] = "1"  # runs the GPU's kernels on a CPU; read when triton is first imported


def pytest_collection_finish() -> None:
    """Lets the collector pass over the modules and tests that stay anyway: a pass of all of it takes a second."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()
