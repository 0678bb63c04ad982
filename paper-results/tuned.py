"""Tuned against tuned: the rule of docs/paper.md as code, what it wants to be run next, and the tables of that page."""

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedatoms.bench.report import fill, table
from fedatoms.core.gains import beyond, mean_gain, over_seeds, pool, short
from fedatoms.evidence.results.finding import find
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity
from fedatoms.experiment.presets import PRESETS

ROOT, MAKER = Path(__file__).parent, "paper-results/tuned.py"
PAGE, README = ROOT.parent / "docs" / "paper.md", ROOT.parent / "README.md"
WIDTH = 120  # of a line of text
RATES, BEYOND = (0.1, 0.15, 0.2), {0.1: 0.05, 0.2: 0.3}  # tried first; and then, if one of these two is the best
DECAY, DECAYS = 1e-3, (5e-4, 2e-3)  # of all rates; and of the best one
HOLDOUT, SEEDS = 0.1, (0, 1, 2)  # of the search, which has seed 0; of the runs on test images
NAMES = {"fedavg": "FedAvg", "feddyn": "FedDyn", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
Known = Mapping[str, float]  # accuracy of model all over the last 100 rounds, by identity


class Setting(NamedTuple):
    """What is tuned."""

    rate: float
    decay: float


CONTROL = Setting(0.2, DECAY)  # of the plain network in the first cell, on test images


class Side(NamedTuple):
    """A network that is tuned: plain, or with 9 atoms, under an algorithm and a partition."""

    algorithm: str
    dataset: str
    classes: int
    network: str  # plain or atoms


COLUMNS = (("cifar100", 20), ("cifar100", 5), ("cifar10", 5), ("cifar10", 2))  # in the order in which they are run
CELLS = [(algorithm, *column) for algorithm in ("fedavg", "feddyn") for column in COLUMNS]


def experiment(side: Side, setting: Setting, seed: int | None = None) -> Experiment:
    """Returns the run of a setting: on held-out images, or on test images with a seed."""
    kind = "" if side.network == "plain" else "-atoms"
    preset = PRESETS[f"{side.algorithm}{kind}-{side.dataset}-{side.classes}"]
    usual = replace(preset, lr=setting.rate, weight_decay=setting.decay)
    return replace(usual, holdout=HOLDOUT) if seed is None else replace(usual, seed=seed)


def folder_of(one: Experiment) -> Path:
    """Returns where a run's result is kept below this folder; a run that an older one equals is not made."""
    cell = f"{one.parametrisation}-{one.algorithm}-{one.dataset}-{one.classes_per_client}"
    setting = f"lr{one.lr:g}-wd{one.weight_decay:g}"
    return Path("search/tuned" if one.holdout else "variants/tuned") / (
        f"{cell}-{setting}" + ("" if one.holdout else f"-s{one.seed}")
    )


def tried(side: Side, known: Known) -> dict[Setting, float]:
    """Returns the settings of a side that have a score, in the order of the rule."""
    settings = [Setting(rate, DECAY) for rate in (*RATES, *BEYOND.values())]
    settings += [Setting(one.rate, decay) for one in settings for decay in DECAYS]
    keys = {one: identity(experiment(side, one)) for one in settings}
    return {one: known[key] for one, key in keys.items() if key in known}


def step(scores: Mapping[Setting, float]) -> tuple[list[Setting], Setting | None]:
    """Returns the settings to try next, or none of them and the chosen one. Of equal scores the first one's counts."""
    rates = [Setting(rate, DECAY) for rate in RATES]
    if missing := [one for one in rates if one not in scores]:
        return missing, None
    best = max(rates, key=scores.__getitem__)
    if best.rate in BEYOND:
        beyond = Setting(BEYOND[best.rate], DECAY)
        if beyond not in scores:
            return [beyond], None
        best = max(best, beyond, key=scores.__getitem__)
    decays = [Setting(best.rate, decay) for decay in DECAYS]
    if missing := [one for one in decays if one not in scores]:
        return missing, None
    return [], max(best, *decays, key=scores.__getitem__)


def wanted(known: Known) -> list[Experiment]:
    """Returns what can be run now, in order: of each cell the searches of both sides, then the chosen ones' tests."""
    found: list[Experiment] = []
    for cell in CELLS:
        steps = {side: step(tried(side, known)) for side in (Side(*cell, "plain"), Side(*cell, "atoms"))}
        found += [experiment(side, one) for side, (settings, _) in steps.items() for one in settings]
        found += [experiment(side, best, seed) for side, (_, best) in steps.items() if best for seed in SEEDS]
    return [one for one in found if identity(one) not in known]


def known_here() -> dict[str, float]:
    """Reads the scores of all runs that are kept in this folder."""
    runs = [run.result for run in find([ROOT]).runs]
    return {identity(one.experiment): one.accuracy["all"].headline for one in runs if "all" in one.accuracy}


def searches(known: Known) -> str:
    """Writes what was seen on held-out images, a line for each side."""
    rates = sorted((*RATES, *BEYOND.values()))
    heads = ("", "network", *(f"rate {rate:g}" for rate in rates), *(f"decay {decay:g}" for decay in DECAYS), "chosen")
    sides = [Side(*cell, network) for cell in CELLS for network in ("plain", "atoms")]
    lines = [_search(side, scores, rates) for side in sides if (scores := tried(side, known))]
    return table(heads, lines)


def _search(side: Side, scores: Mapping[Setting, float], rates: Sequence[float]) -> list[str]:
    todo, best = step(scores)
    of_rates = [_two(scores.get(Setting(rate, DECAY))) for rate in rates]
    at = max((one for one in scores if one.decay == DECAY), key=scores.__getitem__).rate  # where decays were tried
    of_decays = [_two(scores.get(Setting(at, decay))) for decay in DECAYS]
    return [_cell(side), _network(side), *of_rates, *of_decays, _setting(best) if best and not todo else "not yet"]


def tests(known: Known) -> str:
    """Writes what the chosen settings have on test images, a line for each cell where both sides have all seeds."""
    heads = ("", "plain, tuned", "9 atoms, tuned", "gain", "95 % interval", "plain", "9 atoms", "gain, not tuned")
    return table(heads, [line for cell in CELLS if (line := _tested(cell, known))])


def leads(known: Known) -> str:
    """Writes by how much tuned atoms lead with each seed, a line for each algorithm."""
    heads = (f"lead with seeds {', '.join(map(str, SEEDS))}", *(_column(*column) for column in COLUMNS))
    found = {cell: _gains(*both) for cell in CELLS if (both := _both_sides(cell, known))}
    algorithms = dict.fromkeys(algorithm for algorithm, *_ in found)
    lines = [[NAMES[one], *(_signed(found.get((one, *column), [])) for column in COLUMNS)] for one in algorithms]
    return table(heads, lines)


def _signed(gains: Sequence[float]) -> str:
    return ", ".join(f"{gain:+.2f}" for gain in gains)


def summary(known: Known) -> str:
    """Writes what atoms add when both sides are tuned, in a sentence."""
    found = {cell: _gains(*both) for cell in CELLS if (both := _both_sides(cell, known))}
    each = sorted((over_seeds(gains) for gains in found.values()), key=lambda one: one.gain)
    sure = sum(beyond(one) == "supported" for one in each)
    mean = short(mean_gain(each, pool(found.values())))
    where = "everywhere" if sure == len(each) else f"in {sure} of {len(each)}"
    cells = f"all {len(CELLS)} cells" if len(each) == len(CELLS) else f"{len(each)} of {len(CELLS)} cells"
    names = " and ".join(dict.fromkeys(NAMES[algorithm] for algorithm, *_ in found))
    words = (
        f"Tuned alike on held-out images, 9 atoms add **{mean} points** to plain networks on average over {cells} "
        f"({names} on CIFAR-10 and CIFAR-100, {len(SEEDS)} seeds each), from {short(each[0])} to {short(each[-1])}, "
        f"with the 95 % interval above 0 {where} "
        "([how](docs/paper.md#tuned-against-tuned)). Compared with a better plain setting that the rule missed, the "
        f"largest is {_beside_the_control(known)}, and the mean {_mean_beside_the_control(known)}."
    )
    return textwrap.fill(words, WIDTH, break_long_words=False, break_on_hyphens=False)


def _both_sides(cell: tuple[str, str, int], known: Known) -> list[tuple[Setting, list[float]]]:
    """Returns the chosen settings of plain and of atoms with their test scores; nothing before all are there."""
    sides = [Side(*cell, network) for network in ("plain", "atoms")]
    chosen = [step(tried(side, known))[1] for side in sides]
    tuned = [(best, _scores(side, best, known)) for side, best in zip(sides, chosen, strict=True) if best]
    return tuned if len(tuned) == 2 and all(len(scores) == len(SEEDS) for _, scores in tuned) else []


def _beside_the_control(known: Known) -> str:
    """Writes how far tuned atoms are ahead of a plain network at another setting, where their lead is the largest."""
    return short(over_seeds(_gains_beside_the_control(known)))


def _mean_beside_the_control(known: Known) -> str:
    """Writes the mean of all leads, with the control's in its cell."""
    others = [_gains(*both) for cell in CELLS[1:] if (both := _both_sides(cell, known))]
    cells = [_gains_beside_the_control(known), *others]
    return short(mean_gain([over_seeds(each) for each in cells], pool(cells)))


def _gains_beside_the_control(known: Known) -> list[float]:
    plain, atoms = (Side(*CELLS[0], network) for network in ("plain", "atoms"))
    best = step(tried(atoms, known))[1]
    assert best is not None
    return _gains((CONTROL, _scores(plain, CONTROL, known)), (best, _scores(atoms, best, known)))


def _gains(plain: tuple[Setting, list[float]], atoms: tuple[Setting, list[float]]) -> list[float]:
    return [more - less for less, more in zip(plain[1], atoms[1], strict=True)]


def _tested(cell: tuple[str, str, int], known: Known) -> list[str]:
    sides = [Side(*cell, network) for network in ("plain", "atoms")]
    if not (tuned := _both_sides(cell, known)):
        return []
    usual = [_scores(side, Setting(RATES[0], DECAY), known) for side in sides]
    mean, low, high, *_ = over_seeds(_gains(*tuned))
    before = [statistics.mean(scores) for scores in usual]
    both = [f"{statistics.mean(scores):.2f} ({_setting(best)})" for best, scores in tuned]
    interval = f"{low:+.2f} to {high:+.2f}"
    return [_cell(sides[0]), *both, f"{mean:+.2f}", interval, *map(_two, before), f"{before[1] - before[0]:+.2f}"]


def _scores(side: Side, setting: Setting | None, known: Known) -> list[float]:
    assert setting is not None
    keys = [identity(experiment(side, setting, seed)) for seed in SEEDS]
    return [known[key] for key in keys if key in known]


def _two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _setting(one: Setting | None) -> str:
    return "" if one is None else f"{one.rate:g}, {one.decay:g}"


def _cell(side: Side) -> str:
    return f"{NAMES[side.algorithm]}, {_column(side.dataset, side.classes)}"


def _column(dataset: str, classes: int) -> str:
    return f"{NAMES[dataset]} (100, {classes})"


def _network(side: Side) -> str:
    return "plain" if side.network == "plain" else "9 atoms"


def command(one: Experiment) -> str:
    """Returns what to type for a run."""
    kind = "" if one.parametrisation == "plain" else "-atoms"
    preset, folder = f"{one.algorithm}{kind}-{one.dataset}-{one.classes_per_client}", folder_of(one)
    flags = f"--lr {one.lr:g} --weight-decay {one.weight_decay:g} --seed {one.seed}"
    flags += f" --holdout {one.holdout:g}" if one.holdout else ""
    return f"fedatoms run {preset} --data-dir data {flags} --out paper-results/{folder.parent} --name {folder.name}"


BLOCKS = {"searches": searches, "tests": tests, "leads": leads}
SENTENCES = {"tuned": summary}  # of the README


def report(page: Path = PAGE, readme: Path = README) -> None:
    """Fills the blocks of both pages, and prints the runs that are next."""
    known = known_here()
    for path, blocks in ((page, BLOCKS), (readme, SENTENCES)):
        for name, block in blocks.items():
            path.write_text(fill(path.read_text(), block(known), name, MAKER))
    for one in wanted(known):
        print(command(one))


if __name__ == "__main__":
    report()
