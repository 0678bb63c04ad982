"""Files of data and weights that are bombs, cut, encrypted, evil or no files: refused before they fill the memory."""

import random
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from hostile import subjects
from hostile.bad_data import BAD, prepare
from hostile.damages import BYTES
from hostile.evil import PWNED
from hostile.good_data import FILES, HONEST
from hostile.sandbox import Ran
from hostile.shell import Shell
from hostile.verdicts import SLACK, Case, Verdict, verdict

NUMBER, REAL = 320, 60
SETS = {"fashion": "fashion-mnist", "cifar10": "cifar10", "cifar100": "cifar100", "tiny": "tiny-imagenet"}
WEIGHTS = ("torch", "safetensors")
TRAIN = "--partition iid --rounds 1 --epochs 1 --clients 2 --batch-size 50 --threads 1 --device cpu".split()


def cases(draws: random.Random, number: int, store: Path) -> Iterator[Case]:
    """Makes cases: a kind of data, what is wrong with it, and what reads it; each once, then again with other draws."""
    source = subjects.finished(store, "scaffold")
    prepare()
    ways = [(kind, wrong, reader) for kind, wrongs in BAD.items() for wrong in wrongs for reader in _readers(kind)]
    draws.shuffle(ways)
    for place in range(number):
        kind, wrong, reader = ways[place % len(ways)]
        honest = _honest(store, source, kind, reader)
        name = f"{place} {kind} {wrong} {reader}"
        yield Case(name, partial(_judge, source, kind, wrong, reader, draws.randrange(1 << 30), honest))


def parts() -> list[str]:
    """Names what the cases are made of."""
    return sorted(f"{kind} {reader}" for kind in BAD for reader in _readers(kind))


def _readers(kind: str) -> tuple[str, ...]:
    if kind in WEIGHTS:
        return ("load_weights", "run", "inspect")
    return ("load", "run") if kind in SETS else ("personalize",)


@cache
def _honest(store: Path, source: Path, kind: str, reader: str) -> Ran:
    folder = store / f"honest-{kind}-{reader}"
    folder.mkdir(parents=True)
    subjects.copied(source, folder)
    HONEST[kind](folder)
    ran = _read(kind, reader, folder, Shell(fresh=False))
    if ran.status:
        raise RuntimeError(f"{reader} of honest {kind}: {ran.err}")
    return ran


def _judge(
    source: Path, kind: str, wrong: str, reader: str, seed: int, honest: Ran, folder: Path, shell: Shell
) -> Verdict:
    subjects.copied(source, folder)
    HONEST[kind](folder)
    BAD[kind][wrong](folder, random.Random(seed))
    ran = _read(kind, reader, folder, shell)
    found = verdict(ran, 3 * max(honest.memory, 0) + SLACK)
    if (folder / PWNED).exists():
        return Verdict("different", "its code ran")
    changed = reader == "load_weights" and found.word == "fine" and ran.out != honest.out
    if kind == "torch" and wrong in BYTES and changed:  # it has checksums
        return Verdict("unnoticed", f"{wrong} changed what was read")
    return found


def _read(kind: str, reader: str, folder: Path, shell: Shell) -> Ran:
    if kind in WEIGHTS:
        return _read_weights(FILES[kind], reader, folder, shell)
    if reader == "load":
        return shell.python(f"[tuple(part.shape) for part in data.load({SETS[kind]!r}, 'data')[:4]]", folder)
    if reader == "run":
        network = "lenet" if kind.startswith("cifar") else "resnet18-gn-small"
        return shell.run(["run", "--dataset", SETS[kind], "--model", network, *TRAIN, "--name", "b"], folder)
    images = "i.npz" if kind == "npz" else "images"
    typed = ["personalize", "runs/a", "--images", images, "--out", "n.safetensors", "--epochs", "1", "--holdout", "0"]
    return shell.run(typed, folder)


def _read_weights(file: str, reader: str, folder: Path, shell: Shell) -> Ran:
    if reader == "load_weights":
        return shell.python(f"fnn.load_weights(fnn.build('digits-cnn', classes=10, channels=1), {file!r})", folder)
    if reader == "inspect":
        return shell.run(["inspect", "digits-cnn", "--image", "1x8x8", "--weights", file], folder)
    return shell.run(["run", *subjects.SMALL, "--rounds", "1", "--weights", file, "--name", "b"], folder)
