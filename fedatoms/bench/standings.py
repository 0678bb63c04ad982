"""Who stands where: how many times as fast fedatoms is as each opponent, and the paragraph that says it."""

import textwrap
from collections.abc import Sequence

from fedatoms.bench import line_up as who
from fedatoms.bench.pfl_part import NETWORK, PFL_BEST
from fedatoms.bench.results import LENET, Ratio, Results, Row, numbers

WIDTH = 120


def family(row: Row) -> str:
    """Returns a contestant's name without what it trains: ``eager loop`` of ``eager loop, plain``."""
    return row.contestant.split(",")[0]


def ours_for(rows: Sequence[Row], row: Row) -> Row | None:
    """Returns fedatoms's row for the same work: cell, network, and plain where the opponent is plain."""
    name = who.OURS if row.contestant.endswith("decomposed") else who.PLAIN
    alike = [each for each in rows if each.contestant == name and each.network == row.network]
    return next((each for each in alike if (each.clients, each.batch) == (row.clients, row.batch)), None)


def factor(rows: Sequence[Row], row: Row) -> float | None:
    """Returns how many times as fast fedatoms is as an opponent; None for itself, or if it was not measured."""
    mine = ours_for(rows, row)
    return None if mine is None or family(row) == family(mine) else row.ms_round / mine.ms_round


def lead(results: Results) -> str:
    """Writes the paragraph that leads the page: the strongest opponent first, then the others, atoms, pfl and bars."""
    found = [*_opponents(results), *_atoms(results.results), *_pfl(results), _bars(results.results)]
    return textwrap.fill(" ".join(found), WIDTH, break_long_words=False, break_on_hyphens=False)


def _opponents(results: Results) -> list[str]:
    """Says how many times as fast fedatoms is as its opponents with large batches, and as the strongest with small."""
    against = [row for row in results.rows if row.network == LENET and row.clients == results.settings["against"]]
    largest, *smaller = sorted(numbers(str(results.settings["batch"]), "--batch"), reverse=True)
    said = _strongest([row for row in against if row.batch == largest], str(results.provenance["device"]))
    for batch in smaller:
        for name, times in list(_factors([row for row in against if row.batch == batch]).items())[:1]:
            said.append(f"With batches of {batch} the strongest is {name}, at {times:.1f} times.")
    return said


def _factors(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the opponents of a cell with their factors, the strongest first."""
    found = {row.contestant: times for row in rows if (times := factor(rows, row)) is not None}
    return dict(sorted(found.items(), key=lambda entry: entry[1]))


def _strongest(rows: Sequence[Row], device: str) -> list[str]:
    """Names the opponent that fedatoms beats by least, then the others."""
    factors = _factors(rows)
    if not factors:
        return []
    first, *others = factors
    row = next(row for row in rows if row.contestant == first)
    texts = [f"{factors[name]:.1f} times ({name})" for name in others]
    return [
        f"**{factors[first]:.1f} times as fast as the strongest opponent**, {first}: "
        f"{row.ms_round / factors[first]:.1f} ms against {row.ms_round:.1f} for a round of {row.clients} clients x "
        f"{row.batch} images x {row.steps} steps, with LeNet and {row.precision}, all data on the card ({device}).",
        *([f"Against the others, like with like: {', '.join(texts)}."] if texts else []),
    ]


def _atoms(ratios: Sequence[Ratio]) -> list[str]:
    cost = [ratio.value for ratio in ratios if ratio.name == "decomposed / plain"]
    return [f"Atoms make a round {100 * (value - 1):.0f} % slower than the plain network." for value in cost]


def _pfl(results: Results) -> list[str]:
    """Says how pfl-research fares on its own benchmark: its best number of processes, and both accuracies."""
    said = [
        f"On pfl-research's own benchmark ({NETWORK}) fedatoms is {ratio.value:.1f} times as fast as pfl at its best "
        f"({ratio.detail})."
        for ratio in results.results
        if ratio.name == PFL_BEST
    ]
    reached = [ratio for ratio in results.results if ratio.name.startswith("accuracy on")]
    texts = [
        f"{ratio.value:.2f} % by {ratio.name.split(', ', 1)[1].removesuffix(', %')} ({ratio.detail})"
        for ratio in reached
    ]
    return said + ([f"There the accuracies are {_list(texts)}."] if reached else [])


def _bars(ratios: Sequence[Ratio]) -> str:
    missed = [ratio for ratio in ratios if ratio.verdict == "missed"]
    texts = [f"{ratio.name}, {ratio.value:.3f} instead of {ratio.bar:g} ({ratio.detail})" for ratio in missed]
    return f"Missed: {'; '.join(texts)}." if missed else "Every bar of the contest is met."


def _list(texts: Sequence[str]) -> str:
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else texts[0]
