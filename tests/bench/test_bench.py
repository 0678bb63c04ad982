"""The benchmark measures what it says, on any device; no test here asserts a time."""

import re
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import ROOT
from support.contests import TINY
from support.small import difference

from fedatoms.bench import contest as turns
from fedatoms.bench import line_up as who
from fedatoms.bench.contest import Timing, compete
from fedatoms.bench.gpu import measure
from fedatoms.bench.line_up import Cell, Contestant, by_hand, cell_clients, eager_round
from fedatoms.bench.machine_limits import need
from fedatoms.bench.report import block, content
from fedatoms.bench.results import LENET, PLACES, Bench, Event, Gap, Ratio, Row, collect, joined, machine, read, write
from fedatoms.bench.standings import factor, lead
from fedatoms.cli import main
from fedatoms.cli.result_tables import benchmarks, contest, news
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import batches_of
from fedatoms.engine.training import Training

KEPT = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))["kept"]  # the results in the repository


@pytest.fixture(scope="module")
def events() -> list[Event]:
    """One whole tiny benchmark, all parts, on a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "WHILE", 0.02)
        return list(measure(TINY))


@pytest.mark.slow
def test_every_part_gives_its_lines(events: list[Event]) -> None:
    gaps = {event.name for event in events if isinstance(event, Gap)}
    assert gaps <= {who.JAX, "pfl"}, gaps
    rows = {(row.contestant, row.clients) for row in events if isinstance(row, Row) and row.network == LENET}
    everyone = {who.OURS, who.PLAIN, who.EAGER, who.EAGER_PLAIN, who.COMPILED, who.COMPILED_PLAIN}
    everyone |= {who.REDUCED, who.REDUCED_PLAIN, who.EXPERT, who.EXPERT_PLAIN}
    assert rows - {(who.JAX, 2)} == {(name, 2) for name in everyone} | {(who.OURS, 3)}
    ratios = {event.name for event in events if isinstance(event, Ratio)}
    assert {f"{name} / fedavg" for name in ("scaffold", "feddyn", "feddc")} < ratios
    assert {"decomposed / plain", "eager loop / fedatoms", "deterministic / usual"} < ratios
    assert {"expert loop / fedatoms, 2 x 2", "reduce-overhead loop / fedatoms"} < ratios
    assert {"personal regime, ms a step", "local atoms / fedavg", "3 seeds in one block / in turn"} < ratios
    assert {f"round with evaluation, ms, {precision}" for precision in ("tf32", "bf16")} < ratios
    assert isinstance(events[0], Ratio)  # a user sees something at once


@pytest.mark.slow
def test_the_columns_of_a_row_agree(events: list[Event]) -> None:
    for row in (event for event in events if isinstance(event, Row) and event.network == LENET):
        assert row.steps == 2 and len(row.seconds) == 2 and row.precision == "float32"
        assert row.ms_step * row.steps == pytest.approx(row.ms_round)
        assert row.client_steps == pytest.approx(1e3 * row.clients * row.steps / row.ms_round)


@pytest.mark.slow
def test_results_survive_their_file_and_are_shown(events: list[Event], tmp_path: Path) -> None:
    settings = replace(TINY, out=str(tmp_path / "results.json"))
    results = collect(settings, events, machine("cpu"))
    write(results)
    kept = {name: value for name, value in results.settings.items() if name not in PLACES}
    assert read(Path(settings.out)) == results._replace(settings=kept)
    assert all(news(event) for event in events)
    assert contest(results.rows).row_count == len(results.rows)
    assert benchmarks(results.results).row_count == len(results.results)


@pytest.mark.parametrize("batch", [2, 50])
def test_fedatoms_and_the_hand_written_loop_do_the_same_work(batch: int) -> None:
    sim = cell_clients(replace(TINY, samples=2 * batch, steps=2 if batch == 2 else 1), Cell(2, batch))
    assert (sim.training.momentum > 0) == (batch == 2)
    state, _ = advance(prepare(sim), begin(prepare(sim)))
    by_hand(sim, "eager")()  # trains a copy
    eager_round(sim, sim.model, 0)
    assert difference(dict(sim.model.state_dict()), state.server.params) < 1e-5


def test_who_fails_leaves_a_reason_and_the_others_go_on() -> None:
    def fails() -> object:
        raise torch.OutOfMemoryError("no memory\nat all")

    entered = [Contestant("bad", lambda: fails, 2), Contestant("good", lambda: lambda: None, 2)]
    *_, gap, timing = [event for event in compete("cpu", entered, "here") if not isinstance(event, str)]
    assert gap == Gap("bad, here", "OutOfMemoryError: no memory")
    assert isinstance(timing, Timing) and timing.name == "good" and len(timing.seconds) == 2


def test_a_warning_of_the_first_round_is_part_of_the_row() -> None:
    import warnings

    entered = [Contestant("slow", lambda: lambda: warnings.warn("no compiler", stacklevel=1), 0)]
    timings = [event for event in compete("cpu", entered, "here") if isinstance(event, Timing)]
    assert timings[0].note == "no compiler"


def test_what_a_step_needs_is_what_one_counts_by_hand() -> None:
    """LeNet: 28 x 28 x 64 x 75 and 10 x 10 x 64 x 1600 products, three linear layers; no gradient for the image."""
    first, rest = 28 * 28 * 64 * 75, 10 * 10 * 64 * 1600 + 1600 * 384 + 384 * 192 + 192 * 10
    least = need(Cell(3, 2), Training(momentum=0.9))
    assert least.flops == 3 * 2 * 2 * (2 * first + 3 * rest)
    parameters = sum(leaf.numel() for leaf in who.build("lenet", classes=10).parameters())
    assert least.bytes == 3 * (6 * 4 * parameters + 2 * (3 * 32 * 32 + 8))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--device", "cuda"], "--device cuda cannot be used here"),
        (["--device", "tpu"], "--device"),
    ],
)
def test_a_device_that_is_not_there_costs_one_line(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available() and "cuda" in words:
        pytest.skip("there is one")
    assert main(["bench", *words]) == 2
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (replace(TINY, clients="ten"), "--clients ten is not a list"),
        (replace(TINY, batch="0"), "--batch 0 is not a list"),
        (replace(TINY, parts="grit"), "Did you mean 'grid'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: Bench, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        list(measure(settings))


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("--threads", "0", "--threads 0 is less than 1. Use --threads 2."),
        ("--repeats", "-1", "--repeats -1 is less than 1. Use --repeats 7."),
        ("--steps", "-5", "--steps -5 is less than 0. Use --steps 0."),
        ("--clients", "ten", "--clients ten is not a list"),
        ("--pfl-processes", "one", "--pfl-processes one is not a list"),
        ("--pfl-rounds", "-1", "--pfl-rounds -1 is less than 0"),
        ("--parts", "", "unknown part in --parts"),
    ],
)
def test_numbers_out_of_range_cost_one_line_and_no_file(
    flag: str, value: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "kept.json"
    out.write_text("earlier results")
    assert main(["bench", flag, value, "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1 and out.read_text() == "earlier results"


@pytest.mark.parametrize("batch", [2, 50])
def test_the_jax_twin_trains_the_same_model(batch: int) -> None:
    jax = pytest.importorskip("jax")
    from fedatoms.bench.jax_twin import Batches, Task, federated_round

    sim = cell_clients(replace(TINY, samples=2 * batch, steps=3), Cell(2, batch))
    sim = replace(sim, model=who.build("lenet", classes=10))
    t, plans = sim.training, [batches_of(sim, client, 0) for client in range(2)]
    batches = Batches(*(np.stack([getattr(plan, name).numpy() for plan in plans]) for name in Batches._fields))
    task = Task(2, 2 * batch, batch, t.epochs, 1, t.lr, t.momentum, t.weight_decay, t.clip, "float32")
    start = {name: jax.numpy.asarray(leaf.numpy().copy()) for name, leaf in sim.model.state_dict().items()}
    with jax.default_matmul_precision("float32"):
        theirs = federated_round(task)(start, sim.data.x.numpy(), sim.data.y.numpy(), batches)
    eager_round(sim, sim.model, 0)
    ours = dict(sim.model.state_dict())
    assert difference(ours, {name: torch.tensor(np.asarray(leaf)) for name, leaf in theirs.items()}) < 1e-4


@pytest.mark.slow
def test_the_page_is_made_from_the_results(events: list[Event], tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))
    source, page, picture = tmp_path / "results.json", tmp_path / "performance.md", tmp_path / "performance.png"
    results = collect(replace(TINY, out=str(source)), events, machine("cpu"))
    write(results)
    page.write_text((ROOT / "docs" / "performance.md").read_text())
    for _ in range(2):  # twice equals once
        script["report"]([source], page, picture)
        assert content(page.read_text()) == block(results, picture.name)
        assert content(page.read_text(), "lead") == lead(results)
    assert picture.stat().st_size > 10_000
    assert all(f"| {row.ms_round:.1f} |" in page.read_text() for row in results.rows)


def test_the_page_shows_the_results_that_are_kept() -> None:
    page, kept = (ROOT / "docs" / "performance.md").read_text(), KEPT()
    assert content(page) == block(kept, "performance.png")
    assert content(page, "lead") == lead(kept)


def test_the_lead_names_the_strongest_opponent_first() -> None:
    rows = [row for row in KEPT().rows if (row.clients, row.batch) == (10, 50)]
    factors = {row.contestant: times for row in rows if (times := factor(rows, row)) is not None}
    strongest = min(factors, key=lambda name: factors[name])
    assert lead(KEPT()).startswith(
        f"**{factors[strongest]:.1f} times as fast as the strongest opponent**, {strongest}:"
    )


def test_fedatoms_is_compared_with_who_does_the_same_work() -> None:
    rows = KEPT().rows
    for row in rows:
        times, kind = factor(rows, row), who.OURS if row.contestant.endswith("decomposed") else who.PLAIN
        if row.contestant in (who.OURS, who.PLAIN):
            assert times is None
        else:
            same = [
                one for one in rows if one[1:3] == row[1:3] and (one.contestant, one.network) == (kind, row.network)
            ]
            assert times == row.ms_round / same[0].ms_round


def test_parts_that_were_measured_apart_are_joined() -> None:
    whole = KEPT()
    card = whole.results[0]
    parts = (
        whole._replace(rows=whole.rows[:3], settings={**whole.settings, "parts": "grid"}),
        whole._replace(
            results=[card, Ratio("new", 1.0, None, "")],
            rows=whole.rows[3:],
            settings={**whole.settings, "parts": "jax"},
        ),
    )
    both = joined(parts)
    assert both.rows == whole.rows and both.settings["parts"] == "grid,jax"
    assert both.results == [*whole.results, Ratio("new", 1.0, None, "")]
    said = block(both, "picture.png").splitlines()[0]
    assert " Parts jax: commit " in said and said.count(str(whole.provenance["torch"])) == 1
