"""Few minutes: what is worth most comes first, only what fits is begun, and nothing that was done is lost."""

import itertools
import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT
from support.results import a_run, stand_ins
from support.sealed import rewrite

from fedatoms.cli import main
from fedatoms.cli.parsing import parse
from fedatoms.cli.reproduce import options
from fedatoms.evidence.paper.study_list import quick
from fedatoms.evidence.reproduce import work
from fedatoms.evidence.reproduce.budget import Limit, Took, begun, by_worth, estimate, next_of, took
from fedatoms.evidence.reproduce.plan import Job, Reproduce, chosen, jobs
from fedatoms.evidence.results.finding import find
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import run_name
from fedatoms.experiment.presets import PRESETS
from fedatoms.runs.provenance import provenance_of
from fedatoms.runs.rounds import read_rounds

ROUNDS = 4
PAIR = ["--quick", "--only", "^fedavg-(atoms25-)?cifar10-5 --partition iid"]
EVERYTHING = jobs(chosen(["all"]), Reproduce(seeds="2,0"))
SOME = st.lists(st.sampled_from(EVERYTHING), unique_by=lambda job: job.name, max_size=30)
HERE = str(provenance_of("cpu")["device"])


def least(experiment: Experiment) -> Experiment:
    return replace(quick(experiment), rounds=ROUNDS, epochs=1, batch_size=50, last_epochs=1, checkpoint_every=1)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes stand-ins as small as they can be."""
    with stand_ins(monkeypatch, least):
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "quick"


def command(words: Sequence[str], clock: Callable[[], float]) -> int:
    return parse("fedatoms reproduce", options(words, clock), words)()


def every_second() -> Callable[[], float]:
    """A clock that is a second later whenever one looks."""
    return itertools.count(0.0).__next__


# ---- order of worth


@given(SOME, st.sets(st.sampled_from([job.name for job in EVERYTHING])), st.lists(st.sampled_from(EVERYTHING)))
def test_the_order_of_worth_loses_no_job_and_puts_seeds_first_then_what_was_begun(
    wanted: list[Job], paid: set[str], done: list[Job]
) -> None:
    runs = {job.name: job.experiments[0] for job in done if not job.measure}
    ordered = by_worth(wanted, [2, 0], paid, runs.values())
    assert sorted(job.name for job in ordered) == sorted(job.name for job in wanted)
    seeds = [0 if job.measure else [2, 0].index(job.seed) for job in ordered]
    assert seeds == sorted(seeds)
    for seed in (0, 1):
        late = [job.name not in paid for job, its in zip(ordered, seeds, strict=True) if its == seed]
        assert late == sorted(late)


def test_a_measure_that_trains_no_network_is_not_begun_in_the_last_seconds() -> None:
    synthetic, run = Job("synthetic", (), "synthetic"), Job("one", (Experiment(),))
    assert next_of([synthetic], [Took(run, 8.0)], left=5.0, begun={}) is None
    assert next_of([synthetic], [Took(run, 8.0)], left=90.0, begun={}) == synthetic


def test_without_anything_done_studies_come_as_they_are_typed_and_partners_follow_each_other() -> None:
    wanted = jobs(chosen(["iid", "synthetic", "table1"]), Reproduce(only="iid|synthetic|^fedavg.*cifar10-", seeds="1"))
    assert [job.typed for job in by_worth(wanted, [1], {}, [])] == [
        "fedavg-cifar10-5 --partition iid",
        "fedavg-atoms25-cifar10-5 --partition iid",
        "fedavg-cifar100-20 --partition iid",
        "fedavg-atoms25-cifar100-20 --partition iid",
        "synthetic",
        "fedavg-cifar10-2",
        "fedavg-atoms-cifar10-2",
        "fedavg-cifar10-5",
        "fedavg-atoms-cifar10-5",
    ]


@pytest.mark.parametrize("here", ["feddc", "feddc-atoms"])
def test_what_completes_a_pair_comes_before_what_begins_one(here: str) -> None:
    wanted = [job for job in jobs(chosen(["table1"]), Reproduce(seeds="0,1")) if job.typed != f"{here}-cifar10-5"]
    done = [PRESETS[f"{here}-cifar10-5"]]
    partner = "feddc-atoms-cifar10-5" if here == "feddc" else "feddc-cifar10-5"
    names = [job.name for job in by_worth(wanted, [0, 1], {}, done)]
    assert names[0] == partner and names[1] == "fedavg-cifar10-2"
    assert names.index(f"{partner} --seed 1") > names.index("fedavg-cifar10-2 --seed 1")  # that seed has no result
    assert [job.name for job in by_worth(wanted, [0, 1], {"scaffold-cifar10-2"}, done)][:2] == [
        "scaffold-cifar10-2",
        partner,
    ]


# ---- what fits


@given(
    SOME,
    st.lists(st.builds(Took, st.sampled_from([job for job in EVERYTHING if not job.measure]), st.floats(0, 1e5))),
    st.floats(0, 1e5) | st.just(math.inf),
    st.dictionaries(st.sampled_from([job.name for job in EVERYTHING]), st.floats(0, 1)),
)
def test_the_next_job_is_the_first_that_fits(
    wanted: Sequence[Job], known: Sequence[Took], left: float, begun: Mapping[str, float]
) -> None:
    picked = next_of(wanted, known, left, begun)
    fits = [job for job in wanted if left > 0 and estimate(job, known, begun) <= left]
    if known or left in (0, math.inf) or not wanted:
        assert picked == (fits[0] if fits else None)
    else:  # nothing is known: a run rather than a measure
        runs = [job for job in wanted if not job.measure]
        assert picked == [*runs, *wanted][0]


@given(st.sampled_from([job for job in EVERYTHING if job.experiments]), st.floats(0.1, 1e3), st.floats(0, 1))
def test_an_estimate_grows_with_the_work_and_counts_only_what_is_left(job: Job, seconds: float, share: float) -> None:
    known = [Took(EVERYTHING[0], seconds)]
    whole = estimate(job, known, {})
    assert whole == pytest.approx(seconds * job.weight / EVERYTHING[0].weight)
    assert estimate(job, known, {job.name: share}) == pytest.approx((1 - share) * whole)


def test_an_estimate_is_that_of_the_last_runs_of_its_kind_and_size_or_of_the_slowest() -> None:
    plain, atoms, few = (
        Job(name, (replace(PRESETS[name.split()[0]], fraction=0.02 if "few" in name else 0.1),))
        for name in ("fedavg-cifar10-2", "fedavg-atoms25-cifar10-2", "fedavg-cifar10-2 few")
    )
    (measure,) = jobs(chosen(["landscape"]), Reproduce())
    old = [Took(plain, 900.0)] * 9
    assert estimate(plain, [*old, *[Took(plain, 60.0)] * 3, Took(few, 50.0)], {}) == 60.0
    known = [Took(plain, 60.0), Took(few, 50.0)]
    assert estimate(few, known, {}) == 50.0
    assert estimate(atoms, known, {}) == pytest.approx(250.0)  # at the pace of few, the slowest
    assert estimate(measure, known, {}) == pytest.approx(250.0 * measure.weight / plain.weight)
    own = [Job("own", (PRESETS["fedper-personal-cifar10-2"],)), Job("own", (PRESETS["fedrep-personal-cifar10-2"],))]
    assert estimate(own[0], [*known, Took(own[1], 1.0)], {}) == 1.0


def test_results_on_this_device_tell_how_long_runs_take_the_oldest_first(tmp_path: Path) -> None:
    for seed, device in enumerate((HERE, "another", HERE)):
        a_run(tmp_path / str(seed), preset="fedavg", seed=seed)
        path = tmp_path / str(seed) / "result.json"
        text = path.read_text().replace("a machine", device).replace("2026-01-02", f"2026-01-0{9 - seed}")
        path.write_text(text)
    known = took([run.result for run in find([tmp_path]).runs], HERE)
    assert [(each.job.seed, each.seconds) for each in known] == [(2, 1.5), (0, 1.5)]


# ---- the command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "-1"], "--minutes -1.0 is negative or not finite. Use for example 30, or 0 for no limit."),
        (["--minutes", "nan"], "--minutes nan is negative or not finite"),
        (["--minutes", "inf"], "--minutes inf is negative or not finite"),
        (["--minutes", "half"], "--minutes 'half' is not a number"),
        (["--minutes", "5", "--on", "ray"], "--minutes 5 does not go with --on ray.* Leave one of them out."),
    ],
)
def test_minutes_that_cannot_be_get_a_line(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "iid", "--quick", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and re.search(said, error)
    assert not folder.parent.exists()


def test_a_run_in_the_middle_is_saved_when_time_is_over_and_the_same_command_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "iid", *PAIR, "--out", "whole"]) == 0
    capsys.readouterr()
    words = ["iid", *PAIR, "--minutes", "0.05"]
    assert command(words, every_second()) == 0
    said = capsys.readouterr()
    name = "fedavg-cifar10-5 --partition iid"
    assert said.err == f"fedatoms: 0 done, 2 left, for example {name}; run the same command again to continue.\n"
    assert "Clients with data alike\nNot run." in said.out and "[1/2]" not in said.out
    (begun_one,) = folder.glob("*/checkpoint")
    stopped = len(read_rounds(begun_one.parent))
    assert 0 < stopped < ROUNDS and (begun_one / f"{stopped:06d}.json").exists()
    wanted = jobs(chosen(["iid"]), Reproduce(quick=True, only=PAIR[-1]))
    assert begun(wanted) == {name: stopped / ROUNDS}
    assert command(words, lambda: 0.0) == 0
    assert capsys.readouterr().err == ""
    for model in Path("whole").glob("*/model.safetensors"):
        assert (folder / model.parent.name / model.name).read_bytes() == model.read_bytes()
    assert len(list(folder.glob("*/result.json"))) == 2


def test_what_is_done_in_this_call_tells_what_fits_and_smaller_ones_come_before_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = r"^fedavg-cifar10-5 --rounds 200 --fraction 0\.(02|1|2|4)$"
    now, done, left = 0.0, list[float](), list[list[tuple[str, str]]]()

    def perform(job: Job, tick: work.Tick, *engine: object) -> work.Done:
        """Takes a second for each client in a round."""
        nonlocal now
        (one,) = job.experiments
        clients = one.clients * one.fraction
        path = a_run(Path(one.out) / run_name(one), **{**vars(one), "preset": "fedavg"}) / "result.json"
        path.write_text(path.read_text().replace("a machine", HERE).replace('"seconds": 1.5', f'"seconds": {clients}'))
        now += clients
        done.append(clients)
        return work.Done(job)

    monkeypatch.setattr(work, "perform", perform)
    words = ["figure-clients", "--quick", "--only", sizes, "--seeds", "0,1", "--minutes", str(17 / 60)]
    for begun_now in ([0.8, 4.0, 8.0, 0.8], [16.0], [4.0, 8.0], [16.0]):
        done.clear()
        assert command(words, lambda: now) == 0
        assert done == begun_now  # never more than 17, and a small one of the second seed where no other fits
        left.append(re.findall(r"(\d) done, (\d) left,", capsys.readouterr().err))
    assert left == [[("4", "4")], [("1", "3")], [("2", "1")], []]


def test_if_none_fits_the_line_says_how_many_minutes_it_takes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "iid", *PAIR]) == 0
    for path in folder.glob("*/result.json"):
        rewrite(path, seconds=120.0)
    capsys.readouterr()
    assert command(["iid", *PAIR, "--seeds", "1", "--minutes", "1"], lambda: 0.0) == 0
    said = capsys.readouterr().err
    assert "0 done, 2 left, for example fedavg-cifar10-5 --partition iid --seed 1; " in said
    assert said.endswith("the shortest should take 2.0 minutes: use --minutes 3.\n") and said.count("\n") == 1


def test_a_measure_that_was_begun_goes_on_to_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticked = list[float]()

    def measure(*given: object) -> None:
        for done in (1, 2, 3):
            given[-1](done, 3, "")  # type: ignore[operator]
            ticked.append(done)

    kind = SimpleNamespace(measure=measure, quick=None)
    monkeypatch.setattr(work, "MEASURES", {"landscape": kind})
    monkeypatch.setattr(work, "write_measure", lambda *result: None)
    wanted = jobs(chosen(["landscape"]), Reproduce(quick=True))
    assert list(work.here(wanted, lambda job, share: None, Limit(2.0, every_second()))) == [work.Done(wanted[0])]
    assert ticked == [1, 2, 3]


@pytest.mark.slow  # `make test` has an end in the middle, above, and a run that is killed, in runs/
def test_a_kill_loses_nothing_that_was_finished_and_the_same_command_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second run is killed after two rounds, without a chance to save anything."""
    words = ["reproduce", "iid", *PAIR, "--minutes", "60"]
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from evidence.test_minutes import least
from fedatoms.runs import comparison
from fedatoms.cli import main
from fedatoms.evidence.reproduce import plan, work

def killed(experiment, watch, known, **engine):
    def look(progress):
        if experiment.parametrisation == "atoms" and progress.state.round == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return comparison.finish(experiment, look, known)

plan.quick, work.finish = least, killed
main({words!r})
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == -signal.SIGKILL
    (first,) = folder.glob("*/result.json")
    written = first.read_bytes()
    assert sorted(path.name for path in folder.glob("*atoms*/checkpoint/*.json")) == ["000001.json", "000002.json"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "1 of 2 to do" in said.out and said.err == "" and first.read_bytes() == written
    assert main(["reproduce", "iid", *PAIR, "--out", "whole"]) == 0
    for model in Path("whole").glob("*/model.safetensors"):
        assert (folder / model.parent.name / model.name).read_bytes() == model.read_bytes()
