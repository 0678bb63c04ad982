"""Claims that the paper's tables make, judged by our runs of their cells."""

import statistics
from collections.abc import Sequence

from fedatoms.paper.tables import DECOMPOSED, Pair, cells, pairs
from fedatoms.report.claims.base import Claim, Evidence, Unit, judge, least, mean, most
from fedatoms.report.groups import Group, Ours, column_name, gain_of, headline, ours_of, place
from fedatoms.report.spending import spent

NEAR = 0.7  # points: a baseline this close to the paper's agrees with it
CLEAR = 0.5  # points: a gain that one seed can tell from none
FREE = 0.01  # share: bytes that count as no extra cost


def mean_gain(ours: Ours) -> Claim:
    """Judges Table 1 by the mean of what the decomposition adds."""
    found = _gains(ours)
    lines = [Evidence(_pair_name(pair), pair.gain, gain, gain > 0) for pair, gain in found]
    paper, gain = mean(line.paper for line in lines), mean(line.ours for line in lines)
    text = "The decomposition adds to the accuracy of the global model (Table 1, mean gain over its pairs)."
    rule = "Our mean gain is at least the paper's"
    rule += f" over the same {len(lines)} of its {len(pairs())} pairs." if lines else "."
    rule += _conditions([ours[place(pair.atoms)] for pair, _ in found])
    return judge(text, rule, lines, (paper, gain), holds=(gain or 0) >= (paper or 0))


def every_algorithm(ours: Ours) -> Claim:
    """Judges Table 1 by what the decomposition adds to each algorithm."""
    found = _gains(ours)
    lines = []
    for row in dict.fromkeys(pair.plain.row for pair, _ in found):
        some = [(pair.gain, gain) for pair, gain in found if pair.plain.row == row]
        printed, gain = (statistics.mean(column) for column in zip(*some, strict=True))
        lines.append(Evidence(f"{row}, mean of {len(some)}", printed, gain, gain > 0))
    text = "The decomposition helps each algorithm (Table 1, smallest of the algorithms' mean gains)."
    paper, worst = least(line.paper for line in lines), least(line.ours for line in lines)
    return judge(text, "Every algorithm's mean gain is above 0.", lines, (paper, worst))


def signs(ours: Ours) -> Claim:
    """Judges Table 1 where the paper's gain is a clear one."""
    found = [(pair, gain) for pair, gain in _gains(ours) if pair.gain >= CLEAR]
    lines = [Evidence(_pair_name(pair), pair.gain, gain, gain > 0) for pair, gain in found]
    text = f"The decomposition helps wherever the paper's gain is {CLEAR} points or more (Table 1, smallest gain)."
    paper, worst = least(line.paper for line in lines), least(line.ours for line in lines)
    return judge(text, "Each of these gains is above 0.", lines, (paper, worst))


def baselines(ours: Ours) -> Claim:
    """Judges our own runs: without decomposition they are to be the paper's."""
    lines = []
    for cell in (cell for cell in cells(1) if not cell.row.endswith(DECOMPOSED)):
        if (mine := ours_of(cell, ours)) is not None:
            near = abs(mine.mean - cell.value) <= NEAR
            lines.append(Evidence(f"{cell.row}, {column_name(cell)}", cell.value, mine.mean, near))
    off = max((line.ours - (line.paper or 0) for line in lines), key=abs, default=None)
    text = "Our baselines are the paper's (Table 1 without decomposition, largest difference)."
    claim = judge(text, f"Each is within {NEAR} points of the paper's.", lines, (None, off))
    return claim._replace(counted=Unit("% of test images", ".2f"))


def no_extra_cost(ours: Ours) -> Claim:
    """Judges the price: bytes up with decomposition against those without."""
    lines = []
    for pair, _ in _gains(ours):
        plain, atoms = (ours[place(cell)].up for cell in pair)
        more = 100 * (atoms / plain - 1) if plain else 0.0
        lines.append(Evidence(_pair_name(pair), None, more, more <= 100 * FREE))
    text = "The extra clients cost no extra bytes (decomposed against plain, bytes up, largest difference)."
    rule = f"At most {100 * FREE:g} % more bytes in each pair."
    return judge(text, rule, lines, (None, most(line.ours for line in lines)), Unit("%", "+.2f"))


def personal(ours: Ours) -> Claim:
    """Judges Table 2 by how far local atoms are ahead of the best of the others."""
    lines = []
    for cell in (cell for cell in cells(2) if cell.row == "Ours"):
        others = [each for each in cells(2) if each.column == cell.column and each.row != cell.row]
        scores = [found.mean for each in others if (found := ours_of(each, ours)) is not None]
        mine = ours_of(cell, ours)
        if mine is not None and scores:
            ahead, printed = mine.mean - max(scores), cell.value - max(each.value for each in others)
            about = f"{column_name(cell)}, against {len(scores)} of {len(others)}"
            lines.append(Evidence(about, printed, ahead, ahead > 0 or cell.mark != "best"))
    text = "Personal atoms are ahead of the other personalised methods (Table 2, smallest lead)."
    rule = "The lead is above 0 in each column where the paper has one."
    paper, lead = least(line.paper for line in lines), least(line.ours for line in lines)
    return judge(text, rule, lines, (paper, lead))


def fewer_rounds(ours: Ours) -> Claim:
    """Judges figure (a) by the rounds to the plain run's accuracy, in each pair of Table 1."""
    lines = [line for pair, _ in _gains(ours) for line in _rounds(pair, ours)]
    middle = statistics.median(line.ours for line in lines) if lines else None
    text = "Fewer rounds reach the plain run's accuracy with decomposition (figure (a), median over pairs of Table 1)."
    rule = (
        "The median of the ratios of rounds to the plain run's mean accuracy of its last rounds is below 1; a run that "
    )
    rule += "never gets there counts with all its rounds."
    return judge(text, rule, lines, (None, middle), Unit("times the plain run's", ".2f"), holds=(middle or 0) < 1)


def _rounds(pair: Pair, ours: Ours) -> list[Evidence]:
    plain, atoms = (ours[place(cell)] for cell in pair)
    model, target = headline(plain)
    base, mine = (spent(target.mean, group, model) for group in (plain, atoms))
    if base is None or not atoms.has_rounds:
        return []
    said = f"never in {atoms.experiment.rounds}" if mine is None else f"{mine.rounds:g}"
    ratio = (atoms.experiment.rounds if mine is None else mine.rounds) / base.rounds
    about = f"{_pair_name(pair)}: {said} rounds, plain {base.rounds:g}"
    return [Evidence(about, None, ratio, mine is not None and ratio < 1)]


def _conditions(groups: Sequence[Group]) -> str:
    """Says with which atoms our side of a comparison was run."""
    kinds = {(group.experiment.atoms, group.experiment.atoms_lr) for group in groups}
    said = [f"{atoms} atoms with {rate:g} times the learning rate" for atoms, rate in sorted(kinds)]
    return f" Ours: {' or '.join(said)}, seeds: {_numbers(groups)}." if said else ""


def _numbers(groups: Sequence[Group]) -> str:
    return ", ".join(map(str, sorted({seed for group in groups for seed in group.seeds})))


def _gains(ours: Ours) -> list[tuple[Pair, float]]:
    return [(pair, gain) for pair in pairs() if (gain := gain_of(pair, ours)) is not None]


def _pair_name(pair: Pair) -> str:
    return f"{pair.plain.row}, {column_name(pair.plain)}"
