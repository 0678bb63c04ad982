"""Claims that measures and explanations speak of hold or fall with the numbers in their files."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from support.results import (
    SOURCE,
    VALUES,
    a_full_measure,
    a_measure,
    a_run,
    an_explanation,
    changed,
    near,
    page_of,
    the_claim,
)

from fedatoms.core.gains import over_seeds
from fedatoms.evidence.explain.filter_mean import RULE
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import as_json
from fedatoms.evidence.measures.files import FILE, Measure, write_measure
from fedatoms.evidence.results.finding import find
from fedatoms.evidence.results.measures import unlike_the_papers

READINGS = {  # words of the claims
    ("filters", "raw"): "variance of the aggregated filters is",
    ("filters", "by_move"): "variance of the filters, by their squared move, is",
    ("factors", "raw"): "variance of the raw factors is",
    ("factors", "by_move"): "variance of the raw factors, by their squared move, is",
}


def variances(*ratios: float) -> dict[str, object]:
    """Returns values, as older files have them, in which the raw filters vary so many times as much as plain ones."""
    same = {name: [0.5] * len(ratios) for name in ("raw", "by_norm", "by_move")}
    return {"rounds": list(range(len(ratios))), "lines": [same, same | {"raw": [0.5 * r for r in ratios]}]}


def in_two_seeds(folder: Path, values: dict[str, object]) -> None:
    plain, atoms = values["lines"]  # type: ignore[misc]
    for seed in (0, 1):
        a_full_measure(folder / str(seed), "variance", values | {"lines": [plain, nearly(atoms, seed)]}, seed)


def nearly(values: object, seed: int) -> object:
    """Returns values that the seeds have on average: equal ones have no spread."""
    if isinstance(values, dict):
        return {name: nearly(each, seed) for name, each in values.items()}
    return [nearly(each, seed) for each in values] if isinstance(values, list) else near(values, seed)  # type: ignore[arg-type]


def test_measures_that_verdicts_count_come_first_and_say_their_seeds(tmp_path: Path) -> None:
    a_measure(tmp_path / "a")  # with settings of its own
    a_full_measure(tmp_path / "b", "variance", variances(0.5), seed=1)
    a_full_measure(tmp_path / "c", "variance", variances(0.5))
    headings = re.findall(r'<h3>Variance of a round <span class="tag">(.*?)</span>', page_of(tmp_path))
    assert [html.unescape(each) for each in headings] == ["seed 0", "seed 1", "seed 0, other settings than the paper's"]


@pytest.mark.parametrize("of, kind", READINGS)
def test_each_reading_of_the_variance_is_judged_in_each_round_by_its_own_line(
    of: str, kind: str, tmp_path: Path
) -> None:
    kinds = ("raw", "by_norm", "by_move")
    plain = {name: [0.5, 0.25] for name in kinds}
    lines = {each: {name: [1.0, 1.0] for name in kinds} for each in ("filters", "factors")}
    for last, verdict in ((0.125, "supported"), (2.0, "partly")):
        lines[of][kind] = [0.25, last]
        values = {"rounds": [0, 5], "lines": [plain, lines["filters"] | {"factors": lines["factors"]}]}
        in_two_seeds(tmp_path / "it", values)
        found = {each: the_claim(tmp_path, words) for each, words in READINGS.items()}
        claim, ratio = found.pop((of, kind)), last / 0.25
        assert claim.verdict == verdict and claim.numbers == (None, pytest.approx(max(0.5, ratio)))
        assert [(line.about, line.ours) for line in claim.evidence] == [
            ("after 0 rounds (0.50, 0.50)", pytest.approx(0.5)),
            (f"after 5 rounds ({ratio:.2f}, {ratio:.2f})", pytest.approx(ratio)),
        ]
        assert all(other.verdict == "contradicted" for other in found.values())


@pytest.mark.parametrize(
    ("of_seeds", "verdict"),
    [
        ((0.5,), "inconclusive"),  # one seed decides nothing
        ((0.5, 0.51, 0.49), "supported"),
        ((2.0, 2.1, 1.9), "contradicted"),
        ((0.5, 1.5, 0.9), "inconclusive"),
        ((0.0, 0.5), "supported"),  # where nothing varies there is nothing to estimate
    ],
)
def test_a_round_is_judged_by_the_ratios_of_all_seeds(
    of_seeds: tuple[float, ...], verdict: str, tmp_path: Path
) -> None:
    for seed, ratio in enumerate(of_seeds):
        a_full_measure(tmp_path / str(seed), "variance", variances(ratio), seed)
    claim = the_claim(tmp_path, READINGS["filters", "raw"])
    shown = ", ".join(f"{ratio:.2f}" for ratio in of_seeds)
    assert claim.verdict == verdict and [line.about for line in claim.evidence] == [f"after 0 rounds ({shown})"]
    assert ("One seed decides nothing." in claim.rule) == (len(of_seeds) == 1)


def test_a_reading_that_is_a_share_is_one_on_both_sides_and_factors_have_another_scale(tmp_path: Path) -> None:
    a_full_measure(tmp_path, "variance", VALUES["variance"])
    for (of, kind), words in READINGS.items():
        claim = the_claim(tmp_path, words)
        both = ", each divided by the squared move of its own," if kind == "by_move" else ""
        start = f"In each measured round the ratio to the variance of the plain run's filters{both} is below 1: the"
        assert claim.rule.startswith(start) and ("scaling atoms by c" in claim.rule) == (of == "factors")


def test_a_file_without_factors_says_nothing_of_them(tmp_path: Path) -> None:
    in_two_seeds(tmp_path, variances(0.5, 0.25))
    assert [the_claim(tmp_path, words).verdict for words in READINGS.values()] == [
        "supported",
        "inconclusive",  # equal is not smaller
        "not run",
        "not run",
    ]


@pytest.mark.parametrize(
    "factors, reason",
    [
        ({"raw": [0.5], "by_norm": [0.5]}, "by_move"),
        ({"raw": [0.5], "by_norm": [0.5], "by_move": [0.5, 0.5]}, "not all of one length"),
        ({"raw": ["0.5"], "by_norm": [0.5], "by_move": [0.5]}, "expected float"),
        ([0.5], "expected object"),
        (None, "expected object"),
        ({"raw": [0.5], "by_norm": [0.5], "by_move": [0.5], "by_foot": [0.5]}, "by_foot"),
    ],
)
def test_damaged_factors_are_refused(factors: object, reason: str, tmp_path: Path) -> None:
    values = variances(0.5)
    values["lines"][1]["factors"] = factors  # type: ignore[index]
    a_full_measure(tmp_path, "variance", values)
    found = find([tmp_path])
    assert not found.measures and reason in found.left_out[0].reason


@pytest.mark.parametrize("name", ["factor", "by_foot"])
def test_a_name_that_no_line_of_variances_has_is_refused(name: str, tmp_path: Path) -> None:
    values = variances(0.5)
    values["lines"][1][name] = {"raw": [0.5], "by_norm": [0.5], "by_move": [0.5]}  # type: ignore[index]
    a_full_measure(tmp_path, "variance", values)
    found = find([tmp_path])
    assert not found.measures and name in found.left_out[0].reason


@pytest.mark.parametrize("other", [{"init": "orthonormal"}, {"init": "orthonormal", "atoms": 25}])
def test_another_start_of_the_atoms_is_shown_and_decides_nothing(other: dict[str, object], tmp_path: Path) -> None:
    folder = a_full_measure(tmp_path / "runs" / "it", "variance", variances(0.5))
    plain, atoms = json.loads((folder / FILE).read_text())["experiments"]
    changed(folder, FILE, experiments=[plain, atoms | other])
    assert the_claim(tmp_path, READINGS["filters", "raw"]).verdict == "not run"
    page = page_of(tmp_path / "runs")
    takes = f"{'9 atoms, ' * ('atoms' in other)}init fourier-bessel"
    assert "other settings than the paper" in page and f"It decides no verdict: that takes {takes}. Measured" in page


def test_a_measure_of_another_setting_says_all_that_it_would_take_to_count(tmp_path: Path) -> None:
    kind = MEASURES["training_loss"]
    plain, atoms = (replace(one, classes_per_client=5, seed=1) for one in kind.experiments)
    ran = plain, replace(atoms, atoms=25, init="orthonormal")
    write_measure(tmp_path / "runs", Measure("training_loss", ran, {"rounds": 50}, VALUES["training_loss"], SOURCE))
    said = "It decides no verdict: that takes 9 atoms, init fourier-bessel, 2 classes each, rounds 100. Measured"
    assert said in page_of(tmp_path / "runs")
    alone = Measure("training_loss", ran[1:], as_json(kind.settings), {}, {})
    assert unlike_the_papers(alone)[0] == ("1 experiment", "2 experiments")
    full = Measure("training_loss", kind.experiments, as_json(kind.settings), VALUES["training_loss"], SOURCE)
    write_measure(tmp_path / "full", full)
    assert not unlike_the_papers(full) and "decides no verdict" not in page_of(tmp_path / "full")


def test_a_round_in_which_the_plain_filters_do_not_vary_speaks_against_it(tmp_path: Path) -> None:
    values = variances(0.5, 0.5, 0.5)
    plain, atoms = values["lines"]  # type: ignore[misc]
    plain["raw"] = [0.5, 0.0, 0.0]
    atoms["raw"][2] = 0.0
    in_two_seeds(tmp_path, values)
    claim = the_claim(tmp_path, READINGS["filters", "raw"])
    assert [(line.about, line.state) for line in claim.evidence] == [
        ("after 0 rounds (0.50, 0.50)", "supported"),
        ("after 1 round (inf, inf)", "contradicted"),
    ]
    assert "Ours: 9 atoms; seeds 0, 1." in claim.rule


@pytest.mark.parametrize(
    "since, verdict", [(20, "supported"), (0, "supported"), (21, "contradicted"), (None, "contradicted")]
)
def test_the_training_loss_is_lower_from_round_20_on(since: int | None, verdict: str, tmp_path: Path) -> None:
    end = 1.25 if verdict == "supported" else 1.75
    for seed, told in ((0, "inconclusive"), (1, verdict)):  # one trajectory decides nothing
        values = {"lines": [[2.0, 1.5], [2.0, end + 0.001 * seed]], "lower_from": since}
        a_full_measure(tmp_path / f"{seed}", "training_loss", values, seed)
        claim = the_claim(tmp_path, "training loss")
        assert claim.verdict == told and ("One seed decides nothing." in claim.rule) == (seed == 0)
    assert claim.numbers[0] == 20
    assert claim.numbers[1] == (100 if since is None else since)
    assert ("not lower in round 100" in claim.evidence[0].about) == (since is None)


def test_of_many_seeds_the_latest_round_decides(tmp_path: Path) -> None:
    for seed, since in enumerate((7, 25)):
        values = {"lines": [[2.0, 1.5], [2.0, 1.25 + 0.001 * seed]], "lower_from": since}
        a_full_measure(tmp_path / str(seed), "training_loss", values, seed)
    claim = the_claim(tmp_path, "training loss")
    assert claim.verdict == "partly" and claim.numbers == (20, 25)


def test_losses_that_are_lower_by_chance_support_nothing(tmp_path: Path) -> None:
    """Of two seeds both are lower once in four times if there is no difference."""
    for seed, end in enumerate((1.2, 1.45)):
        a_full_measure(
            tmp_path / f"t{seed}", "training_loss", {"lines": [[2.0, 1.5], [2.0, end]], "lower_from": 1}, seed
        )
        paths = [{"x": [0.0, 1.0], "y": [0.0, 1.0], "loss": [2.0, last]} for last in (1.5, end)]
        a_full_measure(tmp_path / f"l{seed}", "landscape", VALUES["landscape"] | {"paths": paths}, seed)
    for words in ("training loss is lower", "loss landscape"):
        claim = the_claim(tmp_path, words)
        assert all(line.supports for line in claim.evidence) and claim.verdict == "inconclusive"


@pytest.mark.parametrize("since", ["7", 7.0, True])
def test_a_round_that_is_none_is_damage(since: object, tmp_path: Path) -> None:
    a_full_measure(tmp_path, "training_loss", {"lines": [[2.0, 1.5], [2.0, 1.25]], "lower_from": since})
    found = find([tmp_path])
    assert not found.measures and "lower_from: expected int | null" in found.left_out[0].reason


@pytest.mark.parametrize("name, words", [("variance", "aggregated filters is"), ("training_loss", "training loss")])
def test_a_measure_of_another_size_is_no_evidence(name: str, words: str, tmp_path: Path) -> None:
    quick = MEASURES[name].quick
    a_measure(tmp_path / "other", name)
    a_measure(tmp_path / "quick", name, **{key: getattr(quick, key) for key in quick.__dataclass_fields__})
    assert the_claim(tmp_path, words).verdict == "not run"


def test_measures_of_many_seeds_are_told_apart(tmp_path: Path) -> None:
    for seed in (3, 4):
        a_full_measure(tmp_path / str(seed), "landscape", VALUES["landscape"], seed)
    found = the_claim(tmp_path, "loss landscape").evidence
    assert [line.about[:14] for line in found] == ["seed 3, after ", "seed 4, after "]


@pytest.mark.parametrize(
    "with_latent, verdict",
    [
        (60.25, "supported"),
        (59.3, "supported"),
        (59.25, "inconclusive"),
        (59.0, "contradicted"),
        (58.0, "contradicted"),
    ],
)
def test_latent_clients_are_worth_half_a_point(with_latent: float, verdict: str, tmp_path: Path) -> None:
    for seed, more in enumerate((0.0, -0.001, 0.001)):
        an_explanation(tmp_path / f"{seed}", fork=0, with_latent=with_latent + more, seed=seed)  # 58.75 without
        claim = the_claim(tmp_path, "with latent clients")
        if seed == 0:
            assert claim.verdict == "inconclusive" and claim.numbers == (None, with_latent - 58.75)
            assert claim.evidence[0].about == "mine, rounds 18 to 19 replayed"
    assert claim.verdict == verdict and claim.numbers == (None, pytest.approx(with_latent - 58.75))
    (line,) = claim.evidence
    assert line.about == "mine, rounds 18 to 19 replayed, seeds 0, 1, 2"
    off = [with_latent + more - 58.75 for more in (0.0, -0.001, 0.001)]
    assert line.gain == pytest.approx(over_seeds(off))


@pytest.mark.parametrize(
    "gains, verdict",
    [
        ([0.9, 1.0, 1.1], "supported"),
        ([0.0, 0.1, -0.1], "contradicted"),
        ([0.0, 1.0, 0.5], "inconclusive"),
        ([0.6], "inconclusive"),
    ],
)
def test_whole_runs_with_and_without_latent_clients_decide_by_their_interval(
    gains: list[float], verdict: str, tmp_path: Path
) -> None:
    for seed, gain in enumerate(gains):
        a_run(tmp_path / f"with-{seed}", 50.0 + gain, "fedavg-atoms", seed, 20)
        a_run(tmp_path / f"without-{seed}", 50.0, "fedavg-atoms", seed, 20, {"server": [50.0] * 20}, aggregation=RULE)
    an_explanation(tmp_path / "it", with_latent=58.0)  # of one seed: it changes nothing
    claim = the_claim(tmp_path, "with latent clients")
    assert claim.verdict == verdict and claim.numbers == (None, pytest.approx(fmean(gains)))
    assert claim.gain == pytest.approx(over_seeds(gains)) and claim.evidence[0].gain == claim.gain
    assert claim.evidence[0].about.startswith("whole runs, fedavg + 9 atoms")


@pytest.mark.parametrize("start, rounds", [(4, 6), (8, 10), (8, 40)])  # the last stopped early
def test_an_explanation_of_ten_rounds_or_fewer_on_digits_decides_nothing(
    start: int, rounds: int, tmp_path: Path
) -> None:
    file = an_explanation(tmp_path / "it", with_latent=58.0, start=start)
    file.write_text(
        file.read_text().replace('"bounded": 1.0', '"bounded": 0.75').replace('"rounds": 40', f'"rounds": {rounds}')
    )
    for words in ("with latent clients", "is bounded by those of real clients"):
        claim = the_claim(tmp_path, words)
        assert claim.verdict == "inconclusive" and {line.state for line in claim.evidence} == {"inconclusive"}
        assert "On digits 10 rounds or fewer decide nothing." in claim.rule


def test_beside_an_explanation_that_decides_a_quick_one_gives_no_number(tmp_path: Path) -> None:
    an_explanation(tmp_path / "quick", fork=0, name="quick", with_latent=50.0, start=4)
    for seed, with_latent in enumerate((60.25, 60.26)):
        an_explanation(tmp_path / f"long-{seed}", fork=0, with_latent=with_latent, seed=seed)
    assert the_claim(tmp_path, "with latent clients").numbers == (None, pytest.approx(1.505))


def test_a_fork_is_a_line_of_its_own(tmp_path: Path) -> None:
    for seed, with_latent in enumerate((60.25, 60.26)):
        an_explanation(tmp_path / f"{seed}", fork=2, with_latent=with_latent, seed=seed)  # fork: 61, 62 against 60, 64
    replayed, forked = the_claim(tmp_path, "with latent clients").evidence
    assert replayed.supports and not forked.supports
    assert forked.about == "mine, fork, rounds 18 to 19, seeds 0, 1" and forked.ours == -0.5


def test_a_replay_whose_fork_is_missing_is_a_line_of_its_own(tmp_path: Path) -> None:
    for seed in (0, 1):
        file = an_explanation(tmp_path / f"{seed}", fork=2, seed=seed)
    changed(file.parent, file.name, fork=None)
    lines = the_claim(tmp_path, "with latent clients").evidence
    assert [line.about.removeprefix("mine, ") for line in lines] == [
        "rounds 18 to 19 replayed",
        "fork, rounds 18 to 19",
        "rounds 18 to 19 replayed",
    ]


def test_of_many_explanations_the_smallest_difference_decides(tmp_path: Path) -> None:
    for n, accuracy in enumerate((60.25, 59.0)):
        for seed in (0, 1):
            same = {"name": str(n), "crossed": 2 + n, "seed": seed, "with_latent": accuracy + seed / 100}
            an_explanation(tmp_path / f"{n}-{seed}", fork=0, **same)  # type: ignore[arg-type]
    claim = the_claim(tmp_path, "with latent clients")
    assert claim.verdict == "partly" and claim.numbers == (None, pytest.approx(0.255))


def test_of_copies_the_newest_counts_and_the_others_are_named(tmp_path: Path) -> None:
    newer = {"time": "2026-02-03T04:05:06+00:00"}
    for name in ("a", "b"):
        a_full_measure(tmp_path / "measure" / name, "variance", variances(0.5 if name == "a" else 0.25))
        an_explanation(tmp_path / "why" / name, fork=0, with_latent=60.0 if name == "a" else 61.0)
    changed(tmp_path / "measure" / "b", FILE, provenance=newer)
    changed(tmp_path / "why" / "a", "explain.json", provenance=newer)
    found = find([tmp_path])
    assert {note.path.parent.relative_to(tmp_path).as_posix() for note in found.left_out} == {"measure/a", "why/b"}
    assert all("left out: " in note.reason and " and is used" in note.reason for note in found.left_out)
    assert the_claim(tmp_path, "aggregated filters is").numbers == (None, pytest.approx(0.25))
    assert the_claim(tmp_path, "with latent clients").numbers == (None, 1.25)


@pytest.mark.parametrize("ends, verdict", [((2.0, 1.5), "supported"), ((2.0, 2.25), "contradicted")])
def test_the_ends_of_both_trajectories_decide(ends: tuple[float, float], verdict: str, tmp_path: Path) -> None:
    for seed, told in ((0, "inconclusive"), (1, verdict)):  # one seed decides nothing
        found = ends[0], ends[1] - 0.001 * seed
        paths = [{"x": [0.0, 1.0], "y": [0.0, 1.0], "loss": [2.5, end]} for end in found]
        a_full_measure(tmp_path / f"{seed}", "landscape", VALUES["landscape"] | {"paths": paths}, seed=seed)
        claim = the_claim(tmp_path, "loss landscape")
        assert claim.verdict == told and claim.numbers == (None, ends[1] / ends[0])


@pytest.mark.parametrize("many, verdict", [(0.125, "supported"), (0.5, "contradicted")])
def test_more_models_are_compared_with_the_fewest(many: float, verdict: str, tmp_path: Path) -> None:
    few, latent = VALUES["synthetic"]["lines"]  # type: ignore[misc]
    lines = [few | {"variance": [0.0, 0.5]}, few | {"name": "25 models", "variance": [0.0, many]}]
    lines.append(latent | {"variance": [0.0, 0.5], "products": [0.0, 0.5]})
    a_full_measure(tmp_path, "synthetic", VALUES["synthetic"] | {"lines": lines})
    claim = the_claim(tmp_path, "variance of their average")
    assert claim.verdict == verdict and claim.numbers == (None, 2 * many)
    assert [line.about for line in claim.evidence] == ["25 models against 5 models"]  # latent clients are no models


@pytest.mark.parametrize(
    "many, rounds, verdict",
    [([1.0, 0.5, 0.125], 1, "supported"), ([1.0, 0.75, 0.5], 2, "contradicted"), ([9.0] * 3, 2, "contradicted")],
)
def test_more_models_are_as_near_to_the_optimum_in_fewer_rounds(
    many: list[float], rounds: int, verdict: str, tmp_path: Path
) -> None:
    few, latent = VALUES["synthetic"]["lines"]  # type: ignore[misc]
    lines = [few | {"distance": [1.0, 0.75, 0.5]}, few | {"name": "25 models", "distance": many}, latent]
    a_full_measure(tmp_path, "synthetic", VALUES["synthetic"] | {"lines": lines})
    claim = the_claim(tmp_path, "as near to the optimum")
    assert claim.verdict == verdict and claim.numbers == (None, rounds / 2)
    never = "not in " * (min(many) > 0.5)
    assert [line.about for line in claim.evidence] == [f"25 models, {never}{rounds} rounds; 5 models, 2"]
    assert claim.at_least is bool(never)


def test_distances_that_a_file_lacks_decide_nothing(tmp_path: Path) -> None:
    a_full_measure(tmp_path, "synthetic", VALUES["synthetic"])
    assert the_claim(tmp_path, "as near to the optimum").verdict == "not run"


def test_one_latent_client_beyond_the_worst_real_one_refutes_no_bound_without_a_constant(tmp_path: Path) -> None:
    file = an_explanation(tmp_path / "it")
    bounded = {share: file.read_text().replace('"bounded": 1.0', f'"bounded": {share}') for share in (1.0, 0.75)}
    assert bounded[1.0] != bounded[0.75]
    for share in (1.0, 0.75):
        file.write_text(bounded[share])
        claim = the_claim(tmp_path, "is bounded by those of real clients")
        assert claim.verdict == "inconclusive" and claim.numbers == (None, 100 * share)
        assert "One seed does not support it." in claim.rule
    an_explanation(tmp_path / "more", seed=1)
    for share, verdict in ((1.0, "supported"), (0.75, "partly")):  # one for it, one open
        file.write_text(bounded[share])
        claim = the_claim(tmp_path, "is bounded by those of real clients")
        assert "One seed" not in claim.rule and claim.verdict == verdict


def test_without_latent_clients_nothing_speaks_of_their_bound(tmp_path: Path) -> None:
    an_explanation(tmp_path / "it", crossed=0)
    assert the_claim(tmp_path, "is bounded by those of real clients").verdict == "not run"


def test_a_measure_or_explanation_that_changes_changes_its_card(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    in_two_seeds(folder, variances(0.5, 0.25))
    an_explanation(folder / "why", fork=0)
    assert ">0.50 times the plain run&#x27;s<" in page_of(folder) and ">+1.50 points<" in page_of(folder)
    for seed, file in enumerate((folder / "0" / FILE, folder / "1" / FILE)):
        fields = json.loads(file.read_text())
        fields["values"]["lines"][1]["raw"] = [near(0.25, seed), near(2.0, seed)]
        file.write_text(json.dumps(fields))
    card = next(card for card in page_of(folder).split("<article")[1:] if "aggregated filters is smaller" in card)
    assert ">partly<" in card and "4.00 times" in card and "1 of 2 support it, 1 contradicts it" in card
