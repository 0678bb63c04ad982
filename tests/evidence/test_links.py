"""Links of the page: to the paper, the documentation, runs and commits; those that are not addresses work offline."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

import pytest
from support.results import a_run, page_of

from fedatoms.evidence.page import links
from fedatoms.evidence.page.assemble import render
from fedatoms.evidence.page.html_table import typed
from fedatoms.evidence.results.finding import find


def links_of(page: str) -> list[str]:
    return [unescape(each) for each in re.findall(r'<a [^>]*href="([^"]*)"', page)]


def test_every_link_leads_to_a_file_a_folder_or_a_place_that_is_there(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "a & b #1", seed=0)
    page = page_of(tmp_path / "runs")
    places = set(re.findall(r' id="([^"]*)"', page))
    found = [each for each in links_of(page) if not each.startswith("https://")]
    for each in found:
        there = urlparse(urljoin((tmp_path / "report.html").as_uri(), each))
        assert Path(unquote(there.path)).exists() and (not there.fragment or there.fragment in places), each
    assert sum("runs/" in each for each in found) == 2 and any(each.endswith("commands.md") for each in found)


def test_the_page_leads_to_the_paper_and_says_what_to_type_for_each_cell(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "one", 70.0, "fedavg-cifar10-2", rounds=0)
    page = page_of(tmp_path / "runs")
    assert links.PAPER in links_of(page) and f">{typed('fedatoms run fedavg-cifar10-2 --out again')}</td>" in page


def test_a_commit_is_a_link_where_the_repository_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_run(tmp_path / "runs" / "one")
    assert ">abc123</td>" in page_of(tmp_path / "runs")
    monkeypatch.setattr(links, "repository", lambda: "https://forge.example/us/fedatoms")
    assert "https://forge.example/us/fedatoms/commit/abc123" in links_of(page_of(tmp_path / "runs"))


def test_a_page_that_is_served_has_no_links_to_the_disk(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "one")
    page = render(find([tmp_path]), [tmp_path], "report.csv", None)
    assert {each for each in links_of(page) if not each.startswith("#")} == {"report.csv", links.PAPER}
