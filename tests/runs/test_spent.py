"""A private run cannot spend twice: what it reports is at least what was ever computed, wherever it is killed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.cases import some_now
from support.private import Killed, killing

from fedatoms.core.accounting import epsilon_of
from fedatoms.core.run_files import EXPERIMENT, ROUNDS, SPENT
from fedatoms.engine.loop import Progress, rounds
from fedatoms.engine.runtime import Runtime
from fedatoms.engine.state import State
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import sealed_fields
from fedatoms.runs import execute, spent
from fedatoms.runs.checkpoints import Checkpoints
from fedatoms.runs.execute import Engine, resume, run
from fedatoms.runs.results import Result, read_result
from fedatoms.runs.rounds import Writer, read_lines, read_rounds

PRIVATE = Experiment(
    clients=20,
    partition="iid",
    fraction=0.2,
    sampling="poisson",
    dp_noise=2.0,
    rounds=5,
    epochs=1,
    batch_size=50,
    checkpoint_every=2,
    threads=1,
    device="cpu",
    name="private",
)


class Counting:
    """Counts the private rounds that are computed, over all processes that a run has had."""

    def __init__(self) -> None:
        self.computed = 0

    def engine(self) -> Engine:
        return Engine(rounds=self.rounds)

    def rounds(self, runtime: Runtime, state: State, until: int, eval_every: int) -> Iterator[Progress]:
        for progress in rounds(runtime, state, until, eval_every):
            self.computed += 1
            yield progress


PLACES = {
    "counting": (spent, "write_json"),
    "the line": (Writer, "append"),
    "the checkpoint": (Checkpoints, "save"),
    "the model": (execute, "write_model"),
    "the result": (execute, "write_result"),
}


@pytest.mark.parametrize(("place", "at"), some_now(PLACES, [1, 2, 4]))
def test_killed_anywhere_a_run_reports_at_least_what_was_computed(
    place: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, experiment = Counting(), replace(PRIVATE, out=str(tmp_path))
    with monkeypatch.context() as patched:
        owner, name = PLACES[place]
        patched.setattr(owner, name, killing(getattr(owner, name), at))
        try:
            run(experiment, engine=counting.engine())
        except Killed:
            seen = [_spent(row) for row in read_lines(tmp_path / "private").rows]
            assert max(seen, default=0) <= counting.computed <= _counted(tmp_path / "private")
    result = _continued(experiment, tmp_path / "private", counting)
    said = result.extra["privacy"]
    assert isinstance(said, dict) and said["rounds"] >= counting.computed
    assert said["epsilon"] == epsilon_of(0.2, 2.0, said["rounds"], 1e-5)
    assert [row["round"] for row in read_rounds(tmp_path / "private")] == list(range(5))
    assert read_result(tmp_path / "private").extra == result.extra


def _continued(experiment: Experiment, folder: Path, counting: Counting) -> Result:
    """Does what a person does after a kill: resumes, or types the same command if nothing had begun."""
    try:
        return run(experiment, engine=counting.engine())
    except ValueError:
        return resume(folder, {}, engine=counting.engine())


def _counted(folder: Path) -> int:
    return int(json.loads((folder / SPENT).read_text())["rounds"]) if (folder / SPENT).exists() else 0


def _spent(row: object) -> int:
    assert isinstance(row, dict)
    return int(row["privacy"]["rounds"])


def test_a_resumed_run_counts_the_rounds_that_a_kill_lost(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.state.round == 3:
            raise Killed

    with pytest.raises(Killed):
        run(replace(PRIVATE, out=str(tmp_path), dp_clip="adaptive"), watch=stop)
    said: list[str] = []
    result = resume(tmp_path / "private", {}, say=said.append)  # from the checkpoint after round 2
    assert [_spent(row) for row in read_rounds(tmp_path / "private")] == [1, 2, 4, 5, 6]
    assert said == ["epsilon also counts 1 private round lost by a stop"]
    assert result.extra["privacy"]["rounds"] == 6  # type: ignore[index]
    clips = [row["privacy"]["clip"] for row in read_rounds(tmp_path / "private")]  # type: ignore[typeddict-item]
    assert clips[0] == 0.1 and len({*clips}) == 5  # which goes on from the checkpoint


def test_what_is_written_holds_nothing_of_a_client(tmp_path: Path) -> None:
    run(replace(PRIVATE, out=str(tmp_path), client_state="disk"))
    folder = tmp_path / "private"
    for row in read_rounds(folder):
        assert (
            row["loss"] is None and row["clients"] == 4 and row["seconds"] is None and set(row["scores"]) == {"server"}
        )
    assert not [*(folder / "checkpoint" / "clients").glob("*")]
    result = read_result(folder)
    assert result.seconds is None and result.seconds_per_round is None


@pytest.mark.parametrize("rounds_said", [None, 3])
def test_a_run_whose_count_is_lost_or_too_small_is_refused(rounds_said: int | None, tmp_path: Path) -> None:
    run(replace(PRIVATE, out=str(tmp_path)))
    path = tmp_path / "private" / SPENT
    path.unlink()
    if rounds_said is not None:
        spent.write_json(path, spent.sealed({"format": 2, "rounds": rounds_said}))
    lines = (tmp_path / "private" / ROUNDS).read_bytes()
    with pytest.raises(ValueError, match="Its privacy is unknown: restore that file, or start a new run"):
        resume(tmp_path / "private", {"rounds": 6})
    assert (tmp_path / "private" / ROUNDS).read_bytes() == lines


def test_a_count_that_is_lost_is_missed_before_the_first_checkpoint_too(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(replace(PRIVATE, out=str(tmp_path)), watch=killing(lambda progress: None, 1))
    (tmp_path / "private" / SPENT).unlink()
    with pytest.raises(ValueError, match="Its privacy is unknown"):
        resume(tmp_path / "private", {})


def test_more_rounds_cost_more_or_are_refused(tmp_path: Path) -> None:
    first = run(replace(PRIVATE, out=str(tmp_path), rounds=2))
    more = resume(tmp_path / "private", {"rounds": 3})
    assert more.extra["privacy"]["epsilon"] > first.extra["privacy"]["epsilon"]  # type: ignore[index]
    (tmp_path / "promised").mkdir()
    promised = replace(PRIVATE, dp_noise=None, dp_epsilon=8.0)
    spent.write_json(tmp_path / "promised" / EXPERIMENT, sealed_fields(promised))
    with pytest.raises(ValueError, match=r"`rounds` cannot change in a resumed run whose noise was found"):
        resume(tmp_path / "promised", {"rounds": 3})


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"dp_epsilon": 8.0}, "the one gives the other. Leave one out"),
        ({"dp_noise": None, "dp_clip": 0.5}, r"dp_clip=0.5 without noise protects nobody. Add dp_epsilon=8"),
        ({"dp_clip": "adaptiv"}, "dp_clip=adaptiv is neither a number nor adaptive. Use for example 1"),
        ({"dp_clip": -1.0}, "dp_clip=-1.0 is less than 1e-06: a shorter update is lost in rounding. Use for example 1"),
        ({"dp_clip": "1e300"}, r"dp_clip=1e\+300 is more than 1e6. Use for example 1"),
        ({"dp_clip": "nan"}, "dp_clip=nan is not"),
        ({"dp_delta": 0.05}, "dp_delta=0.05 is not below 1/20, one in the number of clients"),
        ({"dp_noise": None, "dp_delta": 1e-6}, "dp_delta=1e-06 without noise protects nobody. Add dp_epsilon=8"),
        ({"deterministic": True}, "come from the operating system, so no run of it can be repeated"),
        ({"dp_noise": 0.0}, "dp_noise=0.0 is less than 0.1. Use for example 1"),
    ],
)
def test_half_of_privacy_is_refused(changes: dict[str, object], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        check(replace(PRIVATE, **changes))
