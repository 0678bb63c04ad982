"""Runs that the campaign kills, damages and reads: small ones on the digits, each made once; and their results."""

import hashlib
import json
import shutil
import time
from functools import cache
from pathlib import Path

import numpy as np

from hostile import bad_weights, sandbox
from hostile.shell import SECONDS, Shell

SMALL = "--clients 5 --batch-size 50 --fraction 0.4 --epochs 1 --last-epochs 1 --threads 1 --device cpu".split()
ROUNDS = 5
LENGTH = f"--rounds {ROUNDS} --checkpoint-every 2".split()
REACHED = "reached"  # the file that says so
ATOMS = "--parametrisation atoms --atoms 4".split()
CONFIGURATIONS = {
    "fedavg": [],
    "scaffold": [*ATOMS, *"--algorithm scaffold --beta 1/2".split()],
    "personal": [*ATOMS, *"--personal local-atoms".split()],
    "adamw": "--optimiser adamw --lr 0.01 --schedule cosine --step-schedule cosine --accumulate 2".split(),
    "weights": [*ATOMS, *"--weights w.pth --warmup 1 --warmup-steps 2".split()],
    "disk": [*ATOMS, *"--algorithm feddc --client-state disk --score server,all".split()],
}


def words(configuration: str, *more: str) -> list[str]:
    """Returns the words that run a configuration, in runs/a if ``more`` does not say otherwise."""
    return ["run", *SMALL, *LENGTH, *CONFIGURATIONS[configuration], "--out", "runs", *(more or ("--name", "a"))]


def begin(folder: Path) -> None:
    """Puts into a folder what the words of a configuration name: the weights that a run begins with."""
    folder.mkdir(parents=True, exist_ok=True)
    bad_weights.write_torch(folder)


@cache
def finished(store: Path, configuration: str, *more: str) -> Path:
    """Makes a folder in which runs/ holds one finished run."""
    folder = store / "-".join(["finished", configuration, *(word.strip("-") for word in more)])
    begin(folder)
    ran = Shell(fresh=False).run(words(configuration, *more), folder)
    if ran.status:
        raise RuntimeError(f"the undisturbed run of {configuration} fails: {ran.err}")
    return folder


@cache
def stopped(store: Path, configuration: str) -> Path:
    """Makes a folder in which runs/a was killed in its last round, and has half a file that was never finished."""
    folder = store / f"stopped-{configuration}"
    begin(folder)
    child = sandbox.start(lambda: _until_its_last_round(words(configuration)), folder)
    while sandbox.alive(child) and not (folder / REACHED).exists():
        time.sleep(0.01)
    ran = sandbox.finish(child, 0)
    if not ran.late:
        raise RuntimeError(f"the run of {configuration} was to be stopped, but ended: {ran.err}")
    (folder / REACHED).unlink()
    whole = folder / "runs" / "a" / "checkpoint" / "000004.safetensors"
    whole.with_name(f"{whole.name}.0123abcd.partial").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    return folder


@cache
def seconds(store: Path, configuration: str, fresh: bool) -> float:
    """Measures how long an undisturbed run takes."""
    folder = store / f"timed-{configuration}-{fresh}"
    begin(folder)
    return Shell(fresh).run(words(configuration), folder, 3 * SECONDS).seconds


def copied(source: Path, folder: Path) -> Path:
    """Copies a subject into the folder of a case, and returns the folder of its run."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    return the_run(folder)


def the_run(folder: Path) -> Path:
    """Returns the only run in a folder."""
    (run,) = (folder / "runs").iterdir()
    return run


def outcome(run: Path) -> dict[str, str]:
    """Returns what a run has computed: checksums of all its models, and its rounds without their times."""
    models = sorted([*run.glob("model.safetensors"), *run.glob("personal/*")])
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in models}
    return {**found, "rounds": "\n".join(map(_without_time, _lines(run / "rounds.jsonl")))}


def write_images(path: Path) -> None:
    """Writes an npz file of a newcomer to the digits."""
    draws = np.random.default_rng(0)
    np.savez(path, x=draws.integers(0, 17, (20, 8, 8), dtype=np.uint8), y=np.arange(20) % 10)


def _until_its_last_round(typed: list[str]) -> int:
    """Runs a command that says when it reaches its last round, and stays there."""
    from fedatoms.cli import main
    from fedatoms.engine import loop
    from fedatoms.engine.runtime import Runtime
    from fedatoms.engine.state import Record, State

    advance = loop.advance

    def stay(runtime: Runtime, state: State) -> tuple[State, Record]:
        if state.round == ROUNDS - 1:
            Path(REACHED).touch()
            time.sleep(SECONDS)
        return advance(runtime, state)

    loop.advance = stay
    return main(typed)


def _without_time(line: str) -> str:
    row = json.loads(line)
    return json.dumps({name: value for name, value in row.items() if name in ("round", "loss", "up", "down", "scores")})


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
