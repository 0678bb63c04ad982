"""The pages quote what the files of paper-results and of the contests hold."""

import json
import re
import runpy
import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from support import ROOT
from support.results import SOURCE, VALUES, kept

from fedatoms.bench.line_up import EXPERT_PLAIN, JAX, OURS, PLAIN
from fedatoms.bench.report import content
from fedatoms.bench.results import Row, find_row, read
from fedatoms.bench.standings import factor
from fedatoms.core.gains import Gain, Pooled, beyond, short
from fedatoms.evidence.claims import claims
from fedatoms.evidence.claims.base import CLEAR, Evidence, judge
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import as_json
from fedatoms.evidence.measures.files import Measure, write_measure
from fedatoms.evidence.paper.readings import reading
from fedatoms.evidence.paper.tables import Cell, Pair, pairs
from fedatoms.evidence.paper.tables import cells as paper_cells
from fedatoms.evidence.results import finding
from fedatoms.evidence.results.cells import Ours, common_runs, gain_of, lead_of, match, ours_of
from fedatoms.evidence.results.finding import find
from fedatoms.evidence.results.groups import Group, group
from fedatoms.evidence.results.pairs import known_spreads, mean_of_pairs
from fedatoms.experiment.identities import identity
from fedatoms.experiment.presets import ALGORITHMS as TABLE1_ALGORITHMS
from fedatoms.experiment.presets import PRESETS, TABLE2_ROWS
from fedatoms.runs.results import Result, read_result
from fedatoms.runs.rounds import read_rounds

RUNS = ROOT / "paper-results"
CIFAR_PAIRS = [pair for name in ("cifar10", "cifar100") for pair in pairs(name)]


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the programs of paper-results take their files from what is already read."""
    monkeypatch.setattr(finding, "find", lambda folders: kept() if folders == [RUNS] else pytest.fail(str(folders)))


@pytest.mark.slow
def test_a_result_is_what_its_rounds_say() -> None:
    assert not kept().notes  # of rounds that are damaged, too few, or do not give the result beside them
    files = {path.relative_to(ROOT) for path in RUNS.rglob("result.json")}
    read = {run.result.folder / "result.json": run for run in kept().runs}
    assert files == read.keys() | {note.path for note in kept().left_out} and all(run.rows for run in read.values())


@pytest.mark.slow
@pytest.mark.usefixtures("read_once")
def test_the_page_of_the_paper_shows_the_files() -> None:
    page, made = (RUNS / "README.md").read_text(), runpy.run_path(str(RUNS / "table.py"))
    judged = runpy.run_path(str(RUNS / "verdicts.py"))
    assert "None was run yet." not in content(page, "claims", judged["MAKER"]), "a contradicted claim needs a control"
    for maker, name, block in ((one["MAKER"], *each) for one in (made, judged) for each in one["BLOCKS"].items()):
        assert content(page, name, maker) == block()
    for cell in (cell for table in (1, 2) for cell in paper_cells(table) if cell.preset):
        preset, result = cell.preset, read_result(RUNS / cell.preset)
        assert identity(result.experiment) == identity(PRESETS[preset]), f"{preset} is no longer what was run"
        assert result.provenance["device"] == "NVIDIA H200" and str(result.provenance["commit"]) in page


@pytest.mark.parametrize(
    ("off", "alone"), [(-0.92, "contradicted"), (0.71, "contradicted"), (-0.704, "supported"), (0.7, "supported")]
)
def test_what_the_numbers_alone_say_of_the_baselines_follows_the_furthest(off: float, alone: str) -> None:
    judged = runpy.run_path(str(RUNS / "verdicts.py"))
    near, far = Evidence("a", 80.0, 80.0, "supported"), Evidence("b", 80.0, 80.0 + off, "inconclusive")
    text = "Our baselines match the paper's within 0.7 points (Table 1 without decomposition, largest difference)."
    (line,) = judged["_changed"](judge(text, "They are near.", [near, far], (None, off)))
    assert f"By the numbers alone {alone}, with intervals partly" in line


@pytest.mark.usefixtures("read_once")
def test_every_claim_has_a_rule_for_its_numbers_alone() -> None:
    judged = runpy.run_path(str(RUNS / "verdicts.py"))
    for claim in judged["claims"](kept()):
        has_a_bar = "is bounded by" not in claim.text  # the paper gives no constant
        assert sum(words in claim.text for words in judged["ALONE"]) == has_a_bar, claim.text


def test_measures_of_other_settings_are_quoted_from_their_files_and_decide_nothing(tmp_path: Path) -> None:
    judged = runpy.run_path(str(RUNS / "verdicts.py"))
    for name in ("training_loss", "landscape", "variance"):
        kind = MEASURES[name]
        plain, atoms = kind.experiments
        ran = plain, replace(atoms, atoms=25)
        write_measure(tmp_path / f"{name}-25", Measure(name, ran, as_json(kind.settings), VALUES[name], SOURCE))
    found = find([tmp_path])
    said = {claim.text: judged["_elsewhere"](claim, found) for claim in claims(found)}
    assert {claim.verdict for claim in claims(found)} == {"not run"}
    which = "25 atoms, seed 0"
    for words, number in (
        ("training loss is lower", "lower from round 1 to round 100 (`training_loss-25`"),
        ("loss landscape", "0.75 times the plain run's, after round 1: 1.500, plain 2.000 (`landscape-25`"),
        ("raw factors is", "1.00 to 3.00 times the plain run's (`variance-25`"),
    ):
        (line,) = [line for text, line in said.items() if words in text]
        assert line.startswith(number) and which in line
    assert sum(map(bool, said.values())) == 6  # figure (b) has four readings


@pytest.mark.parametrize(
    ("dataset", "classes", "best"),
    [
        ("cifar10", 2, "FedPer"),
        ("cifar10", 5, "FedPAC"),
        ("cifar100", 5, "FedAvg + FT"),
        ("cifar100", 20, "FedPAC"),
    ],
)
def test_the_page_of_the_paper_says_who_leads_where_both_have_three_seeds(
    dataset: str, classes: int, best: str
) -> None:
    column = [cell for cell in paper_cells(2, dataset) if cell.column.classes == classes]
    ours, rival = (next(cell for cell in column if cell.row == row) for row in ("Ours", best))
    lead = lead_of(rival, ours, _found(), None)
    assert lead is not None and lead.seeds == 3
    pages = ["paper-results/README.md", "docs/methods/local-atoms.md"]
    for page in [*pages, "docs/methods/finetune.md"] if best == "FedAvg + FT" else pages:
        assert short(lead, ".2f") in _words(page), page


def test_the_page_on_privacy_shows_what_was_measured() -> None:
    measured = runpy.run_path(str(ROOT / "benchmarks" / "privacy.py"))
    runs, page = measured["read"](), (ROOT / "docs" / "privacy.md").read_text()
    assert measured["table"](runs) in page and {run.seed for run in runs} == {0, 1, 2}
    assert all(run.epsilon <= run.target for run in runs if run.target)
    assert str(json.loads(measured["RESULTS"].read_text())["provenance"]["commit"]).rstrip("+") in page


def test_the_page_on_the_paper_shows_its_data() -> None:
    page, made = (ROOT / "docs" / "paper.md").read_text(), runpy.run_path(str(RUNS / "readings.py"))
    for name, block in made["BLOCKS"].items():
        assert content(page, name, made["MAKER"]) == block()


def test_the_reading_of_the_training_loss_quotes_our_runs() -> None:
    why = reading("training-loss").why
    for classes, rounds in ((2, (10, 20, 30)), (5, (10,))):
        runs = [read_rounds(RUNS / f"fedavg{kind}-cifar10-{classes}") for kind in ("", "-atoms")]
        for t in rounds:
            plain, atoms = (float(str(rows[t - 1]["scores"]["server"]["loss"])) for rows in runs)
            assert f"{plain:.3f} and {atoms:.3f}" in why
            assert (max(plain, atoms) < 1.72) == (classes == 5 or t == 30) and max(plain, atoms) < 2.24


@pytest.mark.usefixtures("read_once")
def test_the_page_on_the_paper_shows_what_was_tuned() -> None:
    page, made = (ROOT / "docs" / "paper.md").read_text(), runpy.run_path(str(RUNS / "tuned.py"))
    known = made["known_here"]()
    for name, block in made["BLOCKS"].items():
        assert content(page, name, made["MAKER"]) == block(known)
    for name, sentence in made["SENTENCES"].items():
        assert content((ROOT / "README.md").read_text(), name, made["MAKER"]) == sentence(known)


@pytest.mark.usefixtures("read_once")
def test_the_page_on_why_it_works_shows_what_the_gain_is_made_of() -> None:
    page, made = (ROOT / "docs" / "explain.md").read_text(), runpy.run_path(str(RUNS / "made_of.py"))
    scores = made["scores_here"]()
    for name, block in made["BLOCKS"].items():
        assert content(page, name, made["MAKER"]) == block(scores)
    lines = {line[0]: line[2] for row in made["rows"](scores) if (line := made["_line"](row, scores))}
    fixed, trained = lines["9 atoms that are never trained"], lines["9 atoms"]
    assert f"never trained add {fixed} of {trained} points" in _words("README.md")
    latent = [made["_latent"](name, one, scores)[3] for name, one in made["NETWORKS"].items()]
    filters, product = (lines[f"9 atoms{how}, the server's model"] for how in (" averaged as filters", ""))
    assert f"9 atoms add {filters} points to the server's model" in _words("README.md")
    assert f"with latent clients {product}: they add {latent[0]}" in _words("README.md")
    assert f"two seeds have {latent[1]})" in _words("README.md")
    assert f"{latent[0]} points over whole runs" in _words("docs/explain.md")
    assert f"they add {latent[0]} points to 9 atoms" in _card("atoms") and f"{latent[1]} to 25" in _card("atoms")
    assert f"Atoms add {lines['9 atoms, all images in one place']} there" in _words("docs/explain.md")


def test_results_that_the_readme_quotes_are_in_the_files() -> None:
    gains = [_gain(pair) for pair in CIFAR_PAIRS]
    ours, theirs = _mean_gain(), statistics.mean(pair.gain for pair in CIFAR_PAIRS)
    (seeds,) = {gain.seeds for gain in gains}  # the same of every pair
    fewer = -more_bytes(*_results("fedavg-atoms-cifar10-5", "fedavg-cifar10-5"))
    table1, times = _speed()
    jax, plain = _against_jax()
    turns, small = ([f"{each:.1f}" for each in _in_turns(*_against_jax(batch))] for batch in (50, 10))
    for quote in (
        f"**{short(ours)} points** | mean gain of atoms over {len(gains)} pairs on CIFAR-10 and CIFAR-100",
        f"(the paper: {theirs:+.2f}); 95 % interval",
        f"95 % interval, paired by seed, {seeds} seeds each",
        f"**{fewer:.1f} % fewer bytes**",
        f"**{jax.ms_round / plain.ms_round:.1f} times as fast** | as the strongest opponent that we measured, JAX",
        f"{times['expert loop / fedatoms, 10 x 50']:.1f} times as an expert's loop of CUDA graphs",
        f"{times['eager loop / fedatoms']:.0f} times as an eager loop over clients",
        f"{table1.ms_round:.1f} ms for a round of 10 clients",
        f"JAX takes {turns[0]} to {turns[1]} times as long ({small[0]} to {small[1]} with batches of 10)",
        f"with seeds 0, 1 and 2 atoms add {short(_of_the_picture())} points, a 95 % interval",
    ):
        assert quote in _words("README.md"), quote


def test_the_conditions_of_the_picture_are_in_the_files() -> None:
    paper = {cell.preset: cell.printed for cell in paper_cells(1)}
    atoms, plain = _results("fedavg-atoms-cifar10-5", "fedavg-cifar10-5")
    gains, spread = [_gain(pair) for pair in CIFAR_PAIRS], _spread()
    ours, theirs = _mean_gain(), statistics.mean(pair.gain for pair in CIFAR_PAIRS)
    clear, sure = sum(each.gain >= CLEAR for each in gains), sum(beyond(each) == "supported" for each in gains)
    assert spread is not None
    for quote in (
        f"the spread of {spread.deviation:.2f} points",
        f"All {len(gains)} gains are above 0, {sure} of them with all of their interval; {clear} are {CLEAR} or more",
        f"atoms add {short(ours, '.2f')} points on average (the paper: {theirs:.2f})",
        f"in {clear} of them {CLEAR} or more",
        f"{plain.accuracy['all'].headline:.2f} % plain (the paper has {paper['fedavg-cifar10-5']})",
        f"{atoms.accuracy['all'].headline:.2f} % with the paper's 9 atoms ({paper['fedavg-atoms-cifar10-5']})",
        f"which send {-more_bytes(atoms, plain):.1f} % fewer bytes",
    ):
        assert quote in _words("paper-results/README.md"), quote


def test_the_page_of_performance_quotes_the_files() -> None:
    _, times = _speed()
    jax, plain = _against_jax()
    for quote in (
        f"{jax.ms_round / plain.ms_round:.1f} times",
        f"{100 * (times['decomposed / plain'] - 1):.0f} % slower than the plain network",
    ):
        assert quote in _words("docs/performance.md"), quote


def test_what_we_want_of_speed_is_compared_with_what_the_files_have() -> None:
    now, expected = _wanted(), {**_contest_now(), **_networks_now(), **_cpu_now()}
    for target, numbers in expected.items():
        (cell,) = [cell for name, cell in now.items() if name.startswith(target)]
        for number in numbers:
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", cell), (target, number, cell)


def _wanted() -> dict[str, str]:
    """Returns the column ``now`` of the table of targets, by the target."""
    page = (ROOT / "docs" / "performance.md").read_text()
    part = page.split("\n## What we want and do not have\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    assert lines[0] == ["target", "now", "what would have to go"]
    return {line[0]: line[1] for line in lines[1:]}


def _contest_now() -> dict[str, list[str]]:
    whole = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))["kept"]()
    ratios = {ratio.name: ratio for ratio in whole.results}
    value = {name: ratio.value for name, ratio in ratios.items()}
    small, large = (find_row(whole.rows, OURS, 10, batch) for batch in (10, 50))
    assert small is not None and large is not None
    plain = [factor(whole.rows, row) for row in whole.rows if row.contestant == EXPERT_PLAIN]
    ours, theirs = (
        ratios[f"accuracy on pfl's benchmark, {name}, %"] for name in ("fedatoms, plain", "pfl, 5 processes")
    )
    reached = [number for one in (ours, theirs) for number in re.findall(r"\d\d\.\d\d", one.detail)]
    apart = re.findall(
        r"[\d.]+ ± [\d.]+ higher", ratios["difference of accuracies beyond its 95 % interval, points"].detail
    )
    return {
        "a round of batches of 50 in tf32": [f"{large.ms_round:.1f}"],
        "a step of batches of 10": [f"{small.ms_step:.2f}"],
        "in rounds of 500 steps": [f"{value['personal regime, ms a step']:.3f}"],
        "an expert's loop": [
            *(f"{value[f'expert loop / fedatoms, 10 x {batch}']:.1f}" for batch in (50, 10)),
            *(f"{times:.1f}" for times in plain if times is not None),
        ],
        "three seeds in one block": [f"{value['3 seeds in one block / in turn']:.3f}"],
        "start to end of the first round": [f"{value['start to end of first round, seconds']:.1f}"],
        "pfl-research in one process": [
            f"{value['pfl, 1 process / fedatoms']:.1f}",
            f"{value['pfl, 2 processes / fedatoms']:.0f}",
            f"{value['pfl, 5 processes / fedatoms']:.1f}",
        ],
        "accuracies on pfl's benchmark": [*reached, *apart],
    }


def _networks_now() -> dict[str, list[str]]:
    found = json.loads((ROOT / "benchmarks" / "results" / "networks.json").read_text())["measured"]
    step = {name: statistics.median(one["ms_step"]) for name, one in found.items()}
    atoms, bf16 = found["resnet18-atoms"], found["lenet-bf16"]
    return {
        "the same in bf16": [f"{50 * step['lenet-bf16']:.1f}"],
        "start to end of the first round: 20 s": [f"{bf16['first']:.1f}", f"{bf16['again']:.1f}"],
        "ResNet-18 with atoms, 10 x 20": [f"{step['resnet18-atoms']:.2f}"],
        "its first round": [f"{atoms['first']:.1f}", f"{atoms['again']:.1f}"],
        "ResNet-18 with atoms / plain": [f"{step['resnet18']:.2f}"],
        "its memory": [f"{atoms['peak'] / 1e3:.1f}"],
        "two processes": [f"{step['lenet-2']:.2f}", f"{step['lenet-1']:.2f}"],
    }


def _cpu_now() -> dict[str, list[str]]:
    value = {ratio.name: ratio.value for ratio in read(ROOT / "benchmarks" / "results" / "cpu.json").results}
    ours, atoms = value["round / hand-written loop"], value["decomposed / plain, ResNet-18"]
    return {"on a CPU": [f"{ours:.3f}", f"{atoms:.2f}"]}


def test_the_page_of_performance_quotes_the_ratios_of_a_cpu() -> None:
    results = read(ROOT / "benchmarks" / "results" / "cpu.json")
    value, page = {ratio.name: ratio.value for ratio in results.results}, _words("docs/performance.md")
    for quote in (
        f"takes {value['round / hand-written loop']:.3f} times the hand-written loop",
        f"{value['decomposed / plain']:.3f} times as long with atoms as without",
        f"takes {value['decomposed / plain, ResNet-18']:.2f} times that of the plain network",
        f"take {value['vectorised / one_by_one']:.1f} times as long as one by one",
        f"commit {str(results.provenance['commit'])[:7]}",
    ):
        assert quote in page, quote


def test_the_page_of_performance_shows_what_many_clients_cost() -> None:
    found, page = json.loads((ROOT / "benchmarks/results/scale.json").read_text()), _words("docs/performance.md")
    both = ("checkpoint, ms of the processor", "checkpoint, mean kB", "peak above the data, MB")
    for method, sizes in found["measured"].items():
        for clients, new in sizes.items():
            old = found["before"]["measured"][method][clients]
            changed = [f"{old[name]:,.0f} → {new[name]:,.0f}" for name in both]
            cells = [method, f"{int(clients):,}", f"{new['round, ms of the processor']:.0f}", *changed]
            assert f"| {' | '.join(cells)} | {new['resume, s']:.1f} |" in page, cells
    few, many = (found["measured"]["scaffold"][clients]["round, ms of the processor"] for clients in ("1000", "100000"))
    assert f"{100 * (many / few - 1):.0f} % longer with 100,000 clients than with 1,000" in page
    assert f"{many:.0f} ms instead of {few:.0f}" in page and f"Commit {found['source']['commit']}, on" in page
    assert not found["source"]["commit"].endswith("+")


def test_the_page_of_performance_shows_what_processes_gain() -> None:
    found, page = json.loads((ROOT / "benchmarks/results/processes.json").read_text()), _words("docs/performance.md")
    for name in {row["network"] for row in found["rounds"]}:
        cells = [f"{row['ms']:,.0f}" for row in found["rounds"] if row["network"] == name]
        assert f"| {name} | {' | '.join(cells)} |" in page
    for row in found["sums of two processes"]:
        assert f"| {row['parameters']:,} | {row['bytes']:,} | {row['ms']:.1f} |" in page
    assert f"commit {found['provenance']['commit']}" in page


def _of_the_picture() -> Gain:
    (pair,) = [pair for pair in CIFAR_PAIRS if pair.plain.preset == "fedavg-cifar10-5"]
    return _gain(pair)


def _results(*presets: str) -> list[Result]:
    return [read_result(RUNS / preset) for preset in presets]


def _speed() -> tuple[Row, dict[str, float]]:
    """Returns Table 1's round in the contest on a GPU, and all ratios that were measured there."""
    speed = read(ROOT / "benchmarks" / "results" / "h200.json")
    table1 = find_row(speed.rows, OURS, clients=10, batch=50)
    assert table1 is not None
    return table1, {ratio.name: ratio.value for ratio in speed.results}


def _against_jax(batch: int = 50) -> tuple[Row, Row]:
    """Returns the same round of plain networks by JAX and by us."""
    rows = read(ROOT / "benchmarks" / "results" / "h200.json").rows
    jax, plain = (find_row(rows, name, clients=10, batch=batch) for name in (JAX, PLAIN))
    assert jax is not None and plain is not None
    return jax, plain


def _in_turns(theirs: Row, ours: Row) -> tuple[float, float]:
    """Returns the smallest and the largest factor of a turn of theirs over the turn of ours with the same number."""
    factors = [one / other for one, other in zip(theirs.seconds, ours.seconds, strict=True)]
    return min(factors), max(factors)


def _words(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


def test_the_page_of_performance_says_whether_bars_are_missed() -> None:
    page = _words("docs/performance.md")
    results = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))["kept"]().results  # of all files that it joins
    missed = [ratio for ratio in results if ratio.verdict == "missed"]
    assert ("Every bar of the contest is met." in page) == (not missed)
    for ratio in missed:
        assert f"{ratio.value:.3f} instead of {ratio.bar:g}" in page


def more_bytes(result: Result, than: Result) -> float:
    return 100 * (sum(result.bytes_up.values()) / sum(than.bytes_up.values()) - 1)


@pytest.mark.parametrize("name", TABLE1_ALGORITHMS)
@pytest.mark.parametrize("kind", ["", "-atoms"])
def test_cards_quote_the_accuracies_of_the_files(name: str, kind: str) -> None:
    assert _quoted(1, f"{name}{kind}") in _card(name)


@pytest.mark.parametrize("name", [name for name in TABLE2_ROWS if name != "local-atoms"])  # the control of its row
def test_cards_quote_the_personal_accuracies_of_the_files(name: str) -> None:
    card = "finetune" if name.endswith("finetune") else name.removesuffix("-and-head")
    assert _quoted(2, f"{name}-personal") in _card(card)


@pytest.mark.parametrize("name", TABLE1_ALGORITHMS)
def test_the_card_of_atoms_quotes_the_gains_of_the_files(name: str) -> None:
    found = [pair for pair in CIFAR_PAIRS if pair.plain.preset.startswith(f"{name}-cifar")]
    assert " | ".join(f"{short(_gain(pair))} ({pair.gain:+.2f})" for pair in found) in _card("atoms")


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize("name", ["fedavg", "feddyn"])
def test_cards_quote_what_was_tuned(name: str) -> None:
    made = runpy.run_path(str(RUNS / "tuned.py"))
    known = made["known_here"]()
    columns = [(name, *column) for column in (("cifar10", 2), ("cifar10", 5), ("cifar100", 5), ("cifar100", 20))]
    for side in zip(*(made["_both_sides"](column, known) for column in columns), strict=True):
        cells = [f"{statistics.mean(scores):.2f} ({best.rate:g}, {best.decay:g})" for best, scores in side]
        assert " | ".join(cells) in _card(name)


@cache
def _groups() -> list[Group]:
    return group(kept().runs)


@cache
def _found() -> Ours:
    return match(_groups())


@cache
def _spread() -> Pooled | None:
    return known_spreads(_groups()).shared


def _mean(cell: Cell) -> float:
    ours = ours_of(cell, _found())
    assert ours is not None
    return ours.mean


def _gain(pair: Pair) -> Gain:
    ours = gain_of(pair, _found(), _spread())
    assert ours is not None
    return ours


def _mean_gain() -> Gain:
    found = [common_runs(*pair, _found()) for pair in CIFAR_PAIRS]
    return mean_of_pairs(found, [_gain(pair) for pair in CIFAR_PAIRS], _spread())


def _card(name: str) -> str:
    return " ".join((ROOT / "docs" / "methods" / f"{name}.md").read_text().split())


def _quoted(table: int, stem: str) -> str:
    columns = [cell for name in ("cifar10", "cifar100") for cell in paper_cells(table, name)]
    found = [cell for cell in columns if cell.preset.startswith(f"{stem}-cifar")]
    assert len(found) == 4
    return " | ".join(f"{_mean(cell):.2f} ({cell.value:.2f})" for cell in found)
