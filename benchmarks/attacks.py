"""Aggregation rules against attacks: the accuracy that is left with one of five clients malicious, and what it costs.

    python benchmarks/attacks.py
    python benchmarks/attacks.py --dataset cifar10 --device cuda --data-dir data

Writes benchmarks/results/attacks-DATASET.json after every run, skips what it has, and makes the tables of
docs/robustness.md. Digits take about five minutes of one core.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fedatoms.aggregation import RULES, aggregation
from fedatoms.core.files import replace_file
from fedatoms.engine.attacks import Attack
from fedatoms.engine.loop import begin, rounds
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.experiment.build import attack_in, configure, simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.runs.provenance import provenance_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "robustness.md"
FIVE = Experiment(clients=5, fraction=1.0, epochs=1, lr_decay=1.0, score="server", dirichlet=0.3)
SETTINGS = {
    "digits": replace(FIVE, batch_size=80, lr=0.2, rounds=20, device="cpu", threads=1),
    "cifar10": replace(FIVE, dataset="cifar10", model="lenet", batch_size=100, lr=0.1, rounds=100),
}
NOT_IID = "dirichlet"
CASES: dict[str, tuple[str, str]] = {  # partition and attack
    "clean, IID": ("iid", ""),
    "clean": (NOT_IID, ""),
    "sign flip x 9": (NOT_IID, "sign-flip:0.2:9"),
    "label flip": (NOT_IID, "label-flip:0.2"),
    "noise x 9": (NOT_IID, "noise:0.2:9"),
}
FORMS, SEEDS = ("plain", "atoms"), (0, 1, 2)
LAST = 5  # rounds whose scores are averaged: a single one of few clients is noisy
Cell = dict[str, object]


def main() -> None:
    """Runs what is missing of a data set's table, and writes the page."""
    told = _arguments()
    base = replace(SETTINGS[told.dataset], device=told.device, data_dir=told.data_dir)
    base = replace(base, rounds=told.rounds or base.rounds)
    configure(base)
    cells = read(told.dataset)
    for cell, runtime in _missing(base, cells):
        scores = [each.scores["server"].value for each in rounds(runtime, begin(runtime), base.rounds)]
        cells.append({**cell, "accuracy": round(statistics.mean(scores[-LAST:]), 2), "rounds": base.rounds})
        print(cells[-1], flush=True)
        written = {"cells": cells, "provenance": provenance_of(runtime.sim.device)}
        replace_file(result_of(told.dataset), (json.dumps(written, indent=1) + "\n").encode())
    write_page()


def read(dataset: str) -> list[Cell]:
    """Reads the results of a data set that there are."""
    path = result_of(dataset)
    return json.loads(path.read_text())["cells"] if path.exists() else []


def result_of(dataset: str) -> Path:
    """Returns the file of a data set's results."""
    return ROOT / "benchmarks" / "results" / f"attacks-{dataset}.json"


def tables(dataset: str) -> str:
    """Writes the tables of a data set: mean accuracy over seeds, by rule and case, for each parametrisation."""
    cells = read(dataset)
    made = [_table(form, [cell for cell in cells if cell["form"] == form]) for form in FORMS]
    return "\n\n".join([*made, _origin(dataset)]) if cells else ""


def _origin(dataset: str) -> str:
    found = json.loads(result_of(dataset).read_text())["provenance"]
    where = f"{found['device']}, {found['threads']} thread{'s' * (found['threads'] != 1)}, torch {found['torch']}"
    return f"Measured on {where}, fedatoms {found['fedatoms']}, commit {found['commit']}."


def write_page() -> None:
    """Puts the tables of all data sets between their marks on the page."""
    text = PAGE.read_text()
    for dataset in SETTINGS:
        begins, ends = f"<!-- {dataset}: python benchmarks/attacks.py -->", f"<!-- end of {dataset} -->"
        if begins in text:
            before, rest = text.split(begins)
            text = f"{before}{begins}\n{tables(dataset)}\n{ends}{rest.split(ends)[1]}"
    replace_file(PAGE, text.encode())


def _missing(base: Experiment, cells: list[Cell]) -> Iterator[tuple[Cell, Runtime]]:
    """Yields the cells that are not there, each with what runs it; what is built alike is built once."""
    done = {(cell["seed"], cell["form"], cell["case"], cell["rule"]) for cell in cells}
    for seed in SEEDS:
        for form in FORMS:
            made, like = dict[str, Simulation](), dict[str, Runtime]()
            for case, (partition, attack) in CASES.items():
                for rule in RULES:
                    if (seed, form, case, rule) in done:
                        continue
                    if partition not in made:
                        made[partition] = simulation(
                            replace(base, seed=seed, parametrisation=form, partition=partition)
                        )
                    sim = replace(made[partition], aggregation=aggregation(rule), attack=_attack(attack))
                    like[partition] = prepare(sim, like=like.get(partition))
                    yield {"seed": seed, "form": form, "case": case, "rule": rule}, like[partition]


def _attack(text: str) -> Attack | None:
    return attack_in(Experiment(attack=text))


def _table(form: str, cells: list[Cell]) -> str:
    head = f"| {form} | " + " | ".join(CASES) + " |\n|---|" + "---:|" * len(CASES)
    return "\n".join([head, *(_line(rule, [cell for cell in cells if cell["rule"] == rule]) for rule in RULES)])


def _line(rule: str, cells: list[Cell]) -> str:
    found = {case: [float(str(cell["accuracy"])) for cell in cells if cell["case"] == case] for case in CASES}
    return f"| `{rule}` | " + " | ".join(_shown(each) for each in found.values()) + " |"


def _shown(scores: list[float]) -> str:
    """Writes mean and standard deviation; how many seeds there are, where some are missing."""
    if not scores:
        return "-"
    spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.1f}{spread}{'' if len(scores) == len(SEEDS) else f' ({len(scores)})'}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=SETTINGS, default="digits")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--rounds", type=int, default=0, help="another number of rounds than the setting's")
    return parser.parse_args()


if __name__ == "__main__":
    main()
