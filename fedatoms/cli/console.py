"""What a person sees: tables as wide as the terminal is, lines, progress in a terminal or a pipe, and hints."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedatoms.cli.processes import processes_here
from fedatoms.cli.round_text import WIDE, summary_in
from fedatoms.core.lookup import as_word
from fedatoms.core.run_files import EXPERIMENT, checkpoints

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Column, Table

    from fedatoms.engine.loop import Progress as RoundDone
    from fedatoms.engine.loop import Watch
    from fedatoms.runs.comparison import Watching

LINES = 10  # of a run without a terminal, besides its first round
NO_FOLD = 10_000  # columns of a pipe or a file
KEPT = 3  # columns of a table, at least: names, and the first numbers
FOLDED = 6  # characters of a name in a line, at least
PAUSE = 30.0  # seconds after which progress without a terminal prints a line again


class Unread(KeyboardInterrupt):
    """Nobody reads the output any more, such as ``head``: stops a command as Ctrl-C does."""


class Update(Protocol):
    """Hears of a job, by name, the share of it that is over, and that it failed."""

    def __call__(self, name: str, share: float, failed: bool = False) -> None: ...


def terminal() -> "Console":
    """Returns the console for results, on stdout; without a terminal it is as wide as they are."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:  # where rich would end the process, and a run without a checkpoint
            raise Unread

    console = Piped()
    if not console.is_terminal:
        console.width = NO_FOLD
    return console


def show_table(console: "Console", table: "Table") -> None:
    """Prints a table. Names are folded, numbers are never cut: a narrow terminal has fewer columns, and it is said.

    >>> from rich.console import Console
    >>> from rich.table import Table
    >>> narrow = Table(box=None)
    >>> for head in ("run", "server", "all", "final", "best"):
    ...     narrow.add_column(head, no_wrap=head != "run")
    >>> narrow.add_row("plain", "28.33", "30.12", "28.33", "28.33")
    >>> show_table(Console(width=32), narrow)
    run    server  all    final
    plain  28.33   30.12  28.33
      too narrow here for best
    """
    left_out = list[str]()
    while _least_width(table) > console.width and (more := [*filter(_is_whole_or_nothing, table.columns[KEPT:])]):
        table.columns.remove(more[-1])
        left_out.insert(0, " ".join(str(more[-1].header).replace("-\n", "-").split()))
    if left_out:
        table.caption = "; ".join(
            filter(None, (str(table.caption or "").removesuffix("."), f"too narrow here for {', '.join(left_out)}"))
        )
    table.min_width = min(table.min_width or 0, console.width)  # else a long title cuts the rest
    console.print(table, width=max(console.width, _least_width(table)), crop=False)


def _least_width(table: "Table") -> int:
    """Returns how wide a table is at least: with names folded, and all else whole."""
    edge = 1 if table.show_edge else -2  # or no gap after the last
    return sum(_least(column) + 2 for column in table.columns) + edge


def _is_whole_or_nothing(column: "Column") -> bool:
    return column.no_wrap or column.min_width is not None


def _least(column: "Column") -> int:
    if not column.no_wrap:
        return column.min_width or FOLDED
    texts = [str(text) for text in (column.header, *column.cells)]
    return max(len(part) for text in texts for part in text.split("\n"))


def line(console: "Console", text: str) -> None:
    """Prints a line as it is: it may be longer than the terminal is wide."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def say(text: str) -> None:
    """Prints a line on stderr, beside the results."""
    print(f"fedatoms: {' '.join(text.split())}", file=sys.stderr)


def suggest(console: "Console", *steps: tuple[str, str]) -> None:
    """Ends a command with the next useful ones: what to type, and what for."""
    for number, (typed, purpose) in enumerate(steps):
        line(console, f"{'' if number else 'next:':6} {typed}  # {purpose}")


@contextlib.contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """On Ctrl-C, or if another process of the run ends, says how to resume the run in a folder."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if (folder / EXPERIMENT).exists():
            saved = "Checkpoint saved. Continue" if checkpoints(folder) else "No checkpoint is saved yet. Begin again"
            stop.args = (f"{saved} with: fedatoms run --resume {as_word(folder)}",)
        raise
    except ConnectionError as lost:
        if processes_here() != "1" and (folder / EXPERIMENT).exists():
            again = f"torchrun --nproc-per-node {processes_here()} -m fedatoms run --resume {as_word(folder)}"
            lost.args = (f"{lost}. Continue with: {again}",)
        raise


@contextlib.contextmanager
def repeatable() -> Iterator[None]:
    """On Ctrl-C, says that re-running resumes."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = ("Run the same command again to continue.",)
        raise


@contextlib.contextmanager
def watching(console: "Console", label: str, rounds: int) -> Iterator["Watch"]:
    """Shows the progress of a run: yields its progress callback."""
    summary, done = summary_in(WIDE), 0
    if not console.is_terminal:

        def status() -> str:
            return f"{label}  in round {done + 1}/{rounds}" if done else f"{label}  in its first round"

        with _lines(console, status) as show:

            def after(progress: "RoundDone") -> None:
                nonlocal done
                done, text = progress.state.round, summary(progress)
                left = span((rounds - done) * progress.record.seconds)
                due = done == rounds or done % max(rounds // LINES, 1) == 0
                show(f"{label}  round {done}/{rounds}  {text}  about {left} left", due)

            yield after
        return
    with watching_many(console) as shown, shown(label, rounds) as watch:
        yield watch


@contextlib.contextmanager
def watching_many(console: "Console") -> Iterator["Watching"]:
    """Shows the progress of runs that go on at the same time: yields ``watching`` for each of them."""
    if not console.is_terminal:
        yield lambda label, rounds: watching(console, label, rounds)
        return
    bar, going = _runs_bar(console), 0

    @contextlib.contextmanager
    def one(label: str, rounds: int) -> Iterator["Watch"]:
        nonlocal bar, going
        if not going:  # those before are over and stay as text: a terminal shows no more bars than it has lines
            bar = _runs_bar(console)
            bar.start()
        going, here = going + 1, bar
        task, summary = here.add_task(label, total=rounds, summary=""), summary_in(console.width)
        try:
            yield lambda progress: here.update(task, completed=progress.state.round, summary=summary(progress))
            here.stop_task(task)
        except BaseException:
            here.remove_task(task)  # it may come again, under the same name
            raise
        finally:
            going -= 1
            if not going:
                here.stop()

    yield one


@contextlib.contextmanager
def counting(console: "Console", label: str, rounds: int) -> Iterator[Callable[[int], None]]:
    """Shows how many rounds another program has done: yields a callback for their number."""
    if not console.is_terminal:
        yield lambda number: None
        return
    with _bar(console, "spinner", "{task.description}", "bar", "count", "elapsed") as bar:
        task = bar.add_task(label, total=rounds)
        yield lambda number: bar.update(task, completed=number)


@contextlib.contextmanager
def overall(console: "Console", jobs: Mapping[str, float]) -> Iterator[Update]:
    """Shows jobs together, by their weights: yields a callback for a job and the share of it that is done.

    A share of 0 says that a job begins; one of 1 that it is over, also if it failed.
    """
    shares, lost, current, began = dict.fromkeys(jobs, 0.0), set[str](), "", time.perf_counter()
    if console.is_terminal:
        with _bar(console, "spinner", "{task.fields[ended]}", "bar", "elapsed", "left", "{task.description}") as bar:
            task = bar.add_task("", total=1.0, ended=_ended(shares))

            def update_bar(name: str, share: float, failed: bool = False) -> None:
                shares[name] = share
                lost.update({name} if failed else ())
                ended = _ended(shares) + (f", {len(lost)} failed" if lost else "")
                bar.update(task, completed=_done(jobs, shares), ended=ended, description=name)

            yield update_bar
        return
    with _lines(console, lambda: _status(jobs, shares, current, time.perf_counter() - began, lost)) as show:

        def update(name: str, share: float, failed: bool = False) -> None:
            nonlocal current
            current, ends, shares[name] = name, shares[name] < 1 <= share, share
            lost.update({name} if failed else ())
            show(_status(jobs, shares, name, time.perf_counter() - began, lost), ends or failed)

        yield update


@contextlib.contextmanager
def working(console: "Console", what: str) -> Iterator[Callable[[str, int, int], None]]:
    """Shows that something of unknown length goes on: yields a callback for a part of it, how much is done, of what."""
    if not console.is_terminal:
        line(console, what)
        yield lambda part, done, of: None if done else line(console, part)
        return
    with _bar(console, "spinner", "{task.description}", "elapsed") as bar:
        task = bar.add_task(what, total=None)
        yield lambda part, done, of: bar.update(task, description=f"{part} {done}/{of}" if of else part)


def span(seconds: float) -> str:
    """Writes a time in the unit that suits it.

    >>> span(12.3), span(600), span(9000)
    ('12 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def _lines(console: "Console", status: Callable[[], str]) -> Iterator[Callable[[str, bool], None]]:
    """Shows progress without a terminal: yields a function that prints a line, now or if none was printed for a while.

    ``status`` is printed when that long has passed without a line, so that a long round is not silent.
    """
    last, over = time.monotonic() - PAUSE, threading.Event()

    def show(text: str, now: bool) -> None:
        nonlocal last
        if now or time.monotonic() - last >= PAUSE:
            last = time.monotonic()
            line(console, text)

    def beat() -> None:
        with contextlib.suppress(Unread):  # the run hears of it as it writes
            while not over.wait(PAUSE):
                show(status(), False)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield show
    finally:
        over.set()
        thread.join()


def _bar(console: "Console", *columns: str) -> "Progress":
    """Makes a progress bar of columns, by name; others are texts."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    known: dict[str, ProgressColumn] = {
        "spinner": SpinnerColumn(),
        "bar": BarColumn(bar_width=20),
        "short bar": BarColumn(bar_width=4),
        "count": MofNCompleteColumn(),
        "elapsed": TimeElapsedColumn(),
        "left": TimeRemainingColumn(compact=True),
    }
    return Progress(*(known.get(name) or TextColumn(name, markup=False) for name in columns), console=console)


def _runs_bar(console: "Console") -> "Progress":
    bar = "bar" if console.width >= WIDE else "short bar"
    return _bar(console, "spinner", "{task.description}", bar, "count", "{task.fields[summary]}", "left")


def _done(jobs: Mapping[str, float], shares: Mapping[str, float]) -> float:
    return sum(share * jobs[name] for name, share in shares.items()) / sum(jobs.values())


def _ended(shares: Mapping[str, float]) -> str:
    return f"{sum(share >= 1 for share in shares.values())}/{len(shares)}"


def _status(
    jobs: Mapping[str, float], shares: Mapping[str, float], current: str, spent: float, lost: Collection[str] = ()
) -> str:
    """Says how far the current job is, or that it is among the ``lost``, and how long all of them take.

    >>> _status({"one": 1.0, "two": 3.0}, {"one": 1.0, "two": 0.0}, "two", 60)
    '[1/2] two: 0% done, 60 s so far, about 3 min left'
    """
    share, done = shares.get(current, 0.0), _done(jobs, shares)
    left = f", about {span(spent / done - spent)} left" if done else ""
    far = "failed" if current in lost else "done" if share >= 1 else f"{share:.0%} done"
    job = f"{current or 'at work'}: {far}"
    return f"[{_ended(shares)}] {job}, {span(spent)} so far{left}"
