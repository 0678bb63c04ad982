"""Tries every network, and writes the table of docs/networks.md: ``python -m zoo``, with tests in PYTHONPATH."""

from fedatoms.bench.report import fill
from zoo.trials import MAKER, PAGE, TRIALS, table, tried

rows = {}
for name, trial in TRIALS.items():
    rows[name] = tried(trial)
    print(name, *rows[name], sep=" | ", flush=True)
PAGE.write_text(fill(PAGE.read_text(), table(rows), "networks", MAKER))
