"""What a person sees while a run goes on and after it: a live bar, plain lines without a terminal, and tables."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedatoms.adapt.join import Joined
from fedatoms.bench.report import cells
from fedatoms.bench.results import Event, Gap, Ratio, Row
from fedatoms.engine.loop import Progress as RoundDone
from fedatoms.engine.loop import Watch
from fedatoms.evidence.reproduce.terminal_tables import TerminalTable
from fedatoms.runs.compare import Line, Spread, scored_on
from fedatoms.runs.results import WINDOW

LINES = 10  # lines for a whole run when there is no terminal


@contextmanager
def watching(console: Console, label: str, rounds: int) -> Iterator[Watch]:
    """Shows a run's progress: yields the watcher to hand to it."""
    trained, seconds, accuracy = 0, 0.0, "accuracy -"

    def news(progress: RoundDone) -> str:
        nonlocal trained, seconds, accuracy
        trained, seconds = trained + progress.record.clients, seconds + progress.record.seconds
        if progress.scores:
            name, score = list(progress.scores.items())[-1]
            accuracy = f"{name} {score.accuracy:.2f} %"
        return f"loss {progress.record.loss:.3f}  {accuracy}  {trained / seconds:.1f} clients/s"

    if not console.is_terminal:
        yield lambda progress: _line(console, label, rounds, progress, news(progress))
        return
    columns = (
        "[bold]{task.description}",
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
    )
    with Progress(*columns, TimeRemainingColumn(), TextColumn("left"), console=console) as bar:
        task = bar.add_task(label, total=rounds, news="")
        yield lambda progress: bar.update(task, completed=progress.state.round, news=news(progress))


@contextmanager
def counting(console: Console, label: str, rounds: int) -> Iterator[Callable[[int], None]]:
    """Shows how many rounds of some other program are over: yields what to tell."""
    if not console.is_terminal:
        yield lambda number: None
        return
    columns = (SpinnerColumn(), "[bold]{task.description}", BarColumn(bar_width=20), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(label, total=rounds)
        yield lambda number: bar.update(task, completed=number)


@contextmanager
def overall(console: Console, jobs: dict[str, float]) -> Iterator[Callable[[str, float], None]]:
    """Shows one bar for all jobs, by their weights, with the time left: yields what to tell of a job's share done."""
    shares, total = dict.fromkeys(jobs, 0.0), sum(jobs.values())

    def done() -> float:
        return sum(share * jobs[name] for name, share in shares.items())

    def ended() -> str:
        return f"{sum(share >= 1 for share in shares.values())}/{len(jobs)}"

    if not console.is_terminal:
        began = time.perf_counter()

        def say(name: str, share: float) -> None:
            before, shares[name] = shares[name], share
            if before < 1 <= share:
                left = (time.perf_counter() - began) * (total / done() - 1)
                text = f"[{ended()}] {name}, about {left:.0f} s left"
                console.print(text, highlight=False, markup=False, soft_wrap=True)

        yield say
        return
    columns = (TextColumn("{task.fields[ended]}"), BarColumn(bar_width=20), TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, TextColumn("{task.description}", markup=False), console=console) as bar:
        task = bar.add_task("", total=total, ended=ended())

        def show(name: str, share: float) -> None:
            shares[name] = share
            bar.update(task, completed=done(), ended=ended(), description=name)

        yield show


def sheet(made: TerminalTable) -> Table | str:
    """Makes a table of what was reproduced, or a sentence where it is no table."""
    if not made.heads:
        return f"{made.title}\n{made.note}"
    table = _titled(made.title, made.note)
    table.show_edge = table.pad_edge = False  # so that Table 1 fits 80 columns
    for n, head in enumerate(made.heads):
        table.add_column(head, justify="left" if n == 0 else "right", overflow="fold")
    for row in made.rows:
        table.add_row(*map(_shown, row))
    return table


def tables(lines: Sequence[Line], title: str) -> list[Table]:
    """Makes what a comparison shows: its table, and one of clients' own models if there are some."""
    personal = [line for line in lines if line.personal]
    return [comparison(lines, title), *([own_models(personal)] if personal else [])]


def comparison(lines: Sequence[Line], title: str) -> Table:
    """Makes the table of a comparison: a line for each run and scored model; it fits 80 columns."""
    seeds = "/".join(sorted({str(line.seeds) for line in lines}))
    window = min(WINDOW, *(line.results[0].experiment.rounds for line in lines), WINDOW)
    kind = scored_on(lines)
    note = f"{kind} accuracy: mean over the last {window} rounds, in %; ± standard deviation; seeds: {seeds}"
    table = _table(title, note)
    table.add_column("model", no_wrap=True)
    target = [f"rounds to\n{lines[0].target:.1f} %"] if len(lines) > 1 else []
    size, unit = (1e9, "GB") if max(line.bytes_up for line in lines) > 1e9 else (1e6, "MB")
    for head in ("accuracy", "final", "best", f"{unit} up\n+ down", "seconds", *target):
        table.add_column(head, justify="right", no_wrap=True)
    for line in lines:
        for place, (name, accuracy) in enumerate(line.accuracy.items()):
            last = place == len(line.accuracy) - 1
            scores = (_spread(Spread(*accuracy[:2])), f"{accuracy.final:.2f}", f"{accuracy.best:.2f}")
            table.add_row(
                "" if place else line.label,
                name,
                *scores,
                *(() if place else _costs(line, size)[: 2 + len(target)]),
                end_section=last,
            )
    return table


def own_models(lines: Sequence[Line]) -> Table:
    """Makes the table of clients' own models in a comparison, the server's next to them; it fits 80 columns."""
    epochs = "/".join(sorted({str(line.results[0].experiment.last_epochs) for line in lines}))
    note = (
        f"{scored_on(lines)} accuracy of every client's own model on its own images, in %; last pass: {epochs} epochs "
    )
    note += "on every client; worst tenth of the clients, and standard deviation over them, after it"
    table = _table("clients' own models", note)
    for head in ("server,\nfinal", "mean of the\nlast ten", "after the\nlast pass", "worst\ntenth", "spread"):
        table.add_column(head, justify="right", no_wrap=True)
    for line in lines:
        server = f"{line.accuracy['server'].final:.2f}" if "server" in line.accuracy else "-"
        ours = [_spread(line.personal.get(name)) for name in ("mean of the last ten", "after the last pass")]
        plain = [f"{line.personal[name].mean:.2f}" for name in ("worst tenth", "spread")]
        table.add_row(line.label, server, *ours, *plain)
    return table


def _costs(line: Line, size: float) -> tuple[str, str, str]:
    sent = f"{line.bytes_up / size:.1f} + {line.bytes_down / size:.1f}"
    return sent, f"{line.seconds:.1f}", f"{line.rounds_to_target:.0f}"


def judgement(lines: Sequence[Line]) -> str:
    """Says in words what a comparison of two measured, also where the second does not win."""
    first, second = lines[0], lines[-1]
    parts = []
    for name, accuracy in second.accuracy.items():
        gain = accuracy.mean - first.accuracy[name].mean
        noise = max(accuracy.deviation or 0.0, first.accuracy[name].deviation or 0.0)
        word = "wins" if gain > noise else "loses" if gain < -noise else "within the spread of the seeds"
        word = "one seed: no spread to judge by" if second.seeds == 1 else word
        final = accuracy.final - first.accuracy[name].final
        parts.append(f"{name} {gain:+.2f} points ({word}), final {final:+.2f}")
    if first.bytes_up:  # local training sends nothing
        parts.append(f"bytes sent up {second.bytes_up / first.bytes_up - 1:+.0%}")
    return f"Measured, {second.label} against {first.label}: {'; '.join(parts)}."


@contextmanager
def working(console: Console, what: str) -> Iterator[Callable[[str, int, int], None]]:
    """Shows that something of unknown length goes on, and for how long; a plain line without a terminal.

    Yields what to tell if it has parts: the part, and how far it is.
    """
    if not console.is_terminal:
        console.print(what, highlight=False, soft_wrap=True)
        yield lambda part, done, of: None if done else console.print(part, highlight=False, soft_wrap=True)
        return
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda part, done, of: bar.update(task, description=f"{part} {done}/{of}" if of else part)


def joining(done: Joined) -> Table:
    """Makes the table of a client that joined: the global model and its own, on its pictures that were held out."""
    sim = done.ready.sim
    title = f"on {len(sim.data.test_y):,} images held out, fitted to {len(sim.data.y):,} in {done.seconds:.1f} s"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), min_width=len(title) + 2)
    table.add_column("model")
    for head in ("accuracy", "loss", "numbers fitted"):
        table.add_column(head, justify="right")
    for name, score in done.scores.items():
        fitted = f"{done.ready.numbers:,}" if name == "personal" else "-"
        table.add_row(name, f"{score.accuracy:.2f} %", f"{score.loss:.3f}", fitted)
    return table


def benchmarks(ratios: Sequence[Ratio]) -> Table:
    """Makes the table of a benchmark, with each bar met or missed."""
    table = Table("measured", "value", "bar", "", "detail", title="fedatoms bench", title_justify="left")
    for ratio in ratios:
        bar = "-" if ratio.bar is None else f"{'>= ' if ratio.at_least else ''}{ratio.bar}"
        table.add_row(ratio.name, f"{ratio.value:.3f}", bar, ratio.verdict, ratio.detail)
    return table


def contest(rows: Sequence[Row]) -> Table:
    """Makes the table of the contest on a GPU; it fits 80 columns."""
    table = Table(title=f"one card, {rows[0].precision}", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("contestant", overflow="fold", min_width=12)
    heads = ("clients\nx batch", "ms a\nround", "ms a\nstep", "client-\nsteps/s", "% of\nFLOP/s", "% of\nbytes/s")
    for head in (*heads, "first\nround, s", "peak,\nMB"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*cells(row))
    return table


def news(event: Event) -> str:
    """Says in a line what the benchmark just measured.

    >>> news(Gap("JAX", "not installed."))
    'JAX: not measured (not installed.)'
    """
    if isinstance(event, Row):
        where = f"{event.clients} clients x {event.batch}"
        return f"{where}: {event.contestant}, {event.ms_round:.1f} ms a round, {event.client_steps:,.0f} client-steps/s"
    if isinstance(event, Ratio):
        return f"{event.name}: {event.value:.3f} {event.verdict}".rstrip()
    return f"{event.name}: not measured ({event.reason})" if isinstance(event, Gap) else event


def _titled(title: str, note: str) -> Table:
    table = Table(title=title, title_justify="left", caption=note, caption_justify="left", box=SIMPLE_HEAD)
    table.padding, table.min_width = (0, 1, 0, 0), len(title) + 2  # a title is not broken
    return table


def _table(title: str, note: str) -> Table:
    table = _titled(title, note)
    table.add_column("run", overflow="fold", min_width=6)
    return table


def _shown(cell: str | float | Spread | None) -> str:
    if cell is None or isinstance(cell, Spread):
        return _spread(cell)
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _spread(value: Spread | None) -> str:
    if value is None:
        return "-"
    return f"{value.mean:.2f}" + ("" if value.deviation is None else f" ± {value.deviation:.2f}")


def _line(console: Console, label: str, rounds: int, progress: RoundDone, text: str) -> None:
    every = max(rounds // LINES, 1)
    if progress.state.round % every == 0 or progress.state.round == rounds:
        left = (rounds - progress.state.round) * progress.record.seconds
        news = f"{label}  round {progress.state.round}/{rounds}  {text}  about {left:.0f} s left"
        console.print(news, highlight=False, soft_wrap=True)
