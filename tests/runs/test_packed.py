"""Packed rounds: an eighth of the size, and every reader sees what it saw before."""

import gzip
from pathlib import Path

import pytest

from fedatoms.core.run_files import PACKED, ROUNDS
from fedatoms.experiment.fields import Experiment
from fedatoms.runs.execute import resume, run
from fedatoms.runs.results import changed_files, read_result
from fedatoms.runs.rounds import digest_of_rounds, keep_rounds, pack, read_lines, read_rounds
from fedatoms.runs.states import has_begun, state_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run(
        Experiment(
            clients=5,
            fraction=0.4,
            rounds=3,
            epochs=1,
            batch_size=50,
            threads=1,
            score="server",
            out=str(tmp_path),
            name="a",
        )
    )
    return tmp_path / "a"


def test_readers_see_what_they_saw_before(folder: Path) -> None:
    before = read_lines(folder), state_of(folder, check=True), digest_of_rounds(folder)
    pack(folder)
    assert not (folder / ROUNDS).exists() and has_begun(folder)
    assert (read_lines(folder), state_of(folder, check=True), digest_of_rounds(folder)) == before
    assert changed_files(read_result(folder)) == []
    packed = (folder / PACKED).read_bytes()
    pack(folder)  # again changes nothing
    assert (folder / PACKED).read_bytes() == packed


def test_the_same_rounds_are_packed_to_the_same_bytes(folder: Path) -> None:
    text = (folder / ROUNDS).read_bytes()
    pack(folder)
    first = (folder / PACKED).read_bytes()
    (folder / ROUNDS).write_bytes(text)
    pack(folder)
    assert (folder / PACKED).read_bytes() == first and gzip.decompress(first) == text


def test_a_plain_file_prevails_and_a_run_that_goes_on_has_it_alone(folder: Path) -> None:
    rows = read_rounds(folder)
    pack(folder)
    resume(folder, {"rounds": 4})
    assert (folder / ROUNDS).exists() and not (folder / PACKED).exists() and read_rounds(folder)[:3] == rows
    keep_rounds(folder, rows[:2])
    assert len(read_lines(folder).rows) == 2


@pytest.mark.parametrize("damage", ["cut", "changed", "other", "line", "empty"])
def test_damage_is_found(damage: str, folder: Path) -> None:
    text = (folder / ROUNDS).read_bytes()
    pack(folder)
    whole = (folder / PACKED).read_bytes()
    middle = len(whole) // 2
    (folder / PACKED).write_bytes(
        {
            "cut": whole[:middle],
            "changed": whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :],
            "other": b"no archive",
            "line": gzip.compress(text.replace(b'"round": 1', b'"round": 2')),
            "empty": b"",
        }[damage]
    )
    assert state_of(folder, check=True).state == "damaged" and changed_files(read_result(folder)) == [PACKED]
    with pytest.raises(ValueError, match=r"rounds\.jsonl\.gz"):
        read_rounds(folder)
