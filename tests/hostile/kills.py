"""Runs that are killed with SIGKILL at any moment, resumed, maybe killed again: the result is that of no kill."""

import random
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
LONGER = 1.5  # as two cases run at once, and the time was measured alone
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


def _judge(store: Path, configuration: str, moments: list[float], folder: Path, shell: Shell) -> Verdict:
    whole = LONGER * subjects.seconds(store, configuration, shell.fresh)
    for moment in moments:
        ran = _go_on(configuration, folder, shell, moment * whole)
        if not ran.late:
            break
    if not moments or ran.late:
        ran = _go_on(configuration, folder, shell, SECONDS)
    return same(ran, folder, subjects.finished(store, configuration))


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
