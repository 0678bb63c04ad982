"""How every test runs: warnings are errors (pyproject.toml), draws repeat, one thread, and kernels interpreted."""

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("support")
settings.register_profile("fedatoms", deadline=None, derandomize=True)
settings.load_profile("fedatoms")
# Small tensors: a second thread only waits. torch reads it when a test first imports it, as the processes of tests do.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["COLUMNS"] = "200"
os.environ["TRITON_INTERPRET"] = "1"  # runs the GPU's kernels on a CPU; read when triton is first imported


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Lets the collector pass over the modules and tests that stay anyway: a pass of all of it takes a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()
