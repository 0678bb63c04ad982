"""Verdicts: each of the four states has its law, and intervals are the same on cards, in tables and on the page."""

import math
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results import a_run, page_of, the_claim

from fedatoms.core.gains import Pooled, State, over_seeds, pool, student, written
from fedatoms.evidence.claims.base import Evidence, count_of, judge, of_parts, of_whole
from fedatoms.evidence.page.dot_plots import LEGEND, dots
from fedatoms.evidence.page.verdict_cards import claim_cards
from fedatoms.evidence.paper.tables import cells, contrast
from fedatoms.evidence.results.finding import find
from fedatoms.evidence.results.groups import group
from fedatoms.evidence.results.pairs import known_spreads

STATES = st.lists(st.sampled_from(get_args(State)), min_size=1, max_size=8)
WHOLE = "mean gain over its pairs"
SIGNS = "wherever the paper's gain"


@given(STATES)
def test_supported_is_what_every_part_supports(states: list[State]) -> None:
    assert (of_parts(states) == "supported") == (set(states) == {"supported"})


@given(STATES)
def test_contradicted_is_what_more_parts_contradict_than_support(states: list[State]) -> None:
    assert (of_parts(states) == "contradicted") == (states.count("contradicted") > states.count("supported"))


@given(STATES)
def test_inconclusive_is_what_no_part_decides(states: list[State]) -> None:
    assert (of_parts(states) == "inconclusive") == (set(states) == {"inconclusive"})


@given(STATES)
def test_partly_is_the_rest_and_some_part_supports_it(states: list[State]) -> None:
    if of_parts(states) == "partly":
        assert 0 < states.count("supported") < len(states)
    assert of_parts(states) in ("supported", "partly", "inconclusive", "contradicted")
    assert of_parts(states) == of_parts(states[::-1])


@given(st.sampled_from(get_args(State)), STATES)
def test_one_number_decides_but_what_it_supports_some_part_must_and_none_contradict(
    whole: State, states: list[State]
) -> None:
    less = "partly" if "contradicted" in states else whole if "supported" in states else "inconclusive"
    assert of_whole(whole, states) == (less if whole == "supported" else whole)


@given(STATES)
def test_the_count_on_a_card_has_every_line_once(states: list[State]) -> None:
    lines = [Evidence("it", None, 1.0, state) for state in states]
    said = count_of(lines)
    assert said.startswith(f"{states.count('supported')} of {len(states)} support it")
    assert sum(map(int, re.findall(r"(\d+) (?:of|contradict|is|are)", said))) == len(states)


def a_pair(
    folder: Path, gains: Sequence[float], name: str = "fedavg", column: str = "cifar10-2", **more: object
) -> None:
    """Writes a pair of Table 1 with a gain for each seed; with ``more`` flags it is none of it."""
    for seed, gain in enumerate(gains):
        for kind, accuracy in (("", 70.0 + seed), ("-atoms", 70.0 + seed + gain)):
            preset = f"{name}{kind}-{column}"
            a_run(folder / f"{preset}-s{seed}", accuracy, preset, seed, rounds=0, **more)


def test_a_gain_below_the_papers_is_no_yes_to_at_least_the_papers(tmp_path: Path) -> None:
    a_pair(tmp_path, [1.36, 1.30, 1.42])  # the paper's is 2.10
    (line,) = the_claim(tmp_path, WHOLE).evidence
    assert line.state == "contradicted" and the_claim(tmp_path, WHOLE).verdict == "contradicted"
    (line,) = the_claim(tmp_path, SIGNS).evidence
    assert line.state == "supported" and the_claim(tmp_path, SIGNS).verdict == "supported"  # it is above 0 all the same


@pytest.mark.parametrize(
    "gains, state", [([3.0, 3.1, 2.9], "supported"), ([1.0, 3.0, 2.0], "inconclusive"), ([1.0, 1.1], "contradicted")]
)
def test_the_whole_interval_decides(gains: list[float], state: str, tmp_path: Path) -> None:
    a_pair(tmp_path, gains)
    claim = the_claim(tmp_path, WHOLE)
    assert claim.evidence[0].state == state and claim.evidence[0].gain == pytest.approx(over_seeds(gains))


def test_one_seed_is_judged_by_the_spread_of_the_other_pairs_and_says_so(tmp_path: Path) -> None:
    a_pair(tmp_path, [2.0], "fedprox")
    alone = the_claim(tmp_path, SIGNS)
    assert alone.verdict == "inconclusive" and alone.evidence[0].gain == over_seeds([2.0])
    a_pair(tmp_path, [2.0, 2.1, 1.9])
    claim = the_claim(tmp_path, SIGNS)
    assert claim.verdict == "supported" and [line.gain.how for line in claim.evidence if line.gain] == [
        "seeds",
        "pooled",
    ]
    assert "(1 seed, pooled)" in page_of(tmp_path)


def test_a_few_rounds_on_digits_never_support_a_claim(tmp_path: Path) -> None:
    for rounds, seed in product((2, 10, 20), range(3)):
        for preset, accuracy in (("fedavg", 50.0), ("fedavg-atoms", 60.0 + 0.1 * seed)):
            a_run(tmp_path / f"{rounds}" / f"{preset}-{seed}", accuracy, preset, seed, rounds)
    assert [the_claim(tmp_path / f"{rounds}", "our other runs").verdict for rounds in (2, 10, 20)] == [
        "inconclusive",
        "inconclusive",
        "supported",
    ]
    mixed = the_claim(tmp_path, "our other runs")
    assert (
        mixed.verdict == "supported" and mixed.gain is not None and mixed.gain.seeds == 3
    )  # those of the long pair alone


def test_the_card_of_a_single_pair_has_the_interval_of_its_row_in_compare(tmp_path: Path) -> None:
    for seed in range(3):
        for preset, accuracy in (("fedavg", 50.0), ("fedavg-atoms", 60.0 + seed)):
            a_run(tmp_path / "runs" / f"{preset}-{seed}", accuracy, preset, seed, rounds=2)
    page = page_of(tmp_path / "runs")
    card = next(card for card in page.split("<article")[1:] if "our other runs" in card)
    assert "+11.00 ± 2.48 <span>(3 seeds)" in page and "<dd>+11.00 ± 2.48 points (3 seeds)</dd>" in card


def test_the_legend_of_the_small_pictures_is_where_there_is_one(tmp_path: Path) -> None:
    a_pair(tmp_path / "one", [2.0])
    assert LEGEND not in claim_cards([the_claim(tmp_path / "one", SIGNS)])
    a_pair(tmp_path / "one", [2.0], "fedprox")
    assert claim_cards([the_claim(tmp_path / "one", SIGNS)]).startswith(LEGEND)


def test_short_runs_on_digits_lend_no_spread(tmp_path: Path) -> None:
    for seed in range(3):
        for preset, accuracy in (("fedavg", 50.0), ("fedavg-atoms", 60.0 + seed)):
            a_run(tmp_path / f"{preset}-{seed}", accuracy, preset, seed, rounds=2)
    assert known_spreads(group(find([tmp_path]).runs)).shared is None


def test_a_contrast_is_of_two_cells_of_one_column() -> None:
    found = {(cell.table, cell.row): both for cell in cells() if (both := contrast(cell))}
    assert all(one.column == other.column and one != other for one, other in found.values())
    assert [sum(table == n for table, _ in found) for n in (1, 2, 3)] == [5, 8, 3]


def test_a_picture_of_evidence_names_each_line_and_says_by_its_shape_what_the_line_says() -> None:
    lines = [
        Evidence("FedAvg, digits", 2.5, 3.0, "supported", over_seeds([2.9, 3.1])),
        Evidence("a < b", None, 0.5, "inconclusive"),
        Evidence("FedDyn: never", 1.0, -1.0, "contradicted"),
    ]
    drawn = dots(judge("It helps.", "It adds.", lines, (None, None)))
    rows = re.findall("<li>(.*?)</li>", drawn)
    assert [re.findall("<span>(.*?)</span>", row) for row in rows] == [["FedAvg, digits"], ["a &lt; b"], ["FedDyn"]]
    shapes = ("<circle", "empty-dot", 'class="cross"', 'class="tick"')
    assert [[shape in row for shape in shapes] for row in rows] == [
        [True, False, False, True],
        [True, True, False, False],
        [False, False, True, True],
    ]
    assert ['aria-label="yes: +3.00 ± 1.27 (2 seeds)"' in rows[0], 'aria-label="open: +0.50"' in rows[1]] == [True] * 2
    assert "points; dashed: 0" in drawn and drawn.count('class="bar"') == 3


def own_models(folder: Path, plain: Sequence[float], atoms: Sequence[float], preset: str = "-cifar100-20") -> None:
    """Writes runs whose clients' own models are scored, without a method that personalises them."""
    for name, accuracies in (("fedavg", plain), ("fedavg-atoms", atoms)):
        for seed, accuracy in enumerate(accuracies):
            curves = {"local": [accuracy] * 600}
            a_run(folder / f"{name}-{seed}", 0.0, f"{name}{preset}", seed, 0, curves, score="local")


def test_a_plain_twin_that_several_pairs_share_is_not_two(tmp_path: Path) -> None:
    """Two numbers of atoms over one plain network are no two pairs: what is chance in it is in both gains."""
    for seed, name in product(range(3), ("fedavg", "fedavg-atoms", "fedavg-atoms --more")):
        preset, accuracy = name.split()[0], 50.0 + (name != "fedavg") * (seed + 1)
        more = {"atoms": 12} if "more" in name else {}
        a_run(tmp_path / f"{name}-{seed}", accuracy, preset, seed, rounds=20, **more)
    groups = group(find([tmp_path]).runs)
    shared = known_spreads(groups).shared
    assert shared == Pooled(pytest.approx(1.0), 3)  # of 4 degrees, 4 / (1 + 1 / 4)
    claim = the_claim(tmp_path, "our other runs")
    assert claim.gain is not None and claim.gain.high is not None and claim.gain.gain == pytest.approx(2.0)
    error = math.sqrt((1 + 1 / 2) / 3 / 2)  # one plain twin with weight 1, two decomposed groups with 1 / 2, 3 seeds
    assert claim.gain.high - 2.0 == pytest.approx(student(3) * error)
    assert written(claim.gain).replace(" (2 pairs)", "") in page_of(tmp_path)  # as in the first words


def test_a_pair_that_is_scored_in_other_rounds_is_no_second_pair(tmp_path: Path) -> None:
    for every, seed, name in product((1, 10), (0, 1), ("fedavg", "fedavg-atoms")):
        accuracy = 50.0 + (name != "fedavg") * (seed + 1)
        a_run(tmp_path / f"{name}-{every}-{seed}", accuracy, name, seed, rounds=20, eval_every=every)
    claim = the_claim(tmp_path, "our other runs")
    assert len(claim.evidence) == 1 and claim.gain is not None and claim.gain == over_seeds([1.0, 2.0])


def test_clients_own_models_and_global_ones_lend_each_other_no_spread(tmp_path: Path) -> None:
    a_pair(tmp_path / "global", [2.0, 2.1, 1.9])
    own_models(tmp_path / "one", [50.0], [47.0])
    alone = known_spreads(group(find([tmp_path]).runs))
    assert alone.shared is not None and alone.own is None
    own_models(tmp_path / "several", [50.0, 51.0], [47.0, 54.0], preset="-cifar100-5")
    spreads = known_spreads(group(find([tmp_path]).runs))
    assert spreads.shared == alone.shared and spreads.own == pool([[-3.0, 3.0]])


def test_a_loss_of_clients_own_models_is_judged_by_their_spread(tmp_path: Path) -> None:
    """By that of global models, which differ less from seed to seed, one seed of own models would contradict."""
    a_pair(tmp_path / "global", [2.0, 2.1, 1.9], lr=0.3)
    own_models(tmp_path / "own", [50.0], [47.0])
    found = the_claim(tmp_path, "our other runs")
    assert [line.state for line in found.evidence] == ["supported", "inconclusive"]
    assert found.verdict == "supported" and found.numbers[1] == pytest.approx(2.0)
