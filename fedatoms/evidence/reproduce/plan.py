"""The jobs of a study, one result each; which of them are missing, and which data they need."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedatoms.core.lookup import unknown
from fedatoms.core.options import check_range
from fedatoms.data.datasets import load
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import as_json
from fedatoms.evidence.paper.study_list import Study, distinct, quick, studies
from fedatoms.evidence.reproduce.settings import Reproduce
from fedatoms.evidence.results.finding import Found, FoundMeasure
from fedatoms.experiment.build import device_of
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity
from fedatoms.runs.devices import devices_of

MEASURED, MEASURED_QUICKLY = 100, 15  # rounds that a measure counts as when time is estimated


class Job(NamedTuple):
    """Work with one result: a run, or a measure of some experiments."""

    typed: str  # what one types for the run, without its seed; for a measure its study
    experiments: tuple[Experiment, ...]
    measure: str = ""  # its name in ``MEASURES``
    quick: bool = False
    out: str = ""

    @property
    def seed(self) -> int:
        """The seed of its experiments; 0 if there are none."""
        return self.experiments[0].seed if self.experiments else 0

    @property
    def datasets(self) -> set[str]:
        """The data sets that its experiments need."""
        return {one.dataset for one in self.experiments}

    @property
    def name(self) -> str:
        """A unique name: what one types after `fedatoms run`, or for a measure after `fedatoms reproduce`.

        >>> Job("landscape", (Experiment(seed=1),), "landscape").name, Job("fedavg", (Experiment(seed=1),)).name
        ('landscape --seeds 1', 'fedavg --seed 1')
        """
        return f"{self.typed} --seed{'s' * bool(self.measure)} {self.seed}" if self.seed else self.typed

    @property
    def weight(self) -> float:
        """Its cost, in local epochs of clients."""
        measured = MEASURED_QUICKLY if self.quick else MEASURED
        rounds = [measured if self.measure else one.rounds for one in self.experiments]
        epochs = [one.clients * one.fraction * one.epochs for one in self.experiments]
        return max(sum(a * b for a, b in zip(rounds, epochs, strict=True)), 1.0)

    @property
    def folder(self) -> Path:
        """The folder of a measure; another size or seed has another folder.

        >>> Job("landscape", (Experiment(seed=1),), "landscape", quick=True, out="runs").folder.as_posix()
        'runs/landscape-quick-s1'
        """
        return Path(self.out) / f"{self.measure}{'-quick' * self.quick}{f'-s{self.seed}' if self.seed else ''}"


def chosen(words: Sequence[str]) -> list[Study]:
    """Returns the studies with these names, in this order; ``all`` stands for every one.

    >>> [study.name for study in chosen(["landscape", "table1"])], len(chosen(["iid", "all"]))
    (['landscape', 'table1'], 13)
    """
    table = studies()
    for word in words:
        if word not in (*table, "all"):
            raise unknown(word, (*table, "all"), "study")
    names = dict.fromkeys(name for word in words for name in (table if word == "all" else (word,)))
    return [table[name] for name in names]


def jobs(wanted: Sequence[Study], settings: Reproduce) -> list[Job]:
    """Returns all jobs of some studies, each once; refuses a pattern that matches none.

    >>> [job.name for job in jobs(chosen(["table1"]), Reproduce(only="^scaffold-cifar10-2", seeds="0,1"))]
    ['scaffold-cifar10-2', 'scaffold-cifar10-2 --seed 1']
    """
    seeds, matches = seeds_of(settings), _pattern(settings.only)
    runs = {typed: one for study in wanted for typed, one in study.runs.items()}
    measures = {study.name: study for study in wanted if study.measure}
    if not any(map(matches, (*runs, *measures))):
        raise ValueError(f"--only {settings.only} matches none of: {', '.join((*runs, *measures))}.")
    here = {
        typed: _placed(quick(one) if settings.quick else one, settings) for typed, one in runs.items() if matches(typed)
    }
    trained = {
        typed: [Job(typed, (replace(one, seed=seed),), quick=settings.quick) for seed in seeds]
        for typed, one in distinct(here).items()
    }
    measured = {name: _measures(study, settings, seeds) for name, study in measures.items() if matches(name)}
    names = dict.fromkeys(name for study in wanted for name in (study.runs or (study.name,)))
    return [job for name in names for job in (trained | measured).get(name, ())]


def missing(wanted: Sequence[Job], found: Found) -> list[Job]:
    """Returns the jobs without a result.

    >>> wanted = jobs(chosen(["synthetic"]), Reproduce())
    >>> missing(wanted, Found([], [], [], [], [])) == wanted
    True
    """
    runs = {identity(run.result.experiment) for run in found.runs}
    return [job for job in wanted if (not taken(job, found) if job.measure else _identity(job) not in runs)]


def taken(job: Job, found: Found) -> list[FoundMeasure]:
    """Returns the found measures that a job asks for: of its size, experiments and seed."""
    kind = MEASURES[job.measure]
    asked = _asked(job.measure, as_json(kind.quick if job.quick else kind.settings), job.experiments)
    measures = [(each, each.measure) for each in found.measures]
    return [each for each, its in measures if _asked(its.name, its.settings, its.experiments) == asked]


def check_jobs(wanted: Sequence[Job], settings: Reproduce) -> None:
    """Refuses settings that contradict each other and devices that do not exist, before anything starts."""
    check_range("together", settings.together)
    experiments = [one for job in wanted for one in job.experiments]
    for one in experiments:
        check(one)
    if experiments and settings.on == "here":
        device_of(experiments[0])


def placed(settings: Reproduce) -> tuple[Reproduce, list[str]]:
    """Returns settings whose device is the first of several, and all of these; refuses one that is not there.

    >>> placed(Reproduce(devices="cpu,cpu"))[0].device, placed(Reproduce())[1]
    ('cpu', [])
    """
    text = settings.devices
    if text and settings.on == "ray":
        raise ValueError(f"--devices {text} does not go with --on ray, which finds devices itself. Leave one out.")
    if text and settings.device != Reproduce.device:
        raise ValueError(f"--devices {text} names all devices. Leave --device out.")
    found = devices_of(text)
    return replace(settings, device=found[0]) if found else settings, found


def lacking(wanted: Sequence[Job], settings: Reproduce) -> dict[str, str]:
    """Returns the data sets that cannot be read, each with the jobs that need it and how to get it.

    >>> lacking([Job("synthetic", ()), Job("mine", (Experiment(dataset="digits"),))], Reproduce())
    {}
    """
    names = dict.fromkeys(name for job in wanted for name in sorted(job.datasets))
    reasons = {name: _lacking(name, wanted, settings) for name in names}
    return {name: reason for name, reason in reasons.items() if reason}


def _lacking(dataset: str, wanted: Sequence[Job], settings: Reproduce) -> str:
    try:
        load(dataset, Path(settings.data_dir))
    except (OSError, ValueError) as error:
        need = [job.typed for job in wanted if dataset in job.datasets]
        named = ", ".join(dict.fromkeys(need))  # each once, whatever its seeds
        return f"{error} Or use --quick. {len(need)} of {len(wanted)} need {dataset}: {named}."
    return ""


def _placed(experiment: Experiment, settings: Reproduce) -> Experiment:
    return replace(experiment, data_dir=settings.data_dir, device=settings.device, out=out_of(settings))


def out_of(settings: Reproduce) -> str:
    """Returns the folder for results.

    >>> out_of(Reproduce(quick=True))
    'runs/quick'
    """
    return settings.out or ("runs/quick" if settings.quick else "runs/paper")


def seeds_of(settings: Reproduce) -> list[int]:
    """Returns the seeds of every run.

    >>> seeds_of(Reproduce(seeds="2, 0"))
    [2, 0]
    """
    words = [word.strip() for word in settings.seeds.split(",")]
    seeds = [int(word) for word in words if word.isdecimal()]
    if len(set(seeds)) < len(words):
        raise ValueError(f"--seeds {settings.seeds} is not a list of different whole numbers. Use for example 0,1,2.")
    return seeds


def _measures(study: Study, settings: Reproduce, seeds: Sequence[int]) -> list[Job]:
    """Returns a job for each seed; one if there are no experiments to seed."""
    kind = MEASURES[study.measure]
    here = [_placed(one, settings) for one in (kind.quick_experiments if settings.quick else kind.experiments)]
    seeded = [tuple(replace(one, seed=seed) for one in here) for seed in (seeds if here else seeds[:1])]
    return [Job(study.name, each, study.measure, settings.quick, out_of(settings)) for each in seeded]


def _identity(job: Job) -> str:
    return identity(job.experiments[0])


def _asked(
    name: str, settings: dict[str, object], experiments: tuple[Experiment, ...]
) -> tuple[str, dict[str, object], list[str]]:
    return name, settings, [identity(one) for one in experiments]


def _pattern(only: str) -> Callable[[str], bool]:
    try:
        pattern = re.compile(only)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(
            f"--only {only} is not a regular expression: {error}. Use for example --only 'cifar10-5$'."
        ) from None
    return lambda name: pattern.search(name) is not None
