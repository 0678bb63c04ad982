"""Marks of tests that import Inductor, or compile with it on a CPU."""

import shutil
from collections.abc import Callable

import pytest

imports_inductor = pytest.mark.filterwarnings(
    "ignore:.*script_method.* is deprecated:DeprecationWarning"
)  # torch's own


def compiles(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that takes seconds, and a C++ compiler."""
    has_none = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ on a CPU")
    return pytest.mark.slow(has_none(imports_inductor(test)))
