"""A roster: whose key each client has, and how many samples; who is not on it takes no part."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from support.flower_grid import DATA, FIRST, SMALL, OneProcess, on_flower, warnings_in

from fedatoms.cli import main
from fedatoms.flower.keys import node_key
from fedatoms.flower.roster import Entry, add, checksum_of, load_roster, remove
from fedatoms.flower.server_state import load_holders
from fedatoms.runs.rounds import read_rounds

WHO = 2
TWO = replace(SMALL, rounds=2, eval_every=2)


def keyed(grid: OneProcess) -> None:
    grid.get_nodes = lambda: [NodeInfo(node_id=node, public_key=f"key {node}".encode()) for node in grid.get_node_ids()]


def entry_of(client: int, **changes: object) -> Entry:
    key = hashlib.sha256(f"key {FIRST + client}".encode()).hexdigest()
    return Entry(key, len(DATA.parts[client]), len(DATA.test_parts[client]))._replace(**changes)


def write(path: Path, entries: dict[int, Entry]) -> str:
    for client, entry in entries.items():
        add(path, client, entry)
    return str(path)


ALL = {client: entry_of(client) for client in range(4)}
WRONG: dict[str, tuple[dict[int, Entry], str]] = {
    "not on it": ({k: each for k, each in ALL.items() if k != WHO}, f"client {WHO}, who is not on the roster. Add it"),
    "another key": (
        {**ALL, WHO: entry_of(WHO, key="0" * 64)},
        f"says that it is client {WHO}, but has the key {entry_of(WHO).key[:16]} and the roster {'0' * 16}.",
    ),
    "more samples": ({**ALL, WHO: entry_of(WHO, samples=11)}, "says that it has 12 samples, but 11 on the roster."),
    "more test images": ({**ALL, WHO: entry_of(WHO, tests=0)}, "says that it has 12 test images, but 0 on the roster."),
}


@pytest.mark.parametrize(("roster", "why"), WRONG.values(), ids=WRONG.keys())
def test_a_node_that_is_not_as_the_roster_says_takes_no_part(
    roster: dict[int, Entry], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_flower(replace(TWO, rounds=1), tmp_path, change=keyed, roster=write(tmp_path / "roster.json", roster))
    assert any(line.startswith(f"node {FIRST + WHO} ") and why in line for line in warnings_in(caplog))
    assert [row["clients"] for row in read_rounds(tmp_path / "runs" / "it")] == [3]


def test_nodes_as_the_roster_says_take_part_and_a_replaced_key_needs_no_other_word(tmp_path: Path) -> None:
    path = write(tmp_path / "roster.json", ALL)
    on_flower(replace(TWO, rounds=1), tmp_path, change=keyed, roster=path, node_keys="fixed")

    def moved(grid: OneProcess) -> None:
        grid.contexts[FIRST + 7] = grid.contexts.pop(FIRST + WHO)
        keyed(grid)

    add(Path(path), WHO, entry_of(WHO, key=_key(FIRST + 7)))
    on_flower(TWO, tmp_path, change=moved, roster=path, node_keys="fixed", resume=True)
    assert [row["clients"] for row in read_rounds(tmp_path / "runs" / "it")] == [4, 4]
    assert load_holders(tmp_path / "runs" / "it" / "nodes")[WHO].node == FIRST + 7


def _key(node: int) -> str:
    return hashlib.sha256(f"key {node}".encode()).hexdigest()


def test_the_checksum_of_a_key_is_that_of_the_bytes_by_which_flower_knows_a_node(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    public = node_key(tmp_path, "node-0").public
    sent = public_key_to_bytes(load_ssh_public_key(public.read_bytes()))
    assert checksum_of(public) == hashlib.sha256(sent).hexdigest()


def test_the_command_writes_changes_and_lists_a_roster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, keys = tmp_path / "roster.json", [node_key(tmp_path, f"node-{number}").public for number in range(2)]
    for client, samples in ((0, 50), (1, 70), (0, 60)):
        words = ["--client", str(client), "--key", str(keys[client]), "--samples", str(samples), "--tests", "9"]
        assert main(["flower", "roster", str(file), *words]) == 0
    capsys.readouterr()
    assert main(["flower", "roster", str(file)]) == 0
    said = capsys.readouterr().out
    assert f"client 0: key {checksum_of(keys[0])[:16]}, 60 samples, 9 test images" in said and "client 1" in said
    assert load_roster(str(file), 2) == {0: Entry(checksum_of(keys[0]), 60, 9), 1: Entry(checksum_of(keys[1]), 70, 9)}


BAD: dict[str, tuple[object, str]] = {
    "no number of a client": ({"me": entry_of(0)._asdict()}, "'me' is not the number of a client"),
    "no samples": ({"0": {"key": "ab", "tests": 1}}, "missing required field samples"),
    "a word": ({"0": {"key": "ab", "samples": "many", "tests": 1}}, "expected int, got str"),
    "a client too many": ({"7": entry_of(0)._asdict()}, "has client 7, but the experiment has 4, from 0"),
}


@pytest.mark.parametrize(("content", "why"), BAD.values(), ids=BAD.keys())
def test_a_roster_that_cannot_be_read_ends_a_run_before_anything_is_written(
    content: object, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "roster.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=re.escape(why)):
        on_flower(TWO, tmp_path, roster=str(path))
    assert not (tmp_path / "runs").exists()


def test_what_a_roster_cannot_hold_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, public = tmp_path / "roster.json", node_key(tmp_path, "node-0").public
    add(file, 0, Entry(checksum_of(public), 5, 5))
    with pytest.raises(ValueError, match=r"client 0 of .* has this key already"):
        add(file, 1, Entry(checksum_of(public), 5, 5))
    with pytest.raises(ValueError, match="samples=0 is less than 1"):
        add(file, 1, Entry("other", 0, 5))
    with pytest.raises(ValueError, match=r"is no public key .* Use the node's .pub file"):
        checksum_of(public.with_suffix(""))
    with pytest.raises(ValueError, match=r"there is no such file\. Use the node's .pub file"):
        checksum_of(tmp_path / "none.pub")
    with pytest.raises(ValueError, match=r"there is no such file\. Make it with fedatoms flower roster"):
        load_roster(str(tmp_path / "none.json"))
    with pytest.raises(ValueError, match=r"client 3 is not on .*\. Clients on it: 0\."):
        remove(file, 3)
    assert main(["flower", "roster", str(file), "--remove", "0"]) == 0
    assert load_roster(str(file)) == {}
    assert main(["flower", "roster", str(file), "--client", "1"]) == 2
    assert "needs --client, --key and --samples" in capsys.readouterr().err
