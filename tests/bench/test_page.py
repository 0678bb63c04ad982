"""The measure of a report ends, whatever the browser does: with numbers, or in one line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.results import a_run

from fedatoms.evidence.page.assemble import report

SCRIPT = str(ROOT / "benchmarks" / "page.py")


def measured(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True, timeout=600)


def test_a_page_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = measured(tmp_path / "none.html")
    assert done.returncode == 1 and re.fullmatch(r".*none\.html is not a file\. Make one with .*\n", done.stderr)


@pytest.mark.slow
def test_a_page_that_never_answers_ends_at_the_limit_in_one_line(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<p id="matches">0</p><input id="search">')  # no filter works on it
    done = measured(page, "--times", 1, "--limit", 8)
    assert done.returncode == 1 and re.fullmatch(r".*page\.html: not done after 8 s at load .*--limit\.\n", done.stderr)


@pytest.mark.slow
def test_a_report_is_measured(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "one")
    a_run(tmp_path / "runs" / "two", preset="scaffold")
    done = measured(report([tmp_path / "runs"], tmp_path / "report.html").page, "--times", 1)
    assert done.returncode == 0, done.stderr
    assert {"interactive", "filter by a word", "scroll, median"} <= {
        line[:36].strip() for line in done.stdout.splitlines()
    }
