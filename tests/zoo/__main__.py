"""Tries every network, and writes the table of docs/networks.md: ``python -m zoo``, with tests in PYTHONPATH.

``python -m zoo installed [DEVICE]`` tries those of torchvision and timm, which must be installed.
"""

import multiprocessing
import os
import sys

from fedatoms.bench.report import fill
from zoo import installed
from zoo.trials import MAKER, PAGE, TRIALS, Row, table, tried


def main(words: list[str]) -> None:
    """Tries what the words name, and fills the page."""
    if not words:
        rows = {name: _said(name, tried(trial)) for name, trial in TRIALS.items()}
        PAGE.write_text(fill(PAGE.read_text(), table(rows), "networks", MAKER))
        return
    device, names = "".join(words[1:]) or "cpu", list(installed.trials())
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(min(len(names), os.cpu_count() or 1)) as pool:
        waiting = {name: pool.apply_async(installed.found, (name, device)) for name in names}
        rows = {name: _said(name, one.get()) for name, one in waiting.items()}
    found = f"{table(rows)}\n\n{installed.versions(device)}"
    PAGE.write_text(fill(PAGE.read_text(), found, "installed", installed.MAKER))


def _said(name: str, row: Row) -> Row:
    print(name, *row, sep=" | ", flush=True)
    return row


if __name__ == "__main__":
    main(sys.argv[1:])
