"""The files of a run's folder, by name. No torch."""

from pathlib import Path

EXPERIMENT, ROUNDS, RESULT = "experiment.json", "rounds.jsonl", "result.json"
MODEL, FAILURE = "model.safetensors", "failure.json"
CHECKPOINT = "checkpoint"
CLIENTS = Path(CHECKPOINT, "clients")  # states of clients that are kept on disk
SEGMENTS = Path(CHECKPOINT, "rounds")  # a file for each checkpoint, with the lines since the one before it


def checkpoints(folder: Path) -> list[int]:
    """Returns the rounds after which a run has a checkpoint, in order.

    >>> checkpoints(Path("no/such/run"))
    []
    """
    return sorted(int(path.stem) for path in (folder / CHECKPOINT).glob("*.json") if path.stem.isdecimal())
