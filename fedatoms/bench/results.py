"""Settings and results of a benchmark: rows, ratios and gaps, and their file."""

import importlib.metadata
import json
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch

from fedatoms.bench.settings import PARTS, Bench
from fedatoms.core.files import write_named
from fedatoms.core.lookup import unknown
from fedatoms.core.options import RANGES, Precision, check_numbers
from fedatoms.core.outputs import check_output
from fedatoms.experiment.checks import check_threads
from fedatoms.runs.provenance import provenance_of

PLACES = ("out", "data_dir")  # settings that mean something on one machine only, which no file keeps
LENET = "LeNet"  # the network of the contest, except where a part has another


class Ratio(NamedTuple):
    """A measured ratio (or number), and the bar that it should not pass, or should reach if ``at_least``."""

    name: str
    value: float
    bar: float | None
    detail: str
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """Whether the bar is met, in a word; empty without a bar.

        >>> Ratio("twice as fast", 2.1, 2.0, "", at_least=True).verdict
        'met'
        """
        if self.bar is None:
            return ""
        return "met" if (self.value >= self.bar if self.at_least else self.value <= self.bar) else "missed"


class Row(NamedTuple):
    """One contestant in one cell of the grid; shares are of the limits that were measured on the same card."""

    contestant: str
    clients: int
    batch: int
    steps: int  # of each client
    precision: Precision
    ms_round: float
    ms_step: float  # of all clients together
    client_steps: float  # per second
    arithmetic: float  # share of the arithmetic limit
    bandwidth: float  # share of the bandwidth limit
    first_round: float  # seconds, with all compilation
    memory: float | None  # peak on the device during the first round, in MB
    seconds: list[float]  # of every measured round
    detail: str = ""
    network: str = LENET


class Gap(NamedTuple):
    """What could not be measured, and why."""

    name: str
    reason: str


Event = str | Row | Ratio | Gap  # a string is progress only


class Results(NamedTuple):
    """All results of one run of the benchmark."""

    settings: dict[str, object]
    results: list[Ratio]
    rows: list[Row]
    gaps: list[Gap]
    provenance: dict[str, object]


def collect(settings: Bench, events: Iterable[Event], machine: dict[str, object]) -> Results:
    """Sorts events by kind, and rows by cell.

    >>> collect(Bench(), ["hello", Gap("JAX", "not installed")], {}).gaps
    [Gap(name='JAX', reason='not installed')]
    """
    events = list(events)
    ratios = [event for event in events if isinstance(event, Ratio)]
    rows = sorted((event for event in events if isinstance(event, Row)), key=_place)
    return Results(asdict(settings), ratios, rows, [event for event in events if isinstance(event, Gap)], machine)


def write(results: Results) -> None:
    """Writes results to the file that their settings name, if any."""
    if out := str(results.settings["out"]):
        lists = {name: [line._asdict() for line in getattr(results, name)] for name in ("results", "rows", "gaps")}
        asked = {name: value for name, value in results.settings.items() if name not in PLACES}
        whole = {**results._asdict(), "settings": asked, **lists}
        write_named(Path(out), (json.dumps(whole, indent=2) + "\n").encode())


def read(path: Path) -> Results:
    """Reads what ``write`` wrote."""
    whole = json.loads(path.read_text())
    ratios, rows, gaps = whole["results"], whole["rows"], whole["gaps"]
    return Results(
        whole["settings"],
        [Ratio(**line) for line in ratios],
        [Row(**line) for line in rows],
        [Gap(**line) for line in gaps],
        whole["provenance"],
    )


def joined(runs: Sequence[Results]) -> Results:
    """Joins results of several runs of the benchmark, which measured other parts each; the first one's settings stay.

    >>> whole = collect(Bench(parts="grid"), [], {}), collect(Bench(parts="pfl"), [Gap("pfl", "none")], {"device": "b"})
    >>> joined(whole).settings["parts"], joined(whole).provenance
    ('grid,pfl', {'joined': [{'device': 'b', 'parts': 'pfl'}]})
    """
    first, *others = runs
    asked = {part for run in runs for part in str(run.settings["parts"]).split(",")}
    once = {ratio.name: ratio for run in reversed(runs) for ratio in run.results}  # all have the card's limits
    order = dict.fromkeys(ratio.name for run in runs for ratio in run.results)
    return Results(
        {**first.settings, "parts": ",".join(part for part in PARTS if part in asked)},
        [once[name] for name in order],
        sorted((row for run in runs for row in run.rows), key=_place),
        [gap for run in runs for gap in run.gaps],
        {**first.provenance, **({"joined": [_with_parts(run) for run in others]} if others else {})},
    )


def _with_parts(run: Results) -> dict[str, object]:
    return {**run.provenance, "parts": str(run.settings["parts"]).replace(",", ", ")}


def machine(device: str) -> dict[str, object]:
    """Describes machine and code, with what matters on a GPU."""
    cuda = {"driver": _driver(), "cudnn": torch.backends.cudnn.version()} if device.startswith("cuda") else {}
    return {
        **provenance_of(device),
        **cuda,
        "triton": version_of("triton"),
        "jax": version_of("jax"),
        "pfl": version_of("pfl"),
    }


def version_of(package: str) -> str | None:
    """Returns the version of an installed package.

    >>> version_of("no-such-package") is None
    True
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check(settings: Bench) -> None:
    """Refuses numbers and parts with which nothing can be measured.

    >>> check(Bench(repeats=0))
    Traceback (most recent call last):
    ValueError: repeats=0 is less than 1. Use repeats=7.
    """
    check_numbers(settings, "bench")
    if settings.threads != Bench.threads:  # which a single core runs too
        check_threads(settings.threads)
    _check_backend(settings.backend)
    parts_of(settings)
    if settings.out:
        check_output(Path(settings.out))
    numbers(settings.clients, "--clients")
    numbers(settings.batch, "--batch")
    numbers(settings.pfl_processes, "--pfl-processes")


def numbers(text: str, flag: str) -> list[int]:
    """Parses a list of integers.

    >>> numbers("10,50", "--batch")
    [10, 50]
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(RANGES["clients"].holds(number) for number in found):
        raise ValueError(f"{flag} {text} is not a list of whole numbers above 0. Use for example {flag} 10,50.")
    return found


def parts_of(settings: Bench) -> list[str]:
    """Parses which parts to measure."""
    chosen = [part.strip() for part in settings.parts.split(",")]
    for part in chosen:
        if part not in PARTS:
            raise unknown(part, PARTS, "part in --parts")
    return [part for part in PARTS if part in chosen]


def paired(
    name: str, over: Sequence[float], under: Sequence[float], bar: float | None, where: str, *, at_least: bool = False
) -> Ratio:
    """Compares the seconds of two contestants turn by turn: the median of the ratios of neighbours in time.

    >>> paired("a / b", [2.0, 2.2], [1.0, 1.1], None, "here")
    Ratio(name='a / b', value=2.0, bar=None, detail='2100.0 ms against 1050.0 ms a round, here', at_least=False)
    """
    pairs = [a / b for a, b in zip(over, under, strict=False)]
    medians = [f"{1e3 * statistics.median(each):.1f} ms" for each in (over, under)]
    return Ratio(name, statistics.median(pairs), bar, f"{' against '.join(medians)} a round, {where}", at_least)


def find_row(events: Sequence[Event], contestant: str, clients: int, batch: int) -> Row | None:
    """Looks for a contestant's row among what was measured with LeNet."""
    rows = [event for event in events if isinstance(event, Row) and event.network == LENET]
    rows = [row for row in rows if row.contestant == contestant]
    return next((row for row in rows if (row.clients, row.batch) == (clients, batch)), None)


def _place(row: Row) -> tuple[bool, int, int]:
    return row.network != LENET, row.clients, row.batch


def _check_backend(name: str) -> None:
    if name == Bench.backend:  # else the compiler must be imported, which takes a second
        return
    if name not in torch.compiler.list_backends(exclude_tags=()):
        raise unknown(name, torch.compiler.list_backends(), "backend")  # without those for tests


def _driver() -> str | None:
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return output[0] if output else None
