"""The page on reliability shows what the campaign wrote: as many cases as it promises, and none that failed."""

import json
from collections.abc import Iterator, Mapping

from support import ROOT

from fedatoms.cli import COMMANDS, Command
from hostile.__main__ import KINDS, RESULTS, all_parts
from hostile.flags import commands
from hostile.table import markdown
from hostile.verdicts import GOOD, WORDS

PAGE = ROOT / "docs" / "reliability.md"
LEAST = {"kills": 200, "writers": 50, "damage": 1000, "flags": 1000, "files": 200, "misuse": 150, "disks": 20}


def test_the_table_is_that_of_the_last_campaign() -> None:
    """With what the campaign has tried only since then."""
    assert markdown(RESULTS, all_parts()) in PAGE.read_text()


def test_the_campaign_had_enough_cases_and_none_failed() -> None:
    rows = json.loads(RESULTS.read_text())["rows"]
    assert {kind: row["cases"] >= LEAST[kind] for kind, row in rows.items()} == dict.fromkeys(KINDS, True)
    assert [(kind, word) for kind, row in rows.items() for word in WORDS if word not in GOOD and row[word]] == []


def test_every_command_has_its_flags_tried() -> None:
    tried = [command.words for command in commands().values()]
    others = [["flower", "supernode"]]  # whose words are Flower's own
    for path in [path for path in _paths(COMMANDS) if path not in others]:
        assert any(words[: len(path)] == path for words in tried), f"add `{' '.join(path)}` to hostile/flags.py"


def _paths(table: Mapping[str, Command]) -> Iterator[list[str]]:
    for name, command in table.items():
        yield from ([name, *rest] for rest in _paths(command.commands)) if command.commands else [[name]]


def test_every_kind_and_every_verdict_is_explained() -> None:
    text = PAGE.read_text()
    for name in (*KINDS, *WORDS):
        assert f"| `{name}` |" in text, name
