"""What makes the pages of docs/ a site: links that leave the folder, notebooks and programs as pages, the API."""

import inspect
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import fedatoms

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BESIDE = "repository"  # the site's folder for what lies outside of docs/
MOVED = {"index.md": ROOT / "README.md", "overview.md": DOCS / "README.md"}  # the first page is the repository's
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)]*)?\)")
FENCES = re.compile(r"(^ *```.*?^ *```)", flags=re.M | re.S)
FOLDERS = [name for name in (*fedatoms.__all__, "testing") if inspect.ismodule(getattr(fedatoms, name))]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fills in the lists of cards and of the API's pages."""
    cards = [{_title(path): path.relative_to(DOCS).as_posix()} for path in sorted(DOCS.glob("methods/*.md"))]
    pages: list[object] = [{name: f"api/{name}.md"} for name in ("fedatoms", *FOLDERS)]
    for part in config.nav or []:
        for title in part:
            part[title] = cards if part[title] == "METHODS" else part[title]
            if title == "Reference":
                part[title] = [{"API": pages} if "API" in each else each for each in part[title]]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the API, and what the pages link to outside of docs/."""
    made = {f"api/{name}.md": "".join(_api(name)) for name in ("fedatoms", *FOLDERS)}
    made |= {place: path.read_text() for place, path in MOVED.items()}
    made |= {_place(path): _as_page(path) for path in _linked() if path.suffix in (".md", ".py", ".ipynb")}
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    for path in (path for path in _linked() if path.suffix not in (".md", ".py", ".ipynb")):
        files.append(File.generated(config, _place(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **others: object) -> str:
    """Turns links by where files lie into links by where pages lie."""
    here = page.file.src_uri
    return "".join(
        part if part.lstrip().startswith("```") else LINK.sub(lambda found: _relinked(found, here), part)
        for part in FENCES.split(markdown)
    )


def on_page_content(html: str, **others: object) -> str:
    """Makes table headers without a word plain cells: a reader that speaks would announce them."""
    return html.replace("<th></th>", "<td></td>")


def on_post_build(config: MkDocsConfig) -> None:
    """Lets the report's links lead to pages of the site; folders of runs are not in it."""
    page = Path(config.site_dir) / "report.html"
    text = re.sub(r'href="([\w-]+)\.md', r'href="\1/', page.read_text())
    page.write_text(re.sub(r'<a href="\.\./[^"]*">(.*?)</a>', r"\1", text))


def _relinked(found: re.Match[str], here: str) -> str:
    opening, target, place = found[1], found[2], found[3] or ""
    if "://" in target or target.startswith("mailto:"):
        return found[0]
    there = (_source(here).parent / target).resolve()
    if there.is_dir():
        there = there / "README.md"
    return f"{opening}{os.path.relpath(_place(there), Path(here).parent)}{place})"


def _source(uri: str) -> Path:
    """Returns the file that a page is made of."""
    if uri in MOVED:
        return MOVED[uri]
    if not uri.startswith(f"{BESIDE}/"):
        return DOCS / uri
    path = ROOT / uri.removeprefix(f"{BESIDE}/")
    found = [each for each in (path, path.with_suffix(".py"), path.with_suffix(".ipynb")) if each.exists()]
    return found[0]


def _place(path: Path) -> str:
    """Returns where a file of the repository is in the site."""
    if moved := [place for place, source in MOVED.items() if source == path]:
        return moved[0]
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    shown = path.with_suffix(".md") if path.suffix in (".py", ".ipynb") else path
    return f"{BESIDE}/{shown.relative_to(ROOT).as_posix()}"


def _linked() -> list[Path]:
    """Finds the files outside of docs/ that pages link to, and those that they link to in turn."""
    named = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "paper-results/README.md", "benchmarks/README.md")
    todo = [
        *sorted(DOCS.rglob("*.md")),
        *(ROOT / name for name in named),
        *sorted(ROOT.glob("examples/notebooks/*.ipynb")),
    ]
    found: dict[Path, None] = {}
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found[path] = None
        links = LINK.findall(path.read_text()) if path.suffix == ".md" else []
        todo += [
            there for _, link, _ in links if "://" not in link and (there := (path.parent / link).resolve()).is_file()
        ]
    return [path for path in found if not path.is_relative_to(DOCS) and path not in MOVED.values()]


def _as_page(path: Path) -> str:
    """Returns a file as Markdown: a program as one block, a notebook cell by cell."""
    text = path.read_text()
    if path.suffix == ".py":
        return f"# {path.name}\n\n```python\n{text}```\n"
    if path.suffix == ".ipynb":
        return "\n\n".join(_cell(cell) for cell in json.loads(text)["cells"])
    return text


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"


def _api(name: str) -> Iterator[str]:
    """Yields the page of a folder: what its module says, and every public name in it."""
    module = fedatoms if name == "fedatoms" else getattr(fedatoms, name)
    path = module.__name__
    yield f"# {path}\n\n{inspect.getdoc(module)}\n\n"
    for each in module.__all__:
        value = getattr(module, each)
        if inspect.isclass(value) or inspect.isroutine(value):
            yield f"::: {value.__module__}.{value.__qualname__}\n    options:\n      heading: {path}.{each}\n\n"


def _title(card: Path) -> str:
    return card.read_text().splitlines()[0].removeprefix("# ")
