"""The rounds of a run: sealed lines in rounds.jsonl, kept a second time in segments beside the checkpoints."""

import gzip
import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, NamedTuple, NotRequired, Self, TextIO, TypedDict, cast

from msgspec import Meta

from fedatoms.core.border import open_regular, read_bytes
from fedatoms.core.files import replace_file
from fedatoms.core.records import FORMAT, MOST, SEAL, fit, parse, read_record, sealed, unsealed
from fedatoms.core.run_files import EXPERIMENT, PACKED, RESULT, ROUNDS, SEGMENTS, checkpoints, rounds_file
from fedatoms.core.scales import ScaleRecord
from fedatoms.engine.loop import Progress
from fedatoms.experiment.files import from_json, load_run
from fedatoms.experiment.identities import trajectory

MANY = 100  # segments, which a resumed run makes one of
LONGEST = 10**7  # bytes of a line, at most
RESTORE = "Restore the file, or rebuild it from the last checkpoint with `fedatoms run --resume`."

Count = Annotated[int, Meta(ge=0)]
Percent = Annotated[float, Meta(ge=0, le=100)]
Seconds = Annotated[float, Meta(ge=0)]


class ScoreRow(TypedDict):
    """What a scored model has in a line."""

    accuracy: Percent
    loss: NotRequired[float | None]  # None: it was not finite
    worst: NotRequired[Percent]
    spread: NotRequired[Annotated[float, Meta(ge=0)]]


class Row(TypedDict):
    """A line of rounds.jsonl: the record of a round, with its extra columns, and the scores if it was evaluated.

    Without a ``metric`` the scores are accuracies. Else they are under its name, beside the loss, worst and spread and
    the objective's other metrics.
    """

    round: Count
    loss: float | None  # None: no client reported, or it is withheld (differential privacy)
    clients: Count
    failed: Count
    up: dict[str, Count]
    down: dict[str, Count]
    seconds: Seconds | None  # None: withheld
    scores: dict[str, ScoreRow]
    metric: NotRequired[ScaleRecord]


class OtherRow(Row):
    """A line whose scores are no accuracies."""

    scores: dict[str, dict[str, float | None]]  # type: ignore[misc]


class Lines(NamedTuple):
    """The rows of a file up to the first damaged line, the seal of the last, and what is wrong with the next."""

    rows: list[Row]
    seal: int
    damage: str = ""


def row_of(progress: Progress) -> Row:
    """Returns the line of a round; extra columns only if there is something in them, None for what is not finite."""
    record = progress.record._asdict()
    extra = {name: column for name, column in record.pop("extra").items() if column}
    scores: dict[str, dict[str, float | None]] = {}
    for name, score in progress.scores.items():
        scores[name] = {part: value if math.isfinite(value) else None for part, value in score.parts().items()}
    loss = progress.record.loss if math.isfinite(progress.record.loss) else None
    others = [score.scale.record() for score in progress.scores.values() if not score.scale.is_accuracy]
    metric = {"metric": others[0]} if others else {}
    withheld = {"seconds": None} if "privacy" in extra else {}  # they tell the size of the cohort
    return cast(Row, {**record, **extra, **withheld, "loss": loss, "scores": scores, **metric})


def read_rounds(folder: Path) -> list[Row]:
    """Reads the rounds of a run; a last line that a stop cut off is left out, any other damage is an error."""
    found, path = read_lines(folder), rounds_file(folder)
    if found.damage:
        raise ValueError(f"{found.damage}. {RESTORE}")
    done, finished, saved = len(found.rows), rounds_of_result(folder), max([0, *checkpoints(folder)])
    if done < finished:
        raise ValueError(f"{path} has {done} rounds, but {RESULT} is of {finished}. {RESTORE}")
    if done < saved:  # whose lines were written before
        raise ValueError(f"{path} has {done} rounds, but the last checkpoint is of {saved}. {RESTORE}")
    return found.rows


def read_lines(folder: Path) -> Lines:
    """Reads the rounds of a run as far as they are whole."""
    path = rounds_file(folder)
    if not path.exists():
        return Lines([], 0)
    try:
        first = Lines([], first_seal(folder))
    except (ValueError, OSError) as error:
        return Lines([], 0, f"{path} cannot be checked: {error}")
    return _lines(path, first, must_be_sealed=is_sealed(folder))


def read_segments(folder: Path, count: int) -> Lines:
    """Reads the first ``count`` rounds of a run from what lies beside its checkpoints, as far as they are whole."""
    found = Lines([], first_seal(folder))
    for path in _segments(folder):
        if found.damage or _last(path) > count:
            break
        found = _lines(path, found, must_be_sealed=True)
    return found


def is_sealed(folder: Path) -> bool:
    """Returns whether a run's files have checksums; those of older versions have none."""
    for name in (EXPERIMENT, RESULT):
        with suppress(OSError, ValueError, RecursionError):
            record = json.loads(read_bytes(folder / name, MOST))
            if isinstance(record, dict) and (SEAL in record or FORMAT in record):
                return True
    return False


def first_seal(folder: Path) -> int:
    """Returns the seal that the first line follows: that of the run's experiment, so other runs' lines do not fit."""
    whole = (folder / EXPERIMENT).exists()
    experiment = load_run(folder) if whole else from_json(_experiment_of_result(folder))
    return zlib.crc32(trajectory(experiment).encode())


def line_of(row: Row, seal: int) -> tuple[str, int]:
    """Returns the sealed line of a row that follows one with this seal, and its own seal."""
    values = sealed(dict(row), seal)
    return json.dumps(values) + "\n", cast(int, values[SEAL])


def keep_rounds(folder: Path, rows: Iterable[Row]) -> int:
    """Makes a run's rounds exactly these, in its file and beside its checkpoints, and returns the last one's seal."""
    lines, seal = [], first_seal(folder)
    for row in rows:
        line, seal = line_of(row, seal)
        lines.append(line)
    replace_file(folder / ROUNDS, "".join(lines).encode())
    (folder / PACKED).unlink(missing_ok=True)
    for path in _segments(folder):
        if _last(path) > len(lines):
            path.unlink()
    known = read_segments(folder, len(lines))
    if known.damage or known.seal != seal or len(_segments(folder)) > MANY:
        write_segment(folder, lines, len(lines))
        for path in _segments(folder)[:-1]:
            path.unlink()
    return seal


def pack(folder: Path) -> None:
    """Compresses the rounds of a finished run: all that is read of them stays as it is, in an eighth of the size.

    The plain file goes last, so a kill leaves at least one of the two whole.
    """
    if (folder / ROUNDS).exists():
        text = b"".join(_text(folder / ROUNDS))
        replace_file(folder / PACKED, gzip.compress(text, mtime=0))  # the same bytes at any time
        (folder / ROUNDS).unlink()


def digest_of_rounds(folder: Path) -> str:
    """Returns the SHA-256 of a run's lines, packed or not."""
    found = hashlib.sha256()
    for line in _text(rounds_file(folder)):
        found.update(line)
    return found.hexdigest()


class Writer:
    """Appends the rounds of a run to its file, and what came since the last checkpoint to a segment of its own."""

    def __init__(self, folder: Path, done: int, seal: int) -> None:
        self._folder, self._saved, self._seal = folder, done, seal
        self._new: list[str] = []
        self._file: TextIO = (folder / ROUNDS).open("a")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, row: Row) -> None:
        """Writes a line; it is there even if this process is killed at once."""
        line, self._seal = line_of(row, self._seal)
        self._file.write(line)
        self._file.flush()
        self._new.append(line)

    def unscore(self) -> None:
        """Takes the scores from the last line, if it has some: a run was to end there, and goes on now.

        So it has the scores of a run that was asked for as many rounds at once. Until a round follows, it keeps them.
        """
        *rows, last = read_lines(self._folder).rows
        if last["scores"]:
            row = {name: value for name, value in last.items() if name != "metric"}
            self._file.close()
            try:
                self._seal = keep_rounds(self._folder, [*rows, cast(Row, {**row, "scores": {}})])
            finally:  # a Ctrl-C saves by this file
                self._file = (self._folder / ROUNDS).open("a")

    def save(self, count: int) -> None:
        """Writes the lines up to round ``count`` to a segment, before the checkpoint of that round."""
        os.fsync(self._file.fileno())  # also when the power fails
        lines = self._new[: count - self._saved]
        write_segment(self._folder, lines, count)
        self._saved, self._new = self._saved + len(lines), self._new[len(lines) :]


def write_segment(folder: Path, lines: list[str], count: int) -> None:
    """Writes lines beside the checkpoints of a run that has ``count`` rounds now."""
    if lines:
        (folder / SEGMENTS).mkdir(parents=True, exist_ok=True)
        replace_file(folder / SEGMENTS / f"{count:06d}.jsonl", "".join(lines).encode())


def _segments(folder: Path) -> list[Path]:
    return sorted((path for path in (folder / SEGMENTS).glob("*.jsonl") if path.stem.isdecimal()), key=_last)


def _last(path: Path) -> int:
    return int(path.stem)


def rounds_of_result(folder: Path) -> int:
    """Returns how many rounds the result of a run is of; 0 if there is none, or none that can be read."""
    with suppress(OSError, ValueError):
        rounds = _experiment_of_result(folder).get("rounds")
        return rounds if type(rounds) is int else 0
    return 0


def _experiment_of_result(folder: Path) -> dict[str, object]:
    return fit(read_record(folder / RESULT).get("experiment"), dict[str, object], f"{folder / RESULT}: experiment")


def _lines(path: Path, before: Lines, *, must_be_sealed: bool) -> Lines:
    rows, seal = before.rows, before.seal  # one list for all segments
    try:
        for number, line in enumerate(_text(path), 1):
            try:
                row, seal = _row(line, f"{path}, line {number}", len(rows), seal, must_be_sealed=must_be_sealed)
            except ValueError as error:
                cut_off = not line.endswith(b"\n") and len(line) < LONGEST
                return Lines(rows, seal, "" if cut_off else str(error))
            rows.append(row)
    except (OSError, ValueError) as error:
        return Lines(rows, seal, str(error))
    return Lines(rows, seal)


def _text(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file, unpacked if it is compressed."""
    with open_regular(path) as file, closing(gzip.GzipFile(fileobj=file) if path.name == PACKED else file) as plain:
        try:
            while line := plain.readline(LONGEST):
                yield line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is not whole ({error})") from None


def _row(line: bytes, where: str, number: int, seal: int, *, must_be_sealed: bool) -> tuple[Row, int]:
    if len(line) == LONGEST:
        raise ValueError(f"{where} is longer than {LONGEST:,} bytes")
    values = fit(parse(line, where, older=not must_be_sealed), dict[str, object], where)
    schema = OtherRow if "metric" in values else Row
    if (found := fit(values, schema, where)["round"]) != number:
        raise ValueError(f"{where} has round {found + 1}, but {number + 1} comes next")
    if "metric" in values:
        _check_named(cast(OtherRow, values), where)
    content = unsealed(values, where, seal, must_be_sealed=must_be_sealed)  # with its extra columns
    return cast(Row, content), cast(int, values.get(SEAL, 0))


def _check_named(row: OtherRow, where: str) -> None:
    """Refuses scores without the metric that their line names."""
    name = row["metric"]["name"]
    for model, score in row["scores"].items():
        if name not in score:
            raise ValueError(f"{where}: scores of {model}: {name} is missing")
