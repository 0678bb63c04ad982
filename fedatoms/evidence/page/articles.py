"""Articles of the page: a heading, sentences, boxes for figures, the same as a table, and provenance."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from fedatoms.evidence.page.html_table import minus
from fedatoms.evidence.page.plotly import Json, Plot
from fedatoms.evidence.page.still import picture

SIZES = {"full": "", "quick": "quick, smaller than the paper's", "other": "other settings than the paper's"}


def article(
    name: str, title: str, tag: str, sentences: Sequence[str], plots: Sequence[Plot], shown: str, origin: str = ""
) -> str:
    """Returns an article: a heading with a tag, sentences, boxes for figures, and the same as a table.

    >>> article("a", "Loss", "quick", ["It falls."], [], "<table></table>")[:81]
    '<article class="measure" id="a"><h3>Loss <span class="tag">quick</span></h3><p>It'
    """
    tagged = f' <span class="tag">{escape(tag)}</span>' if tag else ""
    boxes = "".join(_box(f"{name}-{k}", plot) for k, plot in enumerate(plots))
    text = "".join(f"<p>{escape(minus(sentence))}</p>" for sentence in sentences)
    quiet = f'<p class="quiet">{escape(minus(origin))}</p>' if origin else ""
    return (
        f'<article class="measure" id="{name}"><h3>{escape(title)}{tagged}</h3>{text}'
        f'<div class="plots">{boxes}</div><details><summary>The same as a table</summary>{shown}</details>'
        f"{quiet}</article>"
    )


def _box(name: str, plot: Plot) -> str:
    """Returns where a figure is drawn, and the still one for those who cannot draw."""
    place = f'<div class="figure" id="{name}" role="group" aria-label="{escape(plot.label)}"></div>'
    return f"<div>{place}{picture(plot)}</div>"


def boxed(name: str, plots: Sequence[Plot]) -> list[Json]:
    """Returns an article's figures for the page's script, each with the id of its box.

    >>> boxed("a", [Plot("loss", [], {})])
    [{'id': 'a-0', 'traces': [], 'layout': {}}]
    """
    return [{"id": f"{name}-{k}", "traces": plot.traces, "layout": plot.layout} for k, plot in enumerate(plots)]


def measured_at(provenance: Mapping[str, object], folder: Path) -> str:
    """Writes when, where and with which code something was measured.

    >>> measured_at({"time": "2026-01-02T03:04:05+00:00", "device": "a CPU"}, Path("runs/mine"))
    'Measured 2026-01-02 03:04 on a CPU, commit unknown, in runs/mine.'
    """
    time, device, commit = (str(provenance.get(key) or "unknown") for key in ("time", "device", "commit"))
    return f"Measured {time[:16].replace('T', ' ')} on {device}, commit {commit}, in {folder.as_posix()}."
