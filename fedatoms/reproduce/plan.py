"""What there is to do for a study: jobs with one result each, those that have it already, and what the rest needs."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from fedatoms.data.datasets import load
from fedatoms.experiment import Experiment, check, identity
from fedatoms.measures import MEASURES
from fedatoms.measures.base import as_json
from fedatoms.names import unknown
from fedatoms.paper.studies import Study, distinct, quick, studies
from fedatoms.report.find import Found

MEASURED = 100  # a measure counts as so many rounds of its experiments in the time that is left


@dataclass(frozen=True)
class Reproduce:
    """Runs what is missing of a study, then shows the paper's numbers beside ours."""

    data_dir: str = "data"
    """Folder that holds the data sets' official files."""
    seeds: str = "0"
    """Seeds of every run, for example 0,1,2; measures take the first."""
    only: str = ""
    """Regular expression: only the runs and measures whose name it matches."""
    device: str = "auto"
    """Where to train: cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    quick: bool = False
    """Minutes on a CPU: digits stand in for every data set, and a few rounds for all of them."""
    on: Literal["here", "ray"] = "here"
    """here: one after the other; ray: spread over a Ray cluster, a GPU (or a CPU core) each (needs fedatoms[ray])."""
    out: str = ""
    """Folder for results; what it holds already is not run again. Empty takes runs/paper, or runs/quick."""


class Job(NamedTuple):
    """Work with one result: a run, or a measure of some experiments."""

    name: str
    experiments: tuple[Experiment, ...]
    measure: str = ""  # its name in ``MEASURES``
    quick: bool = False
    out: str = ""

    @property
    def weight(self) -> float:
        """How long it takes, in local epochs of clients."""
        rounds = [MEASURED if self.measure else one.rounds for one in self.experiments]
        epochs = [one.clients * one.fraction * one.epochs for one in self.experiments]
        return max(sum(a * b for a, b in zip(rounds, epochs, strict=True)), 1.0)

    @property
    def folder(self) -> Path:
        """Where a measure is written."""
        return Path(self.out) / self.measure


def chosen(words: Sequence[str]) -> list[Study]:
    """Returns the studies that were asked for; ``all`` is every one.

    >>> [study.name for study in chosen(["table1", "landscape"])], len(chosen(["all"]))
    (['table1', 'landscape'], 12)
    """
    table = studies()
    for word in words:
        if word not in (*table, "all"):
            raise unknown(word, (*table, "all"), "study")
    return [study for name, study in table.items() if name in words or "all" in words]


def jobs(wanted: Sequence[Study], settings: Reproduce) -> list[Job]:
    """Lists all jobs of some studies, each once, and refuses a pattern that matches none."""
    seeds = _seeds(settings.seeds)
    runs = {name: one for study in wanted for name, one in study.runs.items()}
    here = {name: _placed(quick(one) if settings.quick else one, settings) for name, one in runs.items()}
    found = [
        Job(name if seed == seeds[0] else f"{name} --seed {seed}", (replace(one, seed=seed),), quick=settings.quick)
        for name, one in distinct(here).items()
        for seed in seeds
    ]
    found += [_measure(study, settings, seeds[0]) for study in wanted if study.measure]
    matched = [job for job in found if re.search(settings.only, job.name)]
    if not matched:
        raise ValueError(f"--only {settings.only} matches none of: {', '.join(job.name for job in found)}.")
    return matched


def missing(wanted: Sequence[Job], found: Found) -> list[Job]:
    """Leaves out the jobs whose results were found."""
    runs = {identity(run.result.experiment) for run in found.runs}
    taken = {_taken(each.measure.name, each.measure.settings, each.measure.experiments) for each in found.measures}
    return [job for job in wanted if (_asked(job) not in taken if job.measure else _identity(job) not in runs)]


def check_data(wanted: Sequence[Job], data_dir: str) -> None:
    """Refuses to begin if a data set is not there: says which jobs need it, and how to get it."""
    for one in {identity(one): one for job in wanted for one in job.experiments}.values():
        check(one)
    needed = Counter(name for job in wanted for name in {one.dataset for one in job.experiments})
    for name, count in needed.items():
        try:
            load(name, Path(data_dir))
        except (OSError, ValueError) as error:
            jobs = [job.name for job in wanted if job.experiments and job.experiments[0].dataset == name]
            named = f"{', '.join(jobs[:3])}{', ...' if count > 3 else ''}"
            raise ValueError(f"{count} of {len(wanted)} need {name} ({named}): {error} Or use --quick.") from error


def _placed(experiment: Experiment, settings: Reproduce) -> Experiment:
    return replace(experiment, data_dir=settings.data_dir, device=settings.device, out=out_of(settings))


def out_of(settings: Reproduce) -> str:
    """Returns the folder for results.

    >>> out_of(Reproduce(quick=True))
    'runs/quick'
    """
    return settings.out or ("runs/quick" if settings.quick else "runs/paper")


def _measure(study: Study, settings: Reproduce, seed: int) -> Job:
    kind = MEASURES[study.measure]
    experiments = kind.quick_experiments if settings.quick else kind.experiments
    placed = tuple(replace(_placed(one, settings), seed=seed) for one in experiments)
    return Job(study.name, placed, study.measure, settings.quick, out_of(settings))


def _identity(job: Job) -> str:
    return identity(job.experiments[0])


def _asked(job: Job) -> tuple[str, str, tuple[str, ...]]:
    kind = MEASURES[job.measure]
    return _taken(job.measure, as_json(kind.quick if job.quick else kind.settings), job.experiments)


def _taken(
    name: str, settings: dict[str, object], experiments: tuple[Experiment, ...]
) -> tuple[str, str, tuple[str, ...]]:
    return name, str(settings), tuple(identity(one) for one in experiments)


def _seeds(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdigit() for word in words) or len(set(words)) < len(words):
        raise ValueError(f"--seeds {text} is not a list of different whole numbers. Use for example 0,1,2.")
    return [int(word) for word in words]
