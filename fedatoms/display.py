"""What a person sees while a run goes on and after it: a live bar, plain lines without a terminal, and tables."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedatoms.bench import Ratio
from fedatoms.compare import Line
from fedatoms.scoring import Progress as RoundDone
from fedatoms.train import Watch

LINES = 20  # lines for a whole run when there is no terminal


@contextmanager
def watching(console: Console, label: str, rounds: int, done: int = 0) -> Iterator[Watch]:
    """Shows a run's progress: yields the watcher to hand to it."""
    began = time.perf_counter()
    news = {"accuracy": "accuracy -"}

    def text(progress: RoundDone, first: int) -> str:
        if progress.scores:
            name, score = list(progress.scores.items())[-1]
            news["accuracy"] = f"{name} {score.accuracy:.2f} %"
        rate = progress.record.clients * (progress.state.round - first) / max(time.perf_counter() - began, 1e-9)
        return f"loss {progress.record.loss:.3f}  {news['accuracy']}  {rate:.1f} clients/s"

    if not console.is_terminal:
        yield lambda progress: _line(console, label, rounds, progress, text(progress, done))
        return
    columns = (
        "[bold]{task.description}",
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(label, total=rounds, completed=done, news="")
        yield lambda progress: bar.update(task, completed=progress.state.round, news=text(progress, done))


def comparison(lines: Sequence[Line], title: str) -> Table:
    """Makes the table of a comparison."""
    models = list(lines[0].accuracy)
    target = lines[0].target
    table = Table(title=title, title_justify="left")
    table.add_column("run", overflow="fold")
    for name in models:
        table.add_column(f"{name} %", justify="right")
    for head in ("MB up", "MB down", "seconds", f"rounds to {target:.1f} %", "seeds"):
        table.add_column(head, justify="right")
    for line in lines:
        accuracies = [f"{line.accuracy[name].mean:.2f}{_spread(line.accuracy[name].deviation)}" for name in models]
        rounds = "-" if line.rounds_to_target is None else f"{line.rounds_to_target:.0f}"
        sizes = (f"{line.bytes_up / 1e6:.1f}", f"{line.bytes_down / 1e6:.1f}", f"{line.seconds:.1f}")
        table.add_row(line.label, *accuracies, *sizes, rounds, str(line.seeds))
    return table


def judgement(lines: Sequence[Line]) -> str:
    """Says in words what a comparison of two measured, also where the second does not win."""
    first, second = lines[0], lines[-1]
    parts = []
    for name, accuracy in second.accuracy.items():
        gain = accuracy.mean - first.accuracy[name].mean
        noise = max(accuracy.deviation or 0.0, first.accuracy[name].deviation or 0.0)
        word = "within the spread of the seeds" if abs(gain) <= noise else "wins" if gain > 0 else "loses"
        parts.append(f"{name} {gain:+.2f} points ({word})")
    sent = second.bytes_up / first.bytes_up - 1
    return f"Measured, {second.label} against {first.label}: {', '.join(parts)}; bytes sent up {sent:+.0%}."


def benchmarks(ratios: Sequence[Ratio]) -> Table:
    """Makes the table of a benchmark, with each bar met or missed."""
    table = Table("measured", "value", "bar", "", "detail", title="fedatoms bench", title_justify="left")
    for ratio in ratios:
        met = "" if ratio.bar is None else "met" if ratio.value <= ratio.bar else "missed"
        table.add_row(ratio.name, f"{ratio.value:.3f}", "-" if ratio.bar is None else f"{ratio.bar}", met, ratio.detail)
    return table


def _spread(deviation: float | None) -> str:
    return "" if deviation is None else f" ± {deviation:.2f}"


def _line(console: Console, label: str, rounds: int, progress: RoundDone, text: str) -> None:
    every = max(rounds // LINES, 1)
    if progress.state.round % every == 0 or progress.state.round == rounds:
        left = (rounds - progress.state.round) * progress.record.seconds
        console.print(
            f"{label}  round {progress.state.round}/{rounds}  {text}  about {left:.0f} s left", highlight=False
        )
