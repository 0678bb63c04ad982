"""What the gain is made of: the tables of docs/explain.md, from the runs of this folder that have these experiments."""

import runpy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedatoms.bench.report import fill, table
from fedatoms.core.gains import gain, over_seeds, short
from fedatoms.evidence.explain.filter_mean import RULE
from fedatoms.evidence.results.finding import find
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity
from fedatoms.experiment.presets import PRESETS

ROOT, MAKER = Path(__file__).parent, "paper-results/made_of.py"
PAGE = ROOT.parent / "docs" / "explain.md"
CELL = ("fedavg", "cifar100", 20)
SEEDS = (0, 1, 2)
PLAIN, ATOMS, ATOMS25 = (PRESETS[f"{CELL[0]}{kind}-{CELL[1]}-{CELL[2]}"] for kind in ("", "-atoms", "-atoms25"))
NETWORKS = {"9 atoms": ATOMS, "25 atoms": ATOMS25}  # those that were also run without latent clients
ONE_PLACE = {"partition": "iid", "clients": 1, "fraction": 1.0, "rounds": 20, "eval_every": 5, "score": "server"}
Scores = Mapping[tuple[str, str], float]  # of an experiment's identity and a model, over the last 100 rounds


class Row(NamedTuple):
    """A line of the table: its name, its experiment, the model that is scored, and whose gain it is held against."""

    name: str
    experiment: Experiment
    base: Experiment
    model: str = "all"


def rows(scores: Scores) -> list[Row]:
    """Returns what the gain is taken apart into; the settings of tuned networks are those that were chosen."""
    central, decomposed = (replace(one, **ONE_PLACE) for one in (PLAIN, ATOMS))  # type: ignore[arg-type]
    return [
        Row("plain", PLAIN, PLAIN),
        *_tuned("plain", "plain, tuned", scores),
        Row("plain, 0.2 and 0.001, a control", replace(PLAIN, lr=0.2), PLAIN),
        Row("9 atoms", ATOMS, PLAIN),
        *_tuned("atoms", "9 atoms, tuned", scores),
        Row("9 atoms that are never trained", replace(ATOMS, fixed="atoms"), PLAIN),
        Row("plain, the server's model", PLAIN, PLAIN, "server"),
        *(row for name, one in NETWORKS.items() for row in _both_averages(name, one)),
        Row("plain, all images in one place", central, central, "server"),
        Row("9 atoms, all images in one place", decomposed, central, "server"),
    ]


def _both_averages(name: str, one: Experiment) -> tuple[Row, Row]:
    """Returns the lines of a network with latent clients and without them: its server then averages filters."""
    without = Row(f"{name} averaged as filters, the server's model", replace(one, aggregation=RULE), PLAIN, "server")
    return Row(f"{name}, the server's model", one, PLAIN, "server"), without


def _tuned(network: str, name: str, scores: Scores) -> list[Row]:
    """Returns the line of a tuned network, once its setting is chosen."""
    tuned = runpy.run_path(str(ROOT / "tuned.py"))
    known = {key: score for (key, model), score in scores.items() if model == "all"}
    side = tuned["Side"](*CELL, network)
    _, best = tuned["step"](tuned["tried"](side, known))
    if best is None:
        return []
    return [Row(f"{name} ({best.rate:g}, {best.decay:g})", tuned["experiment"](side, best, 0), PLAIN)]


def scores_here() -> dict[tuple[str, str], float]:
    """Reads the scores of all runs that are kept in this folder."""
    runs = [run.result for run in find([ROOT]).runs]
    return {(identity(one.experiment), model): each.headline for one in runs for model, each in one.scores.items()}


def parts(scores: Scores) -> str:
    """Writes the accuracy of each network, and its gain over the plain one with the same seeds."""
    heads = ("", "accuracy", "gain over plain", "seeds")
    return table(heads, [line for row in rows(scores) if (line := _line(row, scores))])


def _line(row: Row, scores: Scores) -> list[str]:
    mine, base = (_by_seed(one, row.model, scores) for one in (row.experiment, row.base))
    if not mine:
        return []
    more = gain(mine, base) if row.experiment is not row.base else None
    seeds = ", ".join(map(str, mine))
    return [row.name, short(over_seeds(list(mine.values())), ".2f"), short(more) if more else "", seeds]


def latent(scores: Scores) -> str:
    """Writes what latent clients add over whole runs: the usual average minus that of filters, with the same seeds."""
    heads = ("server's model", "with latent clients", "without", "what they add", "seeds")
    return table(heads, [line for name, one in NETWORKS.items() if (line := _latent(name, one, scores))])


def _latent(name: str, one: Experiment, scores: Scores) -> list[str]:
    on, off = (_by_seed(row.experiment, row.model, scores) for row in _both_averages(name, one))
    seeds = sorted(on.keys() & off.keys())
    more = gain(on, off)
    if more is None:
        return []
    both = (short(over_seeds([side[seed] for seed in seeds]), ".2f") for side in (on, off))
    return [name, *both, short(more), ", ".join(map(str, seeds))]


def _by_seed(one: Experiment, model: str, scores: Scores) -> dict[int, float]:
    keys = {seed: (identity(replace(one, seed=seed)), model) for seed in SEEDS}
    return {seed: scores[key] for seed, key in keys.items() if key in scores}


BLOCKS = {"parts": parts, "latent": latent}


def report(page: Path = PAGE) -> None:
    """Fills the page's blocks."""
    scores = scores_here()
    for name, block in BLOCKS.items():
        page.write_text(fill(page.read_text(), block(scores), name, MAKER))


if __name__ == "__main__":
    report()
