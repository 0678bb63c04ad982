"""A study: what is searched, what its trials gave, and the file that holds both."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

from fedatoms.core.files import replace_file
from fedatoms.core.lookup import some
from fedatoms.core.records import FORMAT, fit, read_record, sealed
from fedatoms.core.run_files import EXPERIMENT as RUN
from fedatoms.core.run_files import LOCK, RESULT, STUDY, run_of
from fedatoms.core.scales import Scale, ScaleRecord, scale_of
from fedatoms.experiment.fields import EXECUTION_FIELDS, Experiment
from fedatoms.experiment.files import to_json
from fedatoms.experiment.weights import changed, pinned
from fedatoms.tuning.settings import Tune
from fedatoms.tuning.space import Axis, Settings, is_grid, size_of

TRIALS = 20  # of a search with a range, if no number is given
Ending = Literal["finished", "pruned", "failed", "repeated"]


class Plan(NamedTuple):
    """What is asked for: what every trial is, what they differ in, and how they are chosen."""

    experiment: Experiment
    axes: tuple[Axis, ...]
    tune: Tune = Tune()

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of each trial's runs."""
        return self.tune.seeds or (self.experiment.seed,)

    @property
    def trials(self) -> int:
        """How many trials there will be: every point of a grid, else a number."""
        return self.tune.trials or (size_of(self.axes) if self.is_grid else TRIALS)

    @property
    def is_grid(self) -> bool:
        """Whether all axes are lists."""
        return is_grid(self.axes)


class Point(NamedTuple):
    """A score during a trial: of a run, known by the place of its seed, after some rounds."""

    run: int
    rounds: int
    score: float


class Trial(NamedTuple):
    """A trial that is over."""

    number: int
    settings: Settings
    state: Ending
    score: float | None  # of one that finished, or repeats one: the mean over seeds
    curve: list[Point]
    why: str = ""  # it failed, or which trial it repeats

    @property
    def rounds(self) -> int:
        """The rounds that were trained, over all seeds."""
        last = {point.run: point.rounds for point in self.curve}
        return sum(last.values())


class Study(NamedTuple):
    """A search: its folder and plan, which model counts and by what, and the trials that are over."""

    folder: Path
    plan: Plan
    model: str
    metric: Scale
    trials: tuple[Trial, ...] = ()

    @property
    def ranked(self) -> list[Trial]:
        """The trials from best to worst; those without a score come last, in the order of their trying."""
        return sorted(self.trials, key=lambda trial: (trial.score is None, self._cost(trial), trial.number))

    @property
    def best(self) -> Trial | None:
        """The best trial that finished, if one did."""
        return next((trial for trial in self.ranked if trial.state == "finished"), None)

    def _cost(self, trial: Trial) -> float:
        return (trial.score or 0.0) * (-1 if self.metric.higher else 1)


def runs_of(study: Study, number: int, settings: Settings) -> list[Experiment]:
    """Returns the runs of a trial, one for each seed; none depends on another, of this trial or of others."""
    point = changed(replace(study.plan.experiment, out=str(study.folder)), settings)
    return [replace(point, seed=seed, name=f"{number:03d}-s{seed}") for seed in study.plan.seeds]


def begin(study: Study) -> Study:
    """Returns a study with the trials of its folder's file, which must be one of the same plan; else a new one."""
    path = study.folder / STUDY
    if not path.exists():
        return study
    known, asked = _read(path), asked_of(study.plan)
    if differing := [name for name in asked if asked[name] != known["asked"].get(name)]:
        said = [f"{name}={_said(known['asked'].get(name))} there and {_said(asked[name])} here" for name in differing]
        raise ValueError(f"{study.folder} holds a study of other settings: {some(said)}. Use another `out`.")
    if (known["model"], scale_of(known["metric"])) != (study.model, study.metric):
        raise ValueError(f"{path} is of {known['metric']['name']} of {known['model']}. Use another `out`.")
    return study._replace(trials=tuple(map(_trial_of, known["trials"])))


def check_folder(folder: Path) -> None:
    """Refuses a folder in which something else lives: a run, or files of other programs."""
    if (run := run_of(folder.absolute() / STUDY)) is not None:
        raise ValueError(f"{folder} lies among the files of the run in {run}. Use another `out`.")
    if not folder.exists() or (folder / STUDY).exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file, not a folder for a study. Use another `out`.")
    if (folder / RUN).exists() or (folder / RESULT).exists():
        raise ValueError(f"{folder} is the folder of a run, not of a study. Use another `out`.")
    if others := sorted(path.name for path in folder.iterdir() if path.name != LOCK and path.suffix != ".partial"):
        raise ValueError(f"{folder} holds other things ({some(others)}) and no study. Use another `out`.")


def write(study: Study, command: str = "") -> None:
    """Writes the file of a study; ``command`` is that of its best trial, once all are over."""
    best = study.best
    values = {
        FORMAT: 2,
        "asked": asked_of(study.plan),
        "model": study.model,
        "metric": study.metric.record(),
        "trials": [{**trial._asdict(), "curve": [point._asdict() for point in trial.curve]} for trial in study.trials],
        "best": None if best is None else best.number,
        "command": command,
    }
    replace_file(study.folder / STUDY, (json.dumps(sealed(values), indent=2) + "\n").encode())


def asked_of(plan: Plan) -> dict[str, object]:
    """Returns what makes a study what it is: all but where it is computed, and how many trials there are."""
    fields = to_json(pinned(plan.experiment))
    computed = {name: value for name, value in fields.items() if name not in EXECUTION_FIELDS | {"seed"}}
    how = {"seeds": list(plan.seeds), "prune": plan.tune.prune, "search_seed": plan.tune.search_seed}
    return {**computed, "over": [str(axis) for axis in plan.axes], **how}


def folder_of(plan: Plan) -> Path:
    """Names the folder of a study that was given none: by what it is, so that the same words find it again."""
    name = hashlib.sha256(json.dumps(asked_of(plan), sort_keys=True).encode()).hexdigest()[:6]
    return Path(plan.experiment.out) / f"tune-{name}"


class _PointFile(TypedDict):
    run: int
    rounds: int
    score: float


class _TrialFile(TypedDict):
    number: int
    settings: dict[str, str | int | float | bool | None]
    state: Ending
    score: float | None
    curve: list[_PointFile]
    why: str


class _File(TypedDict):
    asked: dict[str, object]
    model: str
    metric: ScaleRecord
    trials: list[_TrialFile]


def _read(path: Path) -> _File:
    try:
        return fit(read_record(path, must_be_sealed=True), _File, str(path))
    except ValueError as error:
        raise ValueError(f"{error}. Restore {path}, or use another `out`.") from None


def _said(value: object) -> str:
    return " ".join(map(repr, value)) if isinstance(value, list) else str(value)


def _trial_of(record: _TrialFile) -> Trial:
    curve = [Point(**point) for point in record["curve"]]
    settings: Mapping[str, object] = record["settings"]
    return Trial(record["number"], settings, record["state"], record["score"], curve, record["why"])
