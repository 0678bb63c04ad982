"""fedatoms run | compare | demo | presets: experiments, one or many."""

import dataclasses
from pathlib import Path

from fedatoms.cli.args import grid, parse, take
from fedatoms.cli.console import say, terminal, told_how_to_continue, told_to_repeat
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load, load_run
from fedatoms.experiment.identity import run_name
from fedatoms.experiment.presets import DEMO, PRESETS, preset

PICTURES = (".png", ".pdf", ".svg")


def run_command(words: list[str]) -> int:
    """Runs one experiment, or goes on with one."""
    if "-h" in words or "--help" in words:
        print(
            "fedatoms run [PRESET | FILE] [--FLAG VALUE ...]   a preset (`fedatoms presets`) or a saved experiment.json"
        )
        print("fedatoms run --resume FOLDER [--rounds N]         continue a run from its last checkpoint\n")
        parse("run", ["--help"], Experiment())
    words, folder = take(words, "--resume")
    default, words = _starting_point(words) if folder is None else (load_run(Path(folder)), words)
    experiment = parse("run", words, default)
    from fedatoms.cli.tables import tables, watching
    from fedatoms.runs.compare import compare
    from fedatoms.runs.execute import resume, run

    console = terminal()
    home = Path(experiment.out) / run_name(experiment) if folder is None else Path(folder)
    with watching(console, home.name, experiment.rounds) as watch, told_how_to_continue(home):
        if folder is None:
            result = run(experiment, watch=watch)
        else:
            changes = {k: v for k, v in dataclasses.asdict(experiment).items() if v != getattr(default, k)}
            result = resume(home, changes, watch=watch, say=say)
    for table in tables(compare([result]), f"{home.name}: {experiment.rounds} rounds"):
        console.print(table)
    console.print(f"files: {home}", highlight=False)
    return 0


def compare_command(words: list[str]) -> int:
    """Runs a grid of experiments where results are missing, and shows them side by side."""
    if not words or "-h" in words or "--help" in words:
        print("fedatoms compare [PRESET ...] [--FLAG VALUE,VALUE ...] [--seeds 0,1,2] [--plot FILE.png]")
        print(
            "Runs every combination that has no result yet in --out, then prints one table. Flags as in `fedatoms run`."
        )
        print("Example: fedatoms compare --parametrisation plain,atoms --algorithm fedavg,feddyn --seeds 0,1")
        return 0
    words, plot = take(words, "--plot")
    if plot is not None and Path(plot).suffix not in PICTURES:
        raise ValueError(f"--plot {plot} does not end in {', '.join(PICTURES)}. Use for example --plot plot.png.")
    names, points = grid(words)
    starts = [preset(name) for name in names] or [Experiment()]
    experiments = [parse("compare", point, start) for start in starts for point in points]
    if any(experiment.name for experiment in experiments):
        raise ValueError("--name cannot name the runs of a comparison: each has its own folder in --out. Leave it out.")
    return _compared(experiments, "comparison", Path(plot) if plot else None)


def demo_command(words: list[str]) -> int:
    """Runs the main job: FedAvg with and without atoms on digits that are spread unevenly over clients."""
    if "-h" in words or "--help" in words:
        print("fedatoms demo [--out FOLDER] [--seeds 0,1]   FedAvg with and without atoms on digits; takes run flags")
        return 0
    words, out = take(words, "--out")
    seeds = [] if any(word.startswith("--seed") for word in words) else ["--seeds", "0,1,2"]
    _, points = grid(["--parametrisation", "plain,atoms", *seeds, *words, "--out", out or "runs/demo"])
    experiments = [parse("demo", point, DEMO) for point in points]
    first = experiments[0]
    print(
        f"{first.algorithm} on {first.dataset}: {first.clients} clients with {first.classes_per_client} classes each, "
        f"{first.fraction:.0%} of them sampled in each of {first.rounds} rounds."
    )
    return _compared(
        experiments, f"{first.algorithm} with and without atoms", Path(first.out) / "demo.png", verdict=True
    )


def presets_command(words: list[str]) -> int:
    """Lists the named experiments."""
    width = max(len(name) for name in PRESETS)
    for name, experiment in PRESETS.items():
        print(f"{name:{width}} {experiment.dataset}, {experiment.clients} clients, {experiment.rounds} rounds")
    return 0


def _compared(experiments: list[Experiment], title: str, plot: Path | None, *, verdict: bool = False) -> int:
    from fedatoms.cli.tables import judgement, tables, watching
    from fedatoms.experiment.build import simulation
    from fedatoms.runs.compare import compare, run_missing
    from fedatoms.runs.plots import accuracy_plot

    console = terminal()
    for experiment in experiments:
        simulation(experiment)  # a mistake in the last one must not cost the time of the first
    with told_to_repeat():
        lines = compare(run_missing(experiments, lambda *what: watching(console, *what)))
    for table in tables(lines, title):
        console.print(table)
    if verdict:
        console.print(judgement(lines), highlight=False)
    if plot is not None:
        accuracy_plot(lines, plot, title)
        console.print(f"plot: {plot}", highlight=False)
    return 0


def _starting_point(words: list[str]) -> tuple[Experiment, list[str]]:
    if not words or words[0].startswith("-"):
        return Experiment(), words
    if Path(words[0]).is_dir():
        raise ValueError(f"{words[0]} is a folder. Continue its run with `fedatoms run --resume {words[0]}`.")
    return (load(Path(words[0])) if words[0].endswith(".json") else preset(words[0])), words[1:]
