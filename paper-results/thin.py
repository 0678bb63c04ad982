"""Makes results small: `python paper-results/thin.py [FOLDER ...]`.

Rounds are compressed; measures and explanations are written in one line, with nine digits of each number.
"""

import json
import sys
from pathlib import Path

from fedatoms.core.files import replace_file
from fedatoms.core.records import read_record, sealed
from fedatoms.core.run_files import EXPLANATION, ROUNDS
from fedatoms.evidence.measures.files import FILE
from fedatoms.runs.lock import locked
from fedatoms.runs.rounds import pack, read_rounds
from fedatoms.runs.states import find_runs, state_of

HERE = Path(__file__).parent


def main(folders: list[Path]) -> int:
    """Packs the rounds of all finished runs whose files are whole, prints and leaves the others; shortens the rest."""
    left = 0
    for path in (path for folder in folders for name in (FILE, EXPLANATION) for path in folder.rglob(name)):
        shorten(path)
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


def shorten(path: Path) -> None:
    """Writes a measure or an explanation anew, with as few characters as nine digits need."""
    content = sealed({name: _nine_digits(value) for name, value in read_record(path).items()})
    replace_file(path, (json.dumps(content, separators=(",", ":")) + "\n").encode())


def _nine_digits(value: object) -> object:
    if isinstance(value, dict):
        return {name: _nine_digits(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_nine_digits(each) for each in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main([Path(word) for word in sys.argv[1:]] or [HERE]))
