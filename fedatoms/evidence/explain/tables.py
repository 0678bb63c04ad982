"""Tables for a person: the replayed rounds of a run, and the paper's bounds."""

from collections.abc import Sequence
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedatoms.evidence.explain.bounds import Bounds, Row
from fedatoms.evidence.explain.values import Explanation, Round


def rounds_table(explanation: Explanation) -> Table:
    """Makes the table of the replayed rounds; it fits 80 columns."""
    note = (
        "apart: distance of the averages with and without latent clients, in % of the round's move; test accuracy in % "
        "of both; mean test loss of real and latent clients; variance with latent clients, in % of that without: by "
        "formula, and drawn again"
    )
    table = _table(f"{explanation.run} from round {explanation.round + 1} on", note)
    heads = ("round", "clients", "apart", "with", "without", "real\nloss", "latent\nloss", "variance\nformula", "drawn")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for each in explanation.rounds:
        table.add_row(*_cells(each))
    return table


def layers_table(explanation: Explanation) -> Table:
    """Makes the table of distances by layer."""
    table = _table("by layer", "apart: as above, over the rounds")
    table.add_column("layer", overflow="fold")
    for head in ("apart,\nmean", "least", "most"):
        table.add_column(head, justify="right", no_wrap=True)
    for name in explanation.rounds[0].aggregates.layers:
        ratios = [100 * each.aggregates.layers[name].ratio for each in explanation.rounds]
        table.add_row(name, *(f"{value:.3f}" for value in (fmean(ratios), min(ratios), max(ratios))))
    return table


def bounds_table(title: str, asked: Bounds, about: str, rows: Sequence[Row]) -> Table:
    """Makes the table of one of the paper's bounds."""
    table = _table(title, "printed: the formula in the paper; derived: what the steps of its own proof give")
    result = f"bound at\nT = {asked.rounds}", f"least T\nfor {asked.epsilon:g}"
    for head in (about, "formula", "D", "B + D\n+ start", *result):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        values = f"{row.sampling:.3g}", f"{row.total:.4g}", f"{row.bound:.4g}", f"{row.rounds:,}"
        table.add_row(row.about, row.form, *values)
    return table


def _cells(each: Round) -> tuple[str, ...]:
    both, latent, variance = each.aggregates, each.latent, each.variance
    losses = ("-", "-") if latent is None else (f"{latent.loss_real:.3f}", f"{latent.loss_latent:.3f}")
    left = (None, None) if variance is None else (variance.ratio, variance.drawn_ratio)
    return (
        str(each.round + 1),
        str(len(each.clients)),
        f"{100 * both.apart.ratio:.3f}",
        f"{both.on.accuracy:.2f}",
        f"{both.off.accuracy:.2f}",
        *losses,
        *("-" if share is None else f"{100 * share:.2f}" for share in left),
    )


def _table(title: str, note: str) -> Table:
    return Table(
        title=title, title_justify="left", caption=note, caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
