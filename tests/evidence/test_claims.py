"""Claims: each verdict follows its rule, from made-up evidence; figures and claims say the same of the same runs."""

import json
import re
import shutil
from itertools import product
from pathlib import Path

import pytest
from support import ROOT
from support.results import a_run, changed, kept, near, page_of, the_claim

from fedatoms.core.gains import short, written
from fedatoms.evidence.claims import claims
from fedatoms.evidence.claims.base import number_with_unit
from fedatoms.evidence.paper.study_list import SAMPLED, quick, study
from fedatoms.evidence.paper.tables import pairs
from fedatoms.evidence.results.cells import gain_of, match
from fedatoms.evidence.results.communication import cost_to_reach, relative_cost
from fedatoms.evidence.results.finding import Found, find
from fedatoms.evidence.results.groups import Group, group, headline_by_seed
from fedatoms.evidence.results.pairs import known_spreads
from fedatoms.evidence.results.run_figures import figures
from fedatoms.experiment.files import to_json
from fedatoms.experiment.presets import PRESETS

FULL = PRESETS["fedavg-cifar100-20"].rounds


def rising(since: int, rounds: int, low: float = 10.0, high: float = 50.0) -> list[float]:
    """Accuracies that are low up to a round and high from then on."""
    return [low] * (since - 1) + [high] * (rounds - since + 1)


def near_by(line: list[float], seed: int) -> list[float]:
    """The same a round earlier or later, by the seed: rounds that are equal have no spread."""
    return {0: [*line[1:], line[-1]], 1: [line[0], *line[:-1]]}[seed]


def both(line: list[float]) -> dict[str, list[float]]:
    return {"server": line, "all": line}


@pytest.fixture
def ours() -> Found:
    return kept()


def cut(folder: Path, rounds: int = 5) -> None:
    """Leaves the first rounds of a run, and its result."""
    path = folder / "rounds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:rounds]))


# ---- tables


def a_pair(
    folder: Path,
    gain: float = 2.0,
    name: str = "fedavg",
    column: str = "cifar10-5",
    *,
    plain: float = 50.0,
    seeds: tuple[int, ...] = (0, 1),
) -> None:
    """Writes runs of a pair of Table 1, whose gain is almost the same with every seed."""
    for seed in seeds:
        for kind, accuracy in (("", plain), ("-atoms", plain + gain)):
            preset = f"{name}{kind}-{column}"
            score = near(accuracy, seed) if len(seeds) > 1 else accuracy
            a_run(folder / f"{preset}-s{seed}", score, preset, seed, rounds=0)


@pytest.mark.parametrize("gain, verdict", [(1.62, "supported"), (1.5, "contradicted"), (-1.0, "contradicted")])
def test_the_mean_gain_is_held_against_the_papers(gain: float, verdict: str, tmp_path: Path) -> None:
    a_pair(tmp_path, gain)  # the paper's is 1.61
    claim = the_claim(tmp_path, "mean gain over its pairs")
    assert claim.verdict == verdict and claim.numbers == pytest.approx((1.61, gain))
    assert [line.state for line in claim.evidence] == [verdict]  # a line and the mean have one bar
    assert "the same 1 of its 30 pairs" in claim.rule
    assert the_claim(tmp_path, "our other runs").verdict == "not run"  # it is the paper's


def test_only_the_same_seeds_are_compared_and_the_rule_names_them(tmp_path: Path) -> None:
    a_pair(tmp_path, gain=2.0, seeds=(0,))
    a_run(tmp_path / "more", 90.0, "fedavg-cifar10-5", seed=1, rounds=0)  # no atoms with this seed
    a_pair(tmp_path, gain=3.0, name="fedprox", seeds=(0, 1))
    claim = the_claim(tmp_path, "mean gain over its pairs")
    assert [line.ours for line in claim.evidence] == [2.0, 3.0]
    assert claim.rule.endswith("Ours: 9 atoms; seed 0, but seeds 0, 1 in 1 of 2.")
    baseline = the_claim(tmp_path, "Our baselines").evidence[0]
    assert baseline.ours == 70.0  # all seeds there are


def test_runs_without_a_common_seed_are_no_pair(tmp_path: Path) -> None:
    a_run(tmp_path / "plain", 50.0, "fedavg-cifar10-5", seed=0, rounds=0)
    a_run(tmp_path / "atoms", 52.0, "fedavg-atoms-cifar10-5", seed=1, rounds=0)
    assert the_claim(tmp_path, "mean gain over its pairs").verdict == "not run"
    assert the_claim(tmp_path, "Fewer rounds").verdict == "not run"


@pytest.mark.parametrize("worst, verdict", [(-0.5, "supported"), (-1.5, "partly")])
def test_each_algorithm_counts_with_the_mean_of_its_gains(worst: float, verdict: str, tmp_path: Path) -> None:
    a_pair(tmp_path, 2.0)
    a_pair(tmp_path, 1.0, "fedprox")
    a_pair(tmp_path, worst, "fedprox", "cifar10-2")
    claim = the_claim(tmp_path, "helps each algorithm")
    assert claim.verdict == verdict and claim.numbers[1] == (1.0 + worst) / 2
    assert claim.rule.endswith("Run: 2 of 5 algorithms.")


@pytest.mark.parametrize("column, verdict", [("cifar100-5", "supported"), ("cifar10-2", "partly")])
def test_only_clear_gains_of_the_paper_must_be_ours_too(column: str, verdict: str, tmp_path: Path) -> None:
    a_pair(tmp_path, 2.0)
    a_pair(tmp_path, -0.25, "feddyn", column)  # the paper's: 0.09 and 0.84
    claim = the_claim(tmp_path, "wherever the paper's gain")
    assert claim.verdict == verdict and claim.numbers[1] == (2.0 if verdict == "supported" else -0.25)
    assert f"Run: {len(claim.evidence)} of 27 such pairs." in claim.rule


@pytest.mark.parametrize("off, verdict", [(0.704, "supported"), (-0.704, "supported"), (0.706, "contradicted")])
def test_baselines_are_near_at_the_two_decimals_that_are_printed(off: float, verdict: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        a_run(tmp_path / f"{seed}", near(79.44 + off, seed), "fedavg-cifar10-5", seed, rounds=0)
    claim = the_claim(tmp_path, "Our baselines")
    assert claim.verdict == verdict and claim.numbers[1] == pytest.approx(off)
    assert claim.evidence_unit.name == "accuracy, %" and claim.unit.name == "points"


@pytest.mark.parametrize("more, verdict", [(0.009, "supported"), (0.011, "contradicted")])
def test_a_hundredth_more_bytes_is_no_extra_cost(more: float, verdict: str, tmp_path: Path) -> None:
    a_pair(tmp_path, seeds=(0,))
    changed(tmp_path / "fedavg-cifar10-5-s0", bytes_up={"rest": 1_000_000})
    changed(tmp_path / "fedavg-atoms-cifar10-5-s0", bytes_up={"rest": round(1_000_000 * (1 + more))})
    claim = the_claim(tmp_path, "cost no extra bytes")
    assert claim.verdict == verdict and claim.numbers[1] == pytest.approx(100 * more)


def a_personal(folder: Path, accuracy: float, method: str, column: str, seeds: tuple[int, ...] = (0, 1)) -> None:
    preset = f"{method}-personal-{column}"
    for seed in seeds:
        own = {"after the last pass": near(accuracy, seed)}
        changed(a_run(folder / f"{preset}-s{seed}", preset=preset, seed=seed, rounds=0), personal=own)


def test_personal_atoms_must_lead_where_the_paper_has_them_lead(tmp_path: Path) -> None:
    for method, accuracy in (("local-atoms-and-head", 60.0), ("local", 50.0), ("ditto", 61.0)):
        a_personal(tmp_path, accuracy, method, "cifar100-5")  # there the paper's are second
    assert the_claim(tmp_path, "Personal atoms").verdict == "not run"
    for method, accuracy in (("local-atoms-and-head", 60.0), ("local", 50.0), ("ditto", 59.0)):
        a_personal(tmp_path, accuracy, method, "cifar10-5")
    a_personal(tmp_path, 90.0, "ditto", "cifar10-5", seeds=(2,))  # no atoms with this seed
    claim = the_claim(tmp_path, "Personal atoms")
    assert claim.verdict == "supported" and claim.numbers[1] == 1.0
    assert "against 2 of 8" in claim.evidence[0].about and "Run: 1 of 4 such columns." in claim.rule
    assert "atoms and the last layer are local" in claim.rule
    for method, accuracy in (("local-atoms-and-head", 60.0), ("ditto", 62.0)):
        a_personal(tmp_path, accuracy, method, "cifar10-2")
    claim = the_claim(tmp_path, "Personal atoms")
    assert claim.verdict == "partly" and claim.numbers[1] == -2.0


@pytest.mark.parametrize(
    "others, share, verdict",
    [
        ((50.0, 59.0, 61.0), 200 / 3, "supported"),  # one may lead them
        ((50.0, 61.0), 50, "contradicted"),
        ((50.0, 61.0, 60.0), 100 / 3, "inconclusive"),
    ],
)
def test_personal_atoms_must_lead_most_other_methods(
    others: tuple[float, ...], share: float, verdict: str, tmp_path: Path
) -> None:
    a_personal(tmp_path, 60.0, "local-atoms-and-head", "cifar10-5")
    for method, accuracy in zip(("local", "ditto", "fedper"), others, strict=False):
        a_personal(tmp_path, accuracy, method, "cifar10-5")
    claim = the_claim(tmp_path, "In the majority")
    assert claim.verdict == verdict and claim.numbers == (100, pytest.approx(share))
    assert f"Run: {len(others)} of " in claim.rule


@pytest.mark.parametrize("gain, verdict", [(0.25, "supported"), (-0.25, "contradicted")])
def test_the_most_atoms_are_compared_with_the_fewest(gain: float, verdict: str, tmp_path: Path) -> None:
    for atoms, accuracy in ((3, 80.0), (6, 99.0), (12, 80.0 + gain)):
        for seed in (0, 1):
            preset = "local-atoms-and-head-personal-cifar10-5"
            run = a_run(tmp_path / f"{atoms}-{seed}", preset=preset, seed=seed, rounds=0, atoms=atoms)
            changed(run, personal={"after the last pass": near(accuracy, seed)})
    claim = the_claim(tmp_path, "Table 3")
    assert claim.verdict == verdict and claim.numbers == pytest.approx((87.08 - 81.66, gain))
    assert "Run: 1 of 6 columns." in claim.rule


def test_every_gain_is_the_same_on_the_page_and_in_the_results(ours: Found) -> None:
    groups = group(ours.runs)
    found, pooled = match(groups), known_spreads(groups).shared
    page, readme = ((ROOT / path).read_text() for path in ("docs/report.html", "paper-results/README.md"))
    table = re.sub("</?span>", "", page.partition('id="table-1"')[2].partition("</table>")[0])
    for pair in pairs("cifar10") + pairs("cifar100"):
        gain = gain_of(pair, found, pooled)
        assert gain is not None and short(gain) in readme and f">{written(gain)}<" in table


# ---- runs


def test_rounds_to_the_plain_accuracy_are_counted_in_each_pair(tmp_path: Path) -> None:
    for name, plain, atoms in (("fedavg", 400, 100), ("fedprox", 400, 200), ("feddyn", 400, 601)):
        for seed, (kind, since) in product((0, 1), (("", plain), ("-atoms", atoms))):
            line = rising(since, 600)
            curves, preset = both(near_by(line, seed) if kind else line), f"{name}{kind}-cifar10-5"
            a_run(tmp_path / f"{name}{kind}-{seed}", preset=preset, seed=seed, rounds=0, curves=curves)
    claim = the_claim(tmp_path, "Fewer rounds")
    assert [line.ours for line in claim.evidence] == pytest.approx([0.25, 0.5, 1.5])
    assert [line.state for line in claim.evidence] == ["supported", "supported", "contradicted"]
    assert claim.verdict == "inconclusive" and claim.numbers[1] == pytest.approx(0.75) and claim.at_least
    assert [line.at_least for line in claim.evidence] == [False, False, True]
    assert [("600 rounds (2 of 2 seeds never)" in line.about) for line in claim.evidence] == [False, False, True]
    (tmp_path / "fedavg-0" / "rounds.jsonl").unlink()
    (tmp_path / "fedprox-atoms-1" / "rounds.jsonl").unlink()
    left = the_claim(tmp_path, "Fewer rounds")
    assert left.evidence[0].ours == 1.5 and left.verdict == "inconclusive"  # no spread is left


@pytest.mark.parametrize("never, verdict", [(0, "supported"), (1, "inconclusive")])
def test_rounds_that_never_come_are_a_bound_which_supports_nothing(never: int, verdict: str, tmp_path: Path) -> None:
    """One of three seeds never gets there: with all its rounds as a number the mean would be below 1, for sure."""
    for name, seed in product(("fedavg", "fedprox"), range(3)):
        last = 601 if never and name == "fedprox" and seed == 2 else 300 + seed
        for kind, line in (("", rising(590, 600)), ("-atoms", rising(last, 600))):
            curves, preset = both(line), f"{name}{kind}-cifar10-5"
            a_run(tmp_path / f"{preset}-{seed}", preset=preset, seed=seed, rounds=0, curves=curves)
    claim = the_claim(tmp_path, "Fewer rounds")
    assert claim.verdict == verdict and claim.at_least == (never > 0)
    assert [line.supports for line in claim.evidence] == [True, not never]
    assert claim.gain is not None and claim.gain.high is not None and claim.gain.high < 1
    assert ("at least" in number_with_unit(claim)) == (never > 0)


def test_each_seed_has_its_own_target_and_its_own_ratio(tmp_path: Path) -> None:
    ends = {0: 70.0, 1: 60.0, 2: 50.0}  # of the plain runs: their mean is not reached by each
    for seed, high in ends.items():
        since = {"": 400, "-atoms": (100, 200, 601)[seed]}
        for kind, first in since.items():
            preset, curve = f"fedavg{kind}-cifar10-5", rising(first, 600, high=high)
            a_run(tmp_path / f"{preset}-{seed}", preset=preset, seed=seed, rounds=0, curves=both(curve))
    (line,) = the_claim(tmp_path, "Fewer rounds").evidence
    assert line.ours == pytest.approx((0.25 + 0.5 + 1.5) / 3) and line.state == "inconclusive"
    assert line.about == "FedAvg, cifar10 (100, 5): 300 rounds (1 of 3 seeds never), plain 400"
    cut(tmp_path / "fedavg-atoms-cifar10-5-1")
    assert the_claim(tmp_path, "Fewer rounds").verdict == "not run"


def test_each_number_of_clients_in_a_round_has_its_gain(tmp_path: Path) -> None:
    gains = dict(zip(SAMPLED, (1.0, 2.0, 3.0, 0.5, 4.0, 5.0), strict=True))
    for (count, gain), seed in product(gains.items(), (0, 1)):
        for kind, accuracy in (("", 50.0), ("-atoms", 50.0 + gain)):
            preset, score = f"fedavg{kind}-cifar10-5", near(accuracy, seed)
            a_run(tmp_path / f"{count}{kind}-{seed}", score, preset, seed, rounds=200, fraction=count / 100)
    claim = the_claim(tmp_path, "few clients in a round")
    assert {line.about: line.ours for line in claim.evidence} == {
        f"{count} clients in a round": gain for count, gain in gains.items()
    }
    assert claim.verdict == "supported" and claim.numbers == (None, min(gains.values()))
    assert claim.rule.endswith("Run: 6 of 6 numbers of clients. Ours: 9 atoms; seeds 0, 1.")
    assert the_claim(tmp_path, "our other runs").verdict == "not run"  # they are the paper's
    for seed in (0, 1):
        shutil.rmtree(folder := tmp_path / f"20-atoms-{seed}")
        a_run(folder, near(49.5, seed), "fedavg-atoms-cifar10-5", seed, rounds=200, fraction=0.2)
    worse = the_claim(tmp_path, "few clients in a round")
    assert worse.verdict == "partly" and worse.numbers == (None, -0.5)


def test_figure_c_is_of_the_servers_model_and_says_whether_the_gain_grows(tmp_path: Path) -> None:
    """The mean of all clients' last models has as many models in it whatever the clients in a round are."""
    gains = {2: (1.0, 1.25), 10: (9.0, 9.0), 40: (3.0, 3.25)}
    for (count, some), seed in product(gains.items(), (0, 1)):
        for kind, accuracy in (("", 50.0), ("-atoms", 50.0 + some[seed])):
            curves = {"server": [accuracy] * 200, "all": [90.0 - accuracy] * 200}
            preset, folder = f"fedavg{kind}-cifar10-5", tmp_path / f"{count}{kind}-{seed}"
            a_run(folder, preset=preset, seed=seed, rounds=200, curves=curves, fraction=count / 100)
    claim = the_claim(tmp_path, "The more clients a round has")
    (line,) = claim.evidence
    assert claim.verdict == "supported" and claim.numbers == (None, 2.0) and "Run: 3 of 6" in claim.rule
    assert line.about == "2 to 40 clients (+1.12 with 2, +9.00 with 10, +3.12 with 40)"
    helps = the_claim(tmp_path, "few clients in a round")
    assert [line.ours for line in helps.evidence] == [1.125, 9.0, 3.125]
    for folder in (*tmp_path.glob("10*"), *tmp_path.glob("40*")):
        shutil.rmtree(folder)
    assert the_claim(tmp_path, "The more clients a round has").verdict == "not run"


def test_clients_in_a_round_need_no_rounds_but_common_seeds(tmp_path: Path) -> None:
    for kind, seed, accuracy in (("", 0, 50.0), ("", 1, 90.0), ("-atoms", 0, 51.0)):
        preset = f"fedavg{kind}-cifar10-5"
        a_run(tmp_path / f"{preset}-{seed}", accuracy, preset, seed, rounds=200, fraction=0.02)
    (tmp_path / "fedavg-cifar10-5-0" / "rounds.jsonl").unlink()
    claim = the_claim(tmp_path, "few clients in a round")
    assert [line.ours for line in claim.evidence] == [1.0] and "Run: 1 of 6 numbers of clients." in claim.rule
    (figure,) = figures(group(find([tmp_path]).runs))
    assert figure.rows == [(2, 50.0, 51.0)] and "seed 0." in figure.sentence and "+1.00 with 2" in figure.sentence


def of_figure_c(folder: Path, atoms: int, counts: tuple[int, ...], seeds: tuple[int, ...], accuracy: float) -> None:
    """Writes runs of figure (c): plain ones, or with 9 or 25 atoms."""
    kind = {0: "", 9: "-atoms", 25: "-atoms25"}[atoms]
    for count, seed in product(counts, seeds):
        preset, score = f"fedavg{kind}-cifar10-5", near(accuracy, seed)
        a_run(folder / f"{preset}-{count}-{seed}", score, preset, seed, rounds=200, fraction=count / 100)


def test_figure_c_has_the_atoms_of_most_pairs_and_the_papers_on_a_tie(tmp_path: Path) -> None:
    """Runs with 25 atoms have a figure of their own, on their own seeds, and are never paired with those of 9."""
    of_figure_c(tmp_path, 0, (2, 40), (0, 1, 2), 50.0)
    of_figure_c(tmp_path, 25, (2, 40), (0,), 57.0)
    of_figure_c(tmp_path, 9, (2,), (0, 1, 2), 53.0)
    helps = the_claim(tmp_path, "few clients in a round")  # one pair with 9 atoms throws away none with 25
    assert [line.ours for line in helps.evidence] == pytest.approx([7.0, 7.0], abs=1e-3)
    assert helps.rule.endswith("Run: 2 of 6 numbers of clients. Ours: 25 atoms; seed 0.")
    of_figure_c(tmp_path, 9, (40,), (0, 1), 54.0)
    helps = the_claim(tmp_path, "few clients in a round")
    assert [line.ours for line in helps.evidence] == pytest.approx([3.0, 4.0], abs=1e-3)
    assert helps.rule.endswith("Ours: 9 atoms; seeds 0, 1, 2, but seeds 0, 1 in 1 of 2.")
    more = the_claim(tmp_path, "More clients in a round make")
    assert [line.about.partition(",")[0] for line in more.evidence] == ["plain", "9 atoms"]
    assert the_claim(tmp_path, "our other runs").verdict == "not run"
    ours, earlier = figures(group(find([tmp_path]).runs))
    assert ours.heads[1:] == ("plain", "9 atoms") and "seeds 0, 1." in ours.sentence and ours.size == "full"
    assert earlier.heads[1:] == ("plain", "25 atoms") and "seed 0." in earlier.sentence and earlier.size == "other"


def test_more_clients_are_counted_where_both_networks_have_them(tmp_path: Path) -> None:
    of_figure_c(tmp_path, 0, (2, 10, 40), (0, 1), 50.0)
    assert the_claim(tmp_path, "More clients in a round make").verdict == "not run"  # plain ones alone
    of_figure_c(tmp_path, 9, (2,), (0, 1), 53.0)
    assert the_claim(tmp_path, "More clients in a round make").verdict == "not run"
    of_figure_c(tmp_path, 9, (10, 20), (0, 1), 54.0)
    claim = the_claim(tmp_path, "More clients in a round make")
    assert [line.about[: line.about.index(" (")] for line in claim.evidence] == [
        "plain, 2 to 10 clients",
        "9 atoms, 2 to 10 clients",
    ]
    assert claim.rule.endswith("Run: 2 of 6 numbers of clients.")


def test_figure_c_shows_no_plain_runs_alone(tmp_path: Path) -> None:
    of_figure_c(tmp_path, 0, (2, 40), (0,), 50.0)
    assert not figures(group(find([tmp_path]).runs))
    of_figure_c(tmp_path, 25, (2, 40), (0,), 57.0)
    (earlier,) = figures(group(find([tmp_path]).runs))
    assert earlier.size == "other" and earlier.heads[1:] == ("plain", "25 atoms")


@pytest.mark.parametrize("last, verdict", [(61.0, "supported"), (59.75, "contradicted")])
def test_steps_to_more_clients_are_shown_and_their_sum_decides(last: float, verdict: str, tmp_path: Path) -> None:
    for count, accuracy in zip(SAMPLED, (60.0, 70.0, 69.0, last), strict=False):
        for atoms in (0, 9):
            of_figure_c(tmp_path, atoms, (count,), (0, 1), accuracy + atoms)
    claim = the_claim(tmp_path, "More clients in a round")
    assert claim.verdict == verdict and claim.numbers == pytest.approx((None, last - 60.0))
    steps = f"2 to 20 clients (+10.00, -1.00, {last - 69:+.2f})"
    assert [line.about for line in claim.evidence] == [f"plain, {steps}", f"9 atoms, {steps}"]


def with_beta(folder: Path, server: list[float], clients: list[float], seeds: tuple[int, ...] = (0,)) -> Path:
    """Writes a plain run that has 50 % from round 300 on, and one with slow groups."""
    plain = both(rising(300, FULL))
    for seed in seeds:
        slow = {"server": server if len(seeds) == 1 else near_by(server, seed), "all": clients}
        end = f"-{seed}" * bool(seed)
        a_run(folder / f"plain{end}", preset="fedavg-cifar100-20", seed=seed, rounds=0, curves=plain)
        preset = "fedavg-atoms25-cifar100-20"
        a_run(folder / f"slow{end}", preset=preset, seed=seed, rounds=0, curves=slow, beta="1/5")
    return folder


@pytest.mark.parametrize("since", [150, 240, 299, 450, FULL + 1])
def test_the_server_decides_what_parameters_reach_and_figure_and_claim_agree(since: int, tmp_path: Path) -> None:
    found = find([with_beta(tmp_path, rising(since, FULL), rising(FULL, FULL, high=45.0), seeds=(0, 1))])
    (line,) = next(claim for claim in claims(found) if "slow groups" in claim.text).evidence
    (figure,) = figures(group(found.runs))
    columns = dict(zip(figure.heads, figure.rows[1], strict=True))
    if since > FULL:
        assert columns["rounds to 50.00 %"] is None
        assert "never with fedavg + 25 atoms, beta 1/5 (10.00 % at best; 0.23 as much in a round" in figure.sentence
        assert "never reached, 10.00 % at best; 0.23 as much in a round" in line.about
        assert line.at_least and not line.supports
        assert line.ours == pytest.approx(100 * (3 * FULL) / (13 * 300))
        return
    a_round, rounds = 3 / 13, since / 300  # of what ``a_run`` sends
    assert columns["rounds to 50.00 %"] == since
    assert columns["share up"] == pytest.approx(a_round * rounds)
    assert line.ours == pytest.approx(100 * a_round * rounds) and line.paper == pytest.approx(20)
    assert line.supports == (a_round * rounds <= 1 / 5)
    said = f"{a_round:.2f} as much in a round, {rounds:.2f} times the rounds"
    assert said in line.about and said in figure.sentence and f"{a_round * rounds:.2f} with" in figure.sentence


def test_the_card_shows_the_line_that_is_furthest_above_its_beta(tmp_path: Path) -> None:
    with_beta(tmp_path, rising(300, FULL), rising(300, FULL), seeds=(0, 1))  # 23.1 % of the bytes for 20 %
    for seed, (beta, since) in product((0, 1), (("1/2", 590), ("1/10", 240))):  # 45.4 % for 50 %, 18.5 % for 10 %
        curves, preset = both(near_by(rising(since, FULL), seed)), "fedavg-atoms25-cifar100-20"
        a_run(tmp_path / f"{beta[2:]}-{seed}", preset=preset, seed=seed, rounds=0, curves=curves, beta=beta)
    claim = the_claim(tmp_path, "slow groups")
    assert claim.numbers == pytest.approx((10, 100 * 3 / 13 * 240 / 300)) and claim.verdict == "contradicted"
    assert [line.supports for line in claim.evidence] == [True, False, False]
    assert "Run: 3 of 3 values of beta." in claim.rule


def test_bytes_are_counted_seed_by_seed_and_a_seed_that_never_gets_there_makes_a_bound(tmp_path: Path) -> None:
    for seed, (plain, slow, high) in enumerate(((300, 150, 50.0), (300, FULL + 1, 60.0))):
        for preset, since, more in (("fedavg", plain, {}), ("fedavg-atoms25", slow, {"beta": "1/2"})):
            curves = both(rising(since, FULL, high=high))
            name = f"{preset}-cifar100-20"
            a_run(tmp_path / f"{preset}-{seed}", preset=name, seed=seed, rounds=0, curves=curves, **more)
    (line,) = the_claim(tmp_path, "slow groups").evidence
    assert line.ours == pytest.approx(100 * 3 / 13 * (0.5 + FULL / 300) / 2) and line.ours < 50
    assert "1 of 2 seeds never reached, 10.00 % at best; " in line.about
    assert line.at_least and line.state == "inconclusive"
    (figure,) = figures(group(find([tmp_path]).runs))
    assert "1 of 2 seeds never with fedavg + 25 atoms" in figure.sentence


@pytest.mark.parametrize("which", ["plain", "slow"])
def test_bytes_need_all_rounds_of_both_runs_and_the_same_models(which: str, tmp_path: Path) -> None:
    folder = with_beta(tmp_path, rising(150, FULL), rising(150, FULL))
    assert the_claim(folder, "slow groups").verdict == "inconclusive"  # one seed
    accuracy = json.loads((folder / which / "result.json").read_text())["accuracy"]
    changed(folder / which, accuracy={"all": accuracy["all"]})
    assert the_claim(folder, "slow groups").verdict == "not run" and not figures(group(find([folder]).runs))
    changed(folder / which, accuracy=accuracy)
    cut(folder / which)
    assert the_claim(folder, "slow groups").verdict == "not run" and not figures(group(find([folder]).runs))


def test_figure_d_by_own_models_counts_until_the_papers_target(tmp_path: Path) -> None:
    runs = list(study("figure-communication-local").runs.values())
    for seed, one in product((0, 1), [each for each in runs if each.parametrisation != "fedpara"]):
        fields = {name: value for name, value in to_json(one).items() if name not in ("seed", "rounds", "beta")}
        slow = one.beta != "1"
        apart = 0 if one.parametrisation == "plain" else 1 - 2 * seed  # rounds: equal ones have no spread
        curves = {"local": rising({"1/2": 190, "1/5": 100}.get(str(one.beta), 150) + apart, 200, high=53.0)}
        name = f"{one.parametrisation}-{str(one.beta).replace('/', '-')}-{seed}"
        more = fields | ({"beta": one.beta} if slow else {})
        a_run(tmp_path / name, seed=seed, rounds=200, curves=curves, **more)  # type: ignore[arg-type]
    claim = the_claim(tmp_path, "own models need a share")
    assert [line.state for line in claim.evidence] == ["supported", "supported", "contradicted"]
    shares = [100 * 3 / 13 * rounds / 150 for rounds in (190, 100, 150)]
    assert [line.ours for line in claim.evidence] == pytest.approx(shares) and "both ways" in claim.evidence[0].about
    (figure,) = figures(group(find([tmp_path]).runs))
    assert figure.name == "figure-communication-local" and "52 %" in figure.sentence
    assert [row[2] for row in figure.rows] == [150, 150, 190, 100, 150]
    assert the_claim(tmp_path, "slow groups").verdict == "not run"


def test_figure_d_is_judged_by_its_own_runs_alone(tmp_path: Path) -> None:
    a_run(tmp_path / "plain", 50.0)
    a_run(tmp_path / "slow", 51.0, "fedavg-atoms", beta="1/5")
    assert the_claim(tmp_path, "slow groups").verdict == "not run"


# ---- other pairs


@pytest.mark.parametrize("gain, verdict", [(-0.5, "partly"), (-1.5, "contradicted")])
def test_other_pairs_are_judged_by_their_mean_gain(gain: float, verdict: str, tmp_path: Path) -> None:
    for seed, (fraction, each) in product((0, 1), ((0.2, 1.0), (0.5, gain))):
        for preset, accuracy in (("fedavg", 50.0), ("fedavg-atoms", 50.0 + each)):
            score = near(accuracy, seed)
            a_run(tmp_path / f"{preset}-{fraction}-{seed}", score, preset, seed, rounds=20, fraction=fraction)
    a_run(tmp_path / "more", 90.0, seed=2, rounds=20, fraction=0.2)  # no atoms with this seed
    claim = the_claim(tmp_path, "our other runs")
    assert claim.verdict == verdict and claim.numbers == (None, (1.0 + gain) / 2)
    assert [line.supports for line in claim.evidence] == [True, False]


@pytest.mark.parametrize(
    "plain, atoms, pairs",
    [
        ({}, {}, 1),
        ({}, {"slow_local": "freeze", "fast": "atoms"}, 1),  # they say nothing where all travels in each round
        ({}, {"fixed": "atoms"}, 0),  # a control, not the decomposition
        ({"beta": "1/5", "fast": "head"}, {}, 0),
        ({}, {"beta": "1/5"}, 0),
        ({"lr": 0.2}, {}, 0),
        ({"score": "server"}, {"score": "server"}, 1),
        ({"holdout": 0.1}, {"holdout": 0.1}, 0),
    ],
)
def test_other_pairs_differ_in_the_decomposition_alone(
    plain: dict[str, object], atoms: dict[str, object], pairs: int, tmp_path: Path
) -> None:
    a_run(tmp_path / "plain", **plain)  # type: ignore[arg-type]
    a_run(tmp_path / "atoms", preset="fedavg-atoms", **atoms)  # type: ignore[arg-type]
    assert len(the_claim(tmp_path, "our other runs").evidence) == pairs


def test_other_pairs_score_the_same_models(tmp_path: Path) -> None:
    a_run(tmp_path / "plain")
    a_run(tmp_path / "atoms", preset="fedavg-atoms", curves={"server": [50.0] * 3})
    assert the_claim(tmp_path, "our other runs").verdict == "not run"


def test_quick_stand_ins_say_nothing_of_the_paper(tmp_path: Path) -> None:
    for name in ("iid", "figure-communication"):
        for n, one in enumerate(study(name).runs.values()):
            fields = {key: value for key, value in to_json(quick(one)).items() if key not in ("seed", "rounds")}
            a_run(tmp_path / f"{name}-{n}", rounds=10, **fields)  # type: ignore[arg-type]
    found = find([tmp_path])
    assert found.runs and {claim.verdict for claim in claims(found)} == {"not run"}


# ---- figures


def test_without_a_score_of_the_server_the_headline_decides(tmp_path: Path) -> None:
    for name, since, more in (("plain", 300, {}), ("slow", 150, {"beta": "1/5"})):
        preset = "fedavg-cifar100-20" if name == "plain" else "fedavg-atoms25-cifar100-20"
        a_run(tmp_path / name, preset=preset, rounds=0, curves={"all": rising(since, FULL)}, **more)
    (line,) = the_claim(tmp_path, "slow groups").evidence
    assert "0.50 times the rounds" in line.about
    assert "Model: all." in figures(group(find([tmp_path]).runs))[0].sentence


def test_the_second_target_is_one_that_all_reach(tmp_path: Path) -> None:
    curve = rising(400, FULL, high=40.0)
    found = find([with_beta(tmp_path, curve, curve)])
    (figure,) = figures(group(found.runs))
    plain, slow = (dict(zip(figure.heads, row, strict=True)) for row in figure.rows)
    assert "All reach 40.00 %." in figure.sentence and slow["both ways"] is None
    assert plain["share up, 40.00 %"] == 1 and slow["accuracy"] == 40
    assert slow["share up, 40.00 %"] == pytest.approx((3 * 400) / (13 * 300))


def test_a_level_line_reaches_its_own_mean(tmp_path: Path) -> None:
    level = next(n / 100 for n in range(5000, 5100) if sum([n / 100] * 100) / 100 > n / 100)
    (run,) = find([a_run(tmp_path / "it", level, rounds=100)]).runs
    one = Group([run])
    targets = headline_by_seed(one, "all")
    assert targets[0] > level and cost_to_reach(targets, one, "all").rounds == 1


def test_a_share_needs_a_base_that_gets_there(tmp_path: Path) -> None:
    found = find([with_beta(tmp_path, rising(150, FULL), rising(150, FULL))])
    plain, slow = sorted(group(found.runs), key=lambda each: each.experiment.beta != "1/1")
    assert relative_cost(headline_by_seed(plain, "server"), slow, plain, "server") == pytest.approx(
        (0.5, 0.5 * 3 / 13, 0.5 * 3 / 13, 0, 0)
    )
    assert relative_cost({0: 60.0}, slow, plain, "server") is None
    cost = cost_to_reach({0: 60.0}, slow, "server")
    assert cost.rounds == FULL and cost.never == 1


def test_on_real_runs_figure_d_and_its_claim_say_the_same(ours: Found) -> None:
    claim = next(claim for claim in claims(ours) if "slow groups" in claim.text)
    figure = next(each for each in figures(group(ours.runs)) if each.name == "figure-communication")
    share_up = next(n for n, head in enumerate(figure.heads) if head == "share up")
    shown = {row[0]: row[share_up] for row in figure.rows}
    beside = [(line, shown[name]) for line in claim.evidence if (name := line.about.split(":")[0]) in shown]
    assert beside
    for line, value in beside:
        assert (value is None) == ("never reached" in line.about)
        assert value is None or line.ours == pytest.approx(100 * float(value))


# ---- names


def test_lines_of_other_runs_name_what_tells_them_apart_and_no_more(tmp_path: Path) -> None:
    odd: list[dict[str, object]] = [
        {},
        {"fraction": 0.25},
        {"rounds": 5},
        {"partition": "iid"},
        {"algorithm": "scaffold", "controls": "first"},
        {"algorithm": "scaffold", "controls": "current"},
    ]
    for n, more in enumerate(odd):
        for preset in ("fedavg", "fedavg-atoms"):
            a_run(tmp_path / f"{preset}-{n}", preset=preset, **more)  # type: ignore[arg-type]
    names = [line.about for line in the_claim(tmp_path, "our other runs").evidence]
    assert len(set(names)) == len(odd)
    for words in ("fraction 0.25", "rounds 5", ", iid", "controls first", "controls current"):
        assert len([name for name in names if words in name]) == 1
    assert not any("lr" in name or "fraction 0.5" in name or "rounds 3" in name for name in names)


def test_a_setting_that_all_share_is_said_once(tmp_path: Path) -> None:
    for seed, fraction in enumerate((0.2, 0.5)):
        for preset in ("fedavg", "fedavg-atoms"):
            a_run(tmp_path / f"{preset}-{seed}", preset=preset, fraction=fraction)
    claim = the_claim(tmp_path, "our other runs")
    assert "All on digits, 20 clients with 2 classes each." in claim.rule
    assert [line.about for line in claim.evidence] == [
        "fedavg + 9 atoms, fraction 0.2",
        "fedavg + 9 atoms, fraction 0.5",
    ]


def test_no_two_lines_of_a_claim_have_one_name(ours: Found) -> None:
    for claim in claims(ours):
        names = [line.about for line in claim.evidence]
        assert len(set(names)) == len(names), claim.text
        assert bool(names) == (claim.verdict != "not run"), claim.text


def test_claims_without_evidence_are_folded_away(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "one")
    page = page_of(tmp_path / "runs")
    (said,) = re.findall(r"<summary><h3>(\d+) claims without evidence here", page)
    none = claims(Found([], [], [], [], []))
    assert {claim.numbers for claim in none} == {(None, None)}
    assert int(said) == len(none) == page.count('class="claim"')
