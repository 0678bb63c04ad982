"""The reader's own runs come first where a page has the project's too, and what they cost is said."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from support.results import a_private_run, a_run, page_of, the_claim

from fedatoms.cli import main
from fedatoms.evidence.claims import claims
from fedatoms.evidence.page.figures import curves
from fedatoms.evidence.page.html_table import POOLED
from fedatoms.evidence.page.verdict_cards import claim_cards
from fedatoms.evidence.results.finding import PUBLISHED, find
from fedatoms.evidence.results.groups import group
from fedatoms.evidence.results.pairs import known_spreads, spreads_by_owner
from fedatoms.evidence.results.standings import all_standings, of_the_project, of_the_reader
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import to_json


def a_pair(folder: Path, column: str = "", seeds: int = 2, lead: float = 4.0, **more: object) -> None:
    """Writes runs with plain filters and with atoms, which are ahead."""
    for seed in range(seeds):
        for kind, score in (("", 50.0 + seed), ("-atoms", 50.0 + lead + 1.25 * seed)):
            a_run(folder / f"fedavg{kind}{column}-{seed}", score, f"fedavg{kind}{column}", seed=seed, **more)


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """Own runs on digits, and more runs of the project on CIFAR-10."""
    a_pair(tmp_path / "runs")
    a_pair(tmp_path / PUBLISHED, "-cifar10-5", seeds=3)
    return tmp_path / "runs", tmp_path / PUBLISHED


def answer_of(page: str) -> str:
    return page[page.index('id="answer"') : page.index('id="compare"')]


def tables_of(page: str) -> str:
    return page[page.index('id="answer"') : page.index('id="curves"')]


def words_of(html: str) -> str:
    return unescape(re.sub("<[^>]+>", "", html))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_first_sentences_are_about_the_readers_own_runs(both: tuple[Path, Path], order: tuple[int, int]) -> None:
    top = answer_of(page_of(*(both[n] for n in order)))
    said = words_of(top[: top.index("</ul>")])
    assert "What your runs say" in said
    assert "fedavg + 9 atoms is the best of 2 experiments on digits, 20 clients with 2 classes each: 54.62 %" in said
    assert "Gain over fedavg: +4.12" in said and "Inconclusive: 0" not in said
    assert "a run of 3 rounds takes 99 MB both ways and 1.5 s on a machine (fedavg: 99 MB and 1.5 s)" in said
    assert "fedatoms compare fedavg-atoms --rounds 3 --seeds 0,1 --out again" in said and "cifar" not in said
    assert f"Best in the one setting of {PUBLISHED}" in words_of(top)


def test_a_page_of_the_projects_runs_alone_speaks_of_these_runs(both: tuple[Path, Path]) -> None:
    top = answer_of(page_of(both[1]))
    assert "What these runs say" in top and "cifar10" in top and "best-published" not in top


def test_if_the_best_may_be_luck_the_best_clear_gain_is_named(tmp_path: Path) -> None:
    for preset, scores in {"fedavg": (50.0, 51.0), "fedprox": (53.0, 54.02), "scaffold": (50.0, 59.0)}.items():
        for seed, score in enumerate(scores):
            a_run(tmp_path / "runs" / f"{preset}{seed}", score, preset, seed=seed, rounds=20)
            a_run(tmp_path / "short" / f"{preset}{seed}", score, preset, seed=seed)
    assert "clear gain is" not in words_of(answer_of(page_of(tmp_path / "short")))
    said = words_of(answer_of(page_of(tmp_path / "runs")))
    assert "scaffold is the best of 3" in said and "it may be luck, as 0 is in the 95 % interval;" in said
    assert "The best with a clear gain is fedprox: +3.01 ± 0.13 points (2 shared seeds)." in said


def test_a_stopped_run_is_not_counted_and_said_to_be_stopped(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "done")
    stopped = a_run(tmp_path / "runs" / "stopped", seed=1)
    (stopped / "experiment.json").write_text(json.dumps(to_json(replace(Experiment(), seed=1, rounds=9))))
    (stopped / "result.json").unlink()
    page = page_of(tmp_path / "runs")
    assert "Not counted: 1 run stopped (see Your runs)." in words_of(answer_of(page))
    assert page.index('id="unfinished"') < page.index("1 finished run of 1 experiment")


def test_settings_of_the_reader_are_first_and_keep_their_order(both: tuple[Path, Path]) -> None:
    a_pair(both[0] / "iid", seeds=1, partition="iid")
    places = all_standings(group(find([*both]).runs))
    assert [each.setting for each in places] == [
        "digits, 20 clients with 2 classes each",
        "digits, 20 clients, iid",
        "cifar10, 100 clients with 5 classes each",
    ]
    assert of_the_reader(places) == places[:2] and of_the_project(places) == places[2:]


def test_a_single_own_experiment_is_compared_with_the_projects_baseline(tmp_path: Path) -> None:
    a_pair(tmp_path / PUBLISHED, "-cifar10-5")
    for seed in range(2):
        a_run(tmp_path / "runs" / str(seed), 53.0 + seed, "fedavg-cifar10-5", seed=seed, lr=0.3)
    said = words_of(answer_of(page_of(tmp_path / "runs", tmp_path / PUBLISHED)))
    assert "fedavg, lr 0.3 has 53.50 %" in said
    assert f"Gain over fedavg of {PUBLISHED}: +3.00 points (2 shared seeds)" in said
    assert "it may be luck, as a difference that is equal on all seeds has no interval" in said


def test_the_best_of_each_setting_has_its_cost_and_a_command(tmp_path: Path) -> None:
    a_pair(tmp_path / "runs")
    a_pair(tmp_path / "runs" / "iid", partition="iid", lead=-2.0)
    top = answer_of(page_of(tmp_path / "runs"))
    digits, iid = [
        [words_of(cell) for cell in re.findall("<td.*?</td>", row)]
        for row in re.findall("<tr>(.*?)</tr>", top[top.index("<tbody>") :])
    ]
    assert digits[:3] == ["digits, 20 clients with 2 classes each", "fedavg + 9 atoms", "54.62 (end 54.62)"]
    assert digits[3].startswith("+4.12 ± ") and digits[3].endswith(" (2 seeds) over fedavg")
    assert digits[4:] == [
        "13 MB (13 MB)",
        "0.5 s (0.5 s)",
        "fedatoms compare fedavg-atoms --rounds 3 --seeds 0,1 --out again",
    ]
    assert iid[1] == "fedavg" and iid[3] == "it is the baseline" and iid[4:6] == ["13 MB", "0.5 s"]


def test_a_score_that_no_round_has_costs_the_whole_run(tmp_path: Path) -> None:
    for seed in range(2):
        a_run(tmp_path / "runs" / f"plain{seed}", 50.0, seed=seed)
        a_private_run(tmp_path / "runs" / f"private{seed}", seed=seed)
        (tmp_path / "runs" / f"plain{seed}" / "rounds.jsonl").unlink()
    top = words_of(answer_of(page_of(tmp_path / "runs")))
    assert "99 MB, whole run1.5 s, whole run" in top and "withheld" in top


def test_pooled_is_explained_where_it_stands_and_only_there(tmp_path: Path) -> None:
    a_pair(tmp_path / "runs", rounds=30)
    assert POOLED not in tables_of(page_of(tmp_path / "runs"))
    for kind, score in (("", 50.0), ("-atoms", 52.0)):
        a_run(tmp_path / "runs" / f"iid{kind}", score, f"fedavg{kind}", rounds=30, partition="iid")
    assert (
        tables_of(page_of(tmp_path / "runs")).count(f"{POOLED}. two seeds") == 6
    )  # best, versus, pairs: each in its label, too


def test_own_lines_are_shown_at_first_and_come_before_the_projects(tmp_path: Path) -> None:
    a_pair(tmp_path / PUBLISHED, "-cifar10-5", rounds=0)
    a_run(tmp_path / PUBLISHED / "other", preset="fedavg-cifar10-5", lr=0.7)
    a_run(tmp_path / "runs" / "mine", preset="fedavg-cifar10-5", lr=0.3)
    (setting,) = curves(group(find([tmp_path]).runs))
    lines = setting["lines"]
    assert isinstance(lines, list)
    assert [each["shown"] for each in lines] == [True, True, True, False]
    assert "lr 0.3" in lines[0]["label"] and "lr 0.7" in lines[-1]["label"]


def test_our_other_runs_are_run_again_by_their_own_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_pair(tmp_path / "runs", rounds=30)
    card = claim_cards([the_claim(tmp_path / "runs", "our other runs")])
    command = words_of(re.findall("<code>(.*?)</code>", card)[0])
    assert 'href="#pairs"' in card and "reproduce" not in card and 'id="pairs"' in page_of(tmp_path / "runs")
    words = command.split()[1:]
    assert main([*words, "--rounds", "1", "--clients", "5", "--fraction", "0.2", "--out", str(tmp_path / "new")]) == 0
    capsys.readouterr()
    assert len({run.result.experiment.parametrisation for run in find([tmp_path / "new"]).runs}) == 2


def test_noisy_runs_of_the_reader_do_not_blur_the_projects_claims(tmp_path: Path) -> None:
    a_pair(tmp_path / PUBLISHED, "-cifar10-5", rounds=0)
    a_pair(tmp_path / PUBLISHED / "iid", "-cifar10-5", rounds=0, partition="iid")
    for kind, score in (("", 50.0), ("-atoms", 52.0)):
        a_run(tmp_path / PUBLISHED / f"one{kind}", score, f"fedavg{kind}-cifar10-2", rounds=0)
    alone = find([tmp_path / PUBLISHED])
    for seed, lead in enumerate((-20.0, 30.0)):
        a_run(tmp_path / "runs" / f"plain{seed}", 50.0, rounds=30, seed=seed)
        a_run(tmp_path / "runs" / f"atoms{seed}", 50.0 + lead, "fedavg-atoms", rounds=30, seed=seed)
    both = find([tmp_path])
    assert len(both.runs) == len(alone.runs) + 4 and claims(both) == claims(alone)
    places = [all_standings(group(found.runs)) for found in (alone, both)]
    ours, theirs = ({each.published for each in some if each.published} for some in places)
    assert ours == theirs and len(ours) == 1 and places[1][0].own not in (None, *ours)


def test_own_runs_on_the_projects_data_set_neither_borrow_its_spread_nor_lend_theirs(tmp_path: Path) -> None:
    a_pair(tmp_path / PUBLISHED, "-cifar10-5", rounds=0)
    a_pair(tmp_path / PUBLISHED / "one", "-cifar10-2", seeds=1, rounds=0)
    alone = find([tmp_path / PUBLISHED])
    for seed, lead in enumerate((-20.0, 30.0)):
        a_run(tmp_path / "runs" / f"plain{seed}", 50.0, "fedavg-cifar10-5", rounds=0, seed=seed, lr=0.3)
        a_run(tmp_path / "runs" / f"atoms{seed}", 50.0 + lead, "fedavg-atoms-cifar10-5", rounds=0, seed=seed, lr=0.3)
    both = find([tmp_path])
    assert len(both.runs) == len(alone.runs) + 4 and claims(both) == claims(alone)
    mine, ours = (all_standings(group(found.runs)) for found in (both, alone))
    assert mine[0].own is not None and mine[0].published == mine[1].published == ours[0].published != mine[0].own
    yours, theirs = mine[0].entries[0], next(each for each in mine[0].entries if each.group.published)
    assert mine[0].pooled(yours, theirs) == mine[0].own and mine[0].pooled(theirs, theirs) == ours[0].published


def test_a_page_without_a_failing_claim_says_so(tmp_path: Path) -> None:
    a_pair(tmp_path / "runs", rounds=30)
    said = words_of(answer_of(page_of(tmp_path / "runs")))
    assert (
        "None is contradicted." in said and "need runs that are not here, such as those of fedatoms reproduce" in said
    )


def test_another_seed_of_the_projects_own_experiment_leaves_its_spread_alone(tmp_path: Path) -> None:
    a_pair(tmp_path / PUBLISHED, "-cifar10-5", rounds=0)
    alone = known_spreads(group(find([tmp_path]).runs))
    a_run(tmp_path / "runs" / "plain", 50.0, "fedavg-cifar10-5", rounds=0, seed=7)
    a_run(tmp_path / "runs" / "atoms", 10.0, "fedavg-atoms-cifar10-5", rounds=0, seed=7)
    both = group(find([tmp_path]).runs)
    assert alone.shared is not None and known_spreads(both) == alone
    assert spreads_by_owner(both) == (known_spreads([]), alone)
