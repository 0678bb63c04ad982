"""Measurements in separate processes: `python -m fedatoms.bench.fresh NAME JSON` prints one line of JSON."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from fedatoms.bench.settings import Bench

LONGEST = 300.0  # seconds


class Ended(NamedTuple):
    """What a process has left."""

    status: int
    output: str
    errors: str


def ask(module: str, *words: str, env: Mapping[str, str] | None = None) -> dict[str, object]:
    """Runs a module and reads the last line that it prints; a failure carries its last error message."""
    return ask_together(module, *words, envs=[env or {}])[0]


def ask_together(
    module: str, *words: str, envs: Sequence[Mapping[str, str]], longest: float = LONGEST
) -> list[dict[str, object]]:
    """Runs a module once for each environment, at the same time; the failure of one ends the others."""
    command = [sys.executable, "-m", module, *words]
    started: list[subprocess.Popen[str]] = []
    pipe = subprocess.PIPE
    with ThreadPoolExecutor(len(envs)) as threads:
        try:
            for env in envs:
                env = {**os.environ, **env}
                started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env))
            ended = list(threads.map(lambda process: _wait(process, started, longest), started))
        except BaseException:  # an interruption too: nobody else would end them
            for each in started:
                each.kill()
            raise
    failed = sorted((each for each in ended if each.status), key=lambda each: each.status < 0)  # those killed last
    if failed:
        raise RuntimeError(_reason(failed[0], longest))
    return [json.loads(each.output.strip().splitlines()[-1]) for each in ended]


def _wait(process: "subprocess.Popen[str]", together: "Sequence[subprocess.Popen[str]]", longest: float) -> Ended:
    """Waits for a process; if it fails or takes too long, all of them are killed."""
    try:
        output, errors = process.communicate(timeout=longest)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()  # closes its pipes
        output, errors = "", ""
    if process.returncode:
        for each in together:
            each.kill()
    return Ended(process.returncode, output, errors)


def _reason(ended: Ended, longest: float) -> str:
    lines = ended.errors.strip().splitlines()
    if not lines:
        return f"exit status {ended.status}" if ended.status > 0 else f"ended by a signal, or after {longest:g} seconds"
    return ([line for line in lines if re.match(r"[\w.]+(Error|Exception):", line)] or lines)[-1]


def cold_start(settings: Bench) -> float:
    """Returns the seconds from starting Python to the end of the first round, with empty compiler caches.

    Byte code is cached, as it is on any machine that has run it before and may write it: an untimed process, with
    compiler caches of its own, fills a folder for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        _first_round(settings, folder, "before")
        began = time.time()
        return _first_round(settings, folder, "timed") - began


def _first_round(settings: Bench, folder: str, caches: str) -> float:
    """Runs a first round in a fresh process and returns the time of day when it ended."""
    env = {
        "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
        "PYTHONDONTWRITEBYTECODE": "",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/{caches}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/{caches}/triton",
    }
    ended = ask("fedatoms.bench.fresh", "first", json.dumps(vars(settings)), env=env)["ended"]
    assert isinstance(ended, float)
    return ended


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
