"""The page answers first: the best method, its gain, its cost, what is open; runs by state; claims by verdict."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import unescape
from itertools import accumulate
from pathlib import Path
from statistics import fmean

import pytest
from support.results import a_run, changed, kept, page_of

from fedatoms.core.gains import gain, written
from fedatoms.core.ledger import total
from fedatoms.core.options import GROUPS
from fedatoms.evidence.claims import claims
from fedatoms.evidence.page.compare import against_all, baselines
from fedatoms.evidence.page.figures import values
from fedatoms.evidence.page.html_table import typed
from fedatoms.evidence.page.plotly import Plot, axes, curves
from fedatoms.evidence.page.reruns import AGAIN
from fedatoms.evidence.page.still import picture
from fedatoms.evidence.page.styles import COLOURS, GREYS, TEXTURES, line_styles, looks
from fedatoms.evidence.page.verdict_cards import NAMED, claim_cards, overview, slug
from fedatoms.evidence.paper.study_list import studies
from fedatoms.evidence.results.commands import command_of
from fedatoms.evidence.results.finding import find
from fedatoms.evidence.results.groups import group
from fedatoms.evidence.results.measures import FACTORS
from fedatoms.evidence.results.standings import LAST_PASS, all_standings, baseline_of, over_same_rounds, versus
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import to_json
from fedatoms.experiment.identities import identity
from fedatoms.experiment.presets import PRESETS
from fedatoms.runs import plots
from fedatoms.runs.lock import locked
from fedatoms.runs.results import alike_averaged

GROUNDS = ("#ffffff", "#f5f6f8", "#14171c", "#1d2128")  # page and panel, light and dark


def plain_line(seed: int) -> list[float]:
    return [40.0, 45.0, 60.0 + seed]


def atoms_line(seed: int) -> list[float]:
    return [60.0 + seed, 62.0, 64.0 + 1.5 * seed]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs of three seeds, plain and with atoms, which are ahead from the first round on."""
    for seed in range(3):
        for preset, line in (("fedavg", plain_line(seed)), ("fedavg-atoms", atoms_line(seed))):
            folder = tmp_path / "runs" / f"{preset}-{seed}"
            a_run(folder, preset=preset, seed=seed, curves={"server": line, "all": line})
    return tmp_path / "runs"


def lead_of(page: str) -> str:
    return unescape(re.sub("<[^>]+>", "", page[page.index('<p class="lead">') : page.index("</ul>")]))


def test_the_first_sentence_names_the_best_method_with_its_gain_and_cost(runs: Path) -> None:
    said = lead_of(page_of(runs))
    atoms, plain = ({seed: fmean(line(seed)) for seed in range(3)} for line in (atoms_line, plain_line))
    one = gain(atoms, plain)
    assert one is not None
    assert said.startswith("fedavg + 9 atoms is the best of 2 experiments on digits, 20 clients with 2 classes each: ")
    assert f"Gain over fedavg: {written(one).replace(' (3', ' points (3 shared')}" in said
    assert "0 is not in the 95 % interval, but on digits 10 rounds or fewer decide nothing" in said
    assert "real" not in said and "Inconclusive: 1 of 1 comparisons" in said
    assert "it takes 13 MB and 0.5 s (1 round), fedavg itself 39 MB and 1.5 s (3 rounds)" in said


def test_one_seed_is_called_inconclusive(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "one", 50.0)
    a_run(tmp_path / "runs" / "two", 53.25, "fedavg-atoms")
    said = lead_of(page_of(tmp_path / "runs"))
    assert "it may be luck, as one seed has no interval" in said and "Inconclusive: 1 of 1 comparisons" in said


def of_lengths(folder: Path, *runs: tuple[str, int, float], **more: object) -> Path:
    """Writes runs of two seeds of some presets, rounds and scores."""
    for preset, rounds, score in runs:
        for seed in range(2):
            a_run(folder / f"{preset}-{rounds}-{seed}", score * (1 + seed / 500), preset, seed, rounds, **more)  # type: ignore[arg-type]
    return folder


def test_a_gain_is_over_a_baseline_of_the_same_rounds_where_there_is_one(tmp_path: Path) -> None:
    for seed in range(3):  # as the demo's: more seeds, and so the usual baseline of its own length
        for preset, line in (("fedavg", 60.0 + seed), ("fedavg-atoms", 62.0 + 1.5 * seed)):
            a_run(tmp_path / "runs" / f"short-{preset}-{seed}", line, preset, seed, rounds=20)
    runs = of_lengths(tmp_path / "runs", ("fedavg", 30, 70.0), ("feddyn", 30, 79.0), ("feddyn", 20, 71.5))
    said = lead_of(page_of(runs))
    assert "Gain over fedavg, rounds 30: +9.01" in said and "not 30" not in said
    (place,) = all_standings(group(find([runs]).runs))
    rounds = [
        (each.group.experiment.rounds, baseline_of(each, place).group.experiment.rounds) for each in place.entries
    ]
    assert len(rounds) == 5 and all(mine == base for mine, base in rounds)


def test_there_is_no_gain_over_a_baseline_of_other_rounds(tmp_path: Path) -> None:
    page = page_of(of_lengths(tmp_path / "runs", ("fedavg", 20, 60.0), ("feddyn", 30, 79.0)))
    said = lead_of(page)
    assert "Gain over fedavg, rounds 20: none to state, as the baseline has 20 rounds, not 30." in said
    assert "; 1 of the others has a score of other rounds." in said
    assert "real" not in said and "Inconclusive: 1 of 1 comparisons" in said
    assert "A baseline of as many rounds may decide, as with fedatoms compare fedavg --rounds 30 --seeds 0,1" in said
    assert "number good" not in page and "+19.0" not in page


def test_there_is_no_gain_over_a_baseline_that_is_scored_in_other_rounds(tmp_path: Path) -> None:
    of_lengths(tmp_path / "runs" / "often", ("fedavg", 20, 60.0))
    of_lengths(tmp_path / "runs" / "late", ("feddyn", 20, 79.0), eval_every=10)
    said = lead_of(page_of(tmp_path / "runs"))
    assert "mean over the 2 scored of 20 rounds, the first ones included," in said
    assert "none to state, as the means are over other rounds (eval-every)." in said
    assert "real" not in said and "fedatoms compare fedavg --rounds 20 --eval-every 10 --seeds 0,1" in said


def test_a_score_after_the_last_pass_is_of_the_same_round_whenever_others_are_scored(tmp_path: Path) -> None:
    for name, every, score in (("base", 1, 60.0), ("mine", 10, 79.0)):
        for seed in (0, 1):
            line = {"eval_every": every, "personal": "fedper" if name == "mine" else "finetune"}
            folder = a_run(tmp_path / f"{name}-{seed}", 50.0, "fedavg", seed, 20, **line)  # type: ignore[arg-type]
            changed(folder, personal={LAST_PASS: score * (1 + seed / 500)})
    (place,) = all_standings(group(find([tmp_path]).runs))
    mine, base = place.entries
    assert versus(mine, base, place).model == LAST_PASS and over_same_rounds(mine, base)
    assert not alike_averaged(mine.group.experiment, base.group.experiment)


def test_a_baseline_has_the_settings_of_the_best_where_there_is_one(tmp_path: Path) -> None:
    for lr, best in ((0.1, 60.0), (0.3, 65.0)):
        of_lengths(tmp_path / f"{lr:g}", ("fedavg", 20, best), lr=lr)
    of_lengths(tmp_path / "best", ("feddyn", 20, 79.0), lr=0.3)
    (place,) = all_standings(group(find([tmp_path]).runs))
    assert place.base.group.experiment.lr == 0.3
    tuned, usual = place.entries[1:]  # of the usual method itself the settings are what is compared
    assert baseline_of(tuned, place) == baseline_of(usual, place)


def test_a_run_that_is_still_running_is_on_the_page_with_its_scores(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "done")
    going = a_run(tmp_path / "runs" / "going", 47.5, seed=1)
    (going / "result.json").unlink()
    (going / "experiment.json").write_text(json.dumps(to_json(replace(Experiment(), seed=1, rounds=9))))
    with locked(going):
        page = page_of(tmp_path / "runs")
    row = next(row for row in re.findall("<tr>.*?</tr>", page) if ">running<" in row)
    assert "going" in row and "47.50 %" in row and ">3</td>" in row and ">9</td>" in row
    assert "1 run still running" in page and "Left out" not in page


def test_a_folder_with_a_running_experiment_alone_makes_a_page(tmp_path: Path) -> None:
    going = a_run(tmp_path / "runs" / "going")
    (going / "result.json").unlink()
    (going / "experiment.json").write_text(json.dumps(to_json(replace(Experiment(), rounds=9))))
    assert "No run has a result yet." in page_of(tmp_path / "runs")


def test_the_paper_has_no_tables_on_a_page_of_other_runs(runs: Path) -> None:
    page = page_of(runs)
    assert "No cell of Tables 1, 2 or 3 was run." in page and "cells run" not in page


def test_gains_of_every_baseline_are_those_of_the_one_function() -> None:
    places = all_standings(group(kept().runs))
    for place, known, cells in zip(places, baselines(places), against_all(places), strict=True):
        assert known["names"][known["base"]] == place.base.name  # type: ignore[index]
        base = place.entries[known["bases"][0]]  # type: ignore[index]
        for mine, texts in list(zip(place.entries, cells[0], strict=True))[1:4]:
            found = versus(mine, base, place)
            both = mine.scores[found.model], base.scores[found.model]
            one = gain(*both, place.pooled(mine, base)) if over_same_rounds(mine, base) else None
            assert texts[0][0].replace("\u2212", "-") == ("" if one is None else written(one))


def test_clients_own_models_are_not_ranked_among_global_ones(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "global", 60.0)
    a_run(tmp_path / "runs" / "own", curves={"local": [90.0] * 3}, score="local")
    places = {place.setting: place.entries for place in all_standings(group(find([tmp_path / "runs"]).runs))}
    assert [[entry.model for entry in entries] for entries in places.values()] == [["all"], ["local"]]
    assert list(places)[1] == f"{next(iter(places))}, clients' own models"


def test_a_target_that_is_never_reached_is_called_so(tmp_path: Path) -> None:
    for name, preset, line in (("one", "fedavg", [40.0, 60.0]), ("two", "fedavg-atoms", [30.0, 45.0])):
        a_run(tmp_path / name, preset=preset, rounds=2, curves={"all": line})
    (place,) = all_standings(group(find([tmp_path]).runs))
    worse = versus(place.entries[1], place.base, place)
    assert worse.mine is not None and worse.mine.never == 1
    assert versus(place.base, place.base, place).mine == (2, 26e6, 1.0, 0, 1)


def test_a_command_runs_the_same_experiment_again() -> None:
    for one in (
        PRESETS["scaffold-atoms-cifar10-2"],
        Experiment(lr=0.3, distinct=True),
        replace(PRESETS["feddc"], beta="1/2"),
    ):
        words = command_of(one, [0]).split()
        start = to_json(PRESETS[words[2]])
        flags = dict(zip(words[3::2], words[4::2], strict=False)) if "--distinct" not in words else {"--lr": "0.3"}
        for flag, value in flags.items():
            name = flag[2:].replace("-", "_")
            start[name] = type(start[name])(value) if not isinstance(start[name], str) else value
        start["distinct"] = "--distinct" in words or start["distinct"]
        assert identity(Experiment(**start)) == identity(one)  # type: ignore[arg-type]


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", [*COLOURS, *GREYS])
def test_every_colour_has_a_contrast_of_three_on_every_ground(colour: str) -> None:
    for ground in GROUNDS:
        low, high = sorted((luminance(colour), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 3


@pytest.mark.parametrize("colour", [*plots.COLOURS, *plots.GREYS])
def test_every_colour_of_a_plot_has_a_contrast_of_three_on_white(colour: str) -> None:
    assert 1.05 / (luminance(colour) + 0.05) >= 3


def test_a_method_keeps_its_colour_whatever_stands_beside_it() -> None:
    one, other = Experiment(algorithm="feddc"), Experiment(algorithm="feddc", parametrisation="atoms")
    alone, among = line_styles([one])[0], line_styles([Experiment(), Experiment(algorithm="moon"), one, other])
    assert among[2] == alone and among[3]["colour"] == alone["colour"]
    assert (among[2]["dash"], among[3]["dash"]) == ("dash", "solid")


def test_what_is_no_method_has_no_colour_of_one() -> None:
    others = looks(["5 models", "25 models", "first order, both", "with latent clients", "fedprox"])
    assert not {each["colour"] for each in others[:4]} & {*COLOURS} and others[4]["colour"] in COLOURS
    assert len({(each["colour"], each["mark"]) for each in others[:4]}) == 4
    assert not {grey for grey, _ in TEXTURES.values()} & {*COLOURS}
    assert len({*TEXTURES.values()}) == len(TEXTURES) == len(GROUPS)  # each can be told from the others


def test_filters_and_factors_of_plain_and_decomposed_networks_have_lines_of_their_own() -> None:
    names = ["fedavg", "fedavg + 9 atoms", f"fedavg + 9 atoms{FACTORS}"]
    traces = curves([0, 1], {name: [1.0, 2.0] for name in names})
    drawn = [(*trace["line"].values(), trace["marker"]["symbol"]) for trace in traces]  # type: ignore[attr-defined,index]
    assert len(set(drawn)) == 3
    still = picture(Plot("variance", traces, axes("round", "variance")))
    lines = re.findall(r'<path d="[^"]*" fill="none" stroke="(\S+)" stroke-width="1.6"(.*?)/>', still)
    assert len(set(lines)) == 3


def test_a_personalised_method_is_never_drawn_like_an_algorithm() -> None:
    own, shared = Experiment(personal="local-atoms"), Experiment()
    assert line_styles([own])[0]["mark"] and not line_styles([shared])[0]["mark"]


def test_claims_are_grouped_by_verdict_each_with_an_address_and_a_command() -> None:
    judged = claims(kept())
    page = claim_cards(judged)
    names = [slug(claim) for claim in judged]
    assert len(set(names)) == len(names) and all(f'id="{name}"' in page for name in names)
    places = [
        page.index(f'id="verdict-{verdict}"') for verdict in ("contradicted", "partly", "inconclusive", "supported")
    ]
    assert places == sorted(places) and page.count("Run it again:") == len(judged)
    known = {name for words in AGAIN.values() for name in words.split()}
    assert known <= studies().keys()


def test_every_cell_of_the_papers_tables_has_a_command_with_the_seeds_that_were_run(tmp_path: Path) -> None:
    for seed in range(3):
        a_run(tmp_path / "runs" / str(seed), 70.0, "fedavg-cifar10-2", seed, rounds=0)
    page = page_of(tmp_path / "runs")
    words = typed("fedatoms compare fedavg-cifar10-2 --seeds 0,1,2 --out again")
    assert page.count(f">{words}</td>") == 2  # in Compare and in Table 1


def test_a_still_figure_has_its_lines_in_its_frame() -> None:
    line = {"type": "scatter", "name": "a", "x": [1, 10, 100], "y": [0.001, 0.1, 10.0], "line": {"color": "#2378c3"}}
    drawn = picture(Plot("Variance", [line], axes("round", "variance", log=True)))  # type: ignore[list-item]
    path = re.search(r'<path d="M([^"]*)" fill="none"', drawn)
    assert path is not None
    points = [tuple(map(float, point.split())) for point in path[1].split("L")]
    assert len(points) == 3 and all(0 <= x <= 620 and 0 <= y <= 280 for x, y in points)
    assert points[0][1] > points[1][1] > points[2][1] and ">1e-2</text>" in drawn


def test_packed_curves_are_those_of_the_files_to_the_digits_that_are_shown(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((50.125, 61.5)):
        a_run(tmp_path / str(seed), accuracy, seed=seed)
    (line,), rows = values(group(find([tmp_path]).runs))[0], find([tmp_path]).runs[0].rows
    band = line["models"]["all"]  # type: ignore[index, call-overload]
    assert band["x"] == [row["round"] + 1 for row in rows]
    assert [unpacked(band[name])[-1] for name in ("low", "y", "high")] == [50.12, 55.81, 61.5]
    sent = list(accumulate(total(row["up"]) + total(row["down"]) for row in rows))
    assert unpacked(line["bytes"]) == pytest.approx(sent, rel=1e-3)


def unpacked(steps: object) -> list[float]:
    """Adds up steps as the page's script does."""
    assert isinstance(steps, dict)
    return [whole / steps["per"] for whole in accumulate(steps["by"])]


def test_the_first_screen_says_how_to_run_the_best_again_and_with_which_seeds_to_decide(tmp_path: Path) -> None:
    for kind, scores in (("", (50.0, 60.0)), ("-atoms", (58.0, 54.0))):
        for seed, score in enumerate(scores):
            a_run(tmp_path / "runs" / f"run{kind}{seed}", score, f"fedavg{kind}", seed=seed)
    page = page_of(tmp_path / "runs")
    top = page[page.index('<p class="lead">') : page.index('id="compare"')]
    assert (
        f"Run it again:</b> <code>{typed('fedatoms compare fedavg-atoms --rounds 3 --seeds 0,1 --out again')}</code>"
        in top
    )
    assert "<b>Inconclusive: 1 of 1</b>" in top and "More seeds may decide" not in top
    rounds = typed("fedatoms compare fedavg fedavg-atoms --seeds 0,1,2")
    assert f"10 rounds or fewer decide nothing: more rounds may, as with <code>{rounds}</code>" in top
    assert 'claims</b> that the runs of this page can judge: <a href="#verdict-inconclusive">1 inconclusive</a>.' in top


def a_table_1(folder: Path, seeds: Mapping[str, Sequence[int]]) -> str:
    """Writes runs on CIFAR-10, better by two points from preset to preset; returns the first words of their page."""
    for n, (preset, some) in enumerate(seeds.items()):
        for seed in some:
            a_run(folder / f"{preset}-{seed}", 50.0 + 2 * n + (1 + 0.1 * n) * seed, f"{preset}-cifar10-2", seed)
    page = page_of(folder)
    return lead_of(page)


def test_where_seeds_differ_the_gain_has_the_scores_that_it_is_the_difference_of(tmp_path: Path) -> None:
    said = a_table_1(tmp_path / "runs", {"fedavg": (0, 1, 2), "fedavg-atoms": (0,)})
    assert "+2.00 points (1 shared seed), 52.00 % against 50.00 % over the seed that both have" in said
    assert "fedavg's 50.00 %" in said and "51.00 %" not in said
    same = a_table_1(tmp_path / "same", {"fedavg": (0, 1), "fedavg-atoms": (0, 1)})
    assert " against " not in same.split("Run it again")[0]


def test_a_gain_of_one_seed_is_at_most_likely_and_says_whose_spread_it_has(tmp_path: Path) -> None:
    said = a_table_1(tmp_path / "runs", {"fedavg": (0, 1, 2), "fedavg-atoms": (0, 1, 2), "feddc-atoms": (0,)})
    assert "likely real: one seed, and the spread of pairs with several seeds" in said
    assert "it is real" not in said
    several = a_table_1(tmp_path / "more", {"fedavg": (0, 1, 2), "fedavg-atoms": (0, 1, 2)})
    assert "it is real, as the whole 95 % interval is on its side" in several


def test_two_seeds_whose_interval_has_0_in_it_say_why_it_is_so_wide(tmp_path: Path) -> None:
    for seed, (plain, atoms) in enumerate(((50.0, 52.0), (50.0, 53.0))):
        a_run(tmp_path / "runs" / f"plain{seed}", plain, "fedavg-cifar10-2", seed)
        a_run(tmp_path / "runs" / f"atoms{seed}", atoms, "fedavg-atoms-cifar10-2", seed)
    assert "Student's t with one degree of freedom" in lead_of(page_of(tmp_path / "runs"))


def test_the_gain_of_another_algorithm_with_atoms_says_what_atoms_alone_add(tmp_path: Path) -> None:
    said = a_table_1(tmp_path / "runs", {"fedavg": (0, 1), "feddc": (0, 1), "feddc-atoms": (0, 1)})
    assert re.search(r"Gain over fedavg: \+4\.\d\d .*? Of which atoms alone: \+2\.\d\d ± .*? over feddc\.", said)
    alone = a_table_1(tmp_path / "alone", {"fedavg": (0, 1), "feddc-atoms": (0, 1)})
    assert "What atoms alone add to it is open" in alone
    atoms = a_table_1(tmp_path / "atoms", {"fedavg": (0, 1), "fedavg-atoms": (0, 1)})
    assert "alone" not in atoms.split("Cost:")[0]


def test_open_comparisons_of_long_runs_have_a_whole_command_with_more_seeds(tmp_path: Path) -> None:
    for preset, score in (("fedavg", 50.0), ("feddc-atoms", 53.0)):
        a_run(tmp_path / "runs" / preset, score, f"{preset}-cifar10-2", rounds=0)
    command = "fedatoms compare fedavg-cifar10-2 feddc-atoms-cifar10-2 --seeds 0,1,2"
    assert f"More seeds may decide, as with {command}." in lead_of(page_of(tmp_path / "runs"))


def test_the_first_screen_names_the_claims_of_the_paper_that_fail() -> None:
    said, failed = overview(claims(kept())), [each for each in claims(kept()) if each.verdict == "contradicted"]
    assert failed and all(f'<a href="#{slug(each)}">' in said for each in failed[:NAMED])
    assert (
        "smallest" not in said
        and "largest" not in said
        and len(re.findall("at worst|at least", said)) == len(failed[:NAMED])
    )
    assert said.endswith(f"{len(failed) - NAMED} more</a>.") == (len(failed) > NAMED)
