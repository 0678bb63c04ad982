"""Claims of the paper's tables, judged by our runs of their cells."""

from fedatoms.core.gains import Gain, Pooled, State, beyond, over_seeds, pool
from fedatoms.evidence.claims.base import (
    CLEAR,
    POINTS,
    Claim,
    Evidence,
    Unit,
    conditions,
    counted,
    coverage,
    judge,
    least,
    mean,
    most,
    smallest,
)
from fedatoms.evidence.paper.tables import COLUMNS, DECOMPOSED, Cell, Pair, cells, pairs
from fedatoms.evidence.results.cells import (
    Ours,
    column_name,
    common_runs,
    gain_of,
    lead_of,
    place,
    score_by_seed,
)
from fedatoms.evidence.results.pairs import mean_of_pairs

NEAR = 0.7  # points: a baseline this close to the paper's matches it
FREE = 0.01  # share of extra bytes that counts as none


def whole_gain(ours: Ours, pooled: Pooled | None = None) -> Claim:
    """Judges Table 1 by the mean gain of the decomposition.

    >>> whole_gain({}).verdict
    'not run'
    """
    found = gains_of(ours, pooled)
    lines = [_gain(_pair_name(pair), pair.gain, gain, pair.gain) for pair, gain in found]
    text = "The decomposition adds to the accuracy of the global model at least as much as in the paper (Table 1, mean "
    text += "gain over its pairs)."
    rule = "Our mean gain is above the paper's"
    rule += f", over the same {len(lines)} of its {len(pairs())} pairs" if lines else ""
    rule += ". A line supports it if its pair's gain is above the paper's."
    both = [common_runs(*pair, ours) for pair, _ in found]
    rule += conditions([(atoms.experiment, atoms.seeds) for _, atoms in both])
    if not lines:
        return judge(text, rule, lines, (None, None))
    paper, gain = mean(line.paper for line in lines) or 0.0, mean_of_pairs(both, [gain for _, gain in found], pooled)
    return judge(text, rule, lines, (paper, gain.gain), whole=beyond(gain, paper), gain=gain)


def every_algorithm(ours: Ours, pooled: Pooled | None = None) -> Claim:
    """Judges Table 1 by the mean gain of each algorithm."""
    found, lines = gains_of(ours, pooled), []
    for row in dict.fromkeys(pair.plain.row for pair, _ in found):
        some = [(pair, gain) for pair, gain in found if pair.plain.row == row]
        both = [common_runs(*pair, ours) for pair, _ in some]
        gain = mean_of_pairs(both, [each for _, each in some], pooled)
        lines.append(_gain(f"{row}, mean of {len(some)}", mean(pair.gain for pair, _ in some), gain))
    text = "The decomposition helps each algorithm (Table 1, smallest of the algorithms' mean gains)."
    rule = "Every algorithm's mean gain is above 0."
    rule += coverage(len(lines), len({pair.plain.row for pair in pairs()}), "algorithms")
    return _each_gain(text, rule, lines)


def signs(ours: Ours, pooled: Pooled | None = None) -> Claim:
    """Judges Table 1 where the paper's gain is clear."""
    clear = [pair for pair in pairs() if pair.gain >= CLEAR]
    found = [(pair, gain) for pair, gain in gains_of(ours, pooled) if pair in clear]
    lines = [_gain(_pair_name(pair), pair.gain, gain) for pair, gain in found]
    text = f"The decomposition helps wherever the paper's gain is {CLEAR} points or more (Table 1, smallest gain)."
    return _each_gain(text, f"Each of these gains is above 0.{coverage(len(lines), len(clear), 'such pairs')}", lines)


def baselines(ours: Ours) -> Claim:
    """Judges our runs without decomposition by the paper's."""
    plain = [cell for cell in cells(1) if not cell.row.endswith(DECOMPOSED)]
    found = {
        cell: list(score_by_seed(ours[place(cell)], cell.compared).values()) for cell in plain if place(cell) in ours
    }
    pooled = pool(found.values())
    lines = [_baseline(cell, over_seeds(values, pooled)) for cell, values in found.items() if values]
    worst = max(lines, key=lambda line: abs(line.ours - (line.paper or 0)), default=None)
    text = f"Our baselines match the paper's within {NEAR} points (Table 1 without decomposition, largest difference)."
    rule = f"A line says yes if its whole interval is within {NEAR} points of the paper's number, no if all of it is "
    rule += "further away."
    rule += coverage(len(lines), len(plain), "baselines")
    off = _shifted(worst.gain, worst.paper or 0.0) if worst and worst.gain else None
    numbers = (None, off.gain if off else None)
    return judge(text, rule, lines, numbers, evidence_unit=Unit("accuracy, %", ".2f"), gain=off)


def _baseline(cell: Cell, mine: Gain) -> Evidence:
    about = f"{cell.row}, {column_name(cell)}"
    return Evidence(about, cell.value, mine.gain, _within(_shifted(mine, cell.value), NEAR), mine)


def _shifted(one: Gain, by: float) -> Gain:
    ends = [None if end is None else end - by for end in (one.low, one.high)]
    return Gain(one.gain - by, ends[0], ends[1], one.seeds, one.how)


def _within(off: Gain, near: float) -> State:
    """Says whether an interval lies within a distance of 0, at the two decimals that the paper prints, or outside."""
    if off.low is None or off.high is None:
        return "inconclusive"
    low, high = round(off.low, 2), round(off.high, 2)
    return (
        "supported"
        if -near <= low and high <= near
        else counted(False)
        if low > near or high < -near
        else "inconclusive"
    )


def no_extra_cost(ours: Ours) -> Claim:
    """Judges the cost: bytes uploaded with decomposition against those without."""
    lines = []
    for pair, _ in gains_of(ours):
        plain, atoms = (each.up for each in common_runs(*pair, ours))
        more = 100 * (atoms / plain - 1) if plain else 0.0
        lines.append(Evidence(_pair_name(pair), None, more, counted(more <= 100 * FREE)))
    text = f"The extra clients cost no extra bytes: at most {100 * FREE:g} % more (decomposed against plain, bytes up, "
    text += "largest difference)."
    rule = f"At most {100 * FREE:g} % more bytes in each pair; bytes are counted, and have no interval."
    rule += coverage(len(lines), len(pairs()), "pairs")
    worst, evidence_unit = most(line.ours for line in lines), Unit("extra bytes up, %", "+.2f")
    return judge(text, rule, lines, (None, worst), Unit("%", "+.2f"), evidence_unit=evidence_unit)


def personal(ours: Ours, pooled: Pooled | None = None) -> Claim:
    """Judges Table 2 by the lead of local atoms over the best other method."""
    lines, atoms = [], [cell for cell in cells(2) if cell.row == "Ours" and cell.mark == "best"]
    for cell in atoms:
        others = [each for each in cells(2) if each.column == cell.column and each.row != cell.row]
        leads = [lead for each in others if (lead := lead_of(cell, each, ours, pooled)) is not None]
        if leads:
            printed = cell.value - max(each.value for each in others)
            about = f"{column_name(cell)}, against {len(leads)} of {len(others)}"
            lines.append(_gain(about, printed, min(leads, key=lambda lead: lead.gain)))
    text = "Personal atoms are ahead of the other personalised methods (Table 2, smallest lead)."
    rule = "The lead is above 0 in each column where the paper's is. Ours: atoms and the last layer are local."
    return _each_gain(text, rule + coverage(len(lines), len(atoms), "such columns"), lines)


def majority(ours: Ours, pooled: Pooled | None = None) -> Claim:
    """Judges Table 2 by how many of the comparisons with another method local atoms win.

    >>> majority({}).verdict
    'not run'
    """
    mine = {cell.column: cell for cell in cells(2) if cell.row == "Ours"}
    pairs_of_cells = [(mine[each.column], each) for each in cells(2) if each.row != "Ours"]
    found = [(cell, each, lead_of(cell, each, ours, pooled)) for cell, each in pairs_of_cells]
    lines = [
        _gain(f"{each.row}, {column_name(each)}", cell.value - each.value, lead) for cell, each, lead in found if lead
    ]
    text = "In the majority of cases personal atoms are ahead of another method (Table 2, share of comparisons)."
    rule = "More than half of the comparisons have a lead above 0 with all of its interval; half of them or more with "
    rule += "one below contradict it. Ours: atoms and the last layer are local."
    rule += coverage(len(lines), len(pairs_of_cells), "comparisons")
    leads = [line.paper or 0.0 for line in lines], [line.ours for line in lines]
    paper, share = (mean(100.0 * (lead > 0) for lead in column) for column in leads)
    claim = judge(text, rule, lines, (paper, share), Unit("% of comparisons", ".0f"), evidence_unit=POINTS)
    return claim._replace(verdict=_of_most(lines)) if lines else claim  # some may contradict it


def _of_most(lines: list[Evidence]) -> State:
    states = [line.state for line in lines]
    yes, no = (2 * states.count(state) for state in ("supported", "contradicted"))
    return "supported" if yes > len(lines) else "contradicted" if no >= len(lines) else "inconclusive"


def more_atoms(ours: Ours, pooled: Pooled | None = None) -> Claim:
    """Judges Table 3 by the gain from the fewest to the most atoms."""
    lines, columns = [], COLUMNS[3]
    for column in columns:
        many, *_, few = [cell for cell in cells(3) if cell.column == column]
        gain = lead_of(many, few, ours, pooled)
        if gain is not None:
            lines.append(_gain(f"{column_name(many)}, {few.row} to {many.row}", many.value - few.value, gain))
    text = "More atoms make clients' own models better (Table 3, smallest gain from the fewest to the most)."
    rule = "Each gain is above 0. Ours: atoms and the last layer are local."
    return _each_gain(text, rule + coverage(len(lines), len(columns), "columns"), lines)


def gains_of(ours: Ours, pooled: Pooled | None = None) -> list[tuple[Pair, Gain]]:
    """Returns the pairs of Table 1 that were run, with our gains.

    >>> gains_of({})
    []
    """
    return [(pair, gain) for pair in pairs() if (gain := gain_of(pair, ours, pooled)) is not None]


def _gain(about: str, paper: float | None, gain: Gain, bar: float = 0.0) -> Evidence:
    return Evidence(about, paper, gain.gain, beyond(gain, bar), gain)


def _each_gain(text: str, rule: str, lines: list[Evidence]) -> Claim:
    """Judges a claim about every gain, and shows the smallest one."""
    paper, worst = least(line.paper for line in lines), smallest(lines)
    return judge(text, rule, lines, (paper, worst.ours if worst else None), gain=worst.gain if worst else None)


def _pair_name(pair: Pair) -> str:
    return f"{pair.plain.row}, {column_name(pair.plain)}"
