"""What every command says in the same way: to the terminal, beside it, and when it is stopped."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def terminal() -> "Console":
    """Returns where tables and lines are printed."""
    from rich.console import Console

    return Console()


def say(text: str) -> None:
    """Says a line beside the results, on stderr."""
    print(f"fedatoms: {' '.join(text.split())}", file=sys.stderr)


@contextlib.contextmanager
def told_how_to_continue(folder: Path) -> Iterator[None]:
    """Says how a run goes on that is stopped within."""
    try:
        yield
    except KeyboardInterrupt:
        if any((folder / "checkpoint").glob("*.json")):
            raise KeyboardInterrupt(f"Checkpoint saved. Continue with: fedatoms run --resume {folder}") from None
        raise


@contextlib.contextmanager
def told_to_repeat() -> Iterator[None]:
    """Says that the same command goes on, if it is stopped within."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("The same command goes on from here.") from None
