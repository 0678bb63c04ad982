"""Tries every network, and writes the table of docs/networks.md: ``python -m zoo``, with tests in PYTHONPATH.

``python -m zoo installed`` tries those of torchvision and timm, which must be installed.
"""

import sys

from fedatoms.bench.report import fill
from zoo import installed
from zoo.trials import MAKER, PAGE, TRIALS, table, tried

published = sys.argv[1:] == ["installed"]
rows = {}
for name, trial in (installed.trials() if published else TRIALS).items():
    rows[name] = tried(trial)
    print(name, *rows[name], sep=" | ", flush=True)
found = f"{table(rows)}\n\n{installed.versions()}" if published else table(rows)
name, maker = ("installed", installed.MAKER) if published else ("networks", MAKER)
PAGE.write_text(fill(PAGE.read_text(), found, name, maker))
