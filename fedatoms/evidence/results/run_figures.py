"""Figures (a), (c) and (d) from our runs: accuracy over rounds, against clients in a round, against parameters sent."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedatoms.evidence.measures.base import Size
from fedatoms.evidence.paper.study_list import CLIENTS, OWN_TARGET, study
from fedatoms.evidence.results.communication import (
    Cost,
    cost_to_reach,
    cumulative,
    factors,
    never_reached,
    relative_cost,
)
from fedatoms.evidence.results.finding import Run
from fedatoms.evidence.results.groups import (
    Group,
    by_clients,
    earlier_of,
    groups_of,
    headline,
    headline_by_seed,
    on_common_seeds,
    server_headline,
    server_or_last,
)
from fedatoms.evidence.results.names import labels, seeds, setting

NOT_RUN = "not run"
Row = tuple[str | float | None, ...]  # None: never reached


class Curve(NamedTuple):
    """A named line of a figure."""

    name: str
    x: list[float]
    y: list[float]


class Curves(NamedTuple):
    """The lines of a figure, with its title and the titles of both axes."""

    label: str
    x: str
    y: str
    lines: list[Curve]


class RunFigure(NamedTuple):
    """A figure of the paper from our runs: a sentence with its numbers, its curves, and the same as a table."""

    name: str
    title: str
    size: Size
    sentence: str
    curves: Curves
    heads: tuple[str, ...]
    rows: list[Row]


def figures(groups: Sequence[Group]) -> list[RunFigure]:
    """Makes the figures whose runs exist, those of the paper's setting first, then those of an earlier one.

    >>> figures([])
    []
    """
    found: list[tuple[Size, str, dict[str, Group]]] = [
        *(("full", name, groups_of(name, groups, quick_ones=False)) for name in _MAKE),
        *(("other", name, earlier_of(name, groups)) for name in _MAKE),
        *(("quick", name, groups_of(name, groups, quick_ones=True)) for name in _MAKE),
    ]
    return [figure for size, name, some in found if (figure := _figure(name, list(some.values()), size))]


def _figure(name: str, found: Sequence[Group], size: Size) -> RunFigure | None:
    """Makes a figure of groups that can be compared: the same scored models, common seeds, and rounds if needed.

    Plain networks alone make none: each figure is of what other layers change.
    """
    make = _MAKE[name]
    whole = [group for group in found if group.models == found[0].models and (group.has_rounds or make is _clients)]
    shown = on_common_seeds(whole)
    if len(shown) < 2 or all(each.experiment.parametrisation == "plain" for each in shown):
        return None
    return RunFigure(name, study(name).title, size, *make(shown))


class _Content(NamedTuple):
    """The fields of a figure from its sentence on."""

    sentence: str
    curves: Curves
    heads: tuple[str, ...]
    rows: list[Row]


_Make = Callable[[list[Group]], _Content]


def _convergence(groups: list[Group]) -> _Content:
    """Shows accuracy over rounds, and the rounds that reach the last accuracy of the first group."""
    names, (model, target) = labels([group.experiment for group in groups]), headline(groups[0])
    costs = [cost_to_reach(headline_by_seed(groups[0], model), group, model) for group in groups]
    counts = [never_reached(cost, group) or f"{cost.rounds:,.0f}" for cost, group in zip(costs, groups, strict=True)]
    rounds = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
    sentence = f"{_setting(groups)} Rounds to reach {target.mean:.2f} %, the mean of {names[0]} over its last rounds: "
    rows: list[Row] = [
        (name, headline(group)[1].mean, None if cost.never else cost.rounds)
        for name, group, cost in zip(names, groups, costs, strict=True)
    ]
    curves = Curves("Accuracy over rounds", "round", "accuracy, %", _curves(names, groups, model, _rounds))
    heads = ("method", "accuracy", f"rounds to {target.mean:.2f} %")
    return _Content(f"{sentence}{rounds}.{_seeds_note(groups)}", curves, heads, rows)


def _clients(groups: list[Group]) -> _Content:
    """Shows accuracy with and without decomposition against the clients in a round."""
    found = {
        name: {count: server_headline(group)[1].mean for count, group in sorted(each.items())}
        for name, each in by_clients(groups).items()
    }
    counts = sorted({count for each in found.values() for count in each})
    rows: list[Row] = [(count, *(each.get(count, NOT_RUN) for each in found.values())) for count in counts]
    lines = [Curve(name, list(each), list(each.values())) for name, each in found.items()]
    curves = Curves("Accuracy against clients in a round", "clients in a round", "accuracy, %", lines)
    sentence = f"{_setting(groups)} Model: {server_or_last(groups[0])}.{_gains(found)}"
    return _Content(sentence, curves, ("clients in a round", *found), rows)


def _gains(found: dict[str, dict[int, float]]) -> str:
    if len(found) != 2:
        return ""
    plain, atoms = found.values()
    gains = ", ".join(f"{atoms[count] - plain[count]:+.2f} with {count}" for count in sorted(plain.keys() & atoms))
    return f" Gain of atoms in points, by clients in a round: {gains}." if gains else ""


class _Line(NamedTuple):
    """A group of figure (d): what it needs to the baseline's own accuracy, and to one that all groups reach."""

    name: str
    group: Group
    cost: Cost
    ratio: Cost | None  # to the baseline
    common: Cost
    common_ratio: Cost | None


def _communication(groups: list[Group]) -> _Content:
    """Shows accuracy of the server against parameters sent, and what two target accuracies cost."""
    names, (model, own) = labels([group.experiment for group in groups]), server_headline(groups[0])
    common = min(run.result.accuracy[model].best for group in groups for run in group.runs)
    targets = headline_by_seed(groups[0], model), dict.fromkeys(groups[0].seeds, common)
    lines = []
    for name, group in zip(names, groups, strict=True):
        costs = [(cost_to_reach(t, group, model), relative_cost(t, group, groups[0], model)) for t in targets]
        lines.append(_Line(name, group, *costs[0], *costs[1]))
    first = ("method", "accuracy", f"rounds to {own.mean:.2f} %", "M up", "share up", "both ways")
    heads = (*first, f"share up, {common:.2f} %", f"both ways, {common:.2f} %")
    drawn = _curves(names, groups, model, lambda run: cumulative(run.rows)[0])
    curves = Curves("Accuracy against parameters sent up", "parameters sent up, millions", "accuracy, %", drawn)
    sentence = f"{_setting(groups)} Model: {model}. {_needed(lines, own.mean)} All reach {common:.2f} %."
    return _Content(sentence + _seeds_note(groups), curves, heads, [_row(line) for line in lines])


def _own_models(groups: list[Group]) -> _Content:
    """Shows accuracy of clients' own models against parameters sent, and what the paper's target costs."""
    names, (model, _) = labels([group.experiment for group in groups]), headline(groups[0])
    targets = dict.fromkeys(groups[0].seeds, OWN_TARGET)
    costs = [cost_to_reach(targets, group, model) for group in groups]
    ratios = [relative_cost(targets, group, groups[0], model) for group in groups]
    rows: list[Row] = [
        (name, headline(group)[1].mean, *_counts(cost), *_shares(cost, ratio))
        for name, group, cost, ratio in zip(names, groups, costs, ratios, strict=True)
    ]
    heads = ("method", "accuracy", f"rounds to {OWN_TARGET:g} %", "M up", "M both ways", "share up", "both ways")
    drawn = _curves(names, groups, model, lambda run: cumulative(run.rows)[0])
    curves = Curves("Accuracy against parameters sent up", "parameters sent up, millions", "accuracy, %", drawn)
    sentence = f"{_setting(groups)} Model: {model}, the paper's target of {OWN_TARGET:g} %."
    return _Content(sentence + _seeds_note(groups), curves, heads, rows)


def _counts(cost: Cost) -> Row:
    return (None, None, None) if cost.never else (cost.rounds, cost.up, cost.both)


def _needed(lines: Sequence[_Line], accuracy: float) -> str:
    base, *others = lines
    first = "" if base.cost.never else f", first reached with {_millions(base.cost.up)} M parameters up"
    shares = "; ".join(map(_share, others))
    return f"{base.name} has {accuracy:.2f} % over its last rounds{first}. Share of these parameters: {shares}."


def _millions(count: float) -> str:
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def _share(line: _Line) -> str:
    missed, ratio = never_reached(line.cost, line.group), line.ratio
    if missed:
        return f"{missed} with {line.name} ({line.cost.best:.2f} % at best{f'; {factors(ratio)}' if ratio else ''})"
    if ratio is None:
        return f"not comparable with {line.name}"
    return f"{ratio.up:.2f} with {line.name} ({factors(ratio)})"


def _row(line: _Line) -> Row:
    counts = (None, None) if line.cost.never else (line.cost.rounds, line.cost.up)
    accuracy = server_headline(line.group)[1].mean
    return line.name, accuracy, *counts, *_shares(line.cost, line.ratio), *_shares(line.common, line.common_ratio)


def _shares(cost: Cost, ratio: Cost | None) -> Row:
    if cost.never:
        return None, None
    return (ratio.up, ratio.both) if ratio else ("", "")


_MAKE: dict[str, _Make] = {
    "figure-convergence": _convergence,
    CLIENTS: _clients,
    "figure-communication": _communication,
    "figure-communication-local": _own_models,
}


def _curves(
    names: Sequence[str], groups: Sequence[Group], model: str, along: Callable[[Run], Sequence[float]]
) -> list[Curve]:
    """Returns the first seed's accuracies along its rounds, or along the parameters sent until then."""
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


def _setting(groups: Sequence[Group]) -> str:
    first = groups[0].experiment
    return f"{setting(first)}, {first.rounds} rounds, {seeds(groups[0].seeds)}."


def _seeds_note(groups: Sequence[Group]) -> str:
    return " Curves show the first seed." if any(len(group.runs) > 1 for group in groups) else ""
