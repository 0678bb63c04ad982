"""fedatoms runs: the state of the runs in some folders."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import FlagCreatePairsOff, arg

from fedatoms.cli.console import line, show_table, suggest, terminal
from fedatoms.cli.parsing import Job, Options, as_typed
from fedatoms.core.lookup import as_word

if TYPE_CHECKING:
    from fedatoms.runs.states import RunState

FOLDERS = arg(
    metavar="[FOLDER ...]", help="Folders with runs, at any depth; runs if none is named.", help_behavior_hint=""
)
JSON = arg(name="json", help="Print one JSON object for each run.", help_behavior_hint="")
CHECK = arg(help="Read all files of finished runs, and compare them with their checksums.", help_behavior_hint="")


def options(words: Sequence[str]) -> Options:
    """Returns the options: folders, and what to do with them."""

    def runs(
        folders: Annotated[tuple[Path, ...], FOLDERS] = (),
        /,
        *,
        as_json: Annotated[FlagCreatePairsOff[bool], JSON] = False,
        check: Annotated[FlagCreatePairsOff[bool], CHECK] = False,
    ) -> Job:
        """Lists runs: whether each is running, stopped, finished, failed or damaged, and how far it is."""
        return lambda: _runs(folders or (Path("runs"),), as_json=as_json, check=check)

    return runs


def _runs(folders: Sequence[Path], *, as_json: bool, check: bool) -> int:
    from fedatoms.runs.states import find_runs, state_of

    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder. Give folders that hold runs, for example runs.")
    states = [state_of(run, check=check) for folder in folders for run in find_runs(folder)]
    if not states:
        raise ValueError(f"{', '.join(map(str, folders))}: no run. Make one with `fedatoms run`.")
    if as_json:
        for state in states:
            print(json.dumps(_values(state)))
    else:
        _show(states, folders)
    return 1 if any(state.state == "damaged" for state in states) else 0


def _show(states: Sequence["RunState"], folders: Sequence[Path]) -> None:
    from fedatoms.cli.run_table import states_table

    console = terminal()
    show_table(console, states_table(states))
    for state in states:
        if state.why:
            line(console, f"{state.folder}: {state.state}: {as_typed(state.why)}")
    if older := sum(not state.checked for state in states):
        line(console, f"{older} not checked: of an older version, whose files have no checksums")
    suggest(console, _next(states, " ".join(map(as_word, folders))))


def _next(states: Sequence["RunState"], folders: str) -> tuple[str, str]:
    """Returns what to type next: what resumes the run that needs it most, or shows all of them."""
    from fedatoms.runs.loading import how_to_resume

    first = {state.state: state.folder for state in reversed(states) if state.rounds is not None}
    ways = {"stopped": "goes on where it stopped", "failed": "tries again what failed", "damaged": "mends what it can"}
    for kind, purpose in ways.items():
        if kind in first:
            return how_to_resume(first[kind]).replace("`", ""), purpose
    if "finished" in first:
        return f"fedatoms report {folders}", "all its runs on one page"
    return f"fedatoms report {folders} --serve", "a page that follows them"


def _values(state: "RunState") -> dict[str, object]:
    result = state.result
    found = {"folder": state.folder.as_posix(), "state": state.state, "rounds": state.done, "of": state.rounds}
    found |= {"why": state.why, "checked": state.checked}
    if result is None:
        return found
    headline = {name: summary.headline for name, summary in result.scores.items()}
    return {
        **found,
        "metric": result.metric.record(),
        "headline": headline,
        "bytes_up": result.bytes_up,
        "seconds": result.seconds,
    }
