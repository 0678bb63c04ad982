"""The state of a run, as its folder tells it: running, stopped, finished or failed, and whether its files are whole."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

from fedatoms.core.lookup import one_line
from fedatoms.core.records import FORMAT, fit, read_record, sealed
from fedatoms.core.run_files import EXPERIMENT, FAILURE, RESULT, checkpoints, rounds_file
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load_run
from fedatoms.runs.lock import writer
from fedatoms.runs.results import Result, changed_files, read_result, write_json
from fedatoms.runs.rounds import is_sealed, read_lines

Kind = Literal["running", "stopped", "finished", "failed", "damaged"]


class RunState(NamedTuple):
    """What is known of a run without running anything."""

    folder: Path
    state: Kind
    done: int  # rounds
    rounds: int | None  # that were asked for; None if its experiment cannot be read
    why: str = ""  # the error of one that failed, what is damaged, or who writes it and how old its last round is
    result: Result | None = None
    checked: bool = True  # whether its files have checksums; those of older versions have none
    experiment: Experiment | None = None  # None if it cannot be read


class Failure(TypedDict):
    """The file that a run leaves when it fails."""

    error: str
    time: str


@contextmanager
def noting_failure(folder: Path) -> Iterator[None]:
    """Leaves a note in a run's folder if what is done within fails; a note of an earlier time is removed."""
    (folder / FAILURE).unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        with suppress(OSError):  # the disk may be full
            now = datetime.now(UTC).isoformat(timespec="seconds")
            write_json(
                folder / FAILURE, sealed({FORMAT: 2, "error": one_line(error) or type(error).__name__, "time": now})
            )
        raise


def has_begun(folder: Path) -> bool:
    """Returns whether a folder holds a run that finished a round: without one there is nothing to lose."""
    has_lines = rounds_file(folder).exists() and rounds_file(folder).stat().st_size > 0
    return has_lines or (folder / RESULT).exists() or bool(checkpoints(folder))


def find_runs(folder: Path) -> list[Path]:
    """Returns the folders of runs at or below a folder."""
    seen: set[Path] = set()
    found = []
    for place, folders, files in os.walk(folder, followlinks=True):
        here = Path(place).resolve()
        is_run = EXPERIMENT in files or RESULT in files
        if is_run and here not in seen:
            found.append(Path(place))
        if is_run or here in seen:
            folders.clear()  # what belongs to the run, or a link back
        seen.add(here)
    return sorted(found)


def state_of(folder: Path, *, check: bool = False) -> RunState:
    """Returns the state of a run; with ``check`` all its files are compared with their checksums."""
    lines = read_lines(folder)
    try:
        experiment, result, damage = _read(folder, len(lines.rows), check=check)
    except (ValueError, OSError) as error:
        return RunState(folder, "damaged", len(lines.rows), None, one_line(error))
    rounds, sealed_files = experiment.rounds, is_sealed(folder)
    state = RunState(folder, "stopped", len(lines.rows), rounds, "", result, sealed_files, experiment)
    if by := writer(folder):
        return state._replace(state="running", why=f"{by}{_age(folder)}")
    if damage or lines.damage:
        return state._replace(state="damaged", why=lines.damage or damage)
    return _over(state, rounds)


def _over(state: RunState, rounds: int) -> RunState:
    """Returns the state of a run that is whole and that nobody writes."""
    if (state.folder / FAILURE).exists():
        return state._replace(state="failed", why=_failure(state.folder))
    if state.result is not None and state.result.experiment.rounds >= rounds:
        return state._replace(state="finished", done=state.result.experiment.rounds)
    return state


def _read(folder: Path, lines: int, *, check: bool) -> tuple[Experiment, Result | None, str]:
    """Returns what a run was asked for, its result if there is one, and what contradicts that."""
    result = read_result(folder) if (folder / RESULT).exists() else None
    asked = load_run(folder) if result is None or (folder / EXPERIMENT).exists() else result.experiment
    known = _rounds_known(folder, result)
    if lines < known and (rounds_file(folder).exists() or result is None):
        return asked, result, f"{rounds_file(folder)} has {lines} of the {known} rounds that are done"
    changed = changed_files(result) if check and result else []
    return asked, result, f"{', '.join(changed)} changed since the run ended" if changed else ""


def _rounds_known(folder: Path, result: Result | None) -> int:
    """Returns the rounds that the result or the last checkpoint is of: their lines were written before."""
    return max(result.experiment.rounds if result else 0, *checkpoints(folder), 0)


def _age(folder: Path) -> str:
    try:
        seconds = time.time() - rounds_file(folder).stat().st_mtime
    except OSError:
        return ""
    return f", last round {seconds:.0f} s ago" if seconds < 120 else f", last round {seconds / 60:.0f} min ago"


def _failure(folder: Path) -> str:
    try:
        return fit(read_record(folder / FAILURE), Failure, FAILURE)["error"]
    except (ValueError, OSError) as error:
        return one_line(error)
