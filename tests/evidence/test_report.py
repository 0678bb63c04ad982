"""The report: every number on the page is a file's or the paper's, and what is damaged is named."""

import csv
import gzip
import json
import re
from html import escape, unescape
from pathlib import Path

import pytest
from support import ROOT
from support.results import VALUES, a_measure, a_run, a_stand_in, an_explanation, kept, page_of

from fedatoms.cli import main
from fedatoms.evidence.measures.files import FILE, Measure, write_measure
from fedatoms.evidence.page import assemble
from fedatoms.evidence.page.assemble import PLOTLY, Report, report
from fedatoms.evidence.page.figures import curves, sent, splits
from fedatoms.evidence.page.html_table import minus
from fedatoms.evidence.paper.tables import pairs
from fedatoms.evidence.results.finding import PUBLISHED, find
from fedatoms.evidence.results.groups import group
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import to_json
from fedatoms.runs.results import read_result

NAME = "<script>document.title='broken'</script>"


def change(folder: Path, old: str, new: str) -> None:
    text = (folder / "result.json").read_text()
    assert old in text
    (folder / "result.json").write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def of_the_repository(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Writes the page of paper-results once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "find", lambda folders: kept())
        return report([Path("paper-results")], tmp_path_factory.mktemp("page") / "report.html")


def test_a_number_that_changes_in_a_file_changes_on_the_page(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs" / "one", accuracy=51.25)
    before = page_of(tmp_path / "runs")
    for old, new, shown in (
        ("51.25", "61.75", "61.75"),
        ("30000000", "87600000", "87.6"),
        ("abc123", "def456", "def456"),
    ):
        assert shown not in before
        change(run, old, new)
        assert shown in page_of(tmp_path / "runs")


def test_a_gain_beside_the_papers_comes_from_the_files(tmp_path: Path) -> None:
    for kind, accuracy in (("", 70.0), ("-atoms", 71.5)):
        a_run(tmp_path / "runs" / f"x{kind}", accuracy, f"fedavg{kind}-cifar10-2", rounds=0)
    pair = next(pair for pair in pairs("cifar10") if (pair.plain.row, pair.plain.column.classes) == ("FedAvg", 2))
    page = page_of(tmp_path / "runs")
    row = next(row for row in re.findall("<tr>.*?</tr>", page) if "FedAvg + Decomposition" in row and "71.50" in row)
    cells = [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
    assert cells[2:8] == [
        pair.atoms.printed,
        "71.50",
        f"{71.5 - pair.atoms.value:+.2f}".replace("-", "\u2212"),
        "1",
        f"{pair.gain:+.2f}",
        "+1.50 (1 seed)",
    ]
    assert "rounds, in %. Gain: with decomposition minus without. Ours: 9 atoms; the paper: 9</span>" in page
    assert "1 of its 30 pairs" in page and page.count(">not run<") > 50


def test_quick_stand_ins_are_called_so_wherever_they_are_shown(tmp_path: Path) -> None:
    a_stand_in(tmp_path / "runs" / "quickly", "fedavg-cifar10-2")
    a_run(tmp_path / "runs" / "slowly")
    page = page_of(tmp_path / "runs")
    rows = re.findall("<tr[^>]*>.*?</tr>", page)
    for table in range(3):  # compare, bytes, provenance
        assert "quick run" in [row for row in rows if "quickly" in row][table]
        assert "quick run" not in [row for row in rows if "slowly" in row][table]
    assert "2 finished runs of 2 experiments; 1 quick run<" in page
    with (tmp_path / "report.csv").open() as file:
        lines = {Path(line["folder"]).name: line["quick"] for line in csv.DictReader(file)}
    assert lines == {"quickly": "yes", "slowly": ""}


def test_quick_stand_ins_are_a_setting_of_their_own(tmp_path: Path) -> None:
    a_stand_in(tmp_path / "quickly", "fedavg-cifar10-2")
    a_stand_in(tmp_path / "another", "fedavg-cifar10-5")
    a_run(tmp_path / "slowly")
    found = find([tmp_path])
    two, five = (f"digits, 20 clients with {classes} classes each" for classes in (2, 5))
    for figure in (curves, sent):
        settings = [each["setting"] for each in figure(group(found.runs))]
        assert settings == [two, f"{two}, quick run", f"{five}, quick run"]
    shared, alone = splits(found.runs, None)[0]
    assert shared["name"] == f"{two}, seed 0" and alone["name"] == f"{five}, seed 0, quick run"


def test_the_score_of_a_short_run_says_that_its_first_rounds_count_and_how_it_ends(tmp_path: Path) -> None:
    for seed in (0, 1):
        a_run(tmp_path / "runs" / f"short{seed}", seed=seed, curves={"all": [20.0, 40.0 + 2 * seed, 90.0]})
        a_run(tmp_path / "runs" / f"long{seed}", 60.0, seed=seed, rounds=120, partition="iid")
    page = page_of(tmp_path / "runs")
    assert (
        "a shorter run has the mean over all its scored rounds, the first ones included, and beside it the score at"
        in page
    )
    said = re.sub("<[^>]+>", "", page)
    assert (
        "50.33 % (the mean of all clients' last models, mean over all 3 rounds, the first ones included,"
        in unescape(said)
    )
    assert "and 2 seeds; 90.00 % after the last round)" in said and said.count("(end 90.00)") == 2  # best, versus
    assert "60.00 ± 0.00<" in page and "(end 60.00)" not in said


def test_seeds_are_one_experiment_with_a_deviation(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((50.0, 52.0)):
        a_run(tmp_path / "runs" / str(seed), accuracy, seed=seed)
    page = page_of(tmp_path / "runs")
    assert "2 finished runs of 1 experiment<" in page and "51.00 ± 1.41" in page


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", '{"accuracy": {"all": {"score": 1}}}', '"text"', "\x00", "[" * 100_000],
    ids=["cut", "list", "empty", "foreign", "text", "binary", "deep"],
)
def test_a_damaged_or_foreign_file_is_named_and_the_others_stay(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path / "runs" / "good")
    bad = a_run(tmp_path / "runs" / "bad", accuracy=99.5, seed=1) / "result.json"
    bad.write_text(content)
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert str(bad) in page and "Left out" in page and "99.5" not in page
    assert str(bad) in capsys.readouterr().err


@pytest.mark.parametrize(
    "old, new",
    [("50.0", "NaN"), ("50.0", "500"), ("50.0", '"50"'), ('"fedavg"', "7"), ("123", "-1"), ('"digits"', '"mnistx"')],
)
def test_values_that_no_run_has_are_damage(old: str, new: str, tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "good", seed=1)
    change(a_run(tmp_path / "runs" / "bad"), old, new)
    found = report([tmp_path / "runs"], tmp_path / "report.html").found
    assert [run.result.folder.name for run in found.runs] == ["good"]
    assert [note.path.parent.name for note in found.left_out] == ["bad"]


def test_a_run_is_counted_once_and_its_copy_is_named(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "one", 50.0)
    a_run(tmp_path / "runs" / "two", 60.0)
    found = report([tmp_path / "runs", tmp_path / "runs" / "one"], tmp_path / "report.html").found
    assert len(found.runs) == 1 and "same experiment and seed" in found.left_out[0].reason


def test_runs_stand_in_the_order_of_the_numbers_in_their_names(tmp_path: Path) -> None:
    for seed in (2, 10, 9):
        a_run(tmp_path / f"clients-{seed}", seed=seed)
    assert [run.result.folder.name for run in find([tmp_path]).runs] == ["clients-2", "clients-9", "clients-10"]


def test_runs_that_score_other_models_are_not_merged(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "one")
    change(a_run(tmp_path / "runs" / "two", seed=1), '"all"', '"selected"')
    found = report([tmp_path / "runs"], tmp_path / "report.html").found
    assert len(found.runs) == 1 and "scores other models" in found.left_out[0].reason


def test_pairs_that_differ_in_the_atoms_alone_say_whether_they_help(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "one", 50.0)
    a_run(tmp_path / "runs" / "two", 53.25, "fedavg-atoms")
    card = next(card for card in page_of(tmp_path / "runs").split("<article")[1:] if "our other runs" in card)
    assert "+3.25 points" in card and ">inconclusive<" in card and "+3.25 points (1 seed)" not in card


def test_rounds_that_contradict_their_result_and_unfinished_runs_are_named(tmp_path: Path) -> None:
    change(a_run(tmp_path / "runs" / "one", 50.0), "50.0", "60.0")
    (a_run(tmp_path / "runs" / "two", seed=1) / "rounds.jsonl").write_text("nothing")
    for name, seed, old, new in (("four", 2, "50.0", "NaN"), ("five", 3, '"scores"', '"points"')):
        path = a_run(tmp_path / "runs" / name, seed=seed) / "rounds.jsonl"
        path.write_text(path.read_text().replace(old, new))
    (tmp_path / "runs" / "three").mkdir()
    (tmp_path / "runs" / "three" / "experiment.json").write_text(json.dumps(to_json(Experiment())))
    (tmp_path / "runs" / "zero").mkdir()
    (tmp_path / "runs" / "zero" / "experiment.json").write_text("{}")
    found = report([tmp_path / "runs"], tmp_path / "report.html").found
    assert {note.path.parent.name for note in found.notes} == {"one", "two", "four", "five"}
    three, zero = found.left_out
    assert three.reason.startswith("stopped after 0 of 40 rounds") and "--resume" in three.reason
    assert zero.reason.startswith("damaged: not a whole experiment file: it lacks the fields")


@pytest.mark.slow
def test_the_csv_has_all_results_but_those_that_were_repeated(
    of_the_repository: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with of_the_repository.csv.open() as file:
        lines = {line["folder"]: line for line in csv.DictReader(file)}
    repeated = {note.path for note in kept().left_out if "the same experiment and seed" in note.reason}
    files = Path("paper-results").rglob("result.json")
    results = [read_result(path.parent) for path in files if path not in repeated]
    assert len(lines) == len(results) and {path.parts[-3] for path in repeated} == {"search"}  # by search-start
    for result in results:
        line = lines[result.folder.as_posix()]
        for model, summary in result.accuracy.items():
            assert [float(line[f"{model} {name}"]) for name in ("headline", "final", "best")] == list(summary)
        assert {group: int(line[f"bytes up: {group}"]) for group in result.bytes_up} == result.bytes_up
        assert line["provenance: commit"] == (result.provenance["commit"] or "")


def test_text_of_files_is_escaped(tmp_path: Path) -> None:
    page = page_of(a_run(tmp_path / "runs" / NAME.replace("/", "|")).parent)
    assert NAME.split("/")[0] not in page and "&lt;script&gt;document.title" in page
    change(tmp_path / "runs" / NAME.replace("/", "|"), "abc123", "</script><script>x")
    assert "</script><script>x" not in page_of(tmp_path / "runs")


@pytest.mark.parametrize(
    "words, said",
    [
        (["missing"], "missing is not a folder"),
        (["."], "no finished run below ."),
        ([".", "-o", "page.pdf"], "does not end in .html"),
        ([".", "--data-dir", "nowhere"], "--data-dir nowhere is not a folder"),
        ([".", "--colour"], "unknown option --colour"),
        (["-o", "page.html"], "a folder with runs is missing"),
    ],
)
def test_bad_input_costs_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *words]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_library_that_draws_is_in_the_package_with_its_licence() -> None:
    folder, kept = ROOT / "fedatoms" / "evidence" / "page", (ROOT / "pyproject.toml").read_text()
    start = gzip.decompress((folder / PLOTLY).read_bytes())[:200].decode()
    assert "plotly.js (cartesian - minified) v4.1.1" in start and "MIT license" in start
    assert "Plotly" in (folder / "plotly-cartesian.LICENSE").read_text()
    assert f'"{PLOTLY}"' in kept and '"plotly-cartesian.LICENSE"' in kept


@pytest.mark.parametrize(
    "name, said",
    [
        (
            "variance",
            "repeats of a round, after 5 rounds: fedavg 0.25, fedavg + 9 atoms 0.125. The filters of fedavg + 9 atoms "
            "vary 0.50 times as much as the filters of fedavg; divided by their squared norm 0.50 times, by their "
            "squared move 0.50 times. The factors of fedavg + 9 atoms vary 3.00 times as much as",
        ),
        ("synthetic", "after round 2: 5 models 0.75, latent 0.5, the same without latent clients 0.625"),
        (
            "training_loss",
            "after round 1: fedavg 1.5, fedavg + 9 atoms 1.25; fedavg + 9 atoms is lower from round 1",
        ),
        (
            "landscape",
            "after round 1: fedavg 2, fedavg + 9 atoms 1.5, from 2.5 at the common start (over 1,234 images)",
        ),
    ],
)
def test_a_measure_alone_makes_a_page_with_its_numbers(name: str, said: str, tmp_path: Path) -> None:
    a_measure(tmp_path / "runs" / name, name)
    page = page_of(tmp_path / "runs")
    assert said in page and "other settings than" in page
    assert "Measured 2026-01-02 03:04 on a machine, commit abc123" in page


def test_of_the_projects_lines_those_of_the_papers_tables_come_first_and_are_shown_alone(tmp_path: Path) -> None:
    for n, rate in enumerate((1.0, 3.0)):
        a_run(tmp_path / PUBLISHED / f"{n}", 60.0 - n, "fedavg-atoms-cifar10-5", rounds=0, atoms_lr=rate)
        a_run(tmp_path / PUBLISHED / f"digits-{n}", atoms_lr=rate, lr=rate)
    shown = {
        each["setting"]: [line["shown"] for line in each["lines"]] for each in curves(group(find([tmp_path]).runs))
    }  # type: ignore[attr-defined]
    assert sorted(shown.values()) == [[True, False], [True, True]]


def test_the_best_is_among_the_lines_that_are_shown_and_the_first_of_the_bars(tmp_path: Path) -> None:
    for n, rate in enumerate((1.0, 3.0, 2.0)):
        a_run(tmp_path / PUBLISHED / f"{n}", 60.0 + n, "fedavg-atoms-cifar10-5", rounds=0, atoms_lr=rate)
    groups = group(find([tmp_path]).runs)
    (lines,), (bars,) = ([each[kind] for each in made(groups)] for kind, made in (("lines", curves), ("runs", sent)))
    best = "fedavg + 9 atoms, atoms-lr 2"
    assert {line["label"]: line["shown"] for line in lines}[best]
    assert sum(line["shown"] for line in lines) == 2 and bars[0]["label"] == best


def test_no_two_lines_of_a_setting_look_alike() -> None:
    for each in curves(group(kept().runs)):
        lines: list[dict[str, str]] = each["lines"]  # type: ignore[assignment]
        styles = [(line["colour"], line["dash"], line["mark"]) for line in lines]
        assert len(set(styles)) == len(styles) == len({line["label"] for line in lines}), each["setting"]


def test_experiments_that_differ_in_the_seed_alone_have_a_line_each(tmp_path: Path) -> None:
    twins = (Experiment(), Experiment(seed=1))
    write_measure(tmp_path / "runs", Measure("variance", twins, {"repeats": 7}, VALUES["variance"], {}))
    assert "1. fedavg 0.25, 2. fedavg 0.125" in page_of(tmp_path / "runs")


def test_a_quick_measure_is_called_quick(tmp_path: Path) -> None:
    a_measure(tmp_path / "runs" / "one", rounds=[0, 1, 3], repeats=3)
    assert "quick, smaller than the paper" in page_of(tmp_path / "runs")


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("variance", "fedatoms measure 1", "fedatoms measure 9"),
        ("variance", '"variance"', '"temperature"'),
        ("variance", "0.125", '"0.125"'),
        ("variance", '"by_move"', '"by_foot"'),
        ("variance", "0.125", "1, 2"),
        ("synthetic", "0.75", "1, 2"),
        ("training_loss", "1.25", "[1]"),
        ("landscape", "2.25", "2.25, 3"),
        ("landscape", "1234", "true"),
        ("landscape", "{", ""),
    ],
)
def test_a_damaged_measure_is_named_and_the_others_stay(
    name: str, old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_measure(tmp_path / "runs" / "good", "training_loss", rounds=2)
    bad = a_measure(tmp_path / "runs" / "bad", name) / FILE
    assert old in bad.read_text()
    bad.write_text(bad.read_text().replace(old, new))
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert page.count('class="measure"') == 1 and "Left out" in page and str(bad) in page
    assert str(bad) in capsys.readouterr().err


@pytest.mark.parametrize("crossed, fork", [(3, 2), (0, 0)], ids=["all", "least"])
def test_an_explanation_alone_makes_a_page_with_its_sentences(crossed: int, fork: int, tmp_path: Path) -> None:
    file = an_explanation(tmp_path / "runs" / "it", crossed, fork, name="<mine>")
    page = page_of(tmp_path / "runs")
    said = json.loads(file.read_text())["found"]
    assert len(said) == (6 if crossed else 5) and all(f"<p>{escape(minus(sentence))}</p>" in page for sentence in said)
    assert "&lt;mine&gt;, rounds 18 to 19 replayed" in page and '<a href="#why">' in page
    assert f"Measured 2026-01-02 03:04 on a machine, commit abc123, in {(tmp_path / 'runs' / 'it').as_posix()}" in page
    assert all(("why-0-fork" in page, "60.00" in page, "why-0-latent" in page)) == bool(fork)


def test_a_number_that_changes_in_an_explanation_changes_on_the_page(tmp_path: Path) -> None:
    file = an_explanation(tmp_path / "runs" / "it")
    before = page_of(tmp_path / "runs")
    for old, new, shown in (
        ("58.75", "57.5", "(+2.75 points; one of the 400 images"),  # a sentence
        ("60.25", "59.5", ">59.50</td>"),  # the table of rounds
        ("3.75", "9.875", ">9.8750</td>"),  # the table of latent clients' losses
        ("50.0", "47.25", ">47.25</td>"),  # and of their accuracies
        ("3.5,", "7.125,", "[7.125,"),  # their figure
        ("0.0625", "0.03125", "[0.03125,0.03125]"),  # the figure of variances
        ("64.0", "63.5", ">63.50</td>"),  # the table of the fork
    ):
        text = file.read_text()
        assert old in text and shown not in before
        file.write_text(text.replace(old, new))
        assert shown in page_of(tmp_path / "runs")


@pytest.mark.parametrize(
    "old, new, reason",
    [
        ("{", "", "damaged"),
        ("{", '{"a": {', "damaged"),
        ('"rounds": [', '"circles": [', "object missing required field rounds"),
        ("60.25", "null", "rounds[0].aggregates.on.accuracy: expected float, got null"),
        ("60.25", "NaN", "NaN"),
        ("60.25", "1e999", "holds 1e999, which is not a number of JSON"),
        ("60.25", "true", "aggregates.on.accuracy: expected float, got bool"),
        ("60.25", "600.25", "not numbers from 0 to 100"),
        ("64.0", "-64.0", "not numbers from 0 to 100"),
        ('"images": 400', '"images": 0', "no images"),
        ('"round": 18', '"round": 16', "follow its checkpoint"),
        ("55.5,", "55.5, 1,", "its plain run has another number of rounds"),
        ("61.0,", "", "its fork has another number of rounds"),
        ('"coefficients": 10', '"coefficients": 40', "not all products of its real ones"),
        ('"fedavg"', "7", "algorithm"),
        ('"seed": 0', '"speed": 0', "speed"),
    ],
)
def test_a_damaged_explanation_is_named_and_the_others_stay(
    old: str, new: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    an_explanation(tmp_path / "runs" / "good", name="whole")
    bad = an_explanation(tmp_path / "runs" / "bad", name="broken")
    assert old in bad.read_text()
    bad.write_text(bad.read_text().replace(old, new))
    found = report([tmp_path / "runs"], tmp_path / "report.html").found
    assert [each.explanation.run for each in found.explanations] == ["whole"]
    assert [note.path for note in found.left_out] == [bad] and reason in found.left_out[0].reason
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "report.html")]) == 0
    assert str(bad) in capsys.readouterr().err and "broken, rounds" not in (tmp_path / "report.html").read_text()


def test_a_fork_without_rounds_is_damage_before_it_is_drawn(tmp_path: Path) -> None:
    file = an_explanation(tmp_path / "runs" / "bad")
    fields = json.loads(file.read_text())
    fields["settings"]["fork"] = 0
    fields["fork"] |= {name: [] for name, line in fields["fork"].items() if isinstance(line, list)}
    file.write_text(json.dumps(fields))
    found = find([tmp_path])
    assert not found.explanations and "its fork has no rounds" in found.left_out[0].reason


def test_without_an_explanation_the_page_says_what_to_type(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "one")
    assert "<code>fedatoms explain RUN</code> writes one" in page_of(tmp_path / "runs")


@pytest.mark.slow
def test_the_page_of_the_repository_shows_its_results(of_the_repository: Report) -> None:
    shown, now = (page.read_text() for page in (ROOT / "docs" / "report.html", of_the_repository.page))
    cells, links = r"<td.*?</td>", r'<a href="[^"]*">|</a>'  # links are counted from where a page lies
    shown, now = (re.sub(links, "", page) for page in (shown, now))
    assert re.findall(cells, shown) == re.findall(cells, now), "run `fedatoms report paper-results -o docs/report.html`"
    assert len(of_the_repository.found.runs) == len((ROOT / "docs" / "report.csv").read_text().splitlines()) - 1
