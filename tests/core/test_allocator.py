"""Memory that is freed and asked for again: pages that the system must provide are counted, not seconds."""

import os
import subprocess
import sys

import pytest

from fedatoms.core.allocator import THEIRS

STEPS = """
import resource, sys
from fedatoms.core.allocator import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else False
sizes = [200_000 * each for each in range(1, 20)]
def step():
    tensors = [bytearray(size) for size in sizes]  # as a step's activations: all alive, then all free
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
before = faults()
for _ in range(20):
    step()
print(kept, faults() - before)
"""


def faults_of(how: str, **more: str) -> tuple[str, int]:
    env = {name: value for name, value in os.environ.items() if name not in THEIRS}
    words = [sys.executable, "-c", STEPS, how]
    kept, count = subprocess.run(words, env={**env, **more}, check=True, capture_output=True, text=True).stdout.split()
    return kept, int(count)


def test_pages_of_freed_tensors_are_not_asked_for_again() -> None:
    kept, faults = faults_of("keep")
    if kept == "False":
        pytest.skip("not glibc")
    assert faults < faults_of("usual")[1] / 10


@pytest.mark.parametrize("name", THEIRS)
def test_who_has_settings_of_their_own_keeps_them(name: str) -> None:
    value = "glibc.malloc.trim_threshold=1000000" if name == "GLIBC_TUNABLES" else "1000000"
    assert faults_of("keep", **{name: value})[0] == "False"
