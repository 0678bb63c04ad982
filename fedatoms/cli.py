"""The command line: fedatoms demo | run | compare | report | personalize | ...; torch only when it must."""

import contextlib
import dataclasses
import errno
import importlib.util
import io
import itertools
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fedatoms.experiment import Experiment, load, load_run, run_name
from fedatoms.names import unknown
from fedatoms.presets import DEMO, PRESETS, preset

if TYPE_CHECKING:
    from rich.console import Console

HELP = """usage: fedatoms COMMAND [OPTIONS]

Federated learning with filter atoms, on PyTorch.

  demo          FedAvg with and without atoms on built-in data: a table and a plot, in about a minute
  run           one experiment:  fedatoms run [PRESET | FILE] [--FLAG VALUE ...] [--resume FOLDER]
  compare       a grid of them:  fedatoms compare [PRESET ...] [--FLAG VALUE,VALUE ...] [--seeds 0,1,2]
  reproduce     the paper's tables and figures: fedatoms reproduce table1 | figure-variance | ... | all [--quick]
  report        a page of results: fedatoms report FOLDER ... [-o report.html] [--data-dir FOLDER]
  personalize   a client that joins later: fedatoms personalize RUN --images FILE.npz --out FILE.safetensors
  explain       what latent clients change: fedatoms explain RUN [--fork N] [--plain RUN], or explain --bounds
  presets       the named experiments
  bench         how fast, how big, against a hand-written loop; --device cuda adds torch.compile and JAX
  flower        a real federation: fedatoms flower new DIR | keys DIR | demo [--nodes 3] [--rounds 3] [--tls]

fedatoms COMMAND --help lists a command's options.
"""
Settings = TypeVar("Settings")
PICTURES = (".png", ".pdf", ".svg")
LISTS = {"--fast", "--score"}  # flags whose values may hold commas of their own


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; a mistake costs one line on stderr and exit status 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[list[str]], int]] = {
        "demo": _demo,
        "run": _run,
        "compare": _compare,
        "reproduce": _reproduce,
        "report": _report,
        "personalize": _personalize,
        "explain": _explain,
        "presets": _presets,
        "bench": _bench,
        "flower": _flower,
    }
    if not words or words[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    if words[0] == "--version":
        from fedatoms.version import __version__

        print(f"fedatoms {__version__}")
        return 0
    try:
        if words[0] not in commands:
            raise unknown(words[0], commands, "command")
        signal.signal(signal.SIGTERM, _interrupt)  # a cluster's "time is up" saves a checkpoint too
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where: _say(str(message))
            return commands[words[0]](words[1:])
    except KeyboardInterrupt:
        print("fedatoms: stopped.", file=sys.stderr)
        return 130
    except (ValueError, OSError, FloatingPointError, MemoryError) as error:
        if os.environ.get("FEDATOMS_DEBUG"):
            raise
        print(f"fedatoms: {_one_line(error)}", file=sys.stderr)
        return 2


def parse(command: str, words: Sequence[str], default: Settings) -> Settings:
    """Reads flags into settings, such as an experiment; a mistake is a ValueError of one line.

    >>> parse("run", ["--atoms", "3"], Experiment()).atoms
    3
    >>> parse("run", ["--atms", "3"], Experiment())
    Traceback (most recent call last):
    ...
    ValueError: Unrecognized options: --atms, 3. Did you mean --atoms? See `fedatoms run --help`.
    """
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(type(default), prog=f"fedatoms {command}", args=words, default=default)
    except SystemExit as end:
        if end.code in (0, None):
            raise
        raise ValueError(_unbox(said.getvalue(), command)) from None


def grid(words: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Takes the words of ``compare`` apart: the presets, and one list of flags for each point of the grid.

    >>> grid(["fedavg", "--atoms", "3,9", "--seeds", "0,1"])[1][1]
    ['--atoms', '3', '--seed', '1']
    """
    first = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    axes: list[list[list[str]]] = []
    for word in (part for flag in words[first:] for part in _split_equals(flag)):
        if word.startswith("--"):
            axes.append([[word.replace("--seeds", "--seed")]])
        elif axes:
            flag = axes[-1][0]
            values = [word] if flag[0] in LISTS else word.split(",")
            axes[-1] = [[*flag, value] for value in values]
    return list(words[:first]), [list(itertools.chain(*point)) for point in itertools.product(*axes)]


def _run(words: list[str]) -> int:
    if "-h" in words or "--help" in words:
        print(
            "fedatoms run [PRESET | FILE] [--FLAG VALUE ...]   a preset (`fedatoms presets`) or a saved experiment.json"
        )
        print("fedatoms run --resume FOLDER [--rounds N]         continue a run from its last checkpoint\n")
        parse("run", ["--help"], Experiment())
    words, folder = _take(words, "--resume")
    default, words = _starting_point(words) if folder is None else (load_run(Path(folder)), words)
    experiment = parse("run", words, default)
    from fedatoms.compare import compare
    from fedatoms.display import tables, watching
    from fedatoms.runs import resume, run

    console = _console()
    home = Path(experiment.out) / run_name(experiment) if folder is None else Path(folder)
    with watching(console, home.name, experiment.rounds) as watch, _told_how_to_continue(home):
        if folder is None:
            result = run(experiment, watch=watch)
        else:
            changes = {k: v for k, v in dataclasses.asdict(experiment).items() if v != getattr(default, k)}
            result = resume(home, changes, watch=watch, say=lambda line: print(f"fedatoms: {line}", file=sys.stderr))
    for table in tables(compare([result]), f"{home.name}: {experiment.rounds} rounds"):
        console.print(table)
    console.print(f"files: {home}", highlight=False)
    return 0


def _compare(words: list[str]) -> int:
    if not words or "-h" in words or "--help" in words:
        print("fedatoms compare [PRESET ...] [--FLAG VALUE,VALUE ...] [--seeds 0,1,2] [--plot FILE.png]")
        print(
            "Runs every combination that has no result yet in --out, then prints one table. Flags as in `fedatoms run`."
        )
        print("Example: fedatoms compare --parametrisation plain,atoms --algorithm fedavg,feddyn --seeds 0,1")
        return 0
    words, plot = _take(words, "--plot")
    if plot is not None and Path(plot).suffix not in PICTURES:
        raise ValueError(f"--plot {plot} does not end in {', '.join(PICTURES)}. Use for example --plot plot.png.")
    names, points = grid(words)
    starts = [preset(name) for name in names] or [Experiment()]
    experiments = [parse("compare", point, start) for start in starts for point in points]
    if any(experiment.name for experiment in experiments):
        raise ValueError("--name cannot name the runs of a comparison: each has its own folder in --out. Leave it out.")
    return _compared(experiments, "comparison", Path(plot) if plot else None)


def _demo(words: list[str]) -> int:
    """Runs the main job: FedAvg with and without atoms on digits that are spread unevenly over clients."""
    if "-h" in words or "--help" in words:
        print("fedatoms demo [--out FOLDER] [--seeds 0,1]   FedAvg with and without atoms on digits; takes run flags")
        return 0
    words, out = _take(words, "--out")
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


def _compared(experiments: list[Experiment], title: str, plot: Path | None, *, verdict: bool = False) -> int:
    from fedatoms.build import simulation
    from fedatoms.compare import compare, run_missing
    from fedatoms.display import judgement, tables, watching
    from fedatoms.plots import accuracy_plot

    console = _console()
    for experiment in experiments:
        simulation(experiment)  # a mistake in the last one must not cost the time of the first
    with _told_to_repeat():
        lines = compare(run_missing(experiments, lambda *what: watching(console, *what)))
    for table in tables(lines, title):
        console.print(table)
    if verdict:
        console.print(judgement(lines), highlight=False)
    if plot is not None:
        accuracy_plot(lines, plot, title)
        console.print(f"plot: {plot}", highlight=False)
    return 0


def _reproduce(words: list[str]) -> int:
    from fedatoms.paper.studies import studies
    from fedatoms.reproduce.plan import Reproduce, check_jobs, chosen, jobs, missing, out_of

    if not words or "-h" in words or "--help" in words:
        print("fedatoms reproduce STUDY ... [--data-dir FOLDER] [--seeds 0,1,2] [--only PATTERN] [--quick]\n")
        for study in studies().values():
            print(f"  {study.name:21} {study.title}")
        print("  all                   all of them\n")
        parse("reproduce", ["--help"], Reproduce())
    first = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    if not first:
        raise ValueError(f"name a study first: {', '.join(studies())} or all.")
    settings = parse("reproduce", words[first:], Reproduce())
    wanted = chosen(words[:first])
    asked, out = jobs(wanted, settings), Path(out_of(settings))
    from fedatoms.display import overall, sheet
    from fedatoms.report.find import find
    from fedatoms.report.page import report
    from fedatoms.reproduce.sheets import sheets
    from fedatoms.reproduce.work import here, on_ray

    console, found = _console(), find([out] if out.exists() else [])
    for note in found.left_out:
        if note.path.name != "experiment.json":  # of a run that is not finished: it goes on if it is asked for
            _say(f"{note.path}: {note.reason}")
    left = missing(asked, found)
    check_jobs(left, settings)
    how = " (quick: digits stand in, a few rounds)" if settings.quick else ""
    console.print(f"{len(left)} of {len(asked)} to do{how}, results in {out}", highlight=False)
    with overall(console, {job.name: job.weight for job in left}) as tell, _told_to_repeat():
        work = on_ray if settings.on == "ray" else here
        failed = [done for done in work(left, lambda job, share: tell(job.name, share)) if done.failure]
    for each in failed:
        _say(f"{each.job.name} failed: {each.failure}")
    found = find([out] if out.exists() else [])
    for made in sheets(wanted, asked, found, quick=settings.quick):
        console.print(sheet(made))
    if found.runs or found.measures:
        pictures = Path(settings.data_dir) if Path(settings.data_dir).is_dir() else None
        page = report([out], out / "report.html", pictures).page
        console.print(f"page: {page}", highlight=False, soft_wrap=True)
    return 1 if failed else 0


def _report(words: list[str]) -> int:
    if not words or "-h" in words or "--help" in words:
        print("fedatoms report FOLDER ... [-o report.html] [--data-dir FOLDER]")
        print(
            "Makes one page, which opens offline, of all runs and measures below the folders, and a CSV file beside it."
        )
        print("--data-dir adds pictures of how data sets other than digits are spread over clients.")
        return 0
    words, page = _take(words, "-o")
    words, data_dir = _take(words, "--data-dir")
    strange = [word for word in words if word.startswith("-")]
    if strange or not words:
        said = f"{strange[0]} is no option of it" if strange else "it needs a folder that holds runs"
        raise ValueError(f"fedatoms report: {said}. Use for example `fedatoms report runs -o report.html`.")
    from fedatoms.report.page import report

    done = report([Path(word) for word in words], Path(page or "report.html"), Path(data_dir) if data_dir else None)
    for note in (*done.found.left_out, *done.found.notes):
        _say(f"{note.path}: {note.reason}")
    counts = {"run": len(done.found.runs), "measure": len(done.found.measures)}
    said = ", ".join(f"{number} {what}{'' if number == 1 else 's'}" for what, number in counts.items() if number)
    lines = (f"page: {done.page}, {said}, {done.page.stat().st_size / 1e6:.1f} MB", f"data: {done.csv}")
    for line in lines:
        _console().print(line, highlight=False, soft_wrap=True, markup=False)
    return 0


def _personalize(words: list[str]) -> int:
    from fedatoms.newcomer import Newcomer, join, prepare

    if not words or "-h" in words or "--help" in words:
        print("fedatoms personalize RUN --images FILE.npz --out FILE.safetensors [--FLAG VALUE ...]")
        print("Fits a new client's own atoms to its pictures, with all else of the run's model as it is.\n")
        parse("personalize", ["--help"], Newcomer())
    if words[0].startswith("-"):
        raise ValueError("the run is missing. Give its folder first, for example `fedatoms personalize runs/mine`.")
    from fedatoms.display import joining, working

    console, newcomer = _console(), parse("personalize", words[1:], Newcomer())
    ready = prepare(Path(words[0]), newcomer)
    what = f"fitting {ready.numbers:,} numbers to {len(ready.sim.data.y):,} images, {newcomer.epochs} epochs"
    with working(console, what):
        done = join(ready)
    if Path(newcomer.images).is_dir():
        console.print(f"labels: {ready.labels_from}", highlight=False, soft_wrap=True, markup=False)
    if done.scores:
        console.print(joining(done))
    lines = (
        f"file: {ready.out}, {ready.numbers:,} numbers ({newcomer.part}) in {done.size / 1000:.1f} kB",
        f'load: model = fedatoms.load_personal("{ready.run}", "{ready.out}")',
        f'use:  model(fedatoms.inputs_of("{ready.run}", images))',
    )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return 0


def _explain(words: list[str]) -> int:
    if "--bounds" in words:
        return _bounds([word for word in words if word != "--bounds"])
    from fedatoms.explain.study import check, explain, out_of
    from fedatoms.explain.values import Explain

    if not words or "-h" in words or "--help" in words:
        print("fedatoms explain RUN [--FLAG VALUE ...]        replays rounds of a run with atoms and measures them")
        print("fedatoms explain --bounds [--FLAG VALUE ...]   the paper's bounds, with and without latent clients\n")
        parse("explain", ["--help"], Explain())
    if words[0].startswith("-"):
        raise ValueError("the run is missing. Give its folder first, for example `fedatoms explain runs/mine`.")
    from fedatoms.display import working
    from fedatoms.explain.files import write
    from fedatoms.explain.tables import layers_table, rounds_table
    from fedatoms.explain.words import findings

    console, run, settings = _console(), Path(words[0]), parse("explain", words[1:], Explain())
    check(run, settings)
    with working(console, f"replaying rounds of {run.name}") as tell:
        done = explain(run, settings, tell=tell, say=_say)
    found, out = findings(done), out_of(run, settings)
    write(done, out, found)
    for table in (rounds_table(done), layers_table(done)):
        console.print(table)
    for line in (*found, f"file: {out}"):
        console.print(line, highlight=False, markup=False)
    return 0


def _bounds(words: list[str]) -> int:
    from fedatoms.explain.bounds import ASSUMED, Bounds, fast_and_slow, rate, with_and_without
    from fedatoms.explain.tables import bounds_table

    asked, console = parse("explain --bounds", words, Bounds()), _console()
    title = f"Theorem 5.5: {asked.sampled} of {asked.clients} clients in a round, {asked.epochs} local steps"
    console.print(bounds_table(title, asked, "latent\nclients", with_and_without(asked)))
    title = (
        f"Theorem F.1: all {asked.clients} clients in every round, {asked.epochs} local steps, no latent clients in it"
    )
    console.print(bounds_table(title, asked, "beta", fast_and_slow(asked)))
    sent = f"beta {asked.beta} sends {rate(asked):.3f} of {asked.fast + asked.slow:,} parameters in a round."
    assumed = "Assumed, so the bounds weigh terms against each other and predict no run:"
    for line in (sent, assumed, *(f"- {line}" for line in ASSUMED)):
        console.print(line, highlight=False, markup=False)
    return 0


def _presets(words: list[str]) -> int:
    width = max(len(name) for name in PRESETS)
    for name, experiment in PRESETS.items():
        print(f"{name:{width}} {experiment.dataset}, {experiment.clients} clients, {experiment.rounds} rounds")
    return 0


def _bench(words: list[str]) -> int:
    from fedatoms.bench import cpu, gpu
    from fedatoms.bench.results import Bench, Event, collect, machine, write
    from fedatoms.build import device_of
    from fedatoms.display import benchmarks, contest, news

    settings, console = parse("bench", words, Bench()), _console()
    events: list[Event] = []
    device = device_of(Experiment(device=settings.device))
    origin = machine(device)
    write(collect(settings, events, origin))  # a file that cannot be written is said now
    for event in cpu.measure(settings) if device == "cpu" else gpu.measure(settings):
        events.append(event)
        write(collect(settings, events, origin))  # what was measured stays, should a later part never end
        if device != "cpu":
            console.print(news(event), highlight=False, soft_wrap=True)
    results = collect(settings, events, origin)
    if results.rows:
        console.print(contest(results.rows))
    console.print(benchmarks(results.results))
    return 0


def _flower(words: list[str]) -> int:
    commands = {"new": _flower_new, "keys": _flower_keys, "demo": _flower_demo}
    if not words or words[0] in ("-h", "--help") or (words[:1] == ["new"] and {"-h", "--help"} & set(words)):
        print("fedatoms flower new DIR                                   a Flower app to fill in, which works as it is")
        print("fedatoms flower keys DIR [--host NAME] [--nodes N]        certificates for a server, keys for its nodes")
        print("fedatoms flower demo [--nodes N] [--rounds N] [--tls]     a SuperLink and SuperNodes on this machine\n")
        print("See docs/federation.md for the way from there to machines that do not trust each other.")
        return 0
    if words[0] not in commands:
        raise unknown(words[0], commands, "flower command")
    if importlib.util.find_spec("flwr") is None:
        raise ValueError('Flower is not installed. Use pip install "fedatoms[flower]".')
    return commands[words[0]](words[1:])


def _flower_new(words: list[str]) -> int:
    if len(words) != 1 or words[0].startswith("-"):
        raise ValueError("name one new folder: fedatoms flower new DIR")
    from fedatoms.flower.new import new

    console = _console()
    for path in new(Path(words[0])):
        console.print(str(path), highlight=False)
    console.print(f"\nYour network and data go into {Path(words[0]) / 'federation' / 'task.py'}.", highlight=False)
    return 0


@dataclasses.dataclass(frozen=True)
class FlowerKeys:
    """Files for a federation with TLS; those without .crt, .pem or .pub are secrets."""

    host: str = "localhost"
    """Name under which nodes reach the server."""
    address: str = "127.0.0.1"
    """Address of the server."""
    nodes: int = 3
    """Nodes that get a key."""


def _flower_keys(words: list[str]) -> int:
    if "-h" not in words and "--help" not in words and (not words or words[0].startswith("-")):
        raise ValueError("name a new folder: fedatoms flower keys DIR [--host NAME] [--nodes N]")
    folder = Path(words[0])
    settings = parse("flower keys", words[1:] if not words[0].startswith("-") else words, FlowerKeys())
    from fedatoms.flower.keys import certificates, node_key

    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty. Use a new folder: keys are never overwritten.")
    folder.mkdir(parents=True, exist_ok=True)
    files = [*certificates(folder, [settings.host], [settings.address])]
    files += [file for i in range(settings.nodes) for file in node_key(folder, f"node-{i}")]
    for file in files:
        _console().print(str(file), highlight=False)
    return 0


@dataclasses.dataclass(frozen=True)
class FlowerDemo:
    """A federation on this machine's loopback, run and ended."""

    nodes: int = 3
    """SuperNodes."""
    rounds: int = 3
    """Rounds."""
    tls: bool = False
    """TLS, and only nodes whose keys are registered."""


def _flower_demo(words: list[str]) -> int:
    settings = parse("flower demo", words, FlowerDemo())
    from fedatoms.display import counting, tables
    from fedatoms.flower.demo import demo
    from fedatoms.flower.deploy import DeploymentError

    console = _console()
    try:
        with counting(console, "federation", settings.rounds) as done:
            lines = demo(settings.nodes, settings.rounds, tls=settings.tls, say=console.print, done=done)
    except DeploymentError as error:  # with the end of the log: one line would not help
        print(f"fedatoms: {error}", file=sys.stderr)
        return 2
    for table in tables(lines, f"{settings.nodes} nodes, {settings.rounds} rounds"):
        console.print(table)
    return 0


def _starting_point(words: list[str]) -> tuple[Experiment, list[str]]:
    if not words or words[0].startswith("-"):
        return Experiment(), words
    if Path(words[0]).is_dir():
        raise ValueError(f"{words[0]} is a folder. Continue its run with `fedatoms run --resume {words[0]}`.")
    return (load(Path(words[0])) if words[0].endswith(".json") else preset(words[0])), words[1:]


def _take(words: list[str], flag: str) -> tuple[list[str], str | None]:
    """Takes a flag with its value out of the words."""
    words = [part for word in words for part in _split_equals(word)]
    if flag not in words:
        return words, None
    place = words.index(flag)
    if place + 1 == len(words):
        raise ValueError(f"{flag} needs a value.")
    return words[:place] + words[place + 2 :], words[place + 1]


def _split_equals(word: str) -> list[str]:
    return word.split("=", 1) if re.match(r"--[a-z-]+=", word) else [word]


def _unbox(text: str, command: str) -> str:
    """Makes one line of tyro's message: its first paragraph below the title, and the flag that it suggests."""
    lines = [line.strip("│╭╮╰╯ ") for line in text.splitlines()[1:]]
    paragraphs = "\n".join("" if set(line) <= set("─-") else line for line in lines).strip()
    first = " ".join(paragraphs.split("\n\n")[0].split()).rstrip(".")
    first = re.sub(
        r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)", r"\1 \2 is not a whole number", first
    )
    first = re.sub(r"Error parsing (\S+): could not convert string to float: (.*)", r"\1 \2 is not a number", first)
    near = re.search(r"Perhaps you meant:\s*(--[a-z-]+)", paragraphs)
    hint = f" Did you mean {near[1]}?" if near else ""
    return f"{first}.{hint} See `fedatoms {command} --help`."


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        place = f" for {error.filename}" if error.filename else ""
        return f"no space left{place}. Free some, then use --resume: it goes on from the last whole checkpoint."
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}. Choose another --out or --data-dir, or mend that path."
    return " ".join(str(error).split())


def _say(text: str) -> None:
    print(f"fedatoms: {' '.join(text.split())}", file=sys.stderr)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _told_how_to_continue(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if any((folder / "checkpoint").glob("*.json")):
            print(f"fedatoms: checkpoint saved. Continue with: fedatoms run --resume {folder}", file=sys.stderr)
        raise


@contextlib.contextmanager
def _told_to_repeat() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("fedatoms: the same command goes on from here.", file=sys.stderr)
        raise


def _console() -> "Console":
    from rich.console import Console

    return Console()
