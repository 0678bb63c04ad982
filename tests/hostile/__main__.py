"""The campaign's command: ``python -m hostile [KIND ...] [--only NAME]``; status 1 if any case fails."""

import argparse
import importlib
import multiprocessing
import os
import pkgutil
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent.parent
os.environ["OMP_NUM_THREADS"] = "1"  # small tensors; and a process with one thread can be forked
os.environ["COLUMNS"] = "200"
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])

from hostile.shell import Shell  # noqa: E402
from hostile.table import Found, failures, show, to_page, write  # noqa: E402
from hostile.verdicts import GOOD, Case, Verdict  # noqa: E402

KINDS = ("kills", "writers", "damage", "flags", "files", "misuse", "disks")
SAMPLE = {"kills": 10, "writers": 4, "damage": 60, "flags": 60, "files": 30, "misuse": 40, "disks": 3}
RESULTS = Path(__file__).with_name("results.json")
SLOW_TO_FORK = ("flower", "jax_twin", "ray", "triton")  # their libraries start threads


class Job(NamedTuple):
    """A case to run."""

    kind: str
    case: Case
    real: bool


def main(words: Sequence[str] | None = None) -> int:
    """Runs the campaign, or a part of it."""
    asked = _parse(words)
    began, store = time.monotonic(), Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        _preload()
        jobs = [job for kind in asked.kinds or KINDS for job in _jobs(kind, asked, store)]
        found = list(_run(jobs, asked, store))
    finally:
        shutil.rmtree(store, ignore_errors=True)
    if asked.only:
        print("\n".join(one.log for one in found))
    minutes = (time.monotonic() - began) / 60
    show(found, 60 * minutes)
    if asked.results:
        write(Path(asked.results), found, _about(asked), all_parts())
        if asked.page:
            to_page(Path(asked.results), Path(asked.page), all_parts())
    return 1 if failures(found) or not found else 0


def all_parts() -> dict[str, list[str]]:
    """Names what the cases of each kind are made of: commands, readers, kinds of files or configurations."""
    return {kind: importlib.import_module(f"hostile.{kind}").parts() for kind in KINDS}


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hostile", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all without a word")
    parser.add_argument("--only", default="", help="the case of this name, with all that its commands say")
    parser.add_argument("--like", default="", help="the cases whose names contain this")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    parser.add_argument("--number", type=int, default=0, help="cases of each kind; 0: as many as the campaign has")
    parser.add_argument("--sample", action="store_true", help="a few cases of each kind, in three minutes")
    parser.add_argument("--workers", type=int, default=2, help="cases at once")
    parser.add_argument("--results", default="", help=f"file for the table, for example {RESULTS.name}")
    parser.add_argument("--page", default="", help="page that shows the table of --results, docs/reliability.md")
    asked = parser.parse_args(words)
    if unknown := set(asked.kinds) - set(KINDS):
        parser.error(f"unknown kind {min(unknown)}. Use {', '.join(KINDS)}.")
    return asked


def _preload() -> None:
    """Imports all of the package, so that forked children begin at once; one thread, as others would not be forked."""
    import torch

    import fedatoms

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(fedatoms.__path__, "fedatoms."):
        if not any(part in module.name for part in SLOW_TO_FORK) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("hostile.names", "sklearn.datasets", "PIL.Image", "matplotlib.pyplot", "tyro", "rich.progress"):
        importlib.import_module(name)


def _jobs(kind: str, asked: argparse.Namespace, store: Path) -> Iterator[Job]:
    """Makes the cases of a kind, the same ones for the same seed; some of them as commands of a fresh interpreter."""
    module: ModuleType = importlib.import_module(f"hostile.{kind}")
    number = asked.number or (SAMPLE[kind] if asked.sample else module.NUMBER)
    made = list(module.cases(random.Random(f"{kind} {asked.seed}"), number, store / kind))
    share = min(module.REAL / module.NUMBER, 0.1 if asked.sample else 1)
    for place, case in enumerate(made):
        if (not asked.only or case.name == asked.only) and asked.like in case.name:
            yield Job(kind, case, int(share * place) != int(share * (place + 1)))  # evenly among them


def _run(jobs: Sequence[Job], asked: argparse.Namespace, store: Path) -> Iterator[Found]:
    """Runs cases in some processes, which fork the children; says what fails when it does."""
    global _JOBS, _STORE
    _JOBS, _STORE = jobs, store
    with multiprocessing.get_context("fork").Pool(asked.workers) as pool:
        for number, one in enumerate(pool.imap_unordered(_found, range(len(jobs))), 1):
            if one.word not in GOOD:
                print(f"{number}/{len(jobs)} {one.word}: {one.kind} {one.name}: {one.why[:200]}", flush=True)
            elif number % 100 == 0:
                print(f"{number}/{len(jobs)}", flush=True)
            yield one


def _found(number: int) -> Found:
    job, shell, began = _JOBS[number], Shell(_JOBS[number].real), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=_STORE))
    try:
        word, why = job.case.judge(folder, shell)
    except Exception as error:  # the campaign's own mistake: it fails, too
        word, why = Verdict("traceback", f"in the campaign: {error!r}")
        shell.log.append(traceback.format_exc())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Found(job.kind, job.case.name, job.real, word, why, time.monotonic() - began, "\n".join(shell.log))


def _about(asked: argparse.Namespace) -> dict[str, object]:
    from fedatoms.runs.provenance import provenance_of

    source = provenance_of("cpu")
    where = {"version": source["fedatoms"], "commit": source["commit"], "cores": asked.workers}
    return {**where, "seed": asked.seed, "date": datetime.now(UTC).date().isoformat()}


_JOBS: Sequence[Job] = ()  # what the processes find when they are forked
_STORE = Path()

if __name__ == "__main__":
    sys.exit(main())
