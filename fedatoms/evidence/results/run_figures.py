"""Figures (a), (c) and (d) from our runs: accuracy over rounds, against clients in a round, against parameters sent."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedatoms.evidence.paper.studies import study
from fedatoms.evidence.results.find import Run
from fedatoms.evidence.results.groups import Group, by_clients, groups_of, headline, of_server, on_common_seeds
from fedatoms.evidence.results.names import labels, seeds, setting
from fedatoms.evidence.results.spending import Spent, Targets, factors, last_of, never, share, spent, sums
from fedatoms.experiment.fields import Experiment

NOT_RUN = "not run"
Row = tuple[str | float | None, ...]  # None: never reached


class Curve(NamedTuple):
    """A named line of a figure."""

    name: str
    x: list[float]
    y: list[float]


class Curves(NamedTuple):
    """Lines over one x: what they show in words, and the names of both axes."""

    label: str
    x: str
    y: str
    lines: list[Curve]


class RunFigure(NamedTuple):
    """A figure of the paper from our runs: a sentence with its numbers, its curves, and the same as a table."""

    name: str
    title: str
    quick: bool
    sentence: str
    curves: Curves
    heads: tuple[str, ...]
    rows: list[Row]


def figures(groups: Sequence[Group]) -> list[RunFigure]:
    """Makes the figures whose runs are there, those of the paper's size first.

    >>> figures([])
    []
    """
    return [
        figure
        for is_quick in (False, True)
        for name, make in _MAKE.items()
        if (figure := _figure(name, list(groups_of(name, groups, quick_ones=is_quick).values()), make, is_quick))
    ]


def _figure(name: str, found: Sequence[Group], make: "_Make", is_quick: bool) -> RunFigure | None:
    """Makes a figure of groups that compare: with common seeds and scored models, and rounds if it needs them."""
    whole = [group for group in found if group.models == found[0].models and (group.has_rounds or make is _clients)]
    shown = on_common_seeds(whole)
    return RunFigure(name, study(name).title, is_quick, *make(shown)) if len(shown) > 1 else None


_Made = tuple[str, Curves, tuple[str, ...], list[Row]]  # the fields of a figure from its sentence on
_Make = Callable[[list[Group]], _Made]


def _convergence(groups: list[Group]) -> _Made:
    """Accuracy over rounds, and how many it takes to reach what the plain run has at its end."""
    names, (model, target) = labels([group.experiment for group in groups]), headline(groups[0])
    found = [spent(last_of(groups[0], model), group, model) for group in groups]
    counts = [never(each, group) or f"{each.rounds:g}" for each, group in zip(found, groups, strict=True)]
    said = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
    sentence = f"{_setting(groups)} Rounds until {target.mean:.2f} %, what {names[0]} has over its last rounds: {said}."
    sentence += _drawn_seeds(groups)
    rows: list[Row] = [
        (name, headline(group)[1].mean, None if each.never else each.rounds)
        for name, group, each in zip(names, groups, found, strict=True)
    ]
    lines = _curves(names, groups, model, _rounds)
    curves = Curves("Accuracy over rounds", "round", "accuracy, %", lines)
    return sentence, curves, ("method", "accuracy", f"rounds to {target.mean:.2f} %"), rows


def _clients(groups: list[Group]) -> _Made:
    """Accuracy with and without decomposition against the clients of a round."""
    found = {
        name: {count: headline(group)[1].mean for count, group in sorted(each.items())}
        for name, each in by_clients(groups).items()
    }
    counts = sorted({count for each in found.values() for count in each})
    rows: list[Row] = [(count, *(each.get(count, NOT_RUN) for each in found.values())) for count in counts]
    paired = [row for row in rows if NOT_RUN not in row]
    sentence = _setting(groups)
    if len(found) == 2 and paired:
        gains = {row[0]: float(row[2] or 0) - float(row[1] or 0) for row in paired}
        said = ", ".join(f"{gain:+.2f} with {count:g}" for count, gain in gains.items())
        sentence += f" What atoms add, in points, by the clients in a round: {said}."
    lines = [Curve(name, list(each), list(each.values())) for name, each in found.items()]
    curves = Curves("Accuracy against clients in a round", "clients in a round", "accuracy, %", lines)
    return sentence, curves, ("clients in a round", *found), rows


def _communication(groups: list[Group]) -> _Made:
    """Accuracy of the server against parameters sent, and what it takes to the first group's and to one all reach."""
    names, (model, own) = labels([group.experiment for group in groups]), of_server(groups[0])
    common = min(run.result.accuracy[model].best for group in groups for run in group.runs)
    to_own = [_cost(last_of(groups[0], model), group, groups[0], model) for group in groups]
    to_common = [_cost(dict.fromkeys(groups[0].seeds, common), group, groups[0], model) for group in groups]
    said = [_said(*each) for each in zip(names[1:], groups[1:], to_own[1:], strict=True)]
    base = to_own[0].spent
    when = "" if base.never else f", for the first time with {base.up:.4g} M parameters up"
    sentence = f"{_setting(groups)} Scored: {model}. {names[0]} has {own.mean:.2f} % over its last rounds{when}. "
    sentence += f"Shares of these until then: {'; '.join(said)}. All reach {common:.2f} %."
    rows: list[Row] = [
        (name, of_server(group)[1].mean, *_counts(near), *_shares(near), *_shares(far))
        for name, group, near, far in zip(names, groups, to_own, to_common, strict=True)
    ]
    first = ("method", "accuracy", f"rounds to {own.mean:.2f} %", "M up", "share up", "both ways")
    heads = (*first, f"share up, {common:.2f} %", f"both ways, {common:.2f} %")
    lines = _curves(names, groups, model, _sent)
    curves = Curves("Accuracy against parameters sent up", "parameters sent up, millions", "accuracy, %", lines)
    return sentence + _drawn_seeds(groups), curves, heads, rows


class _Cost(NamedTuple):
    spent: Spent
    share: Spent | None  # of the first group's


def _cost(targets: Targets, group: Group, first: Group, model: str) -> _Cost:
    return _Cost(spent(targets, group, model), share(targets, group, first, model))


def _said(name: str, group: Group, cost: _Cost) -> str:
    missed, part = never(cost.spent, group), cost.share
    if missed:
        return f"{missed} with {name} ({cost.spent.best:.2f} % at best{f'; {factors(part)}' if part else ''})"
    if part is None:
        return f"not comparable with {name}"
    return f"{part.up:.2f} with {name} ({factors(part)})"


def _counts(cost: _Cost) -> tuple[float | None, ...]:
    return (None, None) if cost.spent.never else (cost.spent.rounds, cost.spent.up)


def _shares(cost: _Cost) -> tuple[str | float | None, ...]:
    if cost.spent.never:
        return None, None
    return (cost.share.up, cost.share.both) if cost.share else ("", "")


_MAKE: dict[str, _Make] = {
    "figure-convergence": _convergence,
    "figure-clients": _clients,
    "figure-communication": _communication,
}


def _curves(
    names: Sequence[str], groups: Sequence[Group], model: str, along: Callable[[Run], Sequence[float]]
) -> list[Curve]:
    """Returns the first seed's accuracies along its rounds, or along what it had sent after each."""
    lines = []
    for name, group in zip(names, groups, strict=True):
        run = group.runs[0]
        scored = [
            (x, row["scores"][model]) for x, row in zip(along(run), run.rows, strict=True) if model in row["scores"]
        ]
        lines.append(Curve(name, [x for x, _ in scored], [score["accuracy"] for _, score in scored]))
    return lines


def _rounds(run: Run) -> Sequence[float]:
    return range(1, len(run.rows) + 1)


def _sent(run: Run) -> Sequence[float]:
    return sums(run.rows)[0]


def _setting(groups: Sequence[Group]) -> str:
    first: Experiment = groups[0].experiment
    return f"{setting(first)}, {first.rounds} rounds, {seeds(groups[0].seeds)}."


def _drawn_seeds(groups: Sequence[Group]) -> str:
    return " Curves are of the first seed." if any(len(group.runs) > 1 for group in groups) else ""
