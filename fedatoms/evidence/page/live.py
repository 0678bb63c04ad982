"""What the live page shows of each run now: state, round, loss, scores, bytes, failed clients, spread over clients."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from fedatoms.core.run_files import EXPERIMENT, FAILURE, RESULT, rounds_file
from fedatoms.evidence.page.plotly import Json, short
from fedatoms.evidence.page.still import thinned
from fedatoms.evidence.page.styles import colour_of, dash_of
from fedatoms.evidence.results.progress import Progress, in_order, last_parts, progress_of, sent
from fedatoms.runs.lock import writer
from fedatoms.runs.results import score_curves
from fedatoms.runs.states import find_runs

POINTS = 200  # of a curve
CURVES = ("running", "failed", "stopped")  # states whose curves are sent: the report has the others


def runs_now(folders: Sequence[Path]) -> Json:
    """Returns the runs below some folders, those that are running first; an error if a folder is gone."""
    gone = [folder for folder in folders if not folder.is_dir()]
    if gone:
        named = ", ".join(folder.as_posix() for folder in gone)
        return {"error": f"{named} is not a folder any more. It may have been moved.", "runs": []}
    runs = [_look(path) for folder in folders for path in find_runs(folder)]
    return {"error": "", "runs": [values(each) for each in in_order(runs)]}


def values(each: Progress) -> Json:
    """Returns a run as plain data; text is not escaped, so whoever shows it must."""
    last, (up, down), metric = each.rows[-1] if each.rows else None, sent(each.rows), each.metric
    return {
        "folder": each.folder.as_posix(),
        "name": each.name,
        "where": each.where,
        "state": each.state,
        "done": each.done,
        "rounds": each.rounds,
        "why": each.why,
        "loss": last["loss"] if last else None,
        "clients": last["clients"] if last else None,
        "failed": sum(row["failed"] for row in each.rows),
        "up": up,
        "down": down,
        "seconds": _seconds(each),
        "metric": {"name": metric.name, "unit": metric.unit},
        "scores": last_parts(each.rows),
        "look": {"colour": colour_of(each.experiment), "dash": dash_of(each.experiment)} if each.experiment else {},
        "curves": _curves(each) if each.state in CURVES else {},
    }


def _seconds(each: Progress) -> float | None:
    known = [seconds for row in each.rows if (seconds := row["seconds"]) is not None]
    return short(sum(known)) if len(known) == len(each.rows) else None  # withheld


def _curves(each: Progress) -> dict[str, list[tuple[float, float]]]:
    """Returns the training loss and the scores of each model, by rounds done."""
    losses = [(float(row["round"] + 1), loss) for row in each.rows if (loss := row["loss"]) is not None]
    scores = {model: [(float(t + 1), y) for t, y in line] for model, line in score_curves(each.rows).items()}
    lines = {"training loss": losses, **scores}
    return {name: [(x, short(y)) for x, y in thinned(line, POINTS)] for name, line in lines.items() if line}


def _look(folder: Path) -> Progress:
    """Reads a run; one that nobody writes only if its files changed since."""
    return progress_of(folder) if writer(folder) else _kept(folder, _stamp(folder))


@lru_cache(maxsize=4096)
def _kept(folder: Path, stamp: tuple[object, ...]) -> Progress:
    return progress_of(folder)


def _stamp(folder: Path) -> tuple[object, ...]:
    """Returns sizes and times of the files that a state is read from."""
    found: list[object] = []
    for path in (rounds_file(folder), *(folder / name for name in (EXPERIMENT, RESULT, FAILURE))):
        try:
            status = path.stat()
            found.append((status.st_size, status.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)
