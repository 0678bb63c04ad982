"""Assembles the page, one HTML file that opens offline, and a CSV file beside it."""

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
from fedatoms.evidence.claims.tables import NEAR
from fedatoms.evidence.page import answer, best, compare, explanations, figures, measures, run_figures, sections
from fedatoms.evidence.page.export import to_csv
from fedatoms.evidence.page.html_table import labels
from fedatoms.evidence.page.links import read_on
from fedatoms.evidence.page.packing import as_script, letters, packed
from fedatoms.evidence.page.plotly import Json
from fedatoms.evidence.page.styles import TEXTURES
from fedatoms.evidence.page.verdict_cards import claim_cards, overview
from fedatoms.evidence.results.cells import match
from fedatoms.evidence.results.finding import PUBLISHED, Found, find
from fedatoms.evidence.results.groups import Group, group
from fedatoms.evidence.results.pairs import known_spreads
from fedatoms.evidence.results.run_figures import RunFigure
from fedatoms.evidence.results.run_figures import figures as from_runs
from fedatoms.evidence.results.standings import Standings, all_standings

# Plotly: plotly.js-cartesian-dist-min 4.1.1, packed with `gzip -9n`; a third of Plotly, and all that we need.
PLOTLY = "plotly-cartesian.min.js.gz"
STYLES = ("page.css", "figures.css", "print.css")
SCRIPTS = ("tables.js", "state.js", "compare.js", "curves.js", "figures.js")  # in one scope, in this order

STACKED = (  # tables that are cards on a phone, and their heads
    *((name, best.HEADS) for name in best.NAMES),
    ("versus", compare.HEADS),
    ("pairs", compare.PAIRED),
    ("unfinished", sections.STATES),
    *((f"table-{which}", sections.PRINTED) for which in sections.SCORED),
)


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
    check_something(found, folders)
    page.parent.mkdir(parents=True, exist_ok=True)
    replace_file(csv, to_csv(found.runs).encode())
    replace_file(page, render(found, folders, csv.name, data_dir, page.parent).encode())
    return Report(page, csv, found)


def check_something(found: Found, folders: Sequence[Path]) -> None:
    """Refuses folders of which a page would say nothing: no result, no measure, and no run that began."""
    begun = any(each.rows or each.state == "running" for each in found.unfinished)
    if not (found.runs or found.measures or found.explanations or begun):
        named = "".join(f" {note.path}: {note.reason}." for note in found.left_out)
        places = sections.listed(map(str, folders))
        raise ValueError(f"no finished run below {places}.{named} Make one with `fedatoms run`.")


def render(found: Found, folders: Sequence[Path], csv: str, data_dir: Path | None, beside: Path | None = None) -> str:
    """Returns the page as text; ``beside`` is the folder where it will lie, for links to what lies around it."""
    groups = group(found.runs)
    places, of_runs, judged = all_standings(groups), from_runs(groups), claims(found)
    splits, left_out = figures.splits(found.runs, data_dir)
    accuracies = [each for each in groups if each.metric.is_accuracy]
    mixed = len({each.published for each in groups}) > 1
    return Template(asset("page.html")).substitute(
        style="\n".join([*map(asset, STYLES), *(labels(*each) for each in STACKED)]),
        script="\n".join(map(asset, SCRIPTS)),
        plotly=letters((files("fedatoms.evidence.page") / PLOTLY).read_bytes()),
        data=as_script(_data(groups, places, splits)),
        numbers=packed(_numbers(found, groups, places, of_runs)),
        csv=escape(quote(csv)),
        answer=answer.sentences(found, groups, places, overview(judged, PUBLISHED if mixed else "")),
        best=best.best_tables(places),
        whose="your" if mixed else "these",
        versus=compare.versus_table(places, beside) if places else "",
        pairs=compare.pairs_table(groups),
        unfinished=sections.unfinished(found),
        facts=sections.summary(found, groups, folders),
        overview=overview(judged),
        claims=claim_cards(judged, found),
        tables=sections.paper_tables(match(accuracies), known_spreads(accuracies), beside),
        explanations=explanations.section(found.explanations),
        measures=run_figures.section(of_runs) + measures.section(found.measures),
        curves=figures.stills(groups),
        bars=figures.sent_stills(groups),
        bytes=sections.sent_bytes(found.runs),
        splits=sections.paragraphs(left_out),
        split_stills=figures.split_stills(splits),
        provenance=sections.origins(found.runs, beside),
        near=f"{NEAR:g}",
        read_on=read_on(beside),
    )


def asset(name: str) -> str:
    """Returns a file of the page's own, as text."""
    return (files("fedatoms.evidence.page") / name).read_text()


def _data(groups: Sequence[Group], places: Sequence[Standings], splits: list[Json]) -> Json:
    """Returns what the page's script needs at once."""
    return {
        "curves": figures.curves(groups),
        "places": compare.baselines(places),
        "changing": compare.CHANGING,
        "models": answer.MODELS,
        "bytes": figures.senders(groups),
        "splits": splits,
        "groups": GROUPS,
        "textures": TEXTURES,
    }


def _numbers(found: Found, groups: Sequence[Group], places: Sequence[Standings], of_runs: Sequence[RunFigure]) -> Json:
    """Returns what it needs once a figure is drawn, or another baseline chosen."""
    plots = [*explanations.plots(found.explanations), *run_figures.plots(of_runs), *measures.plots(found.measures)]
    return {
        "versus": compare.against_all(places),
        "values": figures.values(groups),
        "measures": plots,
        "bytes": figures.sent(groups),
    }
