"""fedatoms compare: a grid of experiments, side by side."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from fedatoms.cli.args import axes, before_flags, grid, typed
from fedatoms.cli.console import line, repeatable, say, show_table, suggest, terminal, watching_many
from fedatoms.cli.parsing import Job, Options, as_typed
from fedatoms.core.extras import need
from fedatoms.core.lookup import as_word, counted
from fedatoms.core.options import TOGETHER, check_range
from fedatoms.core.outputs import check_output
from fedatoms.core.run_files import CLIENTS
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.presets import preset
from fedatoms.experiment.relevance import idle, with_strengths_that_matter

if TYPE_CHECKING:
    from rich.console import Console

    from fedatoms.runs.comparison import Failure
    from fedatoms.runs.results import Result

FORMATS = (".png", ".pdf", ".svg")
STARTS = arg(metavar="[PRESET ...]", help="Presets, each at every point of the grid.", help_behavior_hint="")
DEVICES = arg(
    metavar="TEXT,...",
    help="Run on several devices, one run on each at a time: cuda:0,cuda:1 or cpu,cpu.",
    help_behavior_hint="",
)
RUNS = arg(
    metavar="INT",
    help="Runs, such as those of several seeds, whose clients are trained in one block where they are vectorised, as "
    "on a GPU: at most so many, and no more than suit its size; 1: one run after the other.",
)
PLOT = arg(metavar="FILE", help="Plot of scores over rounds: .png, .pdf or .svg.", help_behavior_hint="")


def options(words: Sequence[str]) -> Options:
    """Returns the options: presets, the axes of the grid, and a plot."""
    first = tuple(before_flags(words))
    starts = [preset(name) for name in first] or [Experiment()]

    def compare(
        presets: Annotated[tuple[str, ...], STARTS] = (),
        /,
        *,
        plot: Annotated[str, PLOT] = "",
        devices: Annotated[str, DEVICES] = "",
        together: Annotated[int, RUNS] = TOGETHER,
        given: Annotated[object, axes(starts[0])],
    ) -> Job:
        """Runs every combination of values that has no result in --out yet, then prints one table.

        Flags are those of `fedatoms run`, with commas between values; a strength goes to the methods that have one.
        For example:
          fedatoms compare --parametrisation plain,atoms --lr 0.1,0.3 --seeds 0,1
        """

        def job() -> int:
            if presets != first:
                strange = next(name for name in presets if name not in first)
                raise ValueError(
                    f"'{strange}' comes after flags. Name presets first, and put commas between the values of a flag."
                )
            check_range("together", together)
            places = _devices(devices, words)
            points = with_strengths_that_matter(grid(starts, given, words))
            experiments = [replace(one, device=(places or [one.device])[0]) for one in points]
            for one in experiments:  # a mistake comes before a notice
                check(one)
            if notice := idle(experiments, starts):
                say(as_typed(notice))
            drawn = Path(plot) if plot else None
            status = compared(experiments, "comparison", drawn, devices=places, together=together)
            suggest(terminal(), (f"fedatoms report {as_word(experiments[0].out)}", "curves and tables of all its runs"))
            return status

        return job

    return compare


def compared(
    experiments: list[Experiment],
    title: str,
    plot: Path | None,
    *,
    verdict: bool = False,
    devices: Sequence[str] = (),
    together: int = TOGETHER,
) -> int:
    """Runs what is missing of a comparison and shows its table, and if asked for its plot and a sentence.

    A run that fails is named, and the others go on. Returns the exit status.
    """
    console = terminal()
    _check(experiments, plot)
    results, failed = _run(experiments, devices, together, console)
    if results:
        _show(results, title, plot, console, verdict=verdict and not failed)
    return _failed(experiments, failed, console) if failed else 0


def _run(
    experiments: list[Experiment], devices: Sequence[str], together: int, console: "Console"
) -> tuple[list["Result"], list["Failure"]]:
    """Runs what is missing, on one device or on several; returns the results, and what failed."""
    from fedatoms.experiment.identities import run_name
    from fedatoms.runs.comparison import run_missing
    from fedatoms.runs.side_by_side import run_on

    failed = list["Failure"]()

    def tell(failure: "Failure") -> None:
        failed.append(failure)
        say(f"{run_name(failure.experiment)} failed: {as_typed(failure.why)}")

    with repeatable(), watching_many(console) as shown:
        if len(devices) > 1:
            run_on(devices, experiments, shown, tell)
        over = [failure.experiment for failure in failed]
        return run_missing([one for one in experiments if one not in over], shown, together, tell), failed


def _show(results: list["Result"], title: str, plot: Path | None, console: "Console", *, verdict: bool) -> None:
    from fedatoms.cli.result_tables import judgement, tables, why_more_bytes
    from fedatoms.runs.comparison import compare
    from fedatoms.runs.plots import score_plot

    lines = compare(results)
    for table in tables(lines, title):
        show_table(console, table)
    if verdict:
        for text in filter(None, (judgement(lines), why_more_bytes(lines))):
            console.print(text, highlight=False)
    if plot is not None:
        score_plot(lines, plot, title)
        line(console, f"plot: {plot}")


def _failed(experiments: list[Experiment], failed: list["Failure"], console: "Console") -> int:
    """Says below the table what is not in it; what would not fail again is worth another try."""
    from fedatoms.experiment.identities import run_name
    from fedatoms.runs.comparison import labels

    runs = counted(len(experiments), "run")
    if not all(failure.diverged for failure in failed):
        raise ValueError(f"{len(failed)} of {runs} failed. Type the same again to continue.")
    lost = [failure.experiment for failure in failed]
    names = [
        f"{label} ({run_name(one)})" for label, one in zip(labels(experiments), experiments, strict=True) if one in lost
    ]
    line(console, f"{len(failed)} of {runs} failed, not in the table: {', '.join(names)}")
    return 1


def _devices(text: str, words: Sequence[str]) -> list[str]:
    """Returns the devices that were typed, none by default; refuses those that are not there."""
    from fedatoms.runs.devices import devices_of

    if text and typed("--device", words):
        raise ValueError(f"--devices {text} names all devices. Leave --device out.")
    return devices_of(text)


def _check(experiments: list[Experiment], plot: Path | None) -> None:
    """Refuses a mistake in the last experiment before the first takes its time."""
    from fedatoms.experiment.build import simulation
    from fedatoms.experiment.identities import run_folder
    from fedatoms.experiment.images import shared_images

    if plot is not None and plot.suffix not in FORMATS:
        raise ValueError(f"--plot {plot} does not end in {', '.join(FORMATS)}. Use for example --plot plot.png.")
    if plot is not None:
        check_output(plot)
    if any(experiment.name for experiment in experiments):
        raise ValueError("--name cannot name the runs of a comparison: each has its own folder in --out. Leave it out.")
    read = shared_images()
    for experiment in experiments:
        simulation(experiment, run_folder(experiment) / CLIENTS, read=read)  # as a run does; nothing is written
    if plot is not None:
        need(f"--plot {plot}", "plot", "matplotlib")  # last: what is wrong is told before what is not installed
