"""The page on reliability shows what the campaign wrote, and every kind and word of it is explained there."""

from support import ROOT

from hostile.__main__ import KINDS, RESULTS
from hostile.table import markdown
from hostile.verdicts import WORDS

PAGE = ROOT / "docs" / "reliability.md"


def test_the_table_is_that_of_the_last_campaign() -> None:
    assert markdown(RESULTS) in PAGE.read_text()


def test_every_kind_and_every_verdict_is_explained() -> None:
    text = PAGE.read_text()
    for name in (*KINDS, *WORDS):
        assert f"| `{name}` |" in text, name
