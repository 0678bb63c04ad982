"""Aggregation rules against attacks: the accuracy that is left with one of five clients malicious, and what it costs.

    python benchmarks/attacks.py
    python benchmarks/attacks.py --dataset cifar10 --device cuda --data-dir data

Writes benchmarks/results/attacks-DATASET.json after every run, skips what it has, and makes the tables of
docs/robustness.md. Digits take about five minutes of one core. Several processes share the work if each has its own
part and file, which are then joined:

    python benchmarks/attacks.py --dataset cifar10 --device cuda --seeds 0 --forms plain --out plain-0.json
    python benchmarks/attacks.py --dataset cifar10 --join plain-0.json atoms-0.json ...
"""

import argparse
import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from fedatoms.aggregation import RULES, aggregation
from fedatoms.core.files import replace_file
from fedatoms.engine.attacks import Attack, has_false_labels
from fedatoms.engine.loop import begin, rounds
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.experiment.build import attack_in, configure, simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.runs.provenance import provenance_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "robustness.md"
FIVE = Experiment(clients=5, fraction=1.0, epochs=1, lr_decay=1.0, score="server", dirichlet=0.3)
SETTINGS = {
    "digits": replace(FIVE, batch_size=80, lr=0.2, rounds=20, device="cpu", threads=1),
    "cifar10": replace(FIVE, dataset="cifar10", model="lenet", batch_size=100, lr=0.1, rounds=20),
}
NOT_IID = "dirichlet"
CASES: dict[str, tuple[str, str]] = {  # partition and attack
    "clean, IID": ("iid", ""),
    "clean": (NOT_IID, ""),
    "sign flip x 9": (NOT_IID, "sign-flip:0.2:9"),
    "label flip": (NOT_IID, "label-flip:0.2"),
    "noise x 9": (NOT_IID, "noise:0.2:9"),
    "little is enough": (NOT_IID, "little-is-enough:0.2"),
}
LEFT_OUT = {"cifar10": ("clean, IID",)}  # to save time
FORMS, SEEDS = ("plain", "atoms"), (0, 1, 2)
LAST = 5  # rounds whose scores are averaged: a single one of few clients is noisy
ADDRESS = ("seed", "form", "case", "rule")  # of a cell
Cell = dict[str, object]


def main() -> None:
    """Runs what is missing of a data set's table, or joins files that others have made of it, and writes the page."""
    told = arguments()
    out = told.out or result_of(told.dataset)
    if told.join:
        join(told.join, out)
    else:
        _measure(told, out)
    if out == result_of(told.dataset):
        write_page()


def join(files: Sequence[Path], out: Path) -> None:
    """Writes the cells of several files into one, each cell once, with the provenance of the last file."""
    found = [json.loads(path.read_text()) for path in files]
    cells = {_address(cell): cell for each in found for cell in each["cells"]}
    _write(out, list(cells.values()), found[-1]["provenance"])


def read(path: Path) -> list[Cell]:
    """Reads the results that a file has; none, if there is no such file."""
    return json.loads(path.read_text())["cells"] if path.exists() else []


def result_of(dataset: str) -> Path:
    """Returns the file of a data set's results."""
    return ROOT / "benchmarks" / "results" / f"attacks-{dataset}.json"


def cases_of(dataset: str) -> dict[str, tuple[str, str]]:
    """Returns the columns of a data set's table."""
    return {name: case for name, case in CASES.items() if name not in LEFT_OUT.get(dataset, ())}


def tables(dataset: str) -> str:
    """Writes the tables of a data set: mean accuracy over seeds, by rule and case, for each parametrisation."""
    if not (cells := read(result_of(dataset))):
        return f"Not measured yet (`python benchmarks/attacks.py --dataset {dataset}`)."
    made = [_table(form, list(cases_of(dataset)), [cell for cell in cells if cell["form"] == form]) for form in FORMS]
    return "\n\n".join([*made, _origin(dataset, cells)])


def _origin(dataset: str, cells: list[Cell]) -> str:
    found = json.loads(result_of(dataset).read_text())["provenance"]
    commits = Counter(str(cell["commit"]) for cell in cells)
    made = ", ".join(f"{commit} ({count} runs)" for commit, count in commits.items())
    where = f"{found['device']}, {found['threads']} thread{'s' * (found['threads'] != 1)}, torch {found['torch']}"
    return f"Measured on {where}, fedatoms {found['fedatoms']}, commit {made}."


def write_page() -> None:
    """Puts the tables of all data sets between their marks on the page."""
    text = PAGE.read_text()
    for dataset in SETTINGS:
        begins, ends = f"<!-- {dataset}: python benchmarks/attacks.py -->", f"<!-- end of {dataset} -->"
        if begins in text:
            before, rest = text.split(begins)
            text = f"{before}{begins}\n{tables(dataset)}\n{ends}{rest.split(ends)[1]}"
    replace_file(PAGE, text.encode())


def _measure(told: argparse.Namespace, out: Path) -> None:
    base = replace(SETTINGS[told.dataset], device=told.device, data_dir=told.data_dir)
    base = replace(base, rounds=told.rounds or base.rounds)
    configure(base)
    made_by = provenance_of(base.device)
    cells = read(out)
    for cell, runtime in _missing(told, base, cells):
        scores = [each.scores["server"].value for each in rounds(runtime, begin(runtime), base.rounds)]
        mean = round(statistics.mean(scores[-LAST:]), 2)
        cells.append({**cell, "accuracy": mean, "rounds": base.rounds, "commit": made_by["commit"]})
        print(cells[-1], flush=True)
        _write(out, cells, made_by)


def _write(out: Path, cells: list[Cell], provenance: dict[str, object]) -> None:
    replace_file(out, (json.dumps({"cells": cells, "provenance": provenance}, indent=1) + "\n").encode())


def _address(cell: Cell) -> tuple[object, ...]:
    return tuple(cell[key] for key in ADDRESS)


def _missing(told: argparse.Namespace, base: Experiment, cells: list[Cell]) -> Iterator[tuple[Cell, Runtime]]:
    """Yields the cells that are not there, each with what runs it; what is built alike is built once."""
    done = {_address(cell) for cell in cells}
    for seed, form in itertools.product(told.seeds, told.forms):
        like = dict[object, Runtime]()
        for (case, (partition, attack)), rule in itertools.product(cases_of(told.dataset).items(), RULES):
            if (seed, form, case, rule) in done:
                continue
            built = partition, has_false_labels(_attack(attack))
            if built not in like:
                like[built] = prepare(simulation(replace(base, seed=seed, parametrisation=form, partition=partition)))
            sim = replace(like[built].sim, aggregation=aggregation(rule), attack=_attack(attack))
            like[built] = prepare(sim, like=like[built])
            yield {"seed": seed, "form": form, "case": case, "rule": rule}, like[built]


@cache
def _attack(text: str) -> Attack | None:
    return attack_in(Experiment(attack=text))


def _table(form: str, cases: list[str], cells: list[Cell]) -> str:
    head = f"| {form} | " + " | ".join(cases) + " |\n|---|" + "---:|" * len(cases)
    return "\n".join([head, *(_line(rule, cases, [cell for cell in cells if cell["rule"] == rule]) for rule in RULES)])


def _line(rule: str, cases: list[str], cells: list[Cell]) -> str:
    found = {case: [float(str(cell["accuracy"])) for cell in cells if cell["case"] == case] for case in cases}
    return f"| `{rule}` | " + " | ".join(_shown(each) for each in found.values()) + " |"


def _shown(scores: list[float]) -> str:
    """Writes mean and standard deviation; how many seeds there are, where some are missing."""
    if not scores:
        return "-"
    spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.1f}{spread}{'' if len(scores) == len(SEEDS) else f' ({len(scores)})'}"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=SETTINGS, default="digits")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--rounds", type=int, default=0, help="another number of rounds than the setting's")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--out", type=Path, help="another file than benchmarks/results/attacks-DATASET.json")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE", help="run nothing, and join these files")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
