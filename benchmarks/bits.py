"""Accuracy against bytes: plain networks and atoms, with uploads that are exact or rounded to 8 or 4 bits.

Writes benchmarks/results/bits-DATASET.json after each run, and goes on where it stopped; on digits it takes minutes on
a CPU. Several processes share the work if each has its own part and file (``--networks plain --out FILE``), which
``--join FILE ...`` makes one. ``--page`` writes the tables of all files of that folder into docs/messages.md.
"""

import argparse
import json
import re
import statistics
from collections.abc import Iterator, Sequence
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
    epochs: int  # 0: those of the presets
    presets: dict[str, str]
    runs: list[Run]
    provenance: dict[str, object]


def main() -> None:
    """Makes the runs that a file lacks, or writes the page."""
    wanted = asked()
    if wanted.page:
        text = PAGE.read_text(encoding="utf-8")
        replace_file(PAGE, with_tables(text).encode())
        return
    path = wanted.out or RESULTS / f"bits-{wanted.dataset}.json"
    if wanted.join:
        write(path, joined([read(each) for each in wanted.join]))
        return
    found = _found(path, wanted)
    for run in _runs(wanted, {(run["network"], run["uploads"], run["seed"]) for run in found["runs"]}):
        found["runs"].append(run)
        found["provenance"] = provenance_of(wanted.device)
        write(path, found)
        print(json.dumps(run), flush=True)


def read(path: Path) -> File:
    """Reads the runs of a file."""
    found: File = json.loads(path.read_text())
    return found


def write(path: Path, found: File) -> None:
    """Writes the runs of a file."""
    replace_file(path, (json.dumps(found, indent=2) + "\n").encode())


def joined(files: Sequence[File]) -> File:
    """Puts the runs of several files into one, each run once; files of other settings than the first's are refused."""
    settings = [{key: each[key] for key in ("dataset", "rounds", "epochs", "presets")} for each in files]
    if any(each != settings[0] for each in settings):
        raise SystemExit(f"files of different settings cannot be joined: {settings}")
    runs = {(run["network"], run["uploads"], run["seed"]): run for each in files for run in each["runs"]}
    return {**files[0], "runs": list(runs.values())}


def with_tables(page: str) -> str:
    """Puts the tables of all files between the page's marks, and says which data sets have none."""
    files = [read(path) for path in sorted(RESULTS.glob("bits-*.json"))]
    missing = [name for name in NETWORKS if name not in {each["dataset"] for each in files}]
    tables = [table(each) for each in files]
    tables += [f"{name}: not measured yet (`python benchmarks/bits.py --dataset {name}`).\n" for name in missing]
    between = re.compile(re.escape(MARKS[0]) + ".*" + re.escape(MARKS[1]), re.DOTALL)
    return between.sub(lambda _: f"{MARKS[0]}\n" + "\n".join(tables) + f"\n{MARKS[1]}", page)


def table(found: File) -> str:
    """Writes the means over seeds, and each difference to exact uploads with its paired interval of 95 %."""
    made = found["provenance"]
    epochs = f" of {found['epochs']} local epoch{'s' * (found['epochs'] > 1)}" if found["epochs"] else ""
    seeds = sorted({run["seed"] for run in found["runs"]})
    of = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    lines = [
        f"{found['dataset']}, {found['rounds']} rounds{epochs}, {of} ({made['device']}, "
        f"torch {made['torch']}, fedatoms {made['fedatoms']}, commit {made['commit']}):\n",
        "| network | uploads | accuracy | to exact | uploaded MB | share |",
        "|---|---|---:|---:|---:|---:|",
    ]
    lines += [_line(found, network, uploads) for network in found["presets"] for uploads in UPLOADS]
    return "\n".join(lines) + "\n"


def _line(found: File, network: str, uploads: str) -> str:
    mine, base = ({run["seed"]: run for run in _of(found, network, each)} for each in (uploads, "exact"))
    scores, exact = ({seed: run["accuracy"] for seed, run in each.items()} for each in (mine, base))
    change = gain(scores, exact)
    sent, all_of = (statistics.fmean(run["bytes"] for run in each.values()) for each in (mine, base))
    to_exact = "" if uploads == "exact" or change is None else short(change)
    fewer = f" ({len(mine)} seeds)" if len(mine) < len({run["seed"] for run in found["runs"]}) else ""
    cells = (f"{statistics.fmean(scores.values()):.2f}{fewer}", to_exact, f"{sent / 1e6:.2f}", f"{sent / all_of:.3f}")
    return f"| {network} | {uploads} | {' | '.join(cells)} |"


def _of(found: File, network: str, uploads: str) -> list[Run]:
    return [run for run in found["runs"] if (run["network"], run["uploads"]) == (network, uploads)]


def _runs(wanted: argparse.Namespace, done: set[tuple[str, str, int]]) -> Iterator[Run]:
    for seed in wanted.seeds:
        for network in wanted.networks:
            missing = [each for each in UPLOADS if (network, each, seed) not in done]
            if not missing:
                continue
            experiment = replace(_preset(wanted, NETWORKS[wanted.dataset][network]), seed=seed)
            configure(experiment)
            runtime = prepare(simulation(experiment))
            for uploads in missing:  # one after the other: what is compiled for the first serves all
                runtime = prepare(replace(runtime.sim, uploads=uploads), like=runtime)
                accuracy, size, ms = _measured(runtime, wanted.rounds)
                yield Run(network=network, uploads=uploads, seed=seed, accuracy=accuracy, bytes=size, ms=ms)


def _preset(wanted: argparse.Namespace, name: str) -> Experiment:
    where = {"device": wanted.device, "data_dir": wanted.data_dir, "score": "server"}
    usual = preset(name)
    return replace(usual, rounds=wanted.rounds, epochs=wanted.epochs or usual.epochs, **where)


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


def _found(path: Path, wanted: argparse.Namespace) -> File:
    empty = File(
        dataset=wanted.dataset,
        rounds=wanted.rounds,
        epochs=wanted.epochs,
        presets=NETWORKS[wanted.dataset],
        runs=[],
        provenance={},
    )
    found = read(path) if path.exists() else empty
    if (found["rounds"], found["epochs"]) != (wanted.rounds, wanted.epochs):
        raise SystemExit(f"{path} has {found['rounds']} rounds, epochs={found['epochs']}. Use these, or move it away.")
    return found


def asked(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", choices=NETWORKS, default="digits")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=0, help="local epochs; 0: those of the presets")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--networks", nargs="+", choices=("plain", "atoms"), default=("plain", "atoms"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--out", type=Path, help="another file than benchmarks/results/bits-DATASET.json")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE", help="run nothing, and join these files")
    parser.add_argument("--page", action="store_true", help="write the tables into docs/messages.md, and run nothing")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
