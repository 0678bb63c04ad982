"""A run's rounds are sealed line by line and kept twice: what is damaged is named, and rebuilt when the run goes on."""

import errno
import json
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support.sealed import as_older

from fedatoms.core.records import SEAL
from fedatoms.core.run_files import ROUNDS
from fedatoms.evidence.results.finding import find
from fedatoms.experiment.fields import Experiment
from fedatoms.runs.checkpoints import _tidy
from fedatoms.runs.execute import resume, run
from fedatoms.runs.results import changed_files, read_result, result_of
from fedatoms.runs.rounds import Row, keep_rounds, read_rounds
from fedatoms.runs.states import find_runs, state_of

Lines = Sequence[str]
TINY = Experiment(clients=4, classes_per_client=5, fraction=0.5, epochs=1, batch_size=64, eval_every=2)
SEALED = ("experiment.json", "rounds.jsonl", "result.json", "model.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp("runs")
    return run(replace(TINY, out=str(out), name="run", rounds=5, checkpoint_every=2)).folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    import shutil

    return Path(shutil.copytree(whole, tmp_path / "run"))


def field(name: str, value: object) -> Callable[[Lines], Lines]:
    """Returns what sets a field of the third line."""
    return lambda lines: [*lines[:2], json.dumps({**json.loads(lines[2]), name: value}) + "\n", *lines[3:]]


DAMAGE: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "an empty object": (lambda lines: [*lines[:2], "{}\n", *lines[3:]], "line 3: object missing required field round"),
    "a list": (lambda lines: [*lines[:2], "[]\n", *lines[3:]], "line 3: expected object, got array"),
    "no scores": (field("scores", None), "line 3: scores: expected object, got null"),
    "seconds of text": (field("seconds", "x"), "line 3: seconds: expected float \\| null, got str"),
    "seconds of nan": (field("seconds", float("nan")), "line 3 holds NaN, which is not a number of JSON"),
    "an accuracy of 101": (
        field("scores", {"server": {"accuracy": 101.0}}),
        r"line 3: scores\[...\].accuracy: expected float <= 100",
    ),
    "negative bytes": (field("up", {"head": -1}), r"line 3: up\[...\]: expected int >= 0"),
    "another loss": (field("loss", 0.25), "line 3 does not match its checksum"),
    "no seal": (
        lambda lines: [*lines[:2], json.dumps({n: v for n, v in json.loads(lines[2]).items() if n != SEAL}) + "\n"],
        "line 3 has lost its checksum",
    ),
    "a line twice": (lambda lines: [*lines, lines[-1]], "line 6 has round 5, but 6 comes next"),
    "a line less": (lambda lines: [*lines[:2], *lines[3:]], "line 3 has round 4, but 3 comes next"),
    "the last line less": (lambda lines: lines[:-1], "has 4 rounds, but result.json is of 5"),
    "the last line cut": (lambda lines: [*lines[:-1], lines[-1][:20]], "has 4 rounds, but result.json is of 5"),
    "two lines changed over": (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1 has round 2, but 1 comes next"),
    "deep brackets": (lambda lines: ["[" * 100_000 + "\n", *lines], "line 1 is nested too deeply"),
    "no text": (lambda lines: [*lines[:2], "\udcff\udcfe\n"], "line 3 is not whole JSON"),
}


def unscored_at_the_end(rows: list[Row]) -> list[Row]:
    """Returns the rounds of a run that went on: the last one is scored only as it was to be the last."""
    assert rows[-1]["scores"] and (rows[-1]["round"] + 1) % TINY.eval_every
    return [*rows[:-1], {**rows[-1], "scores": {}}]


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_line_is_named_and_rebuilt_when_the_run_goes_on(what: str, folder: Path) -> None:
    damage, message = DAMAGE[what]
    path = folder / ROUNDS
    before = path.read_bytes()
    lines = before.decode().splitlines(keepends=True)
    path.write_bytes("".join(damage(lines)).encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=rf"rounds.jsonl,? {message}"):
        read_rounds(folder)
    assert [note.path for note in find([folder]).notes] == [path]
    said: list[str] = []
    resume(folder, {}, say=said.append)
    assert path.read_bytes() == before
    if what != "a line twice":  # which comes after all that is needed
        assert any("rebuilt from those beside the checkpoint" in line for line in said)


def test_a_lost_file_is_rebuilt_and_the_run_ends_as_if_nothing_had_been(folder: Path) -> None:
    before = read_rounds(folder)
    (folder / ROUNDS).unlink()
    said: list[str] = []
    resume(folder, {"rounds": 6}, say=said.append)
    assert any("has 0 of the 5 rounds of the checkpoint: its 5 rounds are rebuilt" in line for line in said)
    assert read_rounds(folder)[:5] == unscored_at_the_end(before) and len(read_rounds(folder)) == 6


def test_a_pipe_in_place_of_the_rounds_is_damage_too(folder: Path) -> None:
    before = (folder / ROUNDS).read_bytes()
    (folder / ROUNDS).unlink()
    os.mkfifo(folder / ROUNDS)
    with pytest.raises(ValueError, match=r"rounds.jsonl is a pipe, not a regular file"):
        read_rounds(folder)
    resume(folder, {})
    assert (folder / ROUNDS).read_bytes() == before


def test_a_run_of_an_older_version_is_read_unchecked_and_cannot_be_rebuilt_until_it_went_on(folder: Path) -> None:
    rows = read_rounds(folder)
    as_older(folder)
    assert read_rounds(folder) == rows and find([folder]).notes == []
    lines = (folder / ROUNDS).read_text()
    (folder / ROUNDS).write_text(lines.replace('"round": 1', '"round": "x"'))
    with pytest.raises(ValueError, match=r"line 2: round: .* cannot be rebuilt: runs of older versions have no second"):
        resume(folder, {})
    (folder / ROUNDS).write_text(lines.replace('"loss": ', '"loss": NaN, "old": ', 1))  # as diverged runs had it
    resume(folder, {"rounds": 6})
    (folder / ROUNDS).unlink()
    resume(folder, {})
    assert read_rounds(folder)[1:5] == unscored_at_the_end(rows)[1:]


def test_segments_hold_each_line_once(whole: Path) -> None:
    segments = sorted((whole / "checkpoint" / "rounds").iterdir())
    assert [path.name for path in segments] == ["000002.jsonl", "000004.jsonl", "000005.jsonl"]
    assert b"".join(path.read_bytes() for path in segments) == (whole / ROUNDS).read_bytes()


@pytest.mark.parametrize("name", SEALED)
def test_any_changed_bit_of_a_sealed_file_is_noticed_or_changes_nothing(name: str, folder: Path) -> None:
    draw, path = random.Random(0), folder / name
    before, result, rows = path.read_bytes(), read_result(folder), read_rounds(folder)
    for _ in range(60):
        place, bit = draw.randrange(len(before)), draw.randrange(8)
        path.write_bytes(before[:place] + bytes([before[place] ^ 1 << bit]) + before[place + 1 :])
        try:
            same = read_result(folder) == result and read_rounds(folder) == rows and not changed_files(result)
        except ValueError as error:
            assert name in str(error)
            continue
        assert same or name in changed_files(result)


def test_lines_of_another_experiment_do_not_fit(folder: Path, tmp_path: Path) -> None:
    other = run(replace(TINY, out=str(tmp_path), name="other", rounds=5, seed=1)).folder
    (folder / ROUNDS).write_bytes((other / ROUNDS).read_bytes())
    with pytest.raises(ValueError, match="line 1 does not match its checksum"):
        read_rounds(folder)


def test_rounds_that_something_else_emptied_are_a_line(folder: Path) -> None:
    (folder / "result.json").unlink()
    (folder / ROUNDS).write_text("")
    for path in (folder / "checkpoint").glob("*.json"):
        path.unlink()
    with pytest.raises(ValueError, match=r"has no rounds any more: something else wrote it"):
        result_of(TINY, folder, seconds=1.0, parameters=1, provenance={})


class Killed(BaseException):
    """What a process that is killed would feel."""


@pytest.mark.parametrize("kind", ["older", "for more rounds", "from the checkpoint before", "for a score"])
def test_a_resumed_run_may_be_killed_at_any_write(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"rounds": 6} if kind == "for more rounds" else {}
    if kind == "older":
        as_older(folder)
    if kind == "for a score":
        *rows, last = read_rounds(folder)
        keep_rounds(folder, [*rows, {**last, "scores": {}}])
    if kind == "from the checkpoint before":
        (folder / "checkpoint" / "000005.safetensors").write_bytes(b"")
    real, model = Path.replace, (folder / "model.safetensors").read_bytes()
    writes, number = 0, 0

    def replaced(path: Path, target: Path) -> Path:
        nonlocal number
        number += 1
        if number == writes:
            raise Killed
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replaced)
    while number >= writes:  # until one comes to its end
        writes, number = writes + 1, 0
        with suppress(Killed):
            resume(folder, changes)
    assert writes > 5 and state_of(folder, check=True).state == "finished"
    assert len(read_rounds(folder)) == (6 if changes else 5) and read_rounds(folder)[-1]["scores"]
    assert changes or (folder / "model.safetensors").read_bytes() == model
    assert list(folder.rglob("*.partial")) == []


@pytest.mark.parametrize("left", [0, 1, -9])
def test_rounds_of_a_stopped_run_that_its_checkpoint_knows_are_missed(folder: Path, left: int) -> None:
    (folder / "result.json").unlink()
    path = folder / ROUNDS
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ValueError, match=r"has \d rounds, but the last checkpoint is of 5\. Restore the file"):
        read_rounds(folder)


def test_a_folder_that_lost_its_experiment_is_not_overwritten(folder: Path) -> None:
    (folder / "experiment.json").unlink()
    with pytest.raises(ValueError, match=r"already holds a run. Its experiment.json is missing: restore that file"):
        run(replace(TINY, out=str(folder.parent), name="run", rounds=2))


def test_a_limit_on_what_is_read_is_no_damage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDATOMS_MAX_GB", "0.00001")
    with pytest.raises(ValueError, match=r"more than the 10,000 that are read at once. .* FEDATOMS_MAX_GB=1"):
        resume(folder, {})
    assert list((folder / "checkpoint").glob("*.damaged")) == []
    monkeypatch.setenv("FEDATOMS_MAX_GB", "x")
    with pytest.raises(ValueError, match=r"^FEDATOMS_MAX_GB=x is not a number of gigabytes"):
        resume(folder, {})


def test_a_disk_that_does_not_answer_is_no_damage_either(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(path: Path, most: int | None = None) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    monkeypatch.setattr("fedatoms.runs.checkpoints.read_bytes", stale)
    with pytest.raises(OSError, match="Stale"):
        resume(folder, {})
    assert list((folder / "checkpoint").glob("*.damaged")) == []


def test_a_run_named_seal_of_an_older_version_is_not_taken_for_a_sealed_one(folder: Path) -> None:
    as_older(folder)
    fields = json.loads((folder / "experiment.json").read_text())
    (folder / "experiment.json").write_text(json.dumps({**fields, "name": "seal"}))
    assert len(read_rounds(folder)) == 5


def test_checkpoints_are_kept_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in ("999998", "999999", "1000000"):
        (tmp_path / f"{number}.json").write_text("{}")
    _tidy(tmp_path, [])
    assert sorted(path.stem for path in tmp_path.glob("*.json")) == ["1000000", "999999"]


def test_many_segments_become_one_when_a_run_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedatoms.runs.rounds.MANY", 2)
    resume(folder, {})
    assert [path.name for path in (folder / "checkpoint" / "rounds").iterdir()] == ["000005.jsonl"]
    (folder / ROUNDS).unlink()
    resume(folder, {})
    assert len(read_rounds(folder)) == 5


def test_linked_folders_of_runs_are_found_once(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a").symlink_to(folder)
    (tmp_path / "links" / "back").symlink_to(tmp_path / "links")
    assert find_runs(tmp_path / "links") == [tmp_path / "links" / "a"]


def test_a_result_is_read_from_a_path_that_can_be() -> None:
    with pytest.raises(ValueError, match=r"^folder='a\\x00b' has a null byte in it, which no path can have\. Leave it"):
        read_result("a\0b")
