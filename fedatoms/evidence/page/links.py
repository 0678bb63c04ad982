"""Where the page leads: to the paper, the documentation, the folders of runs and their commits."""

import os
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.metadata import PackageNotFoundError, metadata
from itertools import takewhile
from pathlib import Path
from urllib.parse import quote

import fedatoms
from fedatoms.evidence.page.html_table import Cell
from fedatoms.evidence.results.finding import Run

PAPER = "https://icml.cc/virtual/2025/poster/45168"
DOCS = Path(fedatoms.__file__).parent.parent / "docs"  # in a clone; an installed wheel has none
PAGES = {
    "commands.md": "commands",
    "reproduce.md": "the paper, claim by claim",
    "paper.md": "how we read it",
    "glossary.md": "glossary",
}


def link(address: str, words: str) -> str:
    """Returns a link.

    >>> link("c.md", "c & d")
    '<a href="c.md">c &amp; d</a>'
    """
    return f'<a href="{escape(address)}">{escape(words)}</a>'


def read_on(beside: Path | None) -> str:
    """Returns links to the paper and, where they lie on this disk, to pages of the documentation."""
    pages = PAGES if beside and (DOCS / "commands.md").is_file() else {}
    docs = [link(_relative(DOCS / name, beside), words) for name, words in pages.items()] if beside else []
    more = f" Documentation: {', '.join(docs)}." if docs else ""
    return f"<p>{link(PAPER, 'The paper')}, ICML 2025.{more}</p>"


def folders_of(runs: Sequence[Run], beside: Path | None) -> Cell:
    """Returns the folders of runs, each a link if the page lies on the same disk."""
    shown = shortened([run.name for run in runs])
    names = ", ".join(shown)
    if beside is None:
        return Cell(names, names, "path")
    pairs = zip(runs, shown, strict=True)
    html = ", ".join(link(_relative(run.result.folder, beside), name) for run, name in pairs)
    return Cell(names, names, "path", html)


def shortened(names: Sequence[str]) -> list[str]:
    """Keeps the first name, and of the others what comes after the words that all begin with.

    >>> shortened(["runs/fedavg-s0", "runs/fedavg-s1"]), shortened(["runs/one"])
    (['runs/fedavg-s0', '…s1'], ['runs/one'])
    """
    words = [re.split(r"(?<=[-/])", name) for name in names]
    same = len(list(takewhile(lambda some: len({*some}) == 1, zip(*words, strict=False))))
    return [*names[:1], *(f"…{''.join(each[same:])}" for each in words[1:])]


def commit_of(run: Run) -> Cell:
    """Returns the commit of a run, a link if the package says where its repository is."""
    name = str(run.result.provenance.get("commit") or "")
    where = repository()
    return Cell(name, name, html=link(f"{where}/commit/{name.split('+')[0]}", name) if where and name else "")


@cache
def repository() -> str:
    """Returns the address of the repository, as the package's metadata have it; empty without one."""
    try:
        found: list[str] = metadata("fedatoms").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    named = [each.partition(", ")[2] for each in found if each.startswith("Repository,")]
    return named[0].rstrip("/") if named else ""


def _relative(path: Path, beside: Path | None) -> str:
    return quote(Path(os.path.relpath(path.resolve(), (beside or Path()).resolve())).as_posix())
