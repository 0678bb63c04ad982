"""Files of a run that are flipped, cut, swapped or replaced; then everything that reads a run reads it."""

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from hostile import subjects
from hostile.damages import DAMAGES, damages_of
from hostile.sandbox import Ran
from hostile.shell import Shell
from hostile.verdicts import SLACK, Case, Verdict, verdict

NUMBER, REAL = 1200, 60
LOCK = '{"host": "elsewhere", "process": 1, "start": "2026-01-01T00:00:00+00:00"}'


class Reader(NamedTuple):
    """What reads a run: the words of a command or Python code, and what it leaves beside its output."""

    does: list[str] | str
    leaves: Callable[[Path], object] = lambda folder: None


class Honest(NamedTuple):
    """What a reader gives for the undamaged run, and the memory that it takes for it, in MB."""

    given: str
    memory: float


def _resumed(folder: Path) -> object:
    return subjects.outcome(subjects.the_run(folder))


def _explained(folder: Path) -> object:
    found = json.loads((folder / "explain.json").read_text())
    return {name: value for name, value in found.items() if name not in ("provenance", "seal")}


def _written(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).read_bytes()


READERS = {
    "resume": Reader(["run", "--resume", "{run}"], _resumed),
    "report": Reader(["report", "runs", "--out", "r.html"], _written("r.csv")),
    "personalize": Reader(
        ["personalize", "{run}", "--images", "i.npz", "--out", "a.safetensors", "--epochs", "1"],
        _written("a.safetensors"),
    ),
    "explain": Reader(["explain", "{run}", "--rounds", "1", "--out", "explain.json"], _explained),
    "export": Reader(
        ["export", "{run}", "--to", "safetensors", "--out", "e.safetensors"],
        _written("e.safetensors"),
    ),
    "export of a client": Reader(
        ["export", "{run}", "--client", "1", "--to", "safetensors", "--out", "e.safetensors"],
        _written("e.safetensors"),
    ),
    "compare": Reader(["compare", *subjects.words("personal", "--seed", "0")[1:]]),
    "load_model": Reader("load_model('{run}')"),
    "personal_model": Reader("adapt.personal_model('{run}', 1)"),
    "read_result": Reader("read_result('{run}')"),
    "read_rounds": Reader("read_rounds(Path('{run}'))"),
    "runs": Reader(["runs", "runs", "--json"]),
}
SECONDS_AT_THE_END = re.compile(r"\d+\.\d\s*$", re.MULTILINE)  # a column with one digit: scores have two
OF_STOPPED = ("resume", "report", "explain", "runs", "read_rounds")


def cases(draws: random.Random, number: int, store: Path) -> Iterator[Case]:
    """Makes cases: a subject, one of its files, a damage, and a reader; every file and every reader comes often."""
    from fedatoms.cli import COMMANDS

    known = [name for name in READERS if name != "runs" or "runs" in COMMANDS]
    sources = {"finished": _finished(store), "stopped": subjects.stopped(store, "personal")}
    other, places = subjects.finished(store, "scaffold", "--seed", "1"), list(_places(sources))
    for place in range(number):
        state, file = places[place % len(places)]
        damage, seed = draws.choice(damages_of(file)), draws.randrange(1 << 30)
        reader = draws.choice([name for name in known if state == "finished" or name in OF_STOPPED])
        honest(store, sources[state], reader)
        name = f"{place} {state} {file} {damage} {reader}"
        yield Case(name, partial(_judge, sources[state], other, file, damage, seed, reader, store))


def parts() -> list[str]:
    """Names what the cases are made of."""
    return sorted(READERS)


def _finished(store: Path) -> Path:
    """Returns a folder with a finished run in a folder of its own name, which ``compare`` finds."""
    return subjects.finished(store, "personal", "--seed", "0")


def _places(sources: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """Names every file of the runs, some of many alike; and the lock that a killed run leaves."""
    for state, source in sources.items():
        run = subjects.the_run(source)
        files = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())
        many = [file for file in files if file.startswith(("personal/", "checkpoint/clients/"))]
        for file in [*(file for file in files if file not in many and file != "lock"), *many[1::4], "lock"]:
            yield state, file
        for file in ("experiment.json", "rounds.jsonl", "result.json", "model.safetensors"):  # read by most
            if file in files:
                yield state, file


@cache
def honest(store: Path, source: Path, reader: str) -> Honest:
    """Reads the undamaged run."""
    folder = store / f"honest-{source.name}-{reader}"
    subjects.copied(source, folder)
    ran = _read(reader, folder, Shell(fresh=False))
    if ran.status not in (0, 2) or "Traceback" in ran.err:  # a report of a stopped run alone is refused
        raise RuntimeError(f"{reader} of the undamaged {source.name}: {ran.err}")
    return Honest(_given(reader, folder, ran) if ran.status == 0 else ran.err, max(ran.memory, 0))


def _judge(
    source: Path, other: Path, file: str, damage: str, seed: int, reader: str, store: Path, folder: Path, shell: Shell
) -> Verdict:
    run, expected = subjects.copied(source, folder), honest(store, source, reader)
    path = run / file
    if file == "lock":
        path.write_text(LOCK)
    DAMAGES[damage](path, random.Random(seed), subjects.the_run(other) / file)
    ran = _read(reader, folder, shell)
    found = verdict(ran, 3 * expected.memory + SLACK, statuses=(0, 1) if reader == "runs" else (0,))
    said = ran.err + (ran.out if reader == "runs" else "")  # whose table has a state that is "damaged"
    if found.word == "refused" and run.name not in found.why and path.name not in found.why:
        return Verdict("raw", f"names neither file nor run: {found.why}")
    if found.word != "fine" or any(word in said for word in (path.name, f"checkpoint {path.stem}")):
        return found
    try:
        given = _given(reader, folder, ran)
    except (OSError, ValueError) as error:
        return Verdict("different", f"{reader} left no whole file: {error}")
    return found if given == expected.given else Verdict("unnoticed", _first_change(given, expected.given))


def _read(reader: str, folder: Path, shell: Shell) -> Ran:
    subjects.write_images(folder / "i.npz")
    run, does = os.path.relpath(subjects.the_run(folder), folder), READERS[reader].does
    if isinstance(does, str):
        return shell.python(does.format(run=run), folder)
    return shell.run([word.format(run=run) for word in does], folder)


def _given(reader: str, folder: Path, ran: Ran) -> str:
    """Returns all that a reader gives; some print times, but what counts is what they leave."""
    printed = "" if reader in ("resume", "personalize") else ran.out.replace(str(folder.resolve()), "")
    if reader == "compare":
        printed = SECONDS_AT_THE_END.sub("", printed)  # of a run whose last pass had to be done again
    return f"{printed}{READERS[reader].leaves(folder)!r}"


def _first_change(given: str, expected: str) -> str:
    pairs = enumerate(zip(given, expected, strict=False))
    common = next((place for place, (one, other) in pairs if one != other), min(len(given), len(expected)))
    return f"...{expected[max(common - 20, 0) : common + 20]!r} became {given[max(common - 20, 0) : common + 20]!r}"
