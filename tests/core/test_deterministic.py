"""Deterministic kernels are for the runs that ask for them: the next one without them finds the process as it was."""

from collections.abc import Iterator

import pytest
import torch

from fedatoms.experiment.build import configure
from fedatoms.experiment.fields import Experiment

MODES = ("default", "warn", "error")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    configure(Experiment())
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("mode", range(len(MODES)), ids=MODES)
def test_the_next_run_has_the_kernels_that_the_program_chose(mode: int) -> None:
    torch.set_deterministic_debug_mode(mode)
    for wanted in (False, True, True, False, True, False):
        configure(Experiment(deterministic=wanted))
        assert torch.get_deterministic_debug_mode() == (2 if wanted else mode)
