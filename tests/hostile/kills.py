"""Runs that are killed with SIGKILL at any moment, resumed, maybe killed again: the result is that of no kill."""

import random
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from hostile import subjects
from hostile.sandbox import Ran
from hostile.shell import SECONDS, Shell
from hostile.subjects import CONFIGURATIONS, outcome
from hostile.verdicts import Case, Verdict

NUMBER, REAL = 240, 200
LONGER = 1.2  # as two cases run at once, and the time was measured alone
START = 0.5  # the share of a fresh command's time in which it only imports
TRIES = 5
RESUME = ["run", "--resume", "runs/a"]


def cases(draws: random.Random, number: int, store: Path) -> Iterator[Case]:
    """Makes cases: a configuration, and shares of the run's time after which it is killed, once to three times."""
    for configuration in CONFIGURATIONS:
        subjects.finished(store, configuration)
        for fresh in (True, False):
            subjects.seconds(store, configuration, fresh)
    for place in range(number):
        configuration = list(CONFIGURATIONS)[place % len(CONFIGURATIONS)]
        moments = [round(draws.random(), 3) for _ in range(draws.choice([1, 1, 2, 3]))]
        name = f"{configuration} {' '.join(map(str, moments))}"
        yield Case(name, partial(_judge, store, configuration, moments))


def parts() -> list[str]:
    """Names what the cases are made of."""
    return sorted(CONFIGURATIONS)


def _judge(store: Path, configuration: str, moments: list[float], folder: Path, shell: Shell) -> Verdict:
    subjects.begin(folder)
    whole = LONGER * subjects.seconds(store, configuration, shell.fresh)
    first, *others = [(START if shell.fresh else 0.0) * (1 - moment) + moment for moment in moments]
    ran = _killed_first(configuration, folder, shell, first * whole)
    if not ran.late:
        return Verdict("different", "it was over before every kill")
    for moment in others:
        if ran.late:
            ran = _go_on(configuration, folder, shell, moment * whole)
    if ran.late:
        ran = _go_on(configuration, folder, shell, SECONDS)
    return same(ran, folder, subjects.finished(store, configuration))


def _killed_first(configuration: str, folder: Path, shell: Shell, seconds: float) -> Ran:
    """Begins the run and kills it; if it was over before, it begins again and is killed earlier."""
    for _ in range(TRIES):
        ran = _go_on(configuration, folder, shell, seconds)
        if ran.late:
            break
        shutil.rmtree(folder / "runs", ignore_errors=True)
        seconds *= 0.8
    return ran


def _go_on(configuration: str, folder: Path, shell: Shell, seconds: float) -> Ran:
    """Begins the run, or resumes it if there is something to resume, for so many seconds."""
    begun = (folder / "runs" / "a" / "experiment.json").exists()
    return shell.run(RESUME if begun else subjects.words(configuration), folder, seconds, signal.SIGKILL)


def same(ran: Ran, folder: Path, undisturbed: Path) -> Verdict:
    """Judges whether a run ended, with the result of the undisturbed one."""
    last = (ran.err.strip().splitlines() or [""])[-1]
    if ran.late or ran.status:
        return Verdict("hang" if ran.late else "traceback" if "Traceback" in ran.err else "different", last)
    found, expected = outcome(folder / "runs" / "a"), outcome(undisturbed / "runs" / "a")
    odd = [name for name in expected.keys() | found.keys() if found.get(name) != expected.get(name)]
    return Verdict("different", f"{', '.join(sorted(odd))} differ") if odd else Verdict("fine")
