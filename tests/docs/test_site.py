"""The site: it builds strictly, its pages are those of docs/, and the notebooks run from top to bottom."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

import pytest
import yaml
from support import ROOT
from support.browser import LOOKS, a_browser, a_page, violations

import fedatoms

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
RUN = [pytest.param(path, marks=pytest.mark.slow if "fedatoms.run" in path.read_text() else ()) for path in NOTEBOOKS]


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), scope)
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    book = json.loads(path.read_text())
    assert book["nbformat"] == 4 and book["cells"][0]["source"][0].startswith("# ")
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in book["cells"])
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])


def test_there_are_two_notebooks_and_five_tutorials() -> None:
    assert len(NOTEBOOKS) == 2 and len(list((ROOT / "docs" / "tutorials").glob("*.md"))) == 5


def test_every_page_of_docs_is_in_the_navigation() -> None:
    text = re.sub(r"!ENV|!!python\S+", "", (ROOT / "mkdocs.yml").read_text())
    named = set(re.findall(r"[\w/-]+\.md", str(yaml.safe_load(text)["nav"])))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not page.startswith("methods/")} - {"README.md"} <= named


class Links(HTMLParser):
    """Collects what a page refers to, and the places in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links, self.places = list[str](), set[str]()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name == "id" and value:
                self.places.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_every_link_of_the_site_leads_somewhere_in_it_or_to_another_host(site: Path) -> None:
    pages = {path: Links() for path in site.rglob("*.html") if path.name != "report.html"}
    for path, found in pages.items():
        found.feed(path.read_text())
    assert len(pages) > 60
    for path, found in pages.items():
        for link in found.links:
            parts = urlparse(urljoin(f"/{path.relative_to(site).as_posix()}", link))
            if not parts.scheme and path.name != "404.html":
                there = site / unquote(parts.path).lstrip("/")
                there = there / "index.html" if there.is_dir() else there
                assert there.is_file(), f"{path}: {link}"
                if parts.fragment and there in pages:
                    assert unquote(parts.fragment) in pages[there].places, f"{path}: {link}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["index.html", "commands/index.html", "api/engine/index.html"])
def test_axe_finds_nothing_on_pages_of_the_site(name: str, site: Path) -> None:
    with a_browser() as browser:
        for look in LOOKS:
            page = a_page(browser, look)
            page.goto((site / name).as_uri())
            page.wait_for_selector(".md-code__nav[aria-label]", state="attached")  # what the theme adds is there
            assert violations(page) == []
            page.context.close()


@pytest.mark.slow
def test_the_reference_has_every_public_name(site: Path) -> None:
    folders = {
        "fedatoms": fedatoms,
        **{name: getattr(fedatoms, name) for name in ("algorithms", "nn", "engine", "data")},
    }
    for name, module in folders.items():
        page = (site / "api" / name / "index.html").read_text()
        for each in (each for each in module.__all__ if callable(getattr(module, each))):
            assert f"{module.__name__}.{each}" in page, each


@pytest.mark.slow
def test_no_page_asks_another_host_for_anything(site: Path) -> None:
    for path in site.rglob("*.html"):
        found = re.findall(
            r'<(?:script|img|iframe|link rel="stylesheet")[^>]*(?:src|href)="(https?://[^"]*)', path.read_text()
        )
        assert not found, path
