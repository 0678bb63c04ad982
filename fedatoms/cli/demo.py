"""fedatoms demo: FedAvg with and without atoms, on digits that are spread unevenly over clients."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fedatoms.cli.args import axes, grid
from fedatoms.cli.compare import compared
from fedatoms.cli.console import suggest, terminal
from fedatoms.cli.parsing import Job, Options
from fedatoms.core.extras import has, how_to_add
from fedatoms.core.lookup import as_word, counted
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.presets import DEMO

AXES: dict[str, tuple[object, ...]] = {"parametrisation": ("plain", "atoms"), "seed": (0, 1, 2), "out": ("runs/demo",)}


def options(words: Sequence[str]) -> Options:
    """Returns the options: the axes of a comparison, with the demonstration as defaults."""

    def demo(*, given: Annotated[object, axes(DEMO, AXES)]) -> Job:
        """Trains FedAvg with and without atoms on built-in data, then shows a table and, with Matplotlib, a plot.

        It takes about a minute. Flags are those of `fedatoms run`, with commas between values.
        """

        return lambda: _demo(grid([DEMO], given, ["--parametrisation", *words]))  # the verdict is about its values

    return demo


def _demo(experiments: list[Experiment]) -> int:
    first = experiments[0]
    print(
        f"{first.algorithm} on {first.dataset}: {first.clients} clients with {first.classes_per_client} classes each, "
        f"{first.fraction:.0%} of them sampled per round, {counted(first.rounds, 'round')}."
    )
    draws, console = has("matplotlib"), terminal()
    plot = Path(first.out) / "demo.png" if draws else None
    status = compared(experiments, f"{first.algorithm} with and without atoms", plot, verdict=True)
    suggest(
        console,
        *([] if draws else [(how_to_add("plot"), "and the same command again: a plot too")]),
        (f"fedatoms report {as_word(first.out)}", "curves and tables of these runs on one page"),
        ("fedatoms run fedavg-atoms", "one experiment; `fedatoms presets` lists more"),
    )
    return status
