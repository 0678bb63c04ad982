"""The records of a run: a line for each round in rounds.jsonl, and their summary in result.json."""

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import NamedTuple, TypedDict, cast

from fedatoms.core import ledger
from fedatoms.core.files import replace_file
from fedatoms.engine.loop import Progress
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import from_json, without_paths

WINDOW = 100  # the headline is the mean of the evaluations in the last so many rounds
ROUNDS, RESULT = "rounds.jsonl", "result.json"


class Row(TypedDict):
    """A line of rounds.jsonl: the record of a round, with its extra columns, and the scores if it was evaluated."""

    round: int
    loss: float | None  # None: no client reported
    clients: int
    failed: int
    up: dict[str, int]
    down: dict[str, int]
    seconds: float
    scores: dict[str, dict[str, float]]


class Summary(NamedTuple):
    """Accuracies of a scored model in per cent: mean over the last 100 rounds, the final one, the best one."""

    headline: float
    final: float
    best: float


@dataclass(frozen=True)
class Result:
    """The outcome of a run."""

    experiment: Experiment
    accuracy: dict[str, Summary]
    bytes_up: dict[str, int]
    bytes_down: dict[str, int]
    seconds: float
    seconds_per_round: float
    parameters: int
    provenance: dict[str, object]
    folder: Path
    personal: dict[str, float] | None = None  # accuracies of clients' own models, see ``personal_models``
    model_sha256: str | None = None  # of model.safetensors; older results have none
    extra: Mapping[str, object] = field(default_factory=dict)  # further keys of result.json, of the run's engine


def summarise(rows: list[Row]) -> dict[str, Summary]:
    """Returns the accuracies of each scored model.

    >>> rows = [{"round": r, "scores": {"server": {"accuracy": a}}} for r, a in enumerate([10.0, 30.0, 20.0])]
    >>> summarise(rows)
    {'server': Summary(headline=20.0, final=20.0, best=30.0)}
    """
    curves = accuracy_curves(rows)
    first = len(rows) - WINDOW
    summaries = {}
    for name, curve in curves.items():
        recent = [accuracy for t, accuracy in curve if t >= first]
        summaries[name] = Summary(sum(recent) / len(recent), curve[-1][1], max(accuracy for _, accuracy in curve))
    return summaries


def accuracy_curves(rows: list[Row]) -> dict[str, list[tuple[int, float]]]:
    """Returns (round, accuracy) of each scored model.

    >>> accuracy_curves([{"round": 4, "scores": {"all": {"accuracy": 50.0}}}])
    {'all': [(4, 50.0)]}
    """
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, score in row["scores"].items():
            curves.setdefault(name, []).append((row["round"], score["accuracy"]))
    return curves


def result_of(
    experiment: Experiment, folder: Path, *, seconds: float, parameters: int, provenance: dict[str, object]
) -> Result:
    """Summarises the rounds of a run."""
    rows = read_rounds(folder)
    return Result(
        experiment=experiment,
        accuracy=summarise(rows),
        bytes_up=ledger.add(*(row["up"] for row in rows)),
        bytes_down=ledger.add(*(row["down"] for row in rows)),
        seconds=seconds,
        seconds_per_round=statistics.median(row["seconds"] for row in rows),
        parameters=parameters,
        provenance=provenance,
        folder=folder,
    )


def write_result(result: Result) -> Result:
    """Writes result.json and returns the result."""
    written = {**asdict(result), "accuracy": {name: each._asdict() for name, each in result.accuracy.items()}}
    written["experiment"] = without_paths(result.experiment)
    folder, extra = written.pop("folder"), written.pop("extra")
    write_json(folder / RESULT, {**written, **extra})
    return result


def read_result(folder: Path | str) -> Result:
    """Reads a finished run."""
    folder = Path(folder)
    found = json.loads((folder / RESULT).read_text())
    accuracy = {name: Summary(**summary) for name, summary in found.pop("accuracy").items()}
    experiment, known = from_json(found.pop("experiment")), {each.name for each in fields(Result)}
    extra = {name: found.pop(name) for name in found.keys() - known}
    return Result(experiment, accuracy, folder=folder, extra=extra, **found)


def row_of(progress: Progress) -> Row:
    """Returns the line of a round; extra columns only if there is something in them."""
    record = progress.record._asdict()
    extra = {name: column for name, column in record.pop("extra").items() if column}
    loss = progress.record.loss if progress.record.clients else None
    scores = {
        name: {part: value for part, value in score._asdict().items() if value is not None}
        for name, score in progress.scores.items()
    }
    return cast(Row, {**record, **extra, "loss": loss, "scores": scores})


def read_rounds(folder: Path) -> list[Row]:
    """Reads the rounds of a run; a last line that was cut off is left out."""
    path = folder / ROUNDS
    return list(_whole_lines(path)) if path.exists() else []


def keep_rounds(folder: Path, count: int) -> None:
    """Drops the lines of all but the first ``count`` rounds."""
    rows = [row for row in read_rounds(folder) if row["round"] < count]
    replace_file(folder / ROUNDS, "".join(json.dumps(row) + "\n" for row in rows).encode())


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Writes values as an indented JSON file."""
    replace_file(path, (json.dumps(values, indent=2) + "\n").encode())


def _whole_lines(path: Path) -> Iterator[Row]:
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return
