"""Figures made of runs: accuracy over rounds (a), against clients in a round (c), against parameters sent (d)."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from fedatoms.compare import Spread
from fedatoms.experiment import Experiment, identity
from fedatoms.paper.studies import quick, study
from fedatoms.report.drawings import Json, Plot, axes, curve
from fedatoms.report.find import Run
from fedatoms.report.groups import Group, headline, held
from fedatoms.report.measured import SIZES, article, boxed
from fedatoms.report.names import labels, setting
from fedatoms.report.spending import Spent, reason, spent, sums, until
from fedatoms.report.table import number, table, text

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


def by_clients(groups: Iterable[Group]) -> dict[str, dict[int, Spread]]:
    """Sorts accuracies by network, plain or with atoms, and then by the clients of a round.

    >>> by_clients([])
    {}
    """
    found: dict[str, dict[int, Spread]] = {}
    for group in groups:
        one = group.experiment
        name = "plain" if one.parametrisation == "plain" else f"{one.atoms} atoms"
        found.setdefault(name, {})[round(one.fraction * one.clients)] = headline(group)[1]
    return found


def _article(n: int, each: Studied) -> str:
    rows = [
        [text(cell) if isinstance(cell, str) else number(cell, ".4g", none="never") for cell in row]
        for row in each.rows
    ]
    shown = table(f"study-{n}-table", each.title, each.heads, rows)
    tag = SIZES["quick" if each.quick else "full"]
    return article(f"study-{n}", each.title, tag, [each.sentence], each.plots, shown)


def _figure(name: str, found: dict[str, Group], draw: "_Draw", is_quick: bool) -> Studied | None:
    whole = {typed: group for typed, group in found.items() if group.has_rounds}
    if len(whole) < 2:
        return None
    return Studied(name, study(name).title, is_quick, *draw(list(whole.values())))


_Made = tuple[str, list[Plot], tuple[str, ...], list[tuple[str | float | None, ...]]]
_Draw = Callable[[list[Group]], _Made]
_Scored = Callable[[Group], tuple[str, Spread]]


def _convergence(groups: list[Group]) -> _Made:
    """Accuracy over rounds, and how many it takes to reach what the plain run has at its end."""
    names, target = labels([group.experiment for group in groups]), headline(groups[0])[1].mean
    found = [spent(target, group, headline(group)[0]) for group in groups]
    taken = [each.rounds if each else None for each in found]
    said = ", ".join(f"{name} {'never' if n is None else f'{n:g}'}" for name, n in zip(names, taken, strict=True))
    sentence = f"{_setting(groups)} Rounds until {target:.2f} %, what {names[0]} has over its last rounds: {said}."
    sentence += _drawn_seeds(groups)
    rows = [(name, headline(group)[1].mean, n) for name, group, n in zip(names, groups, taken, strict=True)]
    plot = Plot("Accuracy over rounds", _curves(names, groups, headline, _rounds), axes("round", "accuracy, %"))
    return sentence, [plot], ("method", "accuracy", f"rounds to {target:.2f} %"), list(rows)


def _clients(groups: list[Group]) -> _Made:
    """Accuracy with and without decomposition against the clients of a round."""
    found = by_clients(groups)
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
    """Accuracy of the server against parameters sent, and what it takes to the first group's and to one all reach."""
    names, scored = labels([group.experiment for group in groups]), [held(group) for group in groups]
    own, common = scored[0][1].mean, min(_best(group) for group in groups)
    targets = {target: until(target, groups) for target in (own, common)}
    said = [_said(name, *cost) for name, cost in zip(names[1:], targets[own][1:], strict=True)]
    base, _ = targets[own][0]
    sentence = f"{_setting(groups)} Scored: {', '.join(dict.fromkeys(model for model, _ in scored))}. "
    sentence += f"{names[0]} has {own:.2f} % over its last rounds"
    sentence += f", for the first time with {base.up:.4g} M parameters up. " if base else ". "
    sentence += f"Shares of these until then: {'; '.join(said)}. All reach {common:.2f} %."
    rows: list[tuple[str | float | None, ...]] = [
        (name, accuracy.mean, *chain(*(_cells(*cost) for cost in costs)))
        for name, (_, accuracy), *costs in zip(names, scored, *targets.values(), strict=True)
    ]
    of_each = ("rounds", "M up", "share up", "share both ways")
    heads = ("method", "accuracy", *(f"{target:.2f} %: {what}" for target in targets for what in of_each))
    plane = axes("parameters sent up, millions", "accuracy, %")
    plot = Plot("Accuracy against parameters sent up", _curves(names, groups, held, _sent), plane)
    return sentence + _drawn_seeds(groups), [plot], heads, rows


def _said(name: str, mine: Spent | None, part: Spent | None) -> str:
    if mine is None or part is None:
        return f"{'never' if mine is None else 'not comparable'} with {name}"
    return f"{part.up:.2f} with {name} ({reason(part)})"


def _cells(mine: Spent | None, part: Spent | None) -> tuple[str | float | None, ...]:
    if mine is None:
        return (None,) * 4
    return (mine.rounds, mine.up, *((part.up, part.both) if part else ("", "")))


_DRAW: dict[str, _Draw] = {
    "figure-convergence": _convergence,
    "figure-clients": _clients,
    "figure-communication": _communication,
}


def _curves(
    names: Sequence[str], groups: Sequence[Group], which: _Scored, along: Callable[[Run], Sequence[float]]
) -> list[Json]:
    """Draws the first seed's accuracies along its rounds, or along what it had sent after each."""
    traces = []
    for n, (name, group) in enumerate(zip(names, groups, strict=True)):
        run, model = group.runs[0], which(group)[0]
        scored = [(x, row["scores"][model]) for x, row in zip(along(run), run.rows, strict=True) if row["scores"]]
        traces.append(curve(name, n, [x for x, _ in scored], [score["accuracy"] for _, score in scored]))
    return traces


def _rounds(run: Run) -> Sequence[float]:
    return range(1, len(run.rows) + 1)


def _sent(run: Run) -> Sequence[float]:
    return sums(run.rows)[0]


def _best(group: Group) -> float:
    model, _ = held(group)
    return min(run.result.accuracy[model].best for run in group.runs)


def _setting(groups: Sequence[Group]) -> str:
    seeds = ", ".join(map(str, sorted({seed for group in groups for seed in group.seeds})))
    first: Experiment = groups[0].experiment
    return f"{setting(first)}, {first.rounds} rounds, seeds {seeds}."


def _drawn_seeds(groups: Sequence[Group]) -> str:
    return " Curves are of the first seed." if any(len(group.runs) > 1 for group in groups) else ""
