"""Compresses the rounds of results: `python paper-results/thin.py [FOLDER ...]`; what is read of them stays."""

import sys
from pathlib import Path

from fedatoms.core.run_files import ROUNDS
from fedatoms.runs.lock import locked
from fedatoms.runs.rounds import pack, read_rounds
from fedatoms.runs.states import find_runs, state_of

HERE = Path(__file__).parent


def main(folders: list[Path]) -> int:
    """Packs the rounds of all finished runs whose files are whole; prints and leaves the others."""
    left = 0
    for run in (run for folder in folders for run in find_runs(folder) if (run / ROUNDS).exists()):
        state = state_of(run, check=True)
        if state.state != "finished":
            left += 1
            print(f"{run} is {state.state}: {state.why or 'not packed'}")
            continue
        with locked(run):
            before = read_rounds(run)
            pack(run)
            assert read_rounds(run) == before
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main([Path(word) for word in sys.argv[1:]] or [HERE]))
