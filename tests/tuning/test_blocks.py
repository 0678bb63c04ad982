"""Trials in one block: the study, its file and its runs are those of a search that tries one after the other."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support.searches import TINY, Killed, silent
from support.searches import plan_of as plan_in_blocks
from support.small import difference

from fedatoms.core.run_files import STUDY
from fedatoms.data.federations import hold_out
from fedatoms.engine.loop import Progress, Watch
from fedatoms.experiment import images as reading
from fedatoms.experiment.fields import Experiment
from fedatoms.runs import abreast, one_block
from fedatoms.runs.results import read_result
from fedatoms.tuning import blocks, loop
from fedatoms.tuning.loop import search
from fedatoms.tuning.studies import Plan, Study, write

BLOCKS = replace(TINY, map="vectorised")
WILD = replace(BLOCKS, clip=0.0, momentum=0.9)  # a large rate makes it overflow
RATES = "lr=0.05,0.1,0.2"


def plan_of(*over: str, experiment: Experiment = BLOCKS, **asked: object) -> Plan:
    return plan_in_blocks(*over, experiment=experiment, **asked)


def in_turn(plan: Plan) -> Plan:
    return plan._replace(tune=replace(plan.tune, together=1))


def abreast_of(study: Study) -> dict[str, int]:
    """Returns with how many runs each one that finished was trained, itself included."""
    folders = sorted(path.parent for path in study.folder.glob("*/result.json"))
    return {folder.name: int(str(read_result(folder).provenance["abreast"])) for folder in folders}


def record_of(folder: Path) -> dict[str, object]:
    return json.loads((folder / STUDY).read_text())


def check_same(one: Path, other: Path) -> None:
    """Compares two studies: what their files say, and the runs that they left."""
    assert record_of(one) == record_of(other)
    mine, others = (sorted(path.name for path in folder.iterdir()) for folder in (one, other))
    assert mine == others
    for path in one.glob("*/model.safetensors"):
        assert difference(load_file(path), load_file(other / path.relative_to(one))) < 1e-5


def blocks_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets, for each block that is trained, how many runs it has clients of."""
    seen: list[int] = []
    real = abreast.train_several

    def counted(map_clients: object, basis: object, requests: list[object]) -> object:
        seen.append(len(requests))
        return real(map_clients, basis, requests)  # type: ignore[arg-type]

    monkeypatch.setattr(abreast, "train_several", counted)
    return seen


def writes_of(plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Searches, and returns what the file of the study said after each time that it was written."""
    said: list[object] = []
    write = loop.write

    def noted(*what: object) -> None:
        write(*what)  # type: ignore[arg-type]
        said.append(record_of(folder))

    with monkeypatch.context() as patch:
        patch.setattr(loop, "write", noted)
        search(plan, folder, silent)
    return said


def test_points_of_a_grid_share_every_block_and_their_study_is_that_of_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = blocks_of(monkeypatch)
    study = search(plan_of(RATES), tmp_path / "block", silent)
    assert seen == [3] * BLOCKS.rounds and abreast_of(study) == {"000-s0": 3, "001-s0": 3, "002-s0": 3}
    assert set(abreast_of(search(in_turn(plan_of(RATES)), tmp_path / "turn", silent)).values()) == {1}
    assert len(seen) == BLOCKS.rounds and [trial.state for trial in study.trials] == ["finished"] * 3
    check_same(tmp_path / "block", tmp_path / "turn")


@pytest.mark.parametrize(
    ("over", "asked", "company"),
    [
        (("lr=0.05,0.1", "epochs=1,2"), {}, [2, 2, 2, 2]),  # those of one block are not neighbours
        (("lr=0.05,0.1",), {"seeds": (0, 3)}, [2, 2, 2, 2]),  # each seed holds out images of its own
        ((RATES,), {"together": 2}, [2, 2, 1]),
        (("batch_size=25,50",), {}, [1, 1]),
        ((RATES,), {"prune": "median"}, [3, 3, 3]),  # none of so few is ever stopped early
    ],
    ids=str,
)
def test_trials_are_written_down_in_order_whoever_trained_together(
    over: tuple[str, ...], asked: dict[str, object], company: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(*over, **asked)
    said = writes_of(plan, tmp_path / "block", monkeypatch)
    assert said == writes_of(in_turn(plan), tmp_path / "turn", monkeypatch)
    check_same(tmp_path / "block", tmp_path / "turn")
    assert list(abreast_of(search(plan, tmp_path / "block", silent)).values()) == company


def test_trials_that_may_be_stopped_early_come_one_after_the_other(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    plan = plan_of("lr=0.001,0.05,0.1,0.2,0.3,0.4", prune="median", experiment=replace(BLOCKS, rounds=1))
    assert set(abreast_of(search(plan, tmp_path / "s", silent)).values()) == {1}


def test_a_range_is_searched_one_trial_after_the_other(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    plan = plan_of("lr=0.01..1:log", trials=3, seeds=(0, 1))
    study = search(plan, tmp_path / "block", silent)
    search(in_turn(plan), tmp_path / "turn", silent)
    check_same(tmp_path / "block", tmp_path / "turn")
    assert set(abreast_of(study).values()) == {1}


def test_a_point_that_overflows_fails_as_it_does_alone_and_the_others_go_on(tmp_path: Path) -> None:
    plan = plan_of("lr=0.05,1e6,0.1", experiment=WILD, seeds=(0, 1))
    study = search(plan, tmp_path / "block", silent)
    assert [trial.state for trial in study.trials] == ["finished", "failed", "finished"] and study.trials[1].why
    search(in_turn(plan), tmp_path / "turn", silent)
    check_same(tmp_path / "block", tmp_path / "turn")
    assert not (tmp_path / "block" / "001-s1").exists()
    assert abreast_of(study) == {"000-s0": 3, "000-s1": 2, "002-s0": 3, "002-s1": 2}


def failing(number: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the runs of a trial fail."""
    real = blocks.finish

    def fails(experiment: Experiment, *rest: object, **more: object) -> object:
        if experiment.name.startswith(f"{number:03d}-"):
            raise error
        return real(experiment, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(blocks, "finish", fails)


@pytest.mark.parametrize("number", [0, 1])
def test_a_point_without_enough_memory_fails_and_the_others_go_on(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(number, MemoryError("out of memory with a single client"), monkeypatch)
    for way, plan in (("block", plan_of(RATES)), ("turn", in_turn(plan_of(RATES)))):
        trials = search(plan, tmp_path / way, silent).trials
        assert [trial.number for trial in trials if trial.state == "failed" and "memory" in trial.why] == [number]
    check_same(tmp_path / "block", tmp_path / "turn")


def test_values_that_are_not_good_together_fail_as_they_do_alone(tmp_path: Path) -> None:
    few = replace(BLOCKS, partition="shards", fraction=0.2, rounds=1)
    plan = plan_of("clients=10,5", "classes_per_client=2,1", experiment=few)
    study = search(plan, tmp_path / "block", silent)
    assert [trial.state for trial in study.trials] == ["finished"] * 3 + ["failed"]
    search(in_turn(plan), tmp_path / "turn", silent)
    check_same(tmp_path / "block", tmp_path / "turn")


def test_an_error_that_ends_a_search_leaves_the_trials_before_it_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(RATES)
    failing(1, OSError("the disk is full"), monkeypatch)
    for way in (plan, in_turn(plan)):
        with pytest.raises(OSError, match="full"):
            search(way, tmp_path / str(way.tune.together), silent)
    found = [record_of(tmp_path / str(way.tune.together)) for way in (plan, in_turn(plan))]
    assert found[0] == found[1] and len(found[0]["trials"]) == 1  # type: ignore[arg-type]


def seeds_look_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets runs of several seeds be put into one block, as if all held out the same images."""
    real = one_block.block_kind
    monkeypatch.setattr(one_block, "block_kind", lambda experiment: real(replace(experiment, seed=0)))


def test_what_cannot_share_a_block_after_all_comes_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("lr=0.05,0.1", seeds=(0, 1))
    search(in_turn(plan), tmp_path / "turn", silent)
    seeds_look_alike(monkeypatch)
    study = search(plan, tmp_path / "block", silent)
    check_same(tmp_path / "block", tmp_path / "turn")
    assert set(abreast_of(study).values()) == {2}


@pytest.mark.parametrize("over", ["lr=0.05,1e6", "lr=0.05..1e6:log"])
def test_seeds_of_a_trial_share_blocks_where_they_train_on_the_same_images(
    over: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ".." in over:
        pytest.importorskip("optuna")
    plan = plan_of(over, experiment=WILD, seeds=(0, 1), **({"trials": 3} if ".." in over else {}))
    monkeypatch.setattr(reading, "hold_out", lambda images, share, seed: hold_out(images, share, 0))
    turn = search(in_turn(plan), tmp_path / "turn", silent)
    seeds_look_alike(monkeypatch)
    study = search(plan, tmp_path / "block", silent)
    assert study.trials == turn.trials and {trial.state for trial in study.trials} == {"finished", "failed"}
    assert set(abreast_of(study).values()) == {4 if plan.is_grid else 2}


def test_a_damaged_result_of_a_later_trial_is_named_when_that_is_due(tmp_path: Path) -> None:
    for way in (plan_of(RATES), in_turn(plan_of(RATES))):
        folder = tmp_path / str(way.tune.together)
        search(way, folder, silent)
        record = json.loads((folder / STUDY).read_text())
        write(search(way, folder, silent)._replace(trials=()))  # as if it had been killed before the first
        shutil.rmtree(folder / "000-s0")
        (folder / "001-s0" / "result.json").write_text("{}")
        with pytest.raises(ValueError, match=r"001-s0.result\.json"):
            search(way, folder, silent)
        assert record_of(folder)["trials"] == record["trials"][:1]


def stopped(error: type[BaseException]) -> Callable[[str, int], object]:
    """Shows runs, and raises an error in that of the second trial after a round."""

    @contextmanager
    def shown(label: str, rounds: int) -> Iterator[Watch]:
        def watch(progress: Progress) -> None:
            if label.startswith("[2/"):
                raise error("stopped")

        yield watch

    return shown


@pytest.mark.parametrize("error", [KeyboardInterrupt, Killed])
def test_a_search_that_is_stopped_in_a_block_goes_on_as_if_it_had_not_been(
    error: type[BaseException], tmp_path: Path
) -> None:
    plan = plan_of(RATES)
    search(plan, tmp_path / "whole", silent)
    with pytest.raises(error):
        search(plan, tmp_path / "parts", stopped(error))  # type: ignore[arg-type]
    if error is KeyboardInterrupt:  # each has saved where it was
        assert len(list((tmp_path / "parts").glob("*/checkpoint/*.json"))) == 3
    assert record_of(tmp_path / "parts")["trials"] == []
    assert len(search(plan, tmp_path / "parts", silent).trials) == 3
    check_same(tmp_path / "whole", tmp_path / "parts")


def test_what_a_killed_search_has_trained_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, write = plan_of(RATES), loop.write

    def fails(study: Study, *more: str) -> None:
        if study.trials:
            raise Killed
        write(study, *more)

    search(plan, tmp_path / "whole", silent)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(loop, "write", fails)
        search(plan, tmp_path / "parts", silent)
    seen = blocks_of(monkeypatch)
    search(plan, tmp_path / "parts", silent)
    check_same(tmp_path / "whole", tmp_path / "parts")
    assert seen == []


def test_each_run_is_shown_once_under_the_number_of_its_trial(tmp_path: Path) -> None:
    seen: list[str] = []

    @contextmanager
    def noted(label: str, rounds: int) -> Iterator[Watch]:
        seen.append(label)
        yield lambda progress: None

    search(plan_of("lr=0.05,0.1", seeds=(0, 1)), tmp_path / "s", noted)
    assert sorted(seen) == ["[1/2] 000-s0", "[1/2] 000-s1", "[2/2] 001-s0", "[2/2] 001-s1"]
