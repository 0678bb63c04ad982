"""The files of a run's folder, by name. No torch."""

from pathlib import Path

EXPERIMENT, ROUNDS, RESULT = "experiment.json", "rounds.jsonl", "result.json"
PACKED = "rounds.jsonl.gz"  # the rounds of a finished run that is kept as evidence
MODEL, FAILURE = "model.safetensors", "failure.json"
CHECKPOINT, PERSONAL = "checkpoint", "personal"  # folders
SPENT = "spent.json"  # private rounds that have begun
LOCK, EXPLANATION = "lock", "explain.json"
WATCHED = "watched.json"  # what stores of watchers know the run by
STUDY = "study.json"  # of a search, whose trials are runs below its folder
OWN = frozenset(
    {EXPERIMENT, ROUNDS, PACKED, RESULT, MODEL, FAILURE, CHECKPOINT, PERSONAL, LOCK, EXPLANATION, SPENT, WATCHED}
)
CLIENTS = Path(CHECKPOINT, "clients")  # states of clients that are kept on disk
SEGMENTS = Path(CHECKPOINT, "rounds")  # a file for each checkpoint, with the lines since the one before it


def rounds_file(folder: Path) -> Path:
    """Returns the file that holds a run's rounds: packed if that is all there is.

    >>> rounds_file(Path("no/such/run")).name
    'rounds.jsonl'
    """
    plain, packed = folder / ROUNDS, folder / PACKED
    return packed if packed.exists() and not plain.exists() else plain


def run_of(path: Path) -> Path | None:
    """Returns the folder of the run that a path is one of the own files of, or lies among them; None if there is none.

    >>> run_of(Path("no/such/run/result.json")) is None
    True
    """
    folder = next((above for above in path.parents if (above / EXPERIMENT).exists()), None)
    return folder if folder is not None and path.relative_to(folder).parts[0] in OWN else None


def checkpoints(folder: Path) -> list[int]:
    """Returns the rounds after which a run has a checkpoint, in order.

    >>> checkpoints(Path("no/such/run"))
    []
    """
    return sorted(int(path.stem) for path in (folder / CHECKPOINT).glob("*.json") if path.stem.isdecimal())
