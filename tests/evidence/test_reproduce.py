"""From a claim to the evidence: studies are what one would type, only what is missing runs, and nothing is lost."""

import contextlib
import json
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pytest
import torch
from rich.console import Console
from support import ROOT
from support.results import SOURCE, VALUES, a_measure, a_run, kept, stand_ins

from fedatoms.cli import main
from fedatoms.cli.args import GROUPS, flags, updated
from fedatoms.cli.parsing import parse
from fedatoms.cli.result_tables import result_table
from fedatoms.engine.loop import Watch
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import as_json
from fedatoms.evidence.measures.files import FILE, Measure, write_measure
from fedatoms.evidence.page.run_figures import section
from fedatoms.evidence.paper.study_list import Study, distinct, quick, studies
from fedatoms.evidence.paper.tables import cells
from fedatoms.evidence.reproduce import work
from fedatoms.evidence.reproduce.plan import Job, Reproduce, chosen, jobs, missing
from fedatoms.evidence.reproduce.tables import TerminalTable, terminal_tables
from fedatoms.evidence.results.communication import cost_to_reach
from fedatoms.evidence.results.finding import Found, find
from fedatoms.evidence.results.groups import group, groups_of
from fedatoms.evidence.results.run_figures import figures
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity
from fedatoms.experiment.presets import preset
from fedatoms.runs import comparison
from fedatoms.runs.execute import Known
from fedatoms.runs.results import Result

ALL = list(studies().values())
TINY = ["--quick", "--only", "^fedavg-(atoms25-)?cifar10-5 --partition iid"]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes stand-ins as small as they can be."""

    def least(experiment: Experiment) -> Experiment:
        return replace(quick(experiment), rounds=2, epochs=1, batch_size=50, last_epochs=1)

    with stand_ins(monkeypatch, least):
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "quick"


# ---- studies


LARGE = ("table1", "table2")  # of presets as they are: figures have flags


@pytest.mark.parametrize(
    "study", [pytest.param(each, marks=pytest.mark.slow if each.name in LARGE else (), id=each.name) for each in ALL]
)
def test_the_name_of_a_run_is_what_one_would_type_for_it(study: Study) -> None:
    for typed, experiment in study.runs.items():
        name, *words = typed.split()
        start = preset(name)

        def run(*, given: Annotated[object, flags(start, GROUPS)]) -> object:
            return given

        assert updated(start, parse("run", run, words)) == experiment


@pytest.mark.parametrize("study", ALL, ids=lambda study: study.name)
def test_a_stand_in_keeps_the_methods_and_needs_no_files(study: Study) -> None:
    kept = ("algorithm", "parametrisation", "personal", "partition", "beta", "controls", "strength")
    for experiment in study.runs.values():
        stand_in = quick(experiment)
        check(stand_in)
        assert stand_in.dataset == "digits"
        assert all(getattr(stand_in, name) == getattr(experiment, name) for name in kept)


def test_tables_are_all_cells_that_can_be_run() -> None:
    for number in (1, 2, 3):
        runs = studies()[f"table{number}"].runs
        assert {identity(one) for one in runs.values()} == {
            identity(cell.experiment) for cell in cells(number) if cell.experiment
        }


def test_what_computes_the_same_is_one_run() -> None:
    runs = {typed: quick(one) for study in ALL for typed, one in study.runs.items()}
    found = distinct(runs)
    assert len(found) == len({identity(one) for one in runs.values()}) < len(runs)
    assert {identity(one) for one in found.values()} == {identity(one) for one in runs.values()}


# ---- plan


def test_a_pattern_chooses_and_one_that_matches_nothing_says_what_there_is() -> None:
    wanted = chosen(["table1"])
    assert [job.name for job in jobs(wanted, Reproduce(only="scaffold-cifar10-2"))] == ["scaffold-cifar10-2"]
    with pytest.raises(
        ValueError, match=r"--only nothing matches none of: fedavg-cifar10-2, .*feddc-atoms-cifar100-20"
    ):
        jobs(wanted, Reproduce(only="nothing"))


def test_a_pattern_knows_runs_that_quickly_are_the_same_and_every_seed() -> None:
    found = jobs(chosen(["table1"]), Reproduce(quick=True, only="^fedavg-cifar100-20$", seeds="1,0"))
    assert [job.name for job in found] == ["fedavg-cifar100-20 --seed 1", "fedavg-cifar100-20"]
    assert quick(preset("fedavg-cifar10-5")) == quick(preset("fedavg-cifar100-20"))


def test_measures_of_other_sizes_and_seeds_lie_beside_each_other() -> None:
    settings = [Reproduce(quick=quickly, seeds=seeds, out="here") for quickly in (False, True) for seeds in ("0", "1")]
    folders = [job.folder for each in settings for job in jobs(chosen(["landscape", "training-loss"]), each)]
    assert len(set(folders)) == len(folders) == 8


def test_every_run_comes_once_for_each_seed() -> None:
    found = jobs(chosen(["all"]), Reproduce(seeds="0,3"))
    runs = [job for job in found if not job.measure]
    assert len({job.name for job in found}) == len(found)
    assert len({identity(job.experiments[0]) for job in runs}) == len(runs)
    assert {job.experiments[0].seed for job in runs} == {0, 3}
    measured = [(job.measure, one.seed) for job in found if job.measure for one in job.experiments[:1]]
    with_networks = [study.measure for study in ALL if study.measure and MEASURES[study.measure].experiments]
    assert measured == [(name, seed) for name in with_networks for seed in (0, 3)]
    assert sum(job.measure == "synthetic" for job in found) == 1  # it has no network to seed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tabel1"], "tabel1"),
        (["--quick"], "a study is missing"),
        (["table1", "--seeds", "0,x"], "--seeds 0,x is not a list"),
        (["table1", "--seeds", "1, 1"], "--seeds 1, 1 is not a list"),
        (["table1", "--only", "("], r"--only \( is not a regular expression: missing \)"),
        (["iid", "--quick", "--device", "cuda:77"], "--device cuda:77 cannot be used here"),
        (
            ["table1", "--only", "cifar10-2", "--data-dir", "nowhere", "--seeds", "0,1"],
            "nowhere.*Download it from .* --quick. 20 of 20 need cifar10: fedavg-cifar10-2, .*feddc-atoms-cifar10-2.",
        ),
        (["figure-variance", "--data-dir", "nowhere"], "nowhere.*1 of 1 need cifar10: figure-variance."),
        (["iid", "--on", "moon"], "moon"),
    ],
)
def test_bad_input_gets_a_line(words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and re.search(said, error)
    assert not folder.parent.exists()


def test_a_data_set_that_is_missing_is_named_with_all_that_need_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "table1", "--data-dir", "nowhere"]) == 2
    said = capsys.readouterr()
    for dataset, line in zip(("cifar10", "cifar100"), said.err.splitlines(), strict=True):
        names = [name for name, one in studies()["table1"].runs.items() if one.dataset == dataset]
        assert f"20 of 40 need {dataset}: {', '.join(names)}." in line and "Download it from" in line
    assert said.out == "" and not folder.parent.exists()


def test_what_needs_no_data_is_done_and_the_rest_is_skipped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = list[Job]()
    monkeypatch.setattr(work, "perform", lambda job, *how: done.append(job) or work.Done(job))
    assert main(["reproduce", "all", "--data-dir", "nowhere"]) == 1
    said = capsys.readouterr()
    assert [job.name for job in done] == ["synthetic"]
    left = len(jobs(chosen(["all"]), Reproduce()))
    assert said.err.endswith(f"{left - 1} of {left} skipped: no cifar10 and no cifar100 in nowhere.\n")
    assert "Table 1: accuracy of the global model\nNot run.\n" in said.out


def test_tables_that_exist_are_shown_where_data_are_missing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(folder / "one", 75.0, "fedavg-cifar10-2", rounds=0)
    words = ["table1", "--only", "^fedavg-cifar10-", "--data-dir", "nowhere", "--out", str(folder)]
    assert main(["reproduce", *words]) == 1
    said = capsys.readouterr()
    assert "1 of 1 need cifar10: fedavg-cifar10-5." in said.err and "1 of 2 run" in said.out


# ---- work


def test_only_what_is_missing_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "iid", *TINY]) == 0
    first = capsys.readouterr().out
    assert "2 of 2 to do (quick" in first and (folder / "report.html").exists()
    assert "[0/2] fedavg-cifar10-5 --partition iid: 0% done" in first  # before its first round is over
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
    assert len(written) == 2
    gone = next(path for path in written if "atoms" in path.parent.name)
    for path in gone.parent.glob("**/*.json*"):
        path.unlink()
    assert main(["reproduce", "iid", *TINY]) == 0
    second = capsys.readouterr().out
    assert "1 of 2 to do" in second and shown(first) == shown(second)
    assert all(path.stat().st_mtime_ns == time for path, time in written.items() if path != gone)
    monkeypatch.setattr("fedatoms.cli.reproduce.overall", None)  # with nothing to do there is no bar
    assert main(["reproduce", "iid", *TINY]) == 0
    assert "0 of 2 to do" in capsys.readouterr().out


def test_the_seeds_of_a_run_are_trained_in_one_block(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vectorised(experiment: Experiment) -> Experiment:
        return replace(quick(experiment), rounds=1, epochs=1, map="vectorised")

    monkeypatch.setattr("fedatoms.evidence.reproduce.plan.quick", vectorised)
    assert main(["reproduce", "iid", *TINY, "--seeds", "0,1"]) == 0
    found = [run.result for run in find([folder]).runs]
    assert len(found) == 4 and {result.provenance["abreast"] for result in found} == {2}


def test_a_run_that_was_stopped_goes_on_and_the_others_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "iid", *TINY, "--out", "whole"]) == 0
    whole = shown(capsys.readouterr().out)

    def stopped(experiment: Experiment, watch: Watch, known: Known, **engine: object) -> Result:
        def stop(progress: object) -> None:
            if experiment.parametrisation == "atoms":
                raise KeyboardInterrupt

        return comparison.finish(experiment, stop, known)

    with monkeypatch.context() as patch:
        patch.setattr(work, "finish", stopped)
        assert main(["reproduce", "iid", *TINY]) == 130
    assert capsys.readouterr().err == "fedatoms: stopped. Run the same command again to continue.\n"
    assert main(["reproduce", "iid", *TINY]) == 0
    said = capsys.readouterr().out
    assert "1 of 2 to do" in said and shown(said) == whole


def test_a_run_that_fails_is_named_and_the_others_are_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(experiment: Experiment, watch: Watch, known: Known, **engine: object) -> Result:
        if experiment.parametrisation == "plain":
            raise FloatingPointError("loss is nan")
        return comparison.finish(experiment, watch, known)

    monkeypatch.setattr(work, "finish", fails)
    assert main(["reproduce", "iid", *TINY]) == 1
    said = capsys.readouterr()
    assert "fedavg-cifar10-5 --partition iid failed: loss is nan" in said.err
    assert len(list(folder.rglob("result.json"))) == 1 and "fedavg-atoms25-cifar10-5" in said.out


def test_if_all_fail_their_reasons_are_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(experiment: Experiment, watch: Watch, known: Known, **engine: object) -> Result:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(work, "finish", fails)
    assert main(["reproduce", "iid", *TINY]) == 1
    said = capsys.readouterr()
    assert said.err.count("failed: no room") == 2 and "Not run." in said.out
    assert "[1/2] fedavg-cifar10-5 --partition iid: failed" in said.out and "[2/2]" in said.out
    assert ": done" not in said.out and not folder.exists()


def test_a_folder_that_cannot_be_written_is_refused_before_anything_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    monkeypatch.setattr("fedatoms.cli.reproduce.overall", None)  # nothing starts
    assert main(["reproduce", "iid", *TINY, "--out", "file/new"]) == 2
    said = capsys.readouterr()
    assert "file/new: Not a directory. Choose another --out" in said.err and said.err.count("\n") == 1
    assert not said.out


def test_a_job_leaves_nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Large:
        def __init__(self) -> None:
            self.itself = self

    made = list[weakref.ref[Large]]()
    monkeypatch.setattr(work, "finish", lambda *given, **engine: made.append(weakref.ref(Large())))
    for _ in work.here(jobs(chosen(["iid"]), Reproduce(only=TINY[-1])), lambda job, share: None):
        assert made[-1]() is None


def test_a_damaged_result_is_named_and_made_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "iid", *TINY]) == 0
    whole, path = shown(capsys.readouterr().out), next(folder.rglob("result.json"))
    path.write_text(path.read_text()[:100])
    assert main(["reproduce", "iid", *TINY]) == 0
    said = capsys.readouterr()
    assert f"{path.relative_to(Path.cwd())}: damaged" in said.err
    assert "1 of 2 to do" in said.out and "[1/1]" in said.out and shown(said.out) == whole


def test_a_measure_of_other_experiments_is_kept_and_one_is_told_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_measure(folder / "variance-quick", rounds=[0, 1, 3], repeats=3)  # as quick, of other experiments
    earlier = (folder / "variance-quick" / FILE).read_bytes()
    assert main(["reproduce", "figure-variance", "--quick"]) == 1
    said = capsys.readouterr().err
    place = Path("runs", "quick", "variance-quick")
    assert f"figure-variance failed: {place} holds a measure of other experiments or settings" in said
    assert "Rename this folder to keep it, or use another --out." in said and said.count("\n") == 1
    assert (folder / "variance-quick" / FILE).read_bytes() == earlier


def test_only_what_was_asked_for_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = r"^fedavg(-atoms25)?-cifar100-20$|synthetic"
    assert main(["reproduce", "figure-communication", "synthetic", "--quick", "--only", pair]) == 0
    said = capsys.readouterr().out
    assert "Figure (d)" in said and "Two Gaussians" in said
    assert main(["reproduce", "all", *TINY]) == 0
    said = capsys.readouterr().out
    assert "Clients with data alike" in said
    assert not any(title in said for title in ("Figure (d)", "Two Gaussians", "Table 1"))


def the_table(found: Found, only: str = "") -> TerminalTable:
    """Table 1 of some runs."""
    settings, wanted = Reproduce(only=only), chosen(["table1"])
    return terminal_tables(wanted, jobs(wanted, settings), found, quick=False)[0]


def test_table_1_says_with_which_atoms_and_seeds_ours_were_run_and_what_nobody_can_run(tmp_path: Path) -> None:
    for seed in (2, 0):
        a_run(tmp_path / str(seed), 78.0 + seed, "fedavg-atoms-cifar10-2", seed, rounds=0)
    whole = the_table(find([tmp_path]))
    (row,) = [row for row in whole.rows if row[3] is not None]
    assert row[0] == "FedAvg + Decomposition" and row[4:] == ("+1.33", "0 2", "-")
    assert whole.note.startswith("1 of 60 run, mean difference +1.33 points. Gain: with decomposition minus without")
    assert "± 95 %. Ours: 9 atoms; the paper: 9. tiny-imagenet" in whole.note
    assert whole.note.count("is pre-trained") == 1


def test_a_part_of_table_1_is_counted_alone(tmp_path: Path) -> None:
    a_run(tmp_path / "one", 75.0, "fedavg-cifar10-2", rounds=0)
    assert the_table(find([tmp_path]), "^fedavg-cifar").note.startswith("1 of 4 run, mean difference -0.57 points.")


@pytest.mark.parametrize("quickly", [False, True])
def test_the_papers_round_of_lower_loss_stands_beside_ours_but_not_beside_a_quick_one(
    quickly: bool, tmp_path: Path
) -> None:
    wanted = chosen(["training-loss"])
    (job,) = jobs(wanted, Reproduce(quick=quickly))
    kind = MEASURES["training_loss"]
    asked = as_json(kind.quick if quickly else kind.settings)
    write_measure(tmp_path, Measure("training_loss", job.experiments, asked, VALUES["training_loss"], SOURCE))
    (shown,) = terminal_tables(wanted, [job], find([tmp_path]), quick=quickly)
    assert "is lower from round 1 on." in shown.note
    assert ("on. The paper: lower from about round 20 on." in shown.note) != quickly


def test_of_several_seeds_each_is_named_and_those_that_are_missing_are(tmp_path: Path) -> None:
    wanted, kind = chosen(["training-loss"]), MEASURES["training_loss"]
    three = jobs(wanted, Reproduce(seeds="4,0,2"))
    assert [job.name for job in three] == ["training-loss --seeds 4", "training-loss", "training-loss --seeds 2"]
    made = Measure(kind.name, three[0].experiments, as_json(kind.settings), VALUES[kind.name], SOURCE)
    write_measure(tmp_path / "one", made)
    (shown,) = terminal_tables(wanted, three, find([tmp_path]), quick=False)
    assert shown.note.startswith("Seed 4: Loss of") and "on. Not measured: seeds 0, 2. The paper: " in shown.note
    (alone,) = terminal_tables(wanted, three[:1], find([tmp_path]), quick=False)
    assert "eed 4" not in alone.note and "Not measured" not in alone.note


def test_every_seed_of_a_measure_is_said(tmp_path: Path) -> None:
    wanted = chosen(["training-loss"])
    asked = jobs(wanted, Reproduce(seeds="0,4"))
    for job in asked:
        settings = as_json(MEASURES["training_loss"].settings)
        made = Measure("training_loss", job.experiments, settings, VALUES["training_loss"], SOURCE)
        write_measure(tmp_path / job.folder.name, made)
    (shown,) = terminal_tables(wanted, asked, find([tmp_path]), quick=False)
    assert shown.note.startswith("Seed 0: Loss of") and shown.note.count(" Seed 4: Loss of") == 1


def test_table_1_fits_80_columns() -> None:
    console = Console(width=80)
    with console.capture() as said:
        console.print(result_table(the_table(kept())))
    lines = [line for line in said.get().splitlines() if "cifar" in line]
    assert sum(line.count(")") == 1 for line in lines) == 40 and max(map(len, lines)) <= 80  # only methods are broken
    assert sum("±" in line.split()[-1] for line in lines) == 20  # the gains of the decomposed ones


def test_a_measure_is_taken_once_and_again_if_its_file_is_damaged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "synthetic", "--quick"]
    assert main(command) == 0 and "1 of 1 to do" in capsys.readouterr().out
    assert main(command) == 0 and "0 of 1 to do" in capsys.readouterr().out
    (path,) = folder.rglob("measure.json")
    path.write_text(path.read_text()[:100])
    assert main(command) == 0 and "1 of 1 to do" in capsys.readouterr().out
    json.loads(path.read_text())


def test_results_of_another_size_or_seed_are_not_taken_for_ours(folder: Path) -> None:
    assert main(["reproduce", "iid", *TINY]) == 0
    found = find([folder])
    same = jobs(chosen(["iid"]), Reproduce(quick=True, only=TINY[-1]))
    assert missing(same, found) == []
    for other in (Reproduce(only=TINY[-1]), Reproduce(quick=True, only=TINY[-1], seeds="1")):
        assert missing(jobs(chosen(["iid"]), other), found) == jobs(chosen(["iid"]), other)


@pytest.mark.filterwarnings("default")  # Ray leaves its own processes and files unclosed
def test_jobs_on_ray_give_what_they_give_here(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    assert main(["reproduce", "iid", *TINY, "--on", "ray"]) == 0
    spread = shown(capsys.readouterr().out)
    assert main(["reproduce", "iid", *TINY, "--out", "here"]) == 0
    assert shown(capsys.readouterr().out) == spread


def test_a_job_takes_a_gpu_of_the_cluster_if_there_is_one() -> None:
    auto, cuda, cpu = (
        jobs(chosen(["iid"]), Reproduce(only=TINY[-1], device=device))[0] for device in ("auto", "cuda", "cpu")
    )
    takes: Callable[[Job, float], float] = lambda job, gpus: work.share_of_node(job, {"GPU": gpus})["num_gpus"]  # noqa: E731
    assert [takes(job, 2.0) for job in (auto, cuda, cpu)] == [1, 1, 0] and takes(auto, 0.0) == 0
    with pytest.raises(ValueError, match="--device cuda: the Ray cluster has no GPU"):
        takes(cuda, 0.0)


def test_a_worker_needs_not_live_where_the_command_was_typed_and_one_that_dies_is_one_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Died(Exception):
        pass

    def at_work(job: Job) -> work.Done:
        if job.experiments[0].parametrisation == "atoms":
            raise Died("the node is gone")
        with contextlib.chdir(tmp_path := folder.parent.parent.parent):
            done = work.perform(job)
        assert not (tmp_path / "runs").exists()
        return done

    remote = SimpleNamespace(options=lambda **share: remote, remote=lambda job: job)  # a job is its own future
    cluster = {
        "init": lambda **how: None,
        "shutdown": lambda: None,
        "cluster_resources": lambda: {"CPU": 2.0},
        "remote": lambda function: remote,
        "wait": lambda going, num_returns: (going[:1], going[1:]),
        "get": at_work,
        "exceptions": SimpleNamespace(RayError=Died),
    }
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(**cluster))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    assert main(["reproduce", "iid", *TINY, "--on", "ray"]) == 1
    said = capsys.readouterr()
    assert "fedavg-atoms25-cifar10-5 --partition iid failed: the node is gone" in said.err
    assert len(list(folder.rglob("result.json"))) == 1 and len(shown(said.out)) == 1


def test_without_ray_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["reproduce", "iid", *TINY, "--on", "ray"]) == 2
    assert 'pip install "fedatoms[ray]"' in capsys.readouterr().err


# ---- figures made of runs


def test_parameters_sent_are_those_of_the_rounds_until_the_accuracy(folder: Path) -> None:
    only = r"^fedavg-cifar100-20$|--beta 1/5"
    assert main(["reproduce", "figure-communication", "--quick", "--only", only]) == 0
    (figure,) = figures(group(find([folder]).runs))
    plain, beta = groups_of("figure-communication", group(find([folder]).runs), quick_ones=True).values()
    assert figure.size == "quick" and figure.rows[0][4:6] == (1.0, 1.0)
    for each in (plain, beta):
        (run,) = each.runs
        for row in run.rows:
            target = row["scores"]["server"]["accuracy"]
            until = next(n for n, one in enumerate(run.rows, 1) if one["scores"]["server"]["accuracy"] >= target)
            up = sum(sum(one["up"].values()) for one in run.rows[:until]) / 4e6
            down = sum(sum(one["down"].values()) for one in run.rows[:until]) / 4e6
            assert cost_to_reach({0: target}, each, "server") == pytest.approx((until, up, up + down, 0, 0))
        assert cost_to_reach({0: 101.0}, each, "server").never == 1


def test_clients_in_a_round_are_paired_by_their_number(folder: Path) -> None:
    assert main(["reproduce", "figure-clients", "--quick", "--only", r"fraction 0\.[23]$"]) == 0
    (figure,) = figures(group(find([folder]).runs))
    assert [row[0] for row in figure.rows] == [8, 12] and figure.heads == ("clients in a round", "plain", "9 atoms")
    results = [run.result for run in find([folder]).runs]
    accuracy = {
        (one.experiment.parametrisation, round(one.experiment.fraction * 20)): one.accuracy["server"].headline
        for one in results
    }
    assert figure.rows[1][1:] == (accuracy["plain", 12], accuracy["atoms", 12])
    assert (
        "Curves" not in figure.sentence and "not run" not in section([figure]) and "Model: server." in figure.sentence
    )
    gone = {"parametrisation": "atoms", "fraction": 0.6}
    part = [run for run in find([folder]).runs if not gone.items() <= vars(run.result.experiment).items()]
    (lacking,) = figures(group(part))
    assert lacking.rows[1] == (12, accuracy["plain", 12], "not run")
    assert "not run" in section([lacking]) and "with 12" not in lacking.sentence


def test_what_was_never_reached_is_called_so_and_one_curve_stands_for_all_seeds(folder: Path) -> None:
    only = r"^fedavg-cifar100-20$|--beta 1/5"
    assert main(["reproduce", "figure-communication", "--quick", "--only", only, "--seeds", "0,1"]) == 0
    (figure,) = figures(group(find([folder]).runs))
    assert "seeds 0, 1." in figure.sentence and figure.sentence.endswith(" Curves show the first seed.")
    assert "never" in section([figure._replace(rows=[("fedavg", *[None] * (len(figure.heads) - 1))])])


def shown(text: str) -> list[str]:
    """The lines of the tables, without the times."""
    return [line for line in text.splitlines() if re.match("fedavg", line)]


@pytest.mark.parametrize("study", ALL, ids=lambda study: study.name)
def test_the_documentation_counts_the_runs_of_a_study(study: Study) -> None:
    page = (ROOT / "docs" / "reproduce.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{study.name}` |")]
    assert (f"{len(study.runs)} runs" if study.runs else "measure") in row
