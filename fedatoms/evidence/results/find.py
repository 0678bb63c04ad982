"""Finds runs, measures and explanations below folders; what cannot be used is named with its reason, never merged."""

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from fedatoms.core.lookup import find as lookup
from fedatoms.core.lookup import one_line
from fedatoms.data.datasets import DATASETS
from fedatoms.evidence.explain import files as explanations
from fedatoms.evidence.measures import files as measures
from fedatoms.evidence.page.explanations import Explained, drawn
from fedatoms.evidence.page.measures import Measured
from fedatoms.evidence.page.plotly import draw
from fedatoms.evidence.results.names import natural
from fedatoms.experiment.checks import check
from fedatoms.experiment.identity import identity
from fedatoms.runs.loading import how_to_resume
from fedatoms.runs.lock import writer
from fedatoms.runs.results import Result, Row, accuracy_curves, read_result, read_rounds, summarise

BROKEN = (ValueError, TypeError, KeyError, AttributeError, IndexError, OSError, RecursionError)
T = TypeVar("T")


class Note(NamedTuple):
    """A file, and what is wrong with it."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Run:
    """A finished run: its result and its rounds, which are empty if their file is missing or damaged."""

    result: Result
    rows: list[Row]

    @property
    def name(self) -> str:
        """The run's folder as it was found."""
        return self.result.folder.as_posix()


class Found(NamedTuple):
    """What lies below some folders: runs by name, files left out, what else to know, measures, explanations."""

    runs: list[Run]
    left_out: list[Note]
    notes: list[Note]
    measures: list[Measured]
    explained: list[Explained]


def find(folders: Sequence[Path]) -> Found:
    """Reads all results, measures and explanations; of those that say the same of the same, the newest."""
    runs, left_out, notes = [], [], []
    for path in _files(folders, "result.json"):
        try:
            result = _checked(read_result(path.parent))
        except BROKEN as error:
            left_out.append(Note(path, _reason(error)))
            continue
        rows, said = _rounds(result)
        runs.append(Run(result, rows))
        notes += said
    kept, repeated = _newest(runs, _of_run)
    alike, odd = _alike(kept)
    measured, damaged = _each(folders, measures.FILE, _measured)
    measured, retaken = _newest(measured, _of_measure)
    explained, unread = _each(folders, explanations.FILE, _explained)
    explained, retold = _newest(explained, _of_explanation)
    left_out += [*repeated, *odd, *damaged, *retaken, *unread, *retold, *_unfinished(folders)]
    return Found(alike, left_out, notes, measured, explained)


def _files(folders: Iterable[Path], name: str) -> list[Path]:
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder. Give folders that hold runs, for example runs.")
        for path in sorted(folder.rglob(name)):
            found.setdefault(path.resolve(), path)
    return list(found.values())


def _each(folders: Sequence[Path], name: str, read: Callable[[Path], T]) -> tuple[list[T], list[Note]]:
    """Reads the files of a name; one that cannot be read or drawn is damaged."""
    found, damaged = [], []
    for path in _files(folders, name):
        try:
            found.append(read(path))
        except BROKEN as error:
            reason = one_line(error).removeprefix(f"{path} is ")
            damaged.append(Note(path, f"{reason} is missing" if isinstance(error, KeyError) else reason))
    return found, damaged


def _measured(path: Path) -> Measured:
    measure = measures.read_measure(path.parent)
    return Measured(path.parent, measure, draw(measure))


def _explained(path: Path) -> Explained:
    return drawn(path.parent, explanations.read(path))


def _checked(result: Result) -> Result:
    """Refuses a file that has the right fields but not the right things in them."""
    check(result.experiment)
    lookup(result.experiment.dataset, DATASETS, "data set")
    numbers = [number for summary in result.accuracy.values() for number in summary]
    numbers += list((result.personal or {}).values())
    if not result.accuracy or not all(_is_number(number) and 0 <= number <= 100 for number in numbers):
        raise ValueError("its accuracies are not numbers from 0 to 100")
    costs = [*result.bytes_up.values(), *result.bytes_down.values(), result.parameters]
    if not all(isinstance(cost, int) and cost >= 0 for cost in costs):
        raise ValueError("its bytes and parameters are not whole numbers from 0 up")
    if not all(_is_number(seconds) and seconds >= 0 for seconds in (result.seconds, result.seconds_per_round)):
        raise ValueError("its seconds are not numbers from 0 up")
    if not isinstance(result.provenance, dict):
        raise ValueError("its provenance is not an object")
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _rounds(result: Result) -> tuple[list[Row], list[Note]]:
    """Reads a run's rounds, and says where they and the result disagree."""
    path = result.folder / "rounds.jsonl"
    try:
        rows = read_rounds(result.folder)
        said = summarise(rows)
        _ = [sum(row["up"].values()) for row in rows]
        points = [point for curve in accuracy_curves(rows).values() for point in curve]
        if not all(isinstance(t, int) and _is_number(accuracy) for t, accuracy in points):
            raise ValueError("has accuracies that are not numbers")
    except BROKEN as error:
        return [], [Note(path, f"damaged, so there is no curve: {one_line(error)}")]
    if not rows:
        return [], [Note(path, "missing or empty: no curve")]
    if len(rows) != result.experiment.rounds:
        by = writer(result.folder)
        more = f": more are running ({by})" if by else ""
        return rows, [Note(path, f"has {len(rows)} of {result.experiment.rounds} rounds{more}")]
    if said.keys() != result.accuracy.keys() or any(not _agree(said[n], result.accuracy[n]) for n in said):
        return rows, [Note(path, "does not give the accuracies of result.json beside it")]
    return rows, []


def _agree(ours: Iterable[float], theirs: Iterable[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) for a, b in zip(ours, theirs, strict=True))


class _Origin(NamedTuple):
    """What a file is about, when it was made, and where it lies."""

    key: Hashable
    provenance: Mapping[str, object]
    path: Path

    @property
    def time(self) -> str:
        return str(self.provenance.get("time", ""))

    @property
    def folder(self) -> str:
        return self.path.parent.as_posix()


def _newest(found: Sequence[T], origin: Callable[[T], _Origin]) -> tuple[list[T], list[Note]]:
    """Keeps the newest of what is about the same, in the order of folders."""
    kept: dict[Hashable, T] = {}
    repeated = []
    for one in sorted(found, key=lambda each: origin(each).time, reverse=True):
        first = kept.setdefault(origin(one).key, one)
        if first is not one:
            reason = f"left out: {origin(first).folder} has the same experiment and seed, is not older, and is used"
            repeated.append(Note(origin(one).path, reason))
    return sorted(kept.values(), key=lambda each: natural(origin(each).folder)), repeated


def _of_run(run: Run) -> _Origin:
    result = run.result
    return _Origin(identity(result.experiment), result.provenance, result.folder / "result.json")


def _of_measure(each: Measured) -> _Origin:
    its = each.measure
    key = its.name, tuple(map(identity, its.experiments)), json.dumps(its.settings, sort_keys=True)
    return _Origin(key, its.provenance, each.folder / measures.FILE)


def _of_explanation(each: Explained) -> _Origin:
    its = each.explanation
    key = identity(its.experiment), its.round, replace(its.settings, device=None, threads=None)
    return _Origin(key, its.provenance, each.folder / explanations.FILE)


def _alike(runs: Sequence[Run]) -> tuple[list[Run], list[Note]]:
    """Sorts out runs that score other models than the first run of their experiment, whatever the seed."""
    firsts: dict[str, Run] = {}
    alike, odd = [], []
    for run in runs:
        first = firsts.setdefault(identity(run.result.experiment, without=("seed",)), run)
        if run.result.accuracy.keys() == first.result.accuracy.keys():
            alike.append(run)
        else:
            odd.append(Note(run.result.folder / "result.json", f"scores other models than {first.name}"))
    return alike, odd


def _unfinished(folders: Sequence[Path]) -> list[Note]:
    paths = [path for path in _files(folders, "experiment.json") if not (path.parent / "result.json").exists()]
    return [Note(path, _how_far(path.parent)) for path in paths]


def _how_far(folder: Path) -> str:
    by = writer(folder)
    return f"running ({by})" if by else f"not finished: go on with {how_to_resume(folder)}"


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"damaged: {error}"
    if isinstance(error, KeyError):
        return f"no result of a run: {error} is missing"
    return f"no result of a run: {one_line(error)}"
