"""A fixed sample of the campaign, in three minutes; ``make hostile`` runs all of it."""

import os
import subprocess
import sys

import pytest
from support import ROOT

from hostile.__main__ import KINDS


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_spoils_a_run(kind: str) -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    words = [sys.executable, "-m", "hostile", kind, "--sample", "--workers", "1"]
    ran = subprocess.run(words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
