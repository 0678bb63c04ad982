"""Claims that runs beside the paper's tables speak of: figures (c) and (d), and all other pairs."""

from collections.abc import Sequence
from dataclasses import replace

from fedatoms.experiment import OF_ATOMS, Experiment, identity, period_of
from fedatoms.report.claims.base import Claim, Evidence, Unit, judge, least, mean
from fedatoms.report.groups import Group, Ours, headline, held
from fedatoms.report.names import told_apart
from fedatoms.report.spending import reason, until
from fedatoms.report.studied import by_clients, groups_of

CLIENTS = "figure-clients"


def sampled(groups: Sequence[Group]) -> Claim:
    """Judges figure (c) by what the decomposition adds with each number of clients in a round."""
    found = by_clients(groups_of(CLIENTS, groups, quick_ones=False).values())
    plain = found.pop("plain", {})
    both = [(count, score, plain[count]) for each in found.values() for count, score in each.items() if count in plain]
    gains = {count: score.mean - without.mean for count, score, without in sorted(both)}
    lines = [Evidence(f"{count} clients in a round", None, gain, gain > 0) for count, gain in gains.items()]
    text = "The decomposition helps with few clients in a round and with many (figure (c), smallest gain)."
    return judge(text, "Each gain is above 0.", lines, (None, least(gains.values())))


def communication(groups: Sequence[Group]) -> Claim:
    """Judges fast and slow groups by the bytes that clients send until the plain network's accuracy is reached."""
    found = [pair for pair in _pairs(groups) if _is_slower(*pair)]
    where, names = told_apart([mine.experiment for mine, _ in found], [twin.experiment for _, twin in found])
    lines = [line for name, pair in zip(names, found, strict=True) for line in _bytes(name, *pair)]
    text = "With slow groups every 1/beta rounds a share beta of the bytes is enough (figure (d), furthest above beta)."
    rule = "Bytes up until the server has the plain one's mean accuracy of the last rounds are at most beta of the "
    rule += f"plain run's.{_on(where)}"
    worst = max(lines, key=lambda line: line.ours / (line.paper or 1), default=None)
    numbers = (worst.paper, worst.ours) if worst else (None, None)
    return judge(text, rule, lines, numbers, Unit("% of the plain run's", ".2f"))


def elsewhere(groups: Sequence[Group], ours: Ours) -> Claim:
    """Judges the decomposition by pairs that differ in nothing else and are no pair of the paper's."""
    cells = {id(group): group for group in ours.values()}
    known = {*cells, *map(id, groups_of(CLIENTS, groups, quick_ones=False).values())}
    found = [(mine, twin) for mine, twin in _pairs(groups) if id(mine) not in known and _is_alike(mine, twin)]
    others = [group.experiment for group in cells.values() if group.experiment.personal == "none"]
    where, names = told_apart([mine.experiment for mine, _ in found], others)
    gains = [headline(mine)[1].mean - headline(twin)[1].mean for mine, twin in found]
    lines = [Evidence(name, None, gain, gain > 0) for name, gain in zip(names, gains, strict=True)]
    text = "The decomposition adds to the accuracy in our other runs (mean gain over pairs that differ in it alone)."
    rule = f"The mean gain is above 0. A line names what is not as in most of our runs.{_on(where)}"
    gain = mean(gains)
    return judge(text, rule, lines, (None, gain), holds=(gain or 0) > 0)


def _pairs(groups: Sequence[Group]) -> list[tuple[Group, Group]]:
    """Finds for each decomposed group the plain one that differs in nothing else."""
    usual = [group for group in groups if _is_usual(group.experiment)]
    plain = {_but_for_atoms(group): group for group in usual}
    atoms = [group for group in groups if group.experiment.parametrisation == "atoms"]
    return [(group, twin) for group in atoms if (twin := plain.get(_but_for_atoms(group))) is not None]


def _bytes(name: str, mine: Group, twin: Group) -> list[Evidence]:
    period = period_of(mine.experiment.beta)
    _, (taken, part) = until(held(twin)[1].mean, [twin, mine])
    if taken is None:
        about = f"{name}: never reached, all its bytes"
        return [Evidence(about, 100 / period, 100 * mine.up / twin.up, False)]
    return [Evidence(f"{name}: {reason(part)}", 100 / period, 100 * part.up, part.up * period <= 1)] if part else []


def _is_slower(mine: Group, twin: Group) -> bool:
    """Says whether one has slow groups, and what both sent until an accuracy of the same model is known."""
    known = mine.has_rounds and twin.has_rounds and held(mine)[0] == held(twin)[0]
    return period_of(mine.experiment.beta) > 1 and known and twin.up > 0


def _is_alike(mine: Group, twin: Group) -> bool:
    """Says whether both send all in each round, and are scored by the same model."""
    return period_of(mine.experiment.beta) == 1 and headline(mine)[0] == headline(twin)[0]


def _is_usual(experiment: Experiment) -> bool:
    return experiment.parametrisation == "plain" and period_of(experiment.beta) == 1


def _but_for_atoms(group: Group) -> str:
    """Names an experiment without its decomposition and without its fast and slow groups."""
    usual = Experiment()
    fields = (*OF_ATOMS, "beta", "fast", "slow_local")
    same = replace(group.experiment, **{name: getattr(usual, name) for name in fields})
    return identity(same, without=("seed",))


def _on(where: str) -> str:
    return f" All on {where}." if where else ""
