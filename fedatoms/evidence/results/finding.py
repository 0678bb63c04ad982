"""Finds runs, measures and explanations below folders; a file that cannot be used is listed with the reason."""

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from fedatoms.core.lookup import find as lookup
from fedatoms.core.lookup import one_line
from fedatoms.core.run_files import EXPERIMENT, RESULT, rounds_file
from fedatoms.data.datasets import DATASETS
from fedatoms.evidence.explain import files as explain_files
from fedatoms.evidence.explain.values import Explanation
from fedatoms.evidence.measures import files as measure_files
from fedatoms.evidence.measures.files import Measure
from fedatoms.evidence.measures.values import Checked, checked
from fedatoms.evidence.results.names import natural_order
from fedatoms.evidence.results.progress import Progress, progress_of
from fedatoms.experiment.checks import check
from fedatoms.experiment.identities import identity
from fedatoms.runs.loading import how_to_resume
from fedatoms.runs.lock import writer
from fedatoms.runs.results import Result, Summary, read_result, summarise
from fedatoms.runs.rounds import Row, read_lines

T = TypeVar("T")
PUBLISHED = "paper-results"  # the folder of the project's own runs: what lies elsewhere is the reader's


class Note(NamedTuple):
    """A file and what is wrong with it."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Run:
    """A finished run: its result, and its rounds (empty if their file is missing or damaged)."""

    result: Result
    rows: list[Row]

    @property
    def name(self) -> str:
        """The run's folder, as found."""
        return self.result.folder.as_posix()

    @cached_property
    def published(self) -> bool:
        """Whether it is one of the project's own runs, and none of the reader's."""
        return PUBLISHED in self.result.folder.resolve().parts

    @property
    def seconds(self) -> list[float]:
        """Its own seconds of each round; none if they are withheld."""
        whole, own = self.result.seconds, self.result.own_seconds
        share = own / whole if whole and own else 1.0
        known = [seconds for row in self.rows if (seconds := row["seconds"]) is not None]
        return [share * seconds for seconds in known] if len(known) == len(self.rows) else []


class FoundMeasure(NamedTuple):
    """A measure with its checked values, and its folder."""

    folder: Path
    measure: Measure
    values: Checked


class FoundExplanation(NamedTuple):
    """An explanation and its folder."""

    folder: Path
    explanation: Explanation


class Found(NamedTuple):
    """What lies below some folders; ``left_out`` lists unused files, ``notes`` files that were used with a problem.

    Runs without a result are ``unfinished``, and in ``left_out`` too, with what to type.
    """

    runs: list[Run]
    left_out: list[Note]
    notes: list[Note]
    measures: list[FoundMeasure]
    explanations: list[FoundExplanation]
    unfinished: Sequence[Progress] = ()


def find(folders: Sequence[Path]) -> Found:
    """Reads all runs, measures and explanations; of duplicates only the newest is kept. The reader's runs come first.

    >>> find([])
    Found(runs=[], left_out=[], notes=[], measures=[], explanations=[], unfinished=[])
    """
    runs, unread, notes = _runs(folders)
    unique, repeated = _newest(runs, _of_run)
    kept, mismatched = _same_models(sorted(unique, key=lambda run: run.published))
    measures, no_measures = _all(folders, measure_files.FILE, _measure, _of_measure)
    explanations, no_explanations = _all(folders, explain_files.FILE, _explanation, _of_explanation)
    unfinished = _unfinished(folders)
    still = [Note(each.folder / EXPERIMENT, how_far(each)) for each in unfinished]
    left_out = [*unread, *repeated, *mismatched, *no_measures, *no_explanations, *still]
    return Found(kept, left_out, notes, measures, explanations, unfinished)


def _runs(folders: Sequence[Path]) -> tuple[list[Run], list[Note], list[Note]]:
    """Reads finished runs; returns them, the results that cannot be used, and notes on rounds."""
    runs, unread, notes = [], [], []
    for path in _files(folders, RESULT):
        try:
            result = _checked(read_result(path.parent))
        except (ValueError, OSError) as error:
            unread.append(Note(path, _reason(error, path)))
            continue
        rows, problems = _rounds(result)
        runs.append(Run(result, rows))
        notes += problems
    return runs, unread, notes


def _files(folders: Iterable[Path], name: str) -> list[Path]:
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder. Give folders that hold runs, for example runs.")
        for path in sorted(folder.rglob(name)):
            found.setdefault(path.resolve(), path)
    return list(found.values())


def _all(
    folders: Sequence[Path], name: str, read: Callable[[Path], T], origin: Callable[[T], "_Origin"]
) -> tuple[list[T], list[Note]]:
    """Reads all files of a name; returns the newest of each, and notes on damaged files and duplicates."""
    found, damaged = [], []
    for path in _files(folders, name):
        try:
            found.append(read(path))
        except (ValueError, OSError) as error:
            damaged.append(Note(path, one_line(error).removeprefix(f"{path} is ")))
    kept, repeated = _newest(found, origin)
    return kept, damaged + repeated


def _measure(path: Path) -> FoundMeasure:
    measure = measure_files.read_measure(path.parent)
    return FoundMeasure(path.parent, measure, checked(measure))


def _explanation(path: Path) -> FoundExplanation:
    return FoundExplanation(path.parent, explain_files.read(path))


def _checked(result: Result) -> Result:
    """Refuses a result that no run of this version could have."""
    check(result.experiment)
    lookup(result.experiment.dataset, DATASETS, "data set")
    if not result.scores:
        raise ValueError("it has no scores")
    return result


def _rounds(result: Result) -> tuple[list[Row], list[Note]]:
    """Reads a run's rounds and notes where they contradict the result."""
    path = rounds_file(result.folder)
    rows, _, damage = read_lines(result.folder)
    if damage:
        return [], [Note(path, f"damaged, so there is no curve: {damage.removeprefix(f'{path}, ')}")]
    if not rows:
        return [], [Note(path, "missing or empty: no curve")]
    if len(rows) != result.experiment.rounds:
        by = writer(result.folder)
        more = f": more are running ({by})" if by else ""
        return rows, [Note(path, f"has {len(rows)} of {result.experiment.rounds} rounds{more}")]
    if not _agree(summarise(rows), result.scores):
        return rows, [Note(path, "does not give the scores of result.json beside it")]
    return rows, []


def _agree(ours: Mapping[str, Summary], theirs: Mapping[str, Summary]) -> bool:
    pairs = [pair for name in ours.keys() & theirs.keys() for pair in zip(ours[name], theirs[name], strict=True)]
    return ours.keys() == theirs.keys() and all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) for a, b in pairs)


class _Origin(NamedTuple):
    """What identifies the content of a file, its provenance and its path."""

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
    """Keeps the newest file of each key, in the order of folders, and notes the others."""
    kept: dict[Hashable, T] = {}
    repeated = []
    for one in sorted(found, key=lambda each: origin(each).time, reverse=True):
        first = kept.setdefault(origin(one).key, one)
        if first is not one:
            used = f"{origin(first).folder} has the same experiment and seed, is at least as new, and is used"
            repeated.append(Note(origin(one).path, f"left out: {used}"))
    return sorted(kept.values(), key=lambda each: natural_order(origin(each).folder)), repeated


def _of_run(run: Run) -> _Origin:
    result = run.result
    return _Origin(identity(result.experiment), result.provenance, result.folder / RESULT)


def _of_measure(each: FoundMeasure) -> _Origin:
    its = each.measure
    key = its.name, tuple(map(identity, its.experiments)), json.dumps(its.settings, sort_keys=True)
    return _Origin(key, its.provenance, each.folder / measure_files.FILE)


def _of_explanation(each: FoundExplanation) -> _Origin:
    its = each.explanation
    key = identity(its.experiment), its.round, replace(its.settings, device=None, threads=None)
    return _Origin(key, its.provenance, each.folder / explain_files.FILE)


def _same_models(runs: Sequence[Run]) -> tuple[list[Run], list[Note]]:
    """Leaves out runs that score other models than the first seed of the same experiment."""
    firsts: dict[str, Run] = {}
    kept, mismatched = [], []
    for run in runs:
        first = firsts.setdefault(identity(run.result.experiment, without=("seed",)), run)
        if _scored(run) == _scored(first):
            kept.append(run)
        else:
            mismatched.append(Note(run.result.folder / RESULT, f"scores other models than {first.name}"))
    return kept, mismatched


def _scored(run: Run) -> tuple[frozenset[str], str]:
    return frozenset(run.result.scores), run.result.metric.axis


def _unfinished(folders: Sequence[Path]) -> list[Progress]:
    paths = [path for path in _files(folders, EXPERIMENT) if not (path.parent / RESULT).exists()]
    return [progress_of(path.parent) for path in paths]


def how_far(found: Progress) -> str:
    """Says how far a run without a result is, and how to go on with it."""
    words = f"{found.state} after {found.done} of {found.rounds} rounds"
    if found.state == "running":
        return f"{words} ({found.why})"
    if found.state == "damaged":
        return f"damaged: {found.why.removeprefix(f'{found.folder / EXPERIMENT} is ')}"
    return f"{words}{f' ({found.why})' if found.why else ''}: go on with {how_to_resume(found.folder)}"


def _reason(error: Exception, path: Path) -> str:
    return f"damaged, or not the result of a run: {one_line(error).removeprefix(str(path)).lstrip(': ')}"
