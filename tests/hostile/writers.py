"""Second commands on a folder that a first one writes: writers are refused, and the first is not harmed."""

import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from hostile import sandbox, subjects
from hostile.kills import same
from hostile.sandbox import Child
from hostile.shell import SECONDS, Shell
from hostile.subjects import CONFIGURATIONS
from hostile.verdicts import SLACK, Case, Verdict, verdict

NUMBER, REAL = 60, 60
RUN = "runs/a"
WRITERS = {  # of the run that is written
    "run": None,  # the same words again
    "resume": ["run", "--resume", RUN],
    "resume for more": ["run", "--resume", RUN, "--rounds", "9"],
    "resume elsewhere": ["run", "--resume", f"../{{case}}/{RUN}"],
}
READERS = {  # may be refused or work; the run goes on all the same
    "report": ["report", "runs"],
    "personalize": ["personalize", RUN, "--images", "i.npz", "--out", "a.safetensors"],
    "explain": ["explain", RUN, "--rounds", "1", "--out", "explain.json"],
    "export": ["export", RUN, "--to", "safetensors", "--out", "e.safetensors"],
    "runs": ["runs", "runs"],
}


def cases(draws: random.Random, number: int, store: Path) -> Iterator[Case]:
    """Makes cases: a configuration, a second command, and the number of rounds after which it comes."""
    for configuration in CONFIGURATIONS:
        subjects.finished(store, configuration)
    for place in range(number):
        configuration = draws.choice(list(CONFIGURATIONS))
        rounds, second = draws.randrange(5), draws.choice([*WRITERS, *WRITERS, *READERS])
        yield Case(
            f"{place} {second} after round {rounds} of {configuration}",
            partial(_judge, store, configuration, second, rounds),
        )


def parts() -> list[str]:
    """Names what the cases are made of."""
    return sorted([*CONFIGURATIONS, *WRITERS, *READERS])


def _judge(store: Path, configuration: str, second: str, rounds: int, folder: Path, shell: Shell) -> Verdict:
    subjects.begin(folder)
    subjects.write_images(folder / "i.npz")
    first = shell.start(subjects.words(configuration), folder)
    try:
        if not _wait(first, folder / RUN, rounds):
            return Verdict("fine", "the first was over before the second came")
        sandbox.pause(first)
        typed = {**WRITERS, **READERS}[second] or subjects.words(configuration)
        ran = shell.run([word.format(case=folder.name) for word in typed], folder)
    finally:
        sandbox.go_on(first)
        done = sandbox.finish(first, time.monotonic() - first.began + SECONDS)
    after = same(done, folder, subjects.finished(store, configuration))
    if after.word != "fine":
        return after._replace(why=f"the first: {after.why}")
    found = verdict(ran, 1000 + SLACK)
    if second in WRITERS and found.word == "fine":
        return Verdict("different", "the second wrote, too")
    return found


def _wait(first: Child, run: Path, rounds: int) -> bool:
    """Waits until the first has its lock and has written so many rounds; returns whether it still runs."""
    lines = run / "rounds.jsonl"
    while sandbox.alive(first):
        if (run / "lock").exists() and (not rounds or (lines.exists() and lines.read_text().count("\n") >= rounds)):
            return True
        time.sleep(0.002)
    return False
