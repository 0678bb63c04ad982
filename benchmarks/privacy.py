"""Accuracy under differential privacy: plain, atoms, atoms with fast and slow groups, and atoms and head alone.

python benchmarks/privacy.py                   # digits, minutes on a CPU; writes benchmarks/results/privacy.json
python benchmarks/privacy.py --dataset cifar10 --device cuda --out privacy-cifar10.json

Prints the table of docs/privacy.md.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from fedatoms.engine.private_round import PRIVACY
from fedatoms.experiment.fields import Experiment
from fedatoms.runs.execute import run
from fedatoms.runs.provenance import provenance_of

RESULTS = Path(__file__).parent / "results" / "privacy.json"
SEEDS = (0, 1, 2)
EPSILONS = (None, 8.0, 2.0)  # None: no privacy, the same sampling
DIGITS = Experiment(
    clients=200,
    partition="iid",
    fraction=0.2,
    sampling="poisson",
    rounds=20,
    epochs=5,
    lr=0.1,
    eval_every=20,
    score="server",
    dp_clip=0.5,
    map="vectorised",
    threads=1,
    device="cpu",
)
CIFAR10 = replace(
    DIGITS,
    dataset="cifar10",
    model="lenet",
    clients=1000,
    fraction=0.1,
    rounds=300,
    eval_every=300,
    batch_size=50,
    device="auto",
    threads=0,
)
KINDS: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "atoms": {"parametrisation": "atoms"},
    "atoms, fast and slow (beta 1/5)": {"parametrisation": "atoms", "beta": "1/5"},
    "atoms and head alone": {"parametrisation": "atoms", "fixed": "coefficients,rest"},
}


@dataclass(frozen=True)
class Measured:
    """The outcome of one run."""

    kind: str
    target: float | None
    seed: int
    accuracy: float
    epsilon: float | None
    noise: float | None
    numbers: int  # uploaded by a client, in all rounds


def measure(base: Experiment, kinds: Iterable[str], seeds: Iterable[int]) -> list[Measured]:
    """Runs every kind with every epsilon and seed."""
    cells = [(kind, target, seed) for kind in kinds for target in EPSILONS for seed in seeds]
    found = []
    for kind, target, seed in cells:
        found.append(one(base, kind, target, seed))
        print(found[-1], flush=True)
    return found


def one(base: Experiment, kind: str, target: float | None, seed: int) -> Measured:
    """Runs one experiment in a folder that is thrown away."""
    changes = {**KINDS[kind], "seed": seed, "dp_epsilon": target}
    if target is None:
        changes["dp_clip"] = Experiment.dp_clip
    with tempfile.TemporaryDirectory() as folder:
        result = run(replace(base, out=folder, **changes))  # type: ignore[arg-type]
    privacy = cast(dict[str, float], result.extra.get(PRIVACY, {}))
    sent = sum(result.bytes_up.values()) / 4  # of float32
    uploads = base.fraction * base.clients  # in a round, on average
    accuracy = result.scores["server"].final
    cost = privacy.get("epsilon"), privacy.get("noise")
    return Measured(kind, target, seed, accuracy, *cost, round(sent / uploads))


def table(found: list[Measured]) -> str:
    """Writes the table of the page: mean and standard deviation over seeds."""
    lines = ["| | without | epsilon 8 | epsilon 2 |", "|---|---|---|---|"]
    for kind in dict.fromkeys(each.kind for each in found):
        cells = [_cell([each.accuracy for each in found if (each.kind, each.target) == (kind, t)]) for t in EPSILONS]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read(path: Path = RESULTS) -> list[Measured]:
    """Reads what was measured."""
    return [Measured(**each) for each in json.loads(path.read_text())["runs"]]


def _cell(values: list[float]) -> str:
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"


def main() -> None:
    """Measures, writes and prints."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--dataset", choices=("digits", "cifar10"), default="digits")
    words.add_argument("--device", default="")
    words.add_argument("--data-dir", default="data")
    words.add_argument("--out", type=Path, default=RESULTS)
    given = words.parse_args()
    base = replace(CIFAR10 if given.dataset == "cifar10" else DIGITS, data_dir=given.data_dir)
    base = replace(base, device=given.device or base.device)
    found = measure(base, KINDS, SEEDS)
    about = {"provenance": provenance_of(base.device, 1, 1), "runs": [asdict(each) for each in found]}
    given.out.write_text(json.dumps(about, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
