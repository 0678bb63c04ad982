"""Makes the tables of paper-results/README.md and the picture docs/cifar10-5.png from the files next to it."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from fedatoms.algorithms import ALGORITHMS as METHODS
from fedatoms.bench.report import fill, table
from fedatoms.core.gains import Gain, Pooled, gain, over_seeds, pool, short
from fedatoms.evidence.claims.costs import OWN_MODELS
from fedatoms.evidence.paper import tables
from fedatoms.evidence.paper.study_list import BETAS, PAIR_25
from fedatoms.evidence.paper.tables import CIFAR, Cell, Column, Pair
from fedatoms.evidence.results.cells import common_runs, gain_of, match, place, score_by_seed
from fedatoms.evidence.results.communication import relative_cost
from fedatoms.evidence.results.finding import find
from fedatoms.evidence.results.groups import (
    Group,
    group,
    groups_of,
    headline_by_seed,
    key_of,
    on_common_seeds,
)
from fedatoms.evidence.results.names import labels, layers
from fedatoms.evidence.results.pairs import (
    Twins,
    gain_between,
    known_spreads,
    mean_of_pairs,
    sampled_pairs,
    server_gain,
    server_spread,
)
from fedatoms.evidence.results.run_figures import figures
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.presets import ALGORITHMS, PRESETS, TABLE1, TABLE2, TINY_CLASSES
from fedatoms.runs.comparison import compare
from fedatoms.runs.plots import score_plot
from fedatoms.runs.results import Result, read_result, score_curves
from fedatoms.runs.rounds import read_rounds

ROOT, MAKER = Path(__file__).parent, "paper-results/table.py"
FAR = 1.5  # points from the paper: a cell that far off has a control
NAMES = {name: METHODS[name].label for name in ALGORITHMS}
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
CIFAR10 = [column for column in CIFAR if column.dataset == "cifar10"]
PAPER = {cell.preset: cell for name in DATASETS for cell in tables.cells(1, name)}
SEARCHED = ("fedavg", "feddyn")  # by which settings are chosen, on held-out images
GROUPS = {each.key: each for each in group(find([ROOT]).runs)}
SPREAD = known_spreads(list(GROUPS.values())).shared  # what one seed's gains are judged by
SERVER_SPREAD = server_spread(list(GROUPS.values()))  # the same of the server's models
OURS = match(list(GROUPS.values()))  # as the page has it, over all seeds that there are


def cells() -> str:
    """Writes accuracies next to the paper's, a table for each partition."""
    heads = ("preset and folder", "paper", "ours", "difference", "rank", "final", "best", "server", "GB up", "seeds")
    return "\n\n".join(
        f"{_title(column)}: 100 clients with {column.classes} classes each\n\n"
        + table(heads, [_cell(cell) for cell in PAPER.values() if cell.column == column])
        for column in CIFAR
    )


def _cell(cell: Cell) -> list[str]:
    found = [run.result for run in OURS[place(cell)].runs]
    scores = [(*result.accuracy["all"], result.accuracy["server"].headline) for result in found]
    _, final, best, server = map(statistics.mean, zip(*scores, strict=True))
    sent = statistics.mean(sum(result.bytes_up.values()) for result in found) / 1e9
    more = (f"{value:.2f}" for value in (final, best, server, sent))
    return [f"`{cell.preset}`", *_beside_the_paper(cell), *more, f"{len(found)}"]


def _beside_the_paper(cell: Cell) -> list[str]:
    """Writes a cell's printed number, ours with its interval, their difference, and both ranks in the column."""
    alike = [each for each in tables.cells(cell.table) if each.column == cell.column and place(each) in OURS]
    scores = {place(each): list(score_by_seed(OURS[place(each)], each.compared).values()) for each in alike}
    ours = over_seeds(scores[place(cell)], _spread_of(cell.table))
    better = sum(statistics.fmean(values) > ours.gain for values in scores.values())
    printed = sum(each.value > cell.value for each in alike)
    numbers = f"{cell.value:.2f}", short(ours, ".2f"), f"{ours.gain - cell.value:+.2f}"
    return [*numbers, f"{better + 1} ({printed + 1})" if len(alike) > 1 else ""]


@cache
def _spread_of(number: int) -> Pooled | None:
    """Returns the spread over seeds that the cells of a table have in common, by which one seed is judged."""
    found = [(OURS[place(cell)], cell) for cell in tables.cells(number) if place(cell) in OURS]
    return pool(list(score_by_seed(each, cell.compared).values()) for each, cell in found)


def gains() -> str:
    """Writes what the decomposition adds to each algorithm, and the means."""
    heads = ("", *(f"{_title(column)}, {who}" for column in CIFAR for who in ("paper", "ours")))
    found = [list(map(_gains, _pairs(column))) for column in CIFAR]
    lines = [
        [NAMES[name], *(_gain(each) for column in found for each in column[row][:2])]
        for row, name in enumerate(ALGORITHMS)
    ]
    means = ["mean", *(_gain(each) for column in found for each in _means(column))]
    paper, ours = (_gain(each) for each in _means([each for column in found for each in column]))
    pairs = len(CIFAR) * len(ALGORITHMS)
    return f"{table(heads, [*lines, means])}\n\nMean over the {pairs} pairs: {paper} in the paper, {ours} here."


def _means(found: Sequence[tuple[float, Gain, Twins]]) -> tuple[float, Gain]:
    paper, ours, both = zip(*found, strict=True)
    return statistics.mean(paper), mean_of_pairs(both, ours, SPREAD)


def _gain(value: float | Gain) -> str:
    return short(value) if isinstance(value, Gain) else f"{value:+.2f}"


def numbers() -> str:
    """Writes what 9 atoms add, and what 25 add with the same seeds."""
    heads = ("", *(f"{_title(column)}, {number}" for column in CIFAR for number in (9, 25)), "mean, 9", "mean, 25")
    found = {name: [_both_numbers(name, column) for column in CIFAR] for name in ALGORITHMS}
    lines = [_gain_line(NAMES[name], _each(row), row) for name, row in found.items()]
    columns = [mean for column in zip(*found.values(), strict=True) for mean in _mean_of(column)]
    return table(heads, [*lines, _gain_line("mean", columns, [both for row in found.values() for both in row])])


def _gain_line(name: str, each: Sequence[Gain], over: Sequence[tuple[Twins, ...]]) -> list[str]:
    return [name, *map(short, (*each, *_mean_of(over)))]


def _each(row: Iterable[Iterable[Twins]]) -> list[Gain]:
    return [gain_between(*twins, SPREAD) for both in row for twins in both]


def _mean_of(row: Sequence[tuple[Twins, ...]]) -> list[Gain]:
    return [mean_of_pairs(side, _each([side]), SPREAD) for side in zip(*row, strict=True)]


def _both_numbers(name: str, column: Column) -> tuple[Twins, ...]:
    kinds = ("", "-atoms", "-atoms25")
    wanted = [key_of(PRESETS[f"{name}{kind}-{column.dataset}-{column.classes}"]) for kind in kinds]
    plain, *decomposed = on_common_seeds([GROUPS[key] for key in wanted])
    return tuple((each, plain) for each in decomposed)


def feddyn() -> str:
    """Writes how FedDyn goes on (100, 2) of CIFAR-10: plain, with 9 atoms and with 25, for the seeds that there are."""
    rounds = (60, 120, 300, 450, 600)
    heads = ("folder", *(f"round {t}" for t in rounds), "best", "ours")
    names = [f"feddyn{kind}-cifar10-2" for kind in ("", "-atoms", "-atoms25")]
    seeds = [f"{parent}/{name}-s{seed}" for name in names for parent in ("feddyn", "seeds") for seed in (1, 2)]
    others = [each for each in (*seeds, "orthonormal/feddyn-atoms-cifar10-2") if (ROOT / each).exists()]
    return table(heads, [_course(name, rounds) for name in (*names, *others)])


def _course(folder: str, rounds: tuple[int, ...]) -> list[str]:
    curve, ours = dict(score_curves(read_rounds(ROOT / folder))["all"]), _read(folder).accuracy["all"]
    return [f"`{folder}`", *(f"{value:.2f}" for value in (*(curve[t - 1] for t in rounds), ours.best, ours.headline))]


def communication() -> str:
    """Writes what the runs of figure (d) have at their end, and what they sent."""
    names = [f"communication/fedavg-atoms25-cifar100-20-beta-{beta.removeprefix('1/')}" for beta in BETAS]
    names = ["fedavg-cifar100-20", "fedavg-atoms25-cifar100-20", *names, "communication/fedavg-fedpara-cifar100-20"]
    return table(("folder", "server", "all", "GB up", "GB down"), [_sent(name) for name in names])


def _sent(folder: str) -> list[str]:
    result = _read(folder)
    scores = [result.accuracy[model].headline for model in ("server", "all")]
    sent = [sum(each.values()) / 1e9 for each in (result.bytes_up, result.bytes_down)]
    return [f"`{folder}`", *(f"{value:.2f}" for value in (*scores, *sent))]


def own_models() -> str:
    """Writes what figure (d) has by clients' own models, once it was run."""
    found = [each for each in figures(list(GROUPS.values())) if each.name == OWN_MODELS and each.size == "full"]
    if not found:
        return "Not run yet."
    shown = table(found[0].heads, [list(map(_shown, row)) for row in found[0].rows])
    return f"{found[0].sentence}\n\n{shown}\n\n{_to_a_common_accuracy()}"


def _to_a_common_accuracy() -> str:
    """Writes what the runs of figure (d) by clients' own models need to an accuracy that all of them reach."""
    plain, *others = groups_of(OWN_MODELS, list(GROUPS.values()), quick_ones=False).values()
    reached = min(run.result.accuracy["local"].best for one in (plain, *others) for run in one.runs)
    names = labels([one.experiment for one in (plain, *others)])
    found = [relative_cost(dict.fromkeys(plain.seeds, reached), one, plain, "local") for one in others]
    shares = [f"{name}: {one.up:.2f} ({one.both:.2f})" for name, one in zip(names[1:], found, strict=True) if one]
    return f"All reach {reached:.2f} %. Shares of the first one's parameters, up (both ways): {'; '.join(shares)}."


def _shown(value: str | float | None) -> str:
    if value is None:
        return "never"
    return value if isinstance(value, str) else f"{value:.4g}"


def clients() -> str:
    """Writes figure (c): accuracy against the clients of a round."""
    return "\n\n".join(_sampled(pairs) for pairs in sampled_pairs(list(GROUPS.values())) if pairs)


def _sampled(pairs: dict[int, Twins]) -> str:
    """Writes the pairs with one number of atoms, each on the seeds that both have."""
    name = layers(next(iter(pairs.values()))[0].experiment)
    heads = ("clients in a round", "plain", name, "gain", "plain, all", f"{name}, all", "gain, all", "seeds")
    rows = [
        [f"{n}", *_of(pair, "server"), *_of(pair, "all"), ", ".join(map(str, pair[0].seeds))]
        for n, pair in pairs.items()
    ]
    return table(heads, rows)


def _of(pair: Twins, model: str) -> list[str]:
    atoms, plain = (statistics.mean(headline_by_seed(each, model).values()) for each in pair)
    found = server_gain(*pair, SERVER_SPREAD) if model == "server" else gain_between(*pair, SPREAD)
    return [f"{plain:.2f}", f"{atoms:.2f}", short(found)]


def tiny() -> str:
    """Writes Tiny-ImageNet from random weights, by the server's model after the last round and by both headlines."""
    heads = ("", "plain, round 10", "9 atoms, round 10", "gain", "gain, ten rounds", "gain, all, ten rounds", "seeds")
    names = [(name, classes) for name in SEARCHED for classes in TINY_CLASSES]
    return table(heads, [_tiny(*each) for each in names])


def _tiny(name: str, classes: int) -> list[str]:
    atoms, plain = (GROUPS[key_of(PRESETS[f"{name}{kind}-tiny-{classes}"])] for kind in ("-atoms", ""))
    last = [
        {run.result.experiment.seed: run.result.accuracy["server"].final for run in each.runs}
        for each in (plain, atoms)
    ]
    at_the_end = gain(last[1], last[0])
    assert at_the_end is not None
    found = at_the_end, server_gain(atoms, plain, SERVER_SPREAD), gain_between(atoms, plain, SPREAD)
    scores = (f"{statistics.mean(each.values()):.2f}" for each in last)
    return [f"{NAMES[name]}, (20, {classes})", *scores, *map(short, found), f"{len(atoms.seeds)}"]


def tiny_own() -> str:
    """Writes clients' own models on Tiny-ImageNet."""
    heads = ("preset", "rounds", "server", "before the last pass", "after it", "worst tenth", "spread")
    found = [_read(f"tiny/own/{row}-personal-tiny-20") for row in ("fedavg-finetune", "fedper")]
    return table(heads, [_tiny_own(each) for each in found])


def _tiny_own(result: Result) -> list[str]:
    own = (_own(result)[name] for name in ("mean of the last ten", "after the last pass", "worst tenth", "spread"))
    scores = (f"{value:.2f}" for value in (result.accuracy["server"].final, *own))
    return [f"`{result.folder.name}`", f"{result.experiment.rounds}", *scores]


def efficientnet() -> str:
    """Writes EfficientNet-Lite0 from ImageNet's weights: its backbone trained, with seeds, and fixed."""
    heads = ("folder", "server, round 10", "all, round 10", "all, best", "MB up", "seed")
    plain, others = ("", "-s1", "-s2"), ("-frozen",)
    found = {each: _read(f"tiny/efficientnet{each}") for each in (*plain, *others)}
    scores = zip(*(_efficientnet_scores(found[each]) for each in plain), strict=True)
    mean = ["their mean", *(short(over_seeds(values), ".2f") for values in scores), "", ""]
    lines = [_efficientnet(result) for result in found.values()]
    return table(heads, [*lines[: len(plain)], mean, *lines[len(plain) :]])


def efficientnet_atoms() -> str:
    """Writes EfficientNet-Lite0 plain and with atoms after as many rounds as those with atoms have."""
    atoms = _read("tiny/efficientnet-atoms-6")
    heads = ("folder", "", *(f"{model}, round {atoms.experiment.rounds}" for model in ("server", "all")), "seed")
    plain = [_read(f"tiny/efficientnet{each}") for each in ("", "-s1", "-s2")]
    return table(heads, [_after_round(result, atoms.experiment.rounds) for result in (*plain, atoms)])


def _after_round(result: Result, rounds: int) -> list[str]:
    curves, one = score_curves(read_rounds(result.folder)), result.experiment
    scores = (f"{dict(curves[model])[rounds - 1]:.2f}" for model in ("server", "all"))
    return [f"`tiny/{result.folder.name}`", layers(one), *scores, f"{one.seed}"]


def _efficientnet(result: Result) -> list[str]:
    more = f"{sum(result.bytes_up.values()) / 1e6:.0f}", f"{result.experiment.seed}"
    return [f"`tiny/{result.folder.name}`", *(f"{value:.2f}" for value in _efficientnet_scores(result)), *more]


def _efficientnet_scores(result: Result) -> tuple[float, float, float]:
    return result.accuracy["server"].final, result.accuracy["all"].final, result.accuracy["all"].best


def partitions() -> str:
    """Writes accuracies on other partitions of CIFAR-10, the most alike clients first."""
    kinds = {"iid": "iid", "Dirichlet 0.6": "dirichlet-0.6", "Dirichlet 0.3": "dirichlet-0.3"}
    folders = [(name, *(f"partitions/{stem}-cifar10-5-{kind}" for stem in PAIR_25)) for name, kind in kinds.items()]
    shards = [
        (f"{c.classes} classes each", *(f"{stem}-cifar10-{c.classes}" for stem in PAIR_25)) for c in CIFAR10[::-1]
    ]
    return table(("clients' data", "plain", "25 atoms", "gain"), [_both(*each) for each in (*folders, *shards)])


def _both(name: str, plain: str, atoms: str) -> list[str]:
    one, two = (_all(_read(folder)) for folder in (plain, atoms))
    return [name, f"{one:.2f}", f"{two:.2f}", short(over_seeds([two - one], SPREAD))]


def atoms() -> str:
    """Writes Table 3 where it was run, and beside it the control with a global last layer."""
    heads = ("", "atoms", "paper", "ours", "difference", "rank", "seeds", "under a global last layer")
    found = [cell for column in CIFAR for cell in tables.cells(3, column.dataset) if cell.column == column]
    return table(heads, [line for cell in found if (line := _atoms(cell))])


def _atoms(cell: Cell) -> list[str]:
    assert cell.experiment is not None
    one = cell.experiment
    control = GROUPS.get(key_of(replace(one, personal="local-atoms")))
    if place(cell) not in OURS and control is None:
        return []
    ours = ["", "", "", ""]
    if place(cell) in OURS:
        ours = [*_beside_the_paper(cell)[1:], f"{len(OURS[place(cell)].runs)}"]
    other = f"{_own(control.runs[0].result)['after the last pass']:.2f}" if control else ""
    return [_title(cell.column), f"{one.atoms}", f"{cell.value:.2f}", *ours, other]


def far() -> str:
    """Writes the cells that are further from the paper than 1.5 points, each with what else was tried."""
    heads = ("", "", "paper", "ours", "difference", "a control", "it has", "difference")
    found = [
        cell for number in (1, 2, 3) for cell in tables.cells(number) if place(cell) in OURS and not _repeats(cell)
    ]
    return table(heads, [line for cell in found for line in _far(cell)])


def _repeats(cell: Cell) -> bool:
    return cell.table == 3 and cell.experiment is not None and cell.experiment.atoms == 9  # the row of Table 2


def _far(cell: Cell) -> list[list[str]]:
    values = score_by_seed(OURS[place(cell)], cell.compared).values()
    ours = statistics.fmean(values)
    if abs(ours - cell.value) <= FAR:
        return []
    name, value = _control(cell)
    other = [name, _two(value), f"{value - cell.value:+.2f}"] if value is not None else [name, "", ""]
    printed = f"{cell.value:.2f}", f"{ours:.2f}", f"{ours - cell.value:+.2f}"
    return [[f"Table {cell.table}, {cell.row}", _title(cell.column), *printed, *other]]


def _control(cell: Cell) -> tuple[str, float | None]:
    """Returns what else was tried for a cell, and what it has: another run if there is one, else another reading."""
    assert cell.experiment is not None
    one, runs = cell.experiment, [run.result for run in OURS[place(cell)].runs]
    others = {
        "FedPAC's settings": _as_fedpac(one),
        "25 atoms": replace(one, atoms=25, init="orthonormal"),
        "the head alone is tuned": replace(one, personal="finetune-head"),
        "momentum 0.5": replace(one, momentum=0.5),
        "the last layer is global": replace(one, personal="local-atoms"),
        "no clipping": replace(one, clip=0.0),
    }
    for name, other in others.items():
        if other != one and (found := GROUPS.get(key_of(other))):
            return name, statistics.fmean(score_by_seed(found, cell.compared).values())
    if one.personal == "finetune":
        return "none yet", None
    return "without the last pass", statistics.fmean(_own(each)["mean of the last ten"] for each in runs)


def _as_fedpac(one: Experiment) -> Experiment:
    """Returns an experiment with the network and the steps of FedPAC's code, scored in every tenth round."""
    steps = replace(one, batch_size=50, epochs=5, lr=0.02, momentum=0.5, weight_decay=0.0005, clip=0.0, eval_every=10)
    return replace(steps, model="fedpac-cnn")


def controls() -> str:
    """Writes what changes if control updates divide by the rate of the round, not by the first as FedDC's code does."""
    heads = ("preset", "paper", "η of the first round", "η_t of the round, in `controls/`")
    return table(heads, [_controls(name) for name in PAPER if (ROOT / "controls" / name).exists()])


def _controls(name: str) -> list[str]:
    ours = [_read(each).accuracy["all"].headline for each in (name, f"controls/{name}")]
    return [f"`{name}`", *(f"{value:.2f}" for value in (PAPER[name].value, *ours))]


def personal() -> str:
    """Writes accuracies of clients' own models next to the paper's Table 2, a table for each partition."""
    first = ("preset and folder", "paper", "ours", "difference", "rank")
    heads = (*first, "mean of the last ten", "worst tenth", "spread", "server", "seeds")
    return "\n\n".join(
        f"{_title(column)}: 100 clients with {column.classes} classes each\n\n"
        + table(heads, [_personal(cell) for cell in tables.cells(2, column.dataset) if cell.column == column])
        for column in CIFAR
    )


def _personal(cell: Cell) -> list[str]:
    found = [run.result for run in OURS[place(cell)].runs]
    names = ("mean of the last ten", "worst tenth", "spread")
    values = [statistics.mean(_own(result)[name] for result in found) for name in names]
    server = statistics.mean(result.accuracy["server"].headline for result in found)
    more = (f"{value:.2f}" for value in (*values, server))
    return [f"`{cell.preset}`", *_beside_the_paper(cell), *more, f"{len(found)}"]


def heads() -> str:
    """Writes what local atoms have with a last layer of their own, and under a global one."""
    names = {"atoms and the last layer": "local-atoms-and-head-personal", "atoms": "local-atoms-personal"}
    paper = [f"{cell.value:.2f}" for c in CIFAR for cell in tables.cells(2, c.dataset) if _is_ours(cell, c)]
    ours = [[name, *(_after(f"{stem}-{c.dataset}-{c.classes}") for c in CIFAR)] for name, stem in names.items()]
    return table(("what is local", *map(_title, CIFAR)), [["the paper", *paper], *ours])


def _is_ours(cell: Cell, column: Column) -> bool:
    return cell.row == "Ours" and cell.column == column


def variants() -> str:
    """Writes what local atoms and local training have in other settings."""
    heads = ("in `variants/`", "(100, 2)", "(100, 5)")
    stems = sorted({path.parent.name.rsplit("-", 1)[0] for path in (ROOT / "variants").glob("*/result.json")})
    return table(heads, [[f"`{stem}-*`", *(_after(f"variants/{stem}-{c.classes}") for c in CIFAR10)] for stem in stems])


def clipping() -> str:
    """Writes what was tried on held-out images for the personal regime."""
    methods = {"local-atoms": "local atoms", "local": "local", "local-atoms-and-head": "local atoms and head"}
    found = [read_result(path.parent) for path in (ROOT / "search-personal").glob("*/result.json")]
    scores = {(_settings(one.experiment), one.experiment.personal): _own(one)["after the last pass"] for one in found}
    cells = {one.experiment.personal: one.experiment.classes_per_client for one in found}
    there = [method for method in methods if method in cells]
    heads = ("flags", *(f"{methods[method]}, (100, {cells[method]})" for method in there))
    lines = [
        [_clip(setting), *(_two_or_none(scores.get((setting, method))) for method in there)]
        for setting in sorted({setting for setting, _ in scores})
    ]
    return table(heads, lines)


def _settings(one: Experiment) -> tuple[float, float]:
    return -one.momentum, one.clip  # the preset's momentum first


def _clip(setting: tuple[float, float]) -> str:
    momentum = "" if -setting[0] == TABLE2.momentum else f" --momentum {-setting[0]:g}"
    return f"`--clip {setting[1]:g}{momentum}`"


def _two_or_none(value: float | None) -> str:
    return "" if value is None else _two(value)


def _after(folder: str) -> str:
    return f"{_own(_read(folder))['after the last pass']:.2f}"


def _own(result: Result) -> dict[str, float]:
    assert result.personal is not None
    return result.personal


def search() -> str:
    """Writes what was tried on held-out images with both algorithms, the best mean first."""
    found = {path.parent.name: _all(read_result(path.parent)) for path in (ROOT / "search").glob("*/result.json")}
    settings = sorted({name.split("-", 1)[1] for name in found})
    scores = {each: (found[f"fedavg-{each}"], found[f"feddyn-{each}"]) for each in settings}
    lines = [
        [_flags(_read(f"search/fedavg-{each}").experiment), *map(_two, (*both, statistics.mean(both))), f"`*-{each}`"]
        for each, both in sorted(scores.items(), key=lambda line: -sum(line[1]))
    ]
    return table(("flags", "FedAvg", "FedDyn", "mean", "in `search/`"), lines)


def starts() -> str:
    """Writes what 9 atoms have on held-out images by where they start, the best mean first."""
    heads = ("`--init`", *(f"{NAMES[name]}, {_title(column)}" for name in SEARCHED for column in CIFAR), "mean")
    found = {start: _started(start) for start in ("orthonormal", "dct", "fourier-bessel")}
    ranked = sorted(found.items(), key=lambda line: -statistics.mean(line[1]))
    return table(heads, [[f"`{start}`", *map(_two, (*scores, statistics.mean(scores)))] for start, scores in ranked])


def _started(start: str) -> list[float]:
    cells = [(name, f"{column.dataset}-{column.classes}") for name in SEARCHED for column in CIFAR]
    return [_all(_read(f"search-start/{name}-{start}-{cell}")) for name, cell in cells]


def first_search() -> str:
    """Writes what was tried before that, the best first."""
    found = [read_result(path.parent) for path in (ROOT / "search-300").glob("*/result.json")]
    lines = [
        [_flags(result.experiment), *map(_two, result.accuracy["all"]), f"`{result.folder.name}`"]
        for result in sorted(found, key=_all, reverse=True)
    ]
    return table(("flags", "held-out accuracy", "final", "best", "in `search-300/`"), lines)


def rates() -> str:
    """Writes what 25 atoms add with seed 0 at the rate of the network, and at twice that rate."""
    heads = ("", *(f"{_title(column)}, {rate}" for column in CIFAR for rate in ("once", "twice")))
    found = {name: [_at_both_rates(name, column) for column in CIFAR] for name in ALGORITHMS}
    lines = [[NAMES[name], *map(short, _each(row))] for name, row in found.items()]
    once, twice = map(short, _mean_of([both for row in found.values() for both in row]))
    return f"{table(heads, lines)}\n\nMean over the pairs: {once} once, {twice} twice."


def _at_both_rates(name: str, column: Column) -> tuple[Twins, ...]:
    cell = f"{column.dataset}-{column.classes}"
    folders = f"{name}-{cell}", f"{name}-atoms25-{cell}", f"atoms-lr-2/{name}-atoms25-{cell}"
    keys = [key_of(_read(folder).experiment) for folder in folders]
    plain, *decomposed = (Group([run for run in GROUPS[key].runs if run.result.experiment.seed == 0]) for key in keys)
    return tuple((each, plain) for each in decomposed)


def _all(result: Result) -> float:
    return result.accuracy["all"].headline


def _two(value: float) -> str:
    return f"{value:.2f}"


BLOCKS = {
    "cells": cells,
    "gains": gains,
    "numbers": numbers,
    "controls": controls,
    "feddyn": feddyn,
    "communication": communication,
    "own models": own_models,
    "clients": clients,
    "partitions": partitions,
    "tiny": tiny,
    "tiny own": tiny_own,
    "efficientnet": efficientnet,
    "efficientnet atoms": efficientnet_atoms,
    "personal": personal,
    "heads": heads,
    "variants": variants,
    "far": far,
    "atoms": atoms,
    "rates": rates,
    "starts": starts,
    "search": search,
    "first search": first_search,
    "clipping": clipping,
}


def report(page: Path = ROOT / "README.md", picture: Path = ROOT.parent / "docs" / "cifar10-5.png") -> None:
    """Fills the page's blocks and draws FedAvg's curves."""
    for name, block in BLOCKS.items():
        page.write_text(fill(page.read_text(), block(), name, MAKER))
    lines = compare([_read("fedavg-cifar10-5"), _read("fedavg-atoms-cifar10-5")])
    named = [line._replace(label=label) for line, label in zip(lines, ("plain", "9 atoms"), strict=True)]
    score_plot(named, picture, "FedAvg on CIFAR-10, 100 clients with 5 classes each")


def _read(folder: str) -> Result:
    return read_result(ROOT / folder)


def _title(column: Column) -> str:
    return f"{DATASETS[column.dataset]} ({column.clients}, {column.classes})"


def _pairs(column: Column) -> list[Pair]:
    return [pair for pair in tables.pairs(column.dataset) if pair.plain.column == column]


def _gains(pair: Pair) -> tuple[float, Gain, Twins]:
    ours = gain_of(pair, OURS, SPREAD)
    assert ours is not None
    plain, atoms = common_runs(*pair, OURS)
    return pair.gain, ours, (atoms, plain)


def _flags(experiment: Experiment) -> str:
    atoms = [f"--parametrisation atoms --atoms {experiment.atoms}"] if experiment.parametrisation == "atoms" else []
    changed = [
        f"--{name.replace('_', '-')} {getattr(experiment, name):g}"
        for name in ("lr", "atoms_lr", "atoms_decay")
        if getattr(experiment, name) != getattr(TABLE1, name)
    ]
    return f"`{' '.join(atoms + changed)}`"


if __name__ == "__main__":
    report()
