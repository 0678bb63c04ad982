"""Watchers: what TensorBoard, MLflow and Weights & Biases have in their own stores is what the run's folder has."""

import importlib.util
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fedatoms.cli import main
from fedatoms.core.options import WATCHERS
from fedatoms.core.run_files import WATCHED, checkpoints
from fedatoms.engine.loop import Progress
from fedatoms.engine.state import State
from fedatoms.experiment.fields import Experiment
from fedatoms.runs import watchers
from fedatoms.runs.checkpoints import Checkpoints
from fedatoms.runs.execute import resume, run
from fedatoms.runs.rounds import keep_rounds, read_rounds
from fedatoms.runs.watchers.base import Watching, lasting_name

TINY = Experiment(clients=5, fraction=0.4, rounds=3, epochs=1, batch_size=64, checkpoint_every=1, eval_every=2)
OF_SQLALCHEMY = "ignore:The ``noload`` loader strategy:DeprecationWarning"  # which MLflow still uses
SLOW = pytest.mark.slow
Numbers = dict[str, dict[int, float]]  # by name and round


def in_tensorboard(folder: Path) -> Numbers:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {name: {each.step: each.value for each in events.Scalars(name)} for name in events.Tags()["scalars"]}


def in_mlflow(folder: Path) -> Numbers:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parent / 'mlflow.db'}")
    group = client.get_experiment_by_name("fedatoms")
    assert group is not None
    (found,) = client.search_runs([group.experiment_id])
    assert found.info.status == "FINISHED" and found.data.params["clients"] == "5"
    assert not {"out", "data_dir"} & set(found.data.params)
    histories = {name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
    assert all(len({each.step for each in history}) == len(history) for history in histories.values())
    return {name: {each.step: each.value for each in history} for name, history in histories.items()}


def in_wandb(folder: Path) -> Numbers:
    from wandb.proto.wandb_internal_pb2 import Record

    found, ids = Numbers(), set[str]()
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in entries(file.read_bytes()):
            record = Record.FromString(data)
            ids |= {record.run.run_id} if record.HasField("run") else set()
            row = {(item.nested_key or [item.key])[0]: json.loads(item.value_json) for item in record.history.item}
            for name in (name for name in row if not name.startswith("_")):
                found.setdefault(name, {})[row["_step"]] = row[name]
    assert len(ids) == 1
    return found


def entries(content: bytes) -> Iterator[bytes]:
    """Reads the log of W&B's offline files: blocks of 32 KiB, of parts of records with a checksum, length and kind."""
    place, data = 7, b""
    assert content.startswith(b":W&B")
    while place + 7 <= len(content):
        if place % 2**15 > 2**15 - 7:  # the rest of a block is empty
            place += 2**15 - place % 2**15
        _, length, kind = struct.unpack_from("<IHB", content, place)
        data += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield data
            data = b""


READERS = {"tensorboard": in_tensorboard, "mlflow": in_mlflow, "wandb": in_wandb}


def in_folder(folder: Path) -> Numbers:
    found: Numbers = {}
    for row in read_rounds(folder):
        t = row["round"] + 1
        numbers = {"loss/train": row["loss"], "bytes/up": sum(row["up"].values()), "seconds": row["seconds"]}
        numbers |= {"bytes/down": sum(row["down"].values()), "clients/failed": row["failed"]}
        for name, score in row["scores"].items():
            numbers |= {f"accuracy/{name}": score["accuracy"], f"loss/{name}": score["loss"]}
        for name, value in numbers.items():
            found.setdefault(name, {})[t] = value
    return found


def close(ours: Numbers, theirs: Numbers) -> bool:
    """Says whether numbers are the same, up to TensorBoard's float32."""
    assert ours.keys() == theirs.keys()
    return all(theirs[name] == pytest.approx(ours[name], rel=1e-6) for name in ours)


def needs(name: str) -> None:
    pytest.importorskip(name)


@pytest.mark.filterwarnings(OF_SQLALCHEMY)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW if name in ("mlflow", "wandb") else ()) for name in WATCHERS]
)
def test_a_store_has_the_numbers_of_every_round_also_of_a_run_that_was_resumed(name: str, tmp_path: Path) -> None:
    needs(name)
    run(replace(TINY, out=str(tmp_path), name="it's", watch=name))
    folder = tmp_path / "it's"
    assert close(in_folder(folder), READERS[name](folder))
    resume(folder, {"rounds": 5})
    ours, theirs = in_folder(folder), READERS[name](folder)
    known = {each: {t: value for t, value in line.items() if t in ours[each]} for each, line in theirs.items()}
    assert close(ours, known) and sorted(theirs["loss/train"]) == [1, 2, 3, 4, 5]
    more = {(each, t) for each, line in theirs.items() for t in line.keys() - ours[each].keys()}
    scored = ("accuracy/server", "loss/server", "accuracy/all", "loss/all", "accuracy/selected", "loss/selected")
    assert more == {(each, TINY.rounds) for each in scored}  # the end that was none: a store takes nothing back


def test_every_watcher_is_tested_and_has_at_most_40_lines() -> None:
    assert tuple(watchers.WATCHERS) == WATCHERS and list(READERS) == list(WATCHERS)
    for path in Path(watchers.__file__).parent.glob("_[a-z]*.py"):
        assert len(path.read_text().splitlines()) <= 40, path


@pytest.mark.parametrize("name", WATCHERS)
def test_a_watcher_that_is_not_installed_costs_a_line_that_says_what_to_type(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda each, *more: None if each == name else find(each, *more))
    assert main(["run", "--rounds", "1", "--watch", name]) == 2
    said = capsys.readouterr().err
    assert said == f'fedatoms: --watch {name} needs {name}. Type: pip install "fedatoms[{name}]"\n'
    assert not list(tmp_path.iterdir())


def test_an_unknown_watcher_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--watch", "mlfow"]) == 2
    assert "mlflow" in capsys.readouterr().err


class Store:
    """A watcher of tests: it fails in the round that it is told, and keeps how the run ended."""

    def __init__(self, fails: int) -> None:
        self.fails, self.seen, self.ended = fails, list[int](), list[str]()

    def open(self, name: str, experiment: Experiment, folder: Path, first: int) -> Watching:
        def see(t: int, numbers: Mapping[str, float]) -> None:
            self.seen.append(t)
            if t == self.fails:
                raise OSError("the disk is full")

        return Watching(see, self.ended.append)


def test_a_store_that_fails_is_left_out_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(fails=2)
    monkeypatch.setattr(watchers, "_open", store.open)
    with pytest.warns(UserWarning, match="watch=tensorboard fails, and the run goes on without it: the disk is full"):
        run(replace(TINY, out=str(tmp_path), name="run", tensorboard=True))
    assert store.seen == [1, 2] and len(read_rounds(tmp_path / "run")) == 3


class Killed(BaseException):
    """What no code catches, as a kill."""


def killing(t: int) -> Callable[[Progress], None]:
    """Returns what kills a run after a round."""

    def watch(progress: Progress) -> None:
        if progress.state.round == t:
            raise Killed

    return watch


@pytest.mark.parametrize(("at", "saved"), [(1, []), (3, [1, 2]), (4, [1, 2, 3, 4])])
def test_no_store_sees_a_round_that_a_kill_throws_away(
    at: int, saved: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(fails=0)
    monkeypatch.setattr(watchers, "_open", store.open)
    monkeypatch.setattr("fedatoms.runs.execute.check_watchers", lambda experiment: None)
    every_two = replace(TINY, out=str(tmp_path), name="run", watch="wandb", checkpoint_every=2, rounds=5)
    with pytest.raises(Killed):
        run(every_two, watch=killing(at))
    assert store.seen == saved
    resume(tmp_path / "run", {})
    assert store.seen == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("at", [2, 4, 5])
def test_after_a_ctrl_c_in_any_save_a_checkpoint_has_what_a_store_was_told(
    at: int, twice: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a second one the round that was being saved is kept, too."""
    store, write, pressed = Store(fails=0), Checkpoints._write, list[int]()
    monkeypatch.setattr(watchers, "_open", store.open)
    monkeypatch.setattr("fedatoms.runs.execute.check_watchers", lambda experiment: None)

    def interrupted(self: Checkpoints, state: State, seconds: float) -> None:
        if state.round == at and len(pressed) <= twice:
            pressed.append(at)
            raise KeyboardInterrupt
        write(self, state, seconds)

    monkeypatch.setattr(Checkpoints, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(replace(TINY, out=str(tmp_path), name="run", watch="wandb", checkpoint_every=2, rounds=5))
    kept = max([0, *checkpoints(tmp_path / "run")])
    assert store.seen == list(range(1, kept + 1)) and kept == ((at - 1) // 2 * 2 if twice else at)
    resume(tmp_path / "run", {})
    assert store.seen == [1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.filterwarnings(OF_SQLALCHEMY)
@pytest.mark.parametrize("at", [1, 4])
def test_mlflow_has_each_round_of_a_killed_run_once(at: int, tmp_path: Path) -> None:
    needs("mlflow")
    with pytest.raises(Killed):
        run(
            replace(TINY, out=str(tmp_path), name="run", watch="mlflow", checkpoint_every=2, rounds=5),
            watch=killing(at),
        )
    resume(tmp_path / "run", {})
    assert close(in_folder(tmp_path / "run"), in_mlflow(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.filterwarnings(OF_SQLALCHEMY)
def test_mlflow_forgets_rounds_that_an_older_checkpoint_has_lost(tmp_path: Path) -> None:
    needs("mlflow")
    experiment = replace(TINY, out=str(tmp_path), name="run", watch="mlflow", rounds=4)
    run(experiment)
    keep_rounds(tmp_path / "run", read_rounds(tmp_path / "run")[:2])
    with watchers.watching(experiment, tmp_path / "run", 2):
        pass
    assert in_mlflow(tmp_path / "run")["loss/train"].keys() == {1, 2}


def test_a_run_keeps_its_name_and_shares_it_with_no_other(tmp_path: Path) -> None:
    """Neither one of the same experiment in a folder of the same name, nor another experiment in the same folder."""
    mine, theirs = tmp_path / "mine" / "run", tmp_path / "theirs" / "run"
    mine.mkdir(parents=True)
    theirs.mkdir(parents=True)
    found = [lasting_name(TINY, mine), lasting_name(TINY, theirs), lasting_name(replace(TINY, lr=0.5), mine)]
    assert len(set(found)) == 3
    assert found[0] == lasting_name(replace(TINY, rounds=99), mine)
    (mine / WATCHED).write_text("{}")
    with pytest.raises(ValueError, match=r"watched\.json has lost its checksum.*; remove that file to begin anew"):
        lasting_name(TINY, mine)


@pytest.mark.slow
@pytest.mark.filterwarnings(OF_SQLALCHEMY)
def test_a_colleagues_run_in_a_shared_store_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'shared.db'}")
    experiment = replace(TINY, name="run", watch="mlflow", rounds=4)
    theirs, mine = replace(experiment, out=str(tmp_path / "theirs")), replace(experiment, out=str(tmp_path / "mine"))
    run(theirs)
    before = in_store(tmp_path / "shared.db")
    with pytest.raises(Killed):
        run(mine, watch=killing(2))
    resume(tmp_path / "mine" / "run", {})
    after = in_store(tmp_path / "shared.db")
    assert len(after) == 2 and before.items() <= after.items()


def in_store(path: Path) -> dict[str, list[int]]:
    """Returns the rounds that MLflow has of each run."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{path}")
    group = client.get_experiment_by_name("fedatoms")
    assert group is not None
    runs = [each.info.run_id for each in client.search_runs([group.experiment_id])]
    return {each: [one.step for one in client.get_metric_history(each, "loss/train")] for each in runs}


@pytest.mark.parametrize(("error", "ended"), [(KeyboardInterrupt, "stopped"), (RuntimeError, "failed")])
def test_a_store_is_told_how_a_run_ended(
    error: type[BaseException], ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(fails=0)
    monkeypatch.setattr(watchers, "_open", store.open)

    def stop(progress: object) -> None:
        raise error

    with pytest.raises(error):
        run(replace(TINY, out=str(tmp_path), name="run", tensorboard=True), watch=stop)
    assert store.ended == [ended]


def test_a_store_that_cannot_be_opened_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedatoms.runs.watchers._tensorboard.tensorboard", lambda *given: 1 / 0)
    assert main(["run", "--rounds", "1", "--watch", "tensorboard", "--out", str(tmp_path)]) == 2
    assert "--watch tensorboard cannot begin: division by zero. Leave it out" in capsys.readouterr().err
