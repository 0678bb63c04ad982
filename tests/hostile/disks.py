"""Disks that are full or read-only: one line, and the run goes on to the same result once there is space."""

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hostile import subjects
from hostile.kills import same
from hostile.shell import Shell
from hostile.subjects import CONFIGURATIONS
from hostile.verdicts import SLACK, Case, Verdict, verdict

NUMBER, REAL = 60, 20
MEMORY = 1000 + SLACK
RUN = "runs/a"
ON_FULL = {  # of a finished run, with no byte left
    "personalize": ["personalize", RUN, "--images", "i.npz", "--out", "n.safetensors"],
    "report": ["report", "runs"],
    "explain": ["explain", RUN, "--rounds", "1"],
    "export": ["export", RUN, "--to", "safetensors", "--out", "e.safetensors"],
    "resume": ["run", "--resume", RUN, "--rounds", "7"],
    "keys": ["flower", "keys", "keys"],
    "new": ["flower", "new", "app"],
    "bounds": ["explain", "--bounds"],
}
GROWN = [name for name in CONFIGURATIONS if name != "weights"]  # whose file a small disk cannot hold
READ_ONLY = {**ON_FULL, "run": subjects.words("personal", "--name", "b"), "compare": ["compare", *subjects.SMALL]}


def cases(draws: random.Random, number: int, store: Path) -> Iterator[Case]:
    """Makes cases, if this user may mount: runs on disks of any size up to what they need, then other commands."""
    if not _can_mount(store):
        return
    for configuration in GROWN:
        subjects.finished(store, configuration)
    others = [("full", name) for name in ON_FULL] + [("read-only", name) for name in READ_ONLY]
    for state, name in others[: number // 2]:
        yield Case(f"{state} {name}", partial(_other, subjects.finished(store, "personal"), state, name))
    for place in range(number - min(len(others), number // 2)):
        configuration = GROWN[place % len(GROWN)]
        size = round(draws.uniform(0.02, 1.1) * _size(subjects.finished(store, configuration)))
        name = f"{place} {configuration} on {size} bytes"
        yield Case(name, partial(_grown, subjects.finished(store, configuration), configuration, size))


def parts() -> list[str]:
    """Names what the cases are made of."""
    return sorted({*GROWN, *READ_ONLY})


def _grown(undisturbed: Path, configuration: str, size: int, folder: Path, shell: Shell) -> Verdict:
    """Runs on a disk that is too small, then gives it space and resumes."""
    with _disk(folder / "disk", size) as disk:
        found = verdict(shell.run(subjects.words(configuration), disk), MEMORY)
        if found.word != "refused":
            return found
        if not _says_space(found.why):
            return Verdict("raw", found.why)
        _mount("remount", f"size={64 << 20}", disk)
        begun = (disk / RUN / "experiment.json").exists()
        ran = shell.run(["run", "--resume", RUN] if begun else subjects.words(configuration), disk)
        after = same(ran, disk, undisturbed)
        return found if after.word == "fine" else after


def _other(source: Path, state: str, name: str, folder: Path, shell: Shell) -> Verdict:
    """Runs another command on a disk that is full, or read-only."""
    with _disk(folder / "disk", 64 << 20) as disk:
        subjects.copied(source, disk)
        subjects.write_images(disk / "i.npz")
        if state == "full":
            _fill(disk)
        else:
            _mount("remount", "ro", disk)
        found = verdict(shell.run(READ_ONLY[name], disk), MEMORY)
        if state == "full" and found.word == "refused" and not _says_space(found.why):
            return Verdict("raw", found.why)
        if "--resume" in found.why and name in ("personalize", "report", "explain", "export", "keys", "new"):
            return Verdict("raw", f"a remedy of another command: {found.why}")
        return found


def _says_space(message: str) -> bool:
    return "space" in message.lower()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


@contextmanager
def _disk(place: Path, size: int) -> Iterator[Path]:
    """Mounts a disk in memory; a size below a page would be none."""
    place.mkdir(parents=True)
    _mount(f"size={max(size, 1 << 16)}", place)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _mount(*options: str | Path) -> None:
    *how, place = options
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(map(str, how)), "tmpfs", str(place)], check=True)


def _can_mount(store: Path) -> bool:
    try:
        with _disk(store / "try", 1 << 20):
            return True
    except (OSError, subprocess.CalledProcessError):
        print(f"disks are left out: user {os.getuid()} may not mount any")
        return False
