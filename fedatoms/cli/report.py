"""fedatoms report: a page of results."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import FlagCreatePairsOff, arg

from fedatoms.cli.console import line, say, suggest, terminal
from fedatoms.cli.parsing import Job, Options
from fedatoms.core.lookup import as_word, counted
from fedatoms.core.options import check_range

if TYPE_CHECKING:
    from fedatoms.evidence.results.finding import Run

FOLDERS = arg(metavar="FOLDER ...", help="Folders with runs and measures, at any depth.", help_behavior_hint="")
PAGE = arg(metavar="FILE", aliases=("-o",), help="The page; a CSV file is written beside it.")
DATA_DIR = arg(
    metavar="FOLDER",
    help="Data sets' official files, for figures of how they are spread over clients (digits need none).",
    help_behavior_hint="",
)
SERVE = arg(
    help="Follow running experiments in a browser on this machine, until Ctrl-C; no file is written.",
    help_behavior_hint="",
)
PORT = arg(metavar="INT", help="The port of --serve; 0: any that is free.")


def options(words: Sequence[str]) -> Options:
    """Returns the options: folders and files."""

    def report(
        folders: Annotated[tuple[Path, ...], FOLDERS] = (),
        /,
        *,
        out: Annotated[Path, PAGE] = Path("report.html"),
        data_dir: Annotated[Path | None, DATA_DIR] = None,
        serve: Annotated[FlagCreatePairsOff[bool], SERVE] = False,
        port: Annotated[int, PORT] = 8765,
    ) -> Job:
        """Makes one page, which opens offline, of all runs and measures in some folders."""

        def job() -> int:
            if not folders:
                raise ValueError(
                    "a folder with runs is missing. Use for example `fedatoms report runs -o report.html`."
                )
            check_range("port", port, command="report")
            return _serve(folders, port, data_dir) if serve else _report(folders, out, data_dir)

        return job

    return report


def _serve(folders: Sequence[Path], port: int, data_dir: Path | None) -> int:
    from fedatoms.evidence.page.serve import server

    with server(folders, port, data_dir) as site:
        line(terminal(), f"open: {site.address} (this machine only, and whoever has this address; Ctrl-C ends it)")
        sys.stdout.flush()  # whoever reads it through a pipe waits for the address
        try:
            site.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def _report(folders: Sequence[Path], out: Path, data_dir: Path | None) -> int:
    from fedatoms.evidence.page.assemble import report

    replaces = out.exists()
    done, console = report(folders, out, data_dir), terminal()
    for note in (*done.found.left_out, *done.found.notes):
        say(f"{note.path}: {note.reason}")
    _say_unchecked(done.found.runs)
    counts = {"run": len(done.found.runs), "measure": len(done.found.measures)}
    found = ", ".join(counted(number, what) for what, number in counts.items() if number)
    line(console, f"page: {done.page}, {found}, {done.page.stat().st_size / 1e6:.1f} MB")
    line(console, f"data: {done.csv}")
    line(console, f"open: {done.page.resolve().as_uri()}{' (replaces an older page)' * replaces}")
    typed = f"fedatoms runs {as_word(folders[0])}"
    suggest(console, (typed, "the same runs as a table, with those that have no result"))
    return 0


def _say_unchecked(runs: Sequence["Run"]) -> None:
    if older := sum(not run.result.files for run in runs):
        line(terminal(), f"{older} of {len(runs)} runs not checked: of an older version, without checksums")
