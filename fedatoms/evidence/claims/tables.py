"""Claims of the paper's tables, judged by our runs of their cells."""

import statistics

from fedatoms.evidence.claims.base import CLEAR, Claim, Evidence, Unit, conditions, coverage, judge, least, mean, most
from fedatoms.evidence.paper.tables import COLUMNS, DECOMPOSED, Pair, cells, pairs
from fedatoms.evidence.results.cells import Ours, column_name, common_runs, gain_of, lead_of, ours_of
from fedatoms.evidence.results.communication import cost_to_reach, headline_by_seed, never_reached, relative_cost

NEAR = 0.7  # points: a baseline this close to the paper's matches it
FREE = 0.01  # share of extra bytes that counts as none


def mean_gain(ours: Ours) -> Claim:
    """Judges Table 1 by the mean gain of the decomposition.

    >>> mean_gain({}).verdict
    'not run'
    """
    found = _gains(ours)
    lines = [Evidence(_pair_name(pair), pair.gain, gain, gain > 0) for pair, gain in found]
    paper, gain = mean(line.paper for line in lines), mean(line.ours for line in lines)
    text = "The decomposition adds to the accuracy of the global model (Table 1, mean gain over its pairs)."
    rule = "Our mean gain is at least the paper's"
    rule += f" over the same {len(lines)} of its {len(pairs())} pairs." if lines else "."
    both = [common_runs(*pair, ours) for pair, _ in found]
    rule += conditions([(atoms.experiment, atoms.seeds) for _, atoms in both])
    return judge(text, rule, lines, (paper, gain), holds=(gain or 0) >= (paper or 0))


def every_algorithm(ours: Ours) -> Claim:
    """Judges Table 1 by the mean gain of each algorithm."""
    found = _gains(ours)
    lines = []
    for row in dict.fromkeys(pair.plain.row for pair, _ in found):
        some = [(pair.gain, gain) for pair, gain in found if pair.plain.row == row]
        printed, gain = (statistics.mean(column) for column in zip(*some, strict=True))
        lines.append(Evidence(f"{row}, mean of {len(some)}", printed, gain, gain > 0))
    text = "The decomposition helps each algorithm (Table 1, smallest of the algorithms' mean gains)."
    rule = "Every algorithm's mean gain is above 0."
    rule += coverage(len(lines), len({pair.plain.row for pair in pairs()}), "algorithms")
    paper, worst = least(line.paper for line in lines), least(line.ours for line in lines)
    return judge(text, rule, lines, (paper, worst))


def signs(ours: Ours) -> Claim:
    """Judges Table 1 where the paper's gain is clear."""
    clear = [pair for pair in pairs() if pair.gain >= CLEAR]
    found = [(pair, gain) for pair, gain in _gains(ours) if pair in clear]
    lines = [Evidence(_pair_name(pair), pair.gain, gain, gain > 0) for pair, gain in found]
    text = f"The decomposition helps wherever the paper's gain is {CLEAR} points or more (Table 1, smallest gain)."
    paper, worst = least(line.paper for line in lines), least(line.ours for line in lines)
    rule = f"Each of these gains is above 0.{coverage(len(lines), len(clear), 'such pairs')}"
    return judge(text, rule, lines, (paper, worst))


def baselines(ours: Ours) -> Claim:
    """Judges our runs without decomposition by the paper's."""
    lines, plain = [], [cell for cell in cells(1) if not cell.row.endswith(DECOMPOSED)]
    for cell in plain:
        if (mine := ours_of(cell, ours)) is not None:
            near = abs(round(mine.mean - cell.value, 2)) <= NEAR  # the paper prints two decimals
            lines.append(Evidence(f"{cell.row}, {column_name(cell)}", cell.value, mine.mean, near))
    off = max((line.ours - (line.paper or 0) for line in lines), key=abs, default=None)
    text = "Our baselines match the paper's (Table 1 without decomposition, largest difference)."
    rule = f"Each is within {NEAR} points of the paper's, at the two decimals that the paper prints."
    rule += coverage(len(lines), len(plain), "baselines")
    return judge(text, rule, lines, (None, off), evidence_unit=Unit("accuracy, %", ".2f"))


def no_extra_cost(ours: Ours) -> Claim:
    """Judges the cost: bytes uploaded with decomposition against those without."""
    lines = []
    for pair, _ in _gains(ours):
        plain, atoms = (each.up for each in common_runs(*pair, ours))
        more = 100 * (atoms / plain - 1) if plain else 0.0
        lines.append(Evidence(_pair_name(pair), None, more, more <= 100 * FREE))
    text = "The extra clients cost no extra bytes (decomposed against plain, bytes up, largest difference)."
    rule = f"At most {100 * FREE:g} % more bytes in each pair.{coverage(len(lines), len(pairs()), 'pairs')}"
    worst, evidence_unit = most(line.ours for line in lines), Unit("extra bytes up, %", "+.2f")
    return judge(text, rule, lines, (None, worst), Unit("%", "+.2f"), evidence_unit=evidence_unit)


def personal(ours: Ours) -> Claim:
    """Judges Table 2 by the lead of local atoms over the best other method."""
    lines, atoms = [], [cell for cell in cells(2) if cell.row == "Ours" and cell.mark == "best"]
    for cell in atoms:
        others = [each for each in cells(2) if each.column == cell.column and each.row != cell.row]
        leads = [lead for each in others if (lead := lead_of(cell, each, ours)) is not None]
        if leads:
            ahead, printed = min(leads), cell.value - max(each.value for each in others)
            about = f"{column_name(cell)}, against {len(leads)} of {len(others)}"
            lines.append(Evidence(about, printed, ahead, ahead > 0))
    text = "Personal atoms are ahead of the other personalised methods (Table 2, smallest lead)."
    rule = "The lead is above 0 in each column where the paper's is. Ours: atoms and the last layer are local."
    rule += coverage(len(lines), len(atoms), "such columns")
    paper, lead = least(line.paper for line in lines), least(line.ours for line in lines)
    return judge(text, rule, lines, (paper, lead))


def more_atoms(ours: Ours) -> Claim:
    """Judges Table 3 by the gain from the fewest to the most atoms."""
    lines, columns = [], COLUMNS[3]
    for column in columns:
        many, *_, few = [cell for cell in cells(3) if cell.column == column]
        gain = lead_of(many, few, ours)
        if gain is not None:
            about = f"{column_name(many)}, {few.row} to {many.row}"
            lines.append(Evidence(about, many.value - few.value, gain, gain > 0))
    text = "More atoms make clients' own models better (Table 3, smallest gain from the fewest to the most)."
    rule = "Each gain is above 0. Ours: only the atoms are local; the last layer is global."
    rule += coverage(len(lines), len(columns), "columns")
    return judge(text, rule, lines, (least(line.paper for line in lines), least(line.ours for line in lines)))


def fewer_rounds(ours: Ours) -> Claim:
    """Judges figure (a) by the rounds that reach the plain run's accuracy in each pair of Table 1."""
    lines = [line for pair, _ in _gains(ours) for line in _rounds(pair, ours)]
    middle = statistics.median(line.ours for line in lines) if lines else None
    text = "Fewer rounds reach the plain run's accuracy with decomposition (figure (a), median over pairs of Table 1)."
    rule = "The median ratio of rounds to reach the plain run's mean accuracy over its last rounds is below 1. A line "
    rule += "is the mean ratio over seeds; a run that never reaches it counts with all its rounds."
    rule += coverage(len(lines), len(pairs()), "pairs")
    return judge(text, rule, lines, (None, middle), Unit("times the plain run's", ".2f"), holds=(middle or 0) < 1)


def _rounds(pair: Pair, ours: Ours) -> list[Evidence]:
    plain, atoms = common_runs(*pair, ours)
    if not (plain.has_rounds and atoms.has_rounds):
        return []
    model = pair.plain.compared.model
    targets = headline_by_seed(plain, model)
    ratio = relative_cost(targets, atoms, plain, model)
    if ratio is None:
        return []
    base, mine = (cost_to_reach(targets, each, model) for each in (plain, atoms))
    missed = f" ({never_reached(mine, atoms)})" if mine.never else ""
    about = f"{_pair_name(pair)}: {mine.rounds:.0f} rounds{missed}, plain {base.rounds:.0f}"
    return [Evidence(about, None, ratio.rounds, ratio.rounds < 1)]


def _gains(ours: Ours) -> list[tuple[Pair, float]]:
    return [(pair, gain) for pair in pairs() if (gain := gain_of(pair, ours)) is not None]


def _pair_name(pair: Pair) -> str:
    return f"{pair.plain.row}, {column_name(pair.plain)}"
