"""Accuracy against bytes: plain networks and atoms, with uploads that are exact or rounded to 8 or 4 bits.

Writes benchmarks/results/bits-DATASET.json after each run, and goes on where it stopped; on digits it takes minutes on
a CPU. ``--page`` writes the tables of all such files into docs/messages.md; only that needs scipy.
"""

import argparse
import json
import re
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from fedatoms.core.files import replace_file
from fedatoms.core.gains import gain, short
from fedatoms.core.ledger import total
from fedatoms.core.options import UPLOADS
from fedatoms.engine.loop import begin, rounds
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.experiment.build import configure, simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.presets import preset
from fedatoms.runs.provenance import provenance_of

RESULTS, PAGE = Path(__file__).parent / "results", Path(__file__).parents[1] / "docs" / "messages.md"
NETWORKS = {  # the presets of a data set
    "digits": {"plain": "fedavg", "atoms": "fedavg-atoms"},
    "cifar10": {"plain": "fedavg-cifar10-2", "atoms": "fedavg-atoms-cifar10-2"},
}
LAST = 10  # rounds whose accuracies are averaged
MARKS = "<!-- written by benchmarks/bits.py -->\n", "<!-- until here -->\n"


class Run(TypedDict):
    """One run: its accuracy over the last rounds in percent, bytes of all uploads, and milliseconds of a round."""

    network: str
    uploads: str
    seed: int
    accuracy: float
    bytes: int
    ms: float


class File(TypedDict):
    """All runs on a data set."""

    dataset: str
    rounds: int
    presets: dict[str, str]
    runs: list[Run]
    provenance: dict[str, object]


def main() -> None:
    """Makes the runs that a file lacks, or writes the page."""
    asked = _asked()
    if asked.page:
        text = PAGE.read_text(encoding="utf-8")
        replace_file(PAGE, with_tables(text).encode())
        return
    path = RESULTS / f"bits-{asked.dataset}.json"
    found = _found(path, asked.dataset, asked.rounds)
    for run in _runs(asked, {(run["network"], run["uploads"], run["seed"]) for run in found["runs"]}):
        found["runs"].append(run)
        found["provenance"] = provenance_of(asked.device)
        replace_file(path, (json.dumps(found, indent=2) + "\n").encode())
        print(json.dumps(run), flush=True)


def with_tables(page: str) -> str:
    """Puts the tables of all files between the page's marks."""
    tables = [table(json.loads(path.read_text())) for path in sorted(RESULTS.glob("bits-*.json"))]
    between = re.compile(re.escape(MARKS[0]) + ".*" + re.escape(MARKS[1]), re.DOTALL)
    return between.sub(lambda _: f"{MARKS[0]}\n" + "\n".join(tables) + f"\n{MARKS[1]}", page)


def table(found: File) -> str:
    """Writes the means over seeds, and each difference to exact uploads with its paired interval of 95 %."""
    made = found["provenance"]
    seeds = sorted({run["seed"] for run in found["runs"]})
    lines = [
        f"{found['dataset']}, {found['rounds']} rounds, seeds {', '.join(map(str, seeds))} ({made['device']}, torch "
        f"{made['torch']}, fedatoms {made['fedatoms']}, commit {made['commit']}):\n",
        "| network | uploads | accuracy | to exact | uploaded MB | share | ms per round |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    lines += [_line(found, network, uploads) for network in found["presets"] for uploads in UPLOADS]
    return "\n".join(lines) + "\n"


def _line(found: File, network: str, uploads: str) -> str:
    mine, base = ({run["seed"]: run for run in _of(found, network, each)} for each in (uploads, "exact"))
    scores, exact = ({seed: run["accuracy"] for seed, run in each.items()} for each in (mine, base))
    change = gain(scores, exact)
    sent, all_of = (statistics.fmean(run["bytes"] for run in each.values()) for each in (mine, base))
    ms = statistics.median(run["ms"] for run in mine.values())
    to_exact = "" if uploads == "exact" or change is None else short(change)
    cells = (f"{statistics.fmean(scores.values()):.2f}", to_exact, f"{sent / 1e6:.2f}", f"{sent / all_of:.3f}")
    return f"| {network} | {uploads} | {' | '.join(cells)} | {ms:.0f} |"


def _of(found: File, network: str, uploads: str) -> list[Run]:
    return [run for run in found["runs"] if (run["network"], run["uploads"]) == (network, uploads)]


def _runs(asked: argparse.Namespace, done: set[tuple[str, str, int]]) -> Iterator[Run]:
    for seed in range(asked.seeds):
        for network, name in NETWORKS[asked.dataset].items():
            missing = [each for each in UPLOADS if (network, each, seed) not in done]
            if not missing:
                continue
            experiment = replace(_preset(asked, name), seed=seed)
            configure(experiment)
            runtime = prepare(simulation(experiment))
            for uploads in missing:  # one after the other: what is compiled for the first serves all
                runtime = prepare(replace(runtime.sim, uploads=uploads), like=runtime)
                accuracy, size, ms = _measured(runtime, asked.rounds)
                yield Run(network=network, uploads=uploads, seed=seed, accuracy=accuracy, bytes=size, ms=ms)


def _preset(asked: argparse.Namespace, name: str) -> Experiment:
    where = {"device": asked.device, "data_dir": asked.data_dir, "score": "server"}
    return replace(preset(name), rounds=asked.rounds, **where)


def _measured(runtime: Runtime, until: int) -> tuple[float, int, float]:
    """Runs all rounds; returns the mean accuracy of the last ones, all bytes up, and the median time of a round."""
    state, records, scores = begin(runtime), [], list[float]()
    for stop, every in ((max(until - LAST, 0), until), (until, 1)):
        for progress in rounds(runtime, state, stop, every):
            state = progress.state
            records.append(progress.record)
            scores += [progress.scores["server"].value] if every == 1 else []
    ms = statistics.median(1000 * record.seconds for record in records)
    return statistics.fmean(scores), sum(total(record.up) for record in records), round(ms, 2)


def _found(path: Path, dataset: str, count: int) -> File:
    if path.exists():
        found: File = json.loads(path.read_text())
        if found["rounds"] != count:
            raise SystemExit(f"{path} is of {found['rounds']} rounds. Use --rounds {found['rounds']}, or move it away.")
        return found
    return File(dataset=dataset, rounds=count, presets=NETWORKS[dataset], runs=[], provenance={})


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", choices=NETWORKS, default="digits")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--page", action="store_true", help="write the tables into docs/messages.md, and run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
