"""Assembles the page, one HTML file that opens offline, and a CSV file beside it."""

import base64
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple
from urllib.parse import quote

from fedatoms.core.files import replace_file
from fedatoms.core.options import GROUPS
from fedatoms.core.outputs import check_output
from fedatoms.evidence.claims import claims
from fedatoms.evidence.page import explanations, figures, measures, run_figures, sections
from fedatoms.evidence.page.export import to_csv
from fedatoms.evidence.page.plotly import Json
from fedatoms.evidence.results.cells import match
from fedatoms.evidence.results.finding import Found, find
from fedatoms.evidence.results.groups import Group, group
from fedatoms.evidence.results.pairs import known_spreads
from fedatoms.evidence.results.run_figures import RunFigure
from fedatoms.evidence.results.run_figures import figures as from_runs

# Plotly: plotly.js-cartesian-dist-min 4.1.1, packed with `gzip -9n`; a third of Plotly, and all that we need.
PLOTLY = "plotly-cartesian.min.js.gz"


class Report(NamedTuple):
    """The files that were written, and what was found."""

    page: Path
    csv: Path
    found: Found


def report(folders: Sequence[Path], page: Path, data_dir: Path | None = None) -> Report:
    """Writes the page of everything below some folders, and a CSV file of the same name."""
    if page.suffix not in (".html", ".htm"):
        raise ValueError(f"-o {page} does not end in .html. Use for example -o report.html.")
    if data_dir is not None and not data_dir.is_dir():
        raise ValueError(f"--data-dir {data_dir} is not a folder. Give the folder that holds the data sets' files.")
    csv = page.with_suffix(".csv")
    for path in (page, csv):
        check_output(path)
    found = find(folders)
    if not (found.runs or found.measures or found.explanations):
        named = "".join(f" {note.path}: {note.reason}." for note in found.left_out)
        places = sections.listed(map(str, folders))
        raise ValueError(f"no finished run below {places}.{named} Make one with `fedatoms run`.")
    page.parent.mkdir(parents=True, exist_ok=True)
    replace_file(csv, to_csv(found.runs).encode())
    replace_file(page, render(found, folders, csv.name, data_dir).encode())
    return Report(page, csv, found)


def render(found: Found, folders: Sequence[Path], csv: str, data_dir: Path | None) -> str:
    """Returns the page as text."""
    groups = group(found.runs)
    ours, of_runs = match(groups), from_runs(groups)
    splits, left_out = figures.splits(found.runs, data_dir)
    return Template(_file("page.html")).substitute(
        style=_file("page.css"),
        script=_file("page.js"),
        plotly=base64.b64encode((files("fedatoms.evidence.page") / PLOTLY).read_bytes()).decode(),
        data=_data(found, groups, of_runs, splits),
        csv=escape(quote(csv)),
        summary=sections.summary(found, groups, folders),
        claims=sections.claim_cards(claims(found)),
        tables="\n".join(sections.paper_table(n, ours, known_spreads(groups).of_table(n)) for n in sections.SCORED),
        others=sections.other_runs(groups, {id(each) for each in ours.values()}),
        explanations=explanations.section(found.explanations),
        measures=run_figures.section(of_runs) + measures.section(found.measures),
        bytes=sections.sent_bytes(found.runs),
        splits=sections.paragraphs(left_out),
        provenance=sections.origins(found.runs),
    )


def _data(found: Found, groups: Sequence[Group], of_runs: Sequence[RunFigure], splits: list[Json]) -> str:
    """Returns what the page's script draws, safe inside a script."""
    plots = [*explanations.plots(found.explanations), *run_figures.plots(of_runs), *measures.plots(found.measures)]
    curves, sent = figures.curves(groups), figures.sent(groups)
    data = {"curves": curves, "measures": plots, "bytes": sent, "splits": splits, "groups": GROUPS}
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _file(name: str) -> str:
    return (files("fedatoms.evidence.page") / name).read_text()
