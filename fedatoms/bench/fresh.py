"""Measurements in a separate process: `python -m fedatoms.bench.fresh NAME JSON` prints one line of JSON."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

from fedatoms.bench.settings import Bench

LONGEST = 300  # seconds


def ask(module: str, *words: str, env: Mapping[str, str] | None = None) -> dict[str, object]:
    """Runs a module and reads the last line that it prints; a failure carries its last error message."""
    command = [sys.executable, "-m", module, *words]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=LONGEST, env={**os.environ, **(env or {})}, check=False
    )
    if ran.returncode:
        lines = ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"]
        raise RuntimeError(([line for line in lines if re.match(r"[\w.]+(Error|Exception):", line)] or lines)[-1])
    answer: dict[str, object] = json.loads(ran.stdout.strip().splitlines()[-1])
    return answer


def cold_start(settings: Bench) -> float:
    """Returns the seconds from starting Python to the end of the first round, with empty compiler caches."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        began = time.time()
        ended = ask("fedatoms.bench.fresh", "first", json.dumps(vars(settings)), env=env)["ended"]
    assert isinstance(ended, float)
    return ended - began


def deterministic_rounds(settings: Bench) -> list[float]:
    """Returns the seconds of rounds with deterministic kernels, a setting that applies to a whole process."""
    seconds = ask("fedatoms.bench.fresh", "deterministic", json.dumps(vars(settings)))["seconds"]
    assert isinstance(seconds, list)
    return seconds


def main(name: str, settings: Bench) -> dict[str, object]:
    """Measures one of the two in this process."""
    from fedatoms.bench.line_up import Cell, cell_clients, ours
    from fedatoms.bench.machine_limits import timed
    from fedatoms.bench.results import numbers
    from fedatoms.experiment.build import configure
    from fedatoms.experiment.fields import Experiment

    fixed = name == "deterministic"
    configure(Experiment("cifar10", precision=settings.precision, threads=settings.threads, deterministic=fixed))
    work = ours(cell_clients(settings, Cell(settings.against, max(numbers(settings.batch, "--batch")))))
    work()
    ended = time.time()
    return {"ended": ended, "seconds": [timed(settings.device, work) for _ in range(settings.repeats)] if fixed else []}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Bench(**json.loads(sys.argv[2])))))
