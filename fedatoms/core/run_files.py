"""The files of a run's folder, by name. No torch."""

from pathlib import Path

EXPERIMENT, ROUNDS, RESULT = "experiment.json", "rounds.jsonl", "result.json"
MODEL, FAILURE = "model.safetensors", "failure.json"
CHECKPOINT, PERSONAL = "checkpoint", "personal"  # folders
LOCK, EXPLANATION = "lock", "explain.json"
STUDY = "study.json"  # of a search, whose trials are runs below its folder
OWN = frozenset({EXPERIMENT, ROUNDS, RESULT, MODEL, FAILURE, CHECKPOINT, PERSONAL, LOCK, EXPLANATION})
CLIENTS = Path(CHECKPOINT, "clients")  # states of clients that are kept on disk
SEGMENTS = Path(CHECKPOINT, "rounds")  # a file for each checkpoint, with the lines since the one before it


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
