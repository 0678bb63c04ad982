"""The result of a run: the summary of its rounds in result.json, which seals itself and the run's other files."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, NamedTuple, Never, NotRequired, TypedDict, cast

from msgspec import Meta

from fedatoms.core import ledger
from fedatoms.core.border import as_path
from fedatoms.core.files import replace_file
from fedatoms.core.records import FORMAT, digest, fit, read_record, sealed
from fedatoms.core.run_files import EXPERIMENT, MODEL, PACKED, RESULT, ROUNDS, rounds_file
from fedatoms.core.scales import ACCURACY, Scale, ScaleRecord, scale_of
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import from_json, load_run, without_paths
from fedatoms.runs.rounds import Count, Percent, Row, Seconds, digest_of_rounds, read_rounds

WINDOW = 100  # the headline is the mean of the evaluations in the last so many rounds
SHA256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Summary(NamedTuple):
    """Scores of a model in the unit of their metric: mean over the last 100 rounds, the final one, the best one."""

    headline: float
    final: float
    best: float


@dataclass(frozen=True)
class Result:
    """The outcome of a run."""

    experiment: Experiment
    scores: dict[str, Summary]
    bytes_up: dict[str, int]
    bytes_down: dict[str, int]
    seconds: float | None  # None: withheld, as it would tell the cohorts' sizes (differential privacy)
    seconds_per_round: float | None
    parameters: int
    provenance: dict[str, object]
    folder: Path
    personal: dict[str, float] | None = None  # scores of clients' own models, see ``personal_models``
    model_sha256: str | None = None  # of model.safetensors; older results have none
    files: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the run's other files; older results have none
    extra: Mapping[str, object] = field(default_factory=dict)  # further keys of result.json, of the run's engine
    metric: Scale = ACCURACY  # what the scores are numbers of

    @property
    def own_seconds(self) -> float | None:
        """Its share of the time of all runs whose clients were trained in one block with its own; None if withheld."""
        abreast = self.provenance.get("abreast", 1)
        if self.seconds is None or not isinstance(abreast, int) or abreast < 1:
            return self.seconds
        return self.seconds / abreast

    @property
    def accuracy(self) -> dict[str, Summary]:
        """The scores of classifiers, in per cent."""
        if not self.metric.is_accuracy:
            raise AttributeError(f"this result is of {self.metric.axis}, no accuracy. Use its scores.")
        return self.scores


def summarise(rows: list[Row]) -> dict[str, Summary]:
    """Returns the scores of each scored model.

    >>> rows = [{"round": r, "scores": {"server": {"accuracy": a}}} for r, a in enumerate([10.0, 30.0, 20.0])]
    >>> summarise(rows)
    {'server': Summary(headline=20.0, final=20.0, best=30.0)}
    """
    curves, best = score_curves(rows), metric_of(rows).best
    first = len(rows) - WINDOW
    summaries = {}
    for name, curve in curves.items():
        recent = [score for t, score in curve if t >= first] or [curve[-1][1]]
        summaries[name] = Summary(sum(recent) / len(recent), curve[-1][1], best(score for _, score in curve))
    return summaries


def scored_rounds(experiment: Experiment) -> list[int]:
    """Returns the rounds, counted from 1, of whose scores the headline is the mean.

    >>> scored_rounds(Experiment(rounds=12, eval_every=5)), len(scored_rounds(Experiment(rounds=600)))
    ([5, 10, 12], 100)
    """
    last, every = experiment.rounds, experiment.eval_every
    return [t for t in range(max(1, last - WINDOW + 1), last + 1) if t % every == 0 or t == last]


def alike_averaged(one: Experiment, other: Experiment) -> bool:
    """Returns whether two headlines are means over the same rounds, so that a gain is not theirs.

    >>> alike_averaged(Experiment(rounds=12), Experiment(rounds=12, eval_every=7))
    False
    >>> alike_averaged(Experiment(rounds=7, eval_every=7), Experiment(rounds=7, eval_every=8))
    True
    """
    return scored_rounds(one) == scored_rounds(other)


def averaged_rounds(experiment: Experiment) -> str:
    """Says of which rounds the headline is the mean.

    >>> [averaged_rounds(Experiment(rounds=12, eval_every=every)) for every in (1, 5, 12)]
    ['all 12 rounds', 'the 3 scored of 12 rounds', 'the last round']
    >>> averaged_rounds(Experiment(rounds=600)), averaged_rounds(Experiment(rounds=600, eval_every=10))
    ('the last 100 rounds', 'the 10 scored of the last 100 rounds')
    """
    rounds, scored = experiment.rounds, len(scored_rounds(experiment))
    some = f"last {WINDOW} rounds" if rounds > WINDOW else f"{rounds} rounds"
    if scored == 1:
        return "the last round"
    if scored < min(rounds, WINDOW):
        return f"the {scored} scored of {'the ' if rounds > WINDOW else ''}{some}"
    return f"{'the' if rounds > WINDOW else 'all'} {some}"


def metric_of(rows: list[Row]) -> Scale:
    """Returns what the scores of some rounds are numbers of."""
    return scale_of(next((row["metric"] for row in rows if "metric" in row), None))


def score_curves(rows: list[Row]) -> dict[str, list[tuple[int, float]]]:
    """Returns (round, score) of each scored model, where the score is finite.

    >>> score_curves([{"round": 4, "scores": {"all": {"accuracy": 50.0}}}])
    {'all': [(4, 50.0)]}
    """
    curves: dict[str, list[tuple[int, float]]] = {}
    metric = metric_of(rows).name
    for row in rows:
        for name, score in row["scores"].items():
            value = cast(Mapping[str, float | None], score).get(metric)
            if value is not None:
                curves.setdefault(name, []).append((row["round"], value))
    return curves


def result_of(
    experiment: Experiment, folder: Path, *, seconds: float | None, parameters: int, provenance: dict[str, object]
) -> Result:
    """Summarises the rounds of a run."""
    rows = _some_rounds(folder)
    times = [row["seconds"] for row in rows if row["seconds"] is not None]
    return Result(
        experiment=experiment,
        scores=summarise(rows),
        metric=metric_of(rows),
        bytes_up=ledger.add(*(row["up"] for row in rows)),
        bytes_down=ledger.add(*(row["down"] for row in rows)),
        seconds=seconds,
        seconds_per_round=statistics.median(times) if times else None,
        parameters=parameters,
        provenance=provenance,
        folder=folder,
    )


def write_result(result: Result) -> Result:
    """Writes result.json with checksums of the run's files and of itself, and returns the result."""
    folder = result.folder
    own = sorted(path.relative_to(folder).as_posix() for path in (folder / "personal").glob("*.safetensors"))
    result = replace(result, files={name: digest(folder / name) for name in (EXPERIMENT, ROUNDS, *own)})
    scores = {name: each._asdict() for name, each in result.scores.items()}
    key = ACCURACY.name if result.metric.is_accuracy else "scores"
    left = {name: value for name, value in asdict(result).items() if name not in ("experiment", "scores", "metric")}
    written = {"experiment": without_paths(result.experiment), key: scores, "metric": result.metric.record(), **left}
    del written["folder"]
    extra = written.pop("extra")
    write_json(folder / RESULT, sealed({FORMAT: 2, **written, **extra}))
    return result


def read_result(folder: Path | str) -> Result:
    """Reads a finished run; a result that does not match its checksum, or has other types, is an error."""
    path = as_path(folder, "folder") / RESULT
    found = read_record(path)
    found.pop(FORMAT, None)
    known: _File | _ScoresFile
    if "scores" in found:
        known = fit(found, _ScoresFile, str(path))
        summaries: Mapping[str, _AnySummary | _SummaryFile] = known["scores"]
    else:
        known = fit(found, _File, str(path))
        summaries = known["accuracy"]
    try:
        experiment = from_json(known["experiment"])
    except ValueError as error:
        raise ValueError(f"{path}: experiment: {error}") from None
    scores, scale = {name: Summary(**summary) for name, summary in summaries.items()}, scale_of(known.get("metric"))
    values = {name: value for name, value in known.items() if name not in _MADE}
    extra = {name: value for name, value in found.items() if name not in {*_File.__annotations__, *_MADE}}
    return Result(experiment, scores, folder=path.parent, extra=extra, metric=scale, **cast(dict[str, Never], values))


def changed_files(result: Result) -> list[str]:
    """Names the files of a run that are not what its result sealed; one that is not there was not copied.

    A run that was asked for more rounds is being written anew.
    """
    if _has_more_rounds(result):
        return []
    folder, changed = result.folder, []
    for name, expected in {**result.files, MODEL: result.model_sha256}.items():
        path = rounds_file(folder) if name == ROUNDS else folder / name
        if expected is not None and path.exists() and _digest(path) != expected:
            changed.append(path.name if name == ROUNDS else name)
    return changed


def check_sealed(folder: Path, path: Path, remedy: str) -> None:
    """Refuses a file of a finished run that is not what its result sealed; results of older versions seal none."""
    if (folder / RESULT).exists():
        expected = read_result(folder).files.get(path.relative_to(folder).as_posix())
        if expected is not None and path.exists() and digest(path) != expected:
            raise ValueError(f"{path} does not match its checksum in {RESULT}: it was changed. {remedy}")


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Writes values as an indented JSON file."""
    replace_file(path, (json.dumps(values, indent=2) + "\n").encode())


def _digest(path: Path) -> str:
    """Returns the checksum of a file's content; packed rounds that cannot be unpacked have none."""
    try:
        return digest_of_rounds(path.parent) if path.name == PACKED else digest(path)
    except ValueError:
        return ""


def _some_rounds(folder: Path) -> list[Row]:
    if not (rows := read_rounds(folder)):
        raise ValueError(f"{folder / ROUNDS} has no rounds any more: something else wrote it. Start the run again.")
    return rows


def _has_more_rounds(result: Result) -> bool:
    try:
        return load_run(result.folder).rounds > result.experiment.rounds
    except ValueError:
        return False


class _SummaryFile(TypedDict):
    headline: Percent
    final: Percent
    best: Percent


class _AnySummary(TypedDict):
    headline: float
    final: float
    best: float


class _FileRest(TypedDict):
    experiment: dict[str, object]
    bytes_up: dict[str, Count]
    bytes_down: dict[str, Count]
    seconds: Seconds | None
    seconds_per_round: Seconds | None
    parameters: Count
    provenance: dict[str, object]
    model_sha256: NotRequired[SHA256 | None]
    files: NotRequired[dict[str, SHA256]]


class _File(_FileRest):
    """The result of a classifier; files of older versions say no metric."""

    accuracy: dict[str, _SummaryFile]
    metric: NotRequired[ScaleRecord]
    personal: NotRequired[dict[str, Percent] | None]


class _ScoresFile(_FileRest):
    """The result of a model that is scored by another metric."""

    scores: dict[str, _AnySummary]
    metric: ScaleRecord
    personal: NotRequired[dict[str, float] | None]


_MADE = ("experiment", "accuracy", "scores", "metric")  # what a result makes values of
