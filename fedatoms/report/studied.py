"""Figures made of runs: accuracy over rounds (a), against clients in a round (c), against parameters sent (d)."""

import statistics
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from fedatoms.compare import Spread
from fedatoms.experiment import Experiment, identity
from fedatoms.paper.studies import quick, study
from fedatoms.report.drawings import Json, Plot, axes, curve
from fedatoms.report.find import Run
from fedatoms.report.groups import Group, headline
from fedatoms.report.measured import SIZES, article, boxed
from fedatoms.report.names import labels, setting
from fedatoms.report.table import number, table, text
from fedatoms.runs import Row

FLOAT = 4  # bytes of a parameter
NOT_RUN = "not run"


class Studied(NamedTuple):
    """A figure: a sentence with its numbers, plots for Plotly, and the same as a table."""

    name: str
    title: str
    quick: bool
    sentence: str
    plots: list[Plot]
    heads: tuple[str, ...]
    rows: list[tuple[str | float | None, ...]]


def figures(groups: Sequence[Group]) -> list[Studied]:
    """Makes the figures whose runs are there, those of the paper's size first.

    >>> figures([])
    []
    """
    return [
        figure
        for is_quick in (False, True)
        for name, draw in _DRAW.items()
        if (figure := _figure(name, groups_of(name, groups, quick_ones=is_quick), draw, is_quick)) is not None
    ]


def section(found: Sequence[Studied]) -> str:
    """Shows figures that are made of runs.

    >>> section([])
    ''
    """
    return "".join(_article(n, each) for n, each in enumerate(found))


def plots(found: Sequence[Studied]) -> list[Json]:
    """Returns their plots, for the page's script.

    >>> plots([])
    []
    """
    return [box for n, each in enumerate(found) for box in boxed(f"study-{n}", each.plots)]


def groups_of(name: str, groups: Sequence[Group], *, quick_ones: bool) -> dict[str, Group]:
    """Finds the groups that are runs of a study, by what one would type for them."""
    known = {identity(group.experiment, without=("seed",)): group for group in groups}
    runs = {typed: quick(one) if quick_ones else one for typed, one in study(name).runs.items()}
    found = {typed: known.get(identity(one, without=("seed",))) for typed, one in runs.items()}
    return {typed: group for typed, group in found.items() if group is not None}


def _article(n: int, each: Studied) -> str:
    rows = [
        [text(cell) if isinstance(cell, str) else number(cell, ".4g", none="never") for cell in row]
        for row in each.rows
    ]
    shown = table(f"study-{n}-table", each.title, each.heads, rows)
    tag = SIZES["quick" if each.quick else "full"]
    return article(f"study-{n}", each.title, tag, [each.sentence], each.plots, shown)


class Spent(NamedTuple):
    """Parameters in millions until an accuracy was reached, and the rounds; None if a seed never reached it."""

    rounds: float | None
    up: float | None
    both: float | None


def spent(target: float, group: Group) -> Spent:
    """Counts what a group sent until its last scored model reached an accuracy, mean over seeds."""
    found = [_spent(target, headline(group)[0], run.rows) for run in group.runs]
    reached = [each for each in found if each is not None]
    if len(reached) < len(found):
        return Spent(None, None, None)
    return Spent(*(statistics.mean(column) for column in zip(*reached, strict=True)))


def _spent(target: float, model: str, rows: Sequence[Row]) -> tuple[float, float, float] | None:
    up, both = _sums(rows)
    for t, row in enumerate(rows):
        if row["scores"].get(model, {}).get("accuracy", -1.0) >= target:
            return t + 1.0, up[t], both[t]
    return None


def _sums(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Adds up the millions of parameters that were sent up, and in both directions, after each round."""
    up = [sum(row["up"].values()) / FLOAT / 1e6 for row in rows]
    down = [sum(row["down"].values()) / FLOAT / 1e6 for row in rows]
    return list(accumulate(up)), list(accumulate(a + b for a, b in zip(up, down, strict=True)))


def _figure(name: str, found: dict[str, Group], draw: "_Draw", is_quick: bool) -> Studied | None:
    whole = {typed: group for typed, group in found.items() if all(run.rows for run in group.runs)}
    if len(whole) < 2:
        return None
    return Studied(name, study(name).title, is_quick, *draw(list(whole.values())))


_Made = tuple[str, list[Plot], tuple[str, ...], list[tuple[str | float | None, ...]]]
_Draw = Callable[[list[Group]], _Made]


def _convergence(groups: list[Group]) -> _Made:
    """Accuracy over rounds, and how many it takes to reach what the plain run has at its end."""
    names, target = labels([group.experiment for group in groups]), headline(groups[0])[1].mean
    taken = [spent(target, group).rounds for group in groups]
    said = ", ".join(f"{name} {'never' if n is None else f'{n:g}'}" for name, n in zip(names, taken, strict=True))
    sentence = f"{_setting(groups)} Rounds until {target:.2f} %, what {names[0]} has over its last rounds: {said}."
    sentence += _drawn_seeds(groups)
    rows = [(name, headline(group)[1].mean, n) for name, group, n in zip(names, groups, taken, strict=True)]
    plot = Plot("Accuracy over rounds", _curves(names, groups, _rounds), axes("round", "accuracy, %"))
    return sentence, [plot], ("method", "accuracy", f"rounds to {target:.2f} %"), list(rows)


def _clients(groups: list[Group]) -> _Made:
    """Accuracy with and without decomposition against the clients of a round."""
    found: dict[str, dict[float, Spread]] = {}
    for group in groups:
        one = group.experiment
        name = "plain" if one.parametrisation == "plain" else f"{one.atoms} atoms"
        found.setdefault(name, {})[round(one.fraction * one.clients)] = headline(group)[1]
    counts = sorted({count for each in found.values() for count in each})
    rows: list[tuple[str | float | None, ...]] = [
        (count, *(each[count].mean if count in each else NOT_RUN for each in found.values())) for count in counts
    ]
    paired = [row for row in rows if NOT_RUN not in row]
    sentence = _setting(groups)
    if len(found) == 2 and paired:
        gains = {row[0]: float(row[2] or 0) - float(row[1] or 0) for row in paired}
        said = ", ".join(f"{gain:+.2f} with {count:g}" for count, gain in gains.items())
        sentence += f" What atoms add, in points, by the clients in a round: {said}."
    traces = [
        curve(name, n, sorted(each), [each[count].mean for count in sorted(each)])
        for n, (name, each) in enumerate(found.items())
    ]
    plot = Plot("Accuracy against clients in a round", traces, axes("clients in a round", "accuracy, %"))
    return sentence, [plot], ("clients in a round", *found), rows


def _communication(groups: list[Group]) -> _Made:
    """Accuracy against parameters sent, and what it took to reach an accuracy that all of them reach."""
    names = labels([group.experiment for group in groups])
    target = min(_best(group) for group in groups)
    sums = [spent(target, group) for group in groups]
    base = sums[0]  # FedAvg, the first of the study
    rows: list[tuple[str | float | None, ...]] = [
        (name, *each, _share(each.up, base.up), _share(each.both, base.both))
        for name, each in zip(names, sums, strict=True)
    ]
    shares = ", ".join(f"{row[0]} {row[4]:.2f}" for row in rows[1:] if isinstance(row[4], float))
    sentence = (
        f"{_setting(groups)} All reach {target:.2f} %; parameters up until then, as a share of {names[0]}: {shares}."
        f"{_drawn_seeds(groups)}"
    )
    heads = ("method", f"rounds to {target:.2f} %", "M up", "M up and down", "up, share", "up and down, share")
    plane = axes("parameters sent up, millions", "accuracy, %")
    plot = Plot("Accuracy against parameters sent up", _curves(names, groups, _sent), plane)
    return sentence, [plot], heads, rows


_DRAW: dict[str, _Draw] = {
    "figure-convergence": _convergence,
    "figure-clients": _clients,
    "figure-communication": _communication,
}


def _curves(names: Sequence[str], groups: Sequence[Group], along: Callable[[Run], Sequence[float]]) -> list[Json]:
    """Draws the first seed's accuracies along its rounds, or along what it had sent after each."""
    traces = []
    for n, (name, group) in enumerate(zip(names, groups, strict=True)):
        run, model = group.runs[0], headline(group)[0]
        scored = [(x, row["scores"][model]) for x, row in zip(along(run), run.rows, strict=True) if row["scores"]]
        traces.append(curve(name, n, [x for x, _ in scored], [score["accuracy"] for _, score in scored]))
    return traces


def _rounds(run: Run) -> Sequence[float]:
    return range(1, len(run.rows) + 1)


def _sent(run: Run) -> Sequence[float]:
    return _sums(run.rows)[0]


def _best(group: Group) -> float:
    model = headline(group)[0]
    return min(run.result.accuracy[model].best for run in group.runs)


def _share(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _setting(groups: Sequence[Group]) -> str:
    seeds = ", ".join(map(str, sorted({seed for group in groups for seed in group.seeds})))
    first: Experiment = groups[0].experiment
    return f"{setting(first)}, {first.rounds} rounds, seeds {seeds}."


def _drawn_seeds(groups: Sequence[Group]) -> str:
    return " Curves are of the first seed." if any(len(group.runs) > 1 for group in groups) else ""
