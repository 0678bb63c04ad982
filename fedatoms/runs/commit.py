"""The commit of the code: of its checkout, or what was noted when the package was built (setup.py)."""

import os
import subprocess
from pathlib import Path

NOTED = "commit.txt"  # beside this file, in a wheel that was built from a checkout


def known_commit() -> str | None:
    """Returns FEDATOMS_COMMIT, the commit of the checkout (with + if files have changed), or that of the build."""
    here = Path(__file__)
    return os.environ.get("FEDATOMS_COMMIT") or commit_of(here) or _noted(here.with_name(NOTED))


def commit_of(file: Path) -> str | None:
    """Returns what git says of the checkout of a file; nothing if it tracks no such file, or is not there.

    >>> commit_of(Path("/nowhere/setup.py")) is None
    True
    """
    git = ["git", "-C", str(file.parent)]
    ask = [*git, "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", str(file)], capture_output=True, timeout=10)
        found = subprocess.run(ask, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None if tracked.returncode == 0 else None


def _noted(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
