"""Explanations on the page: the sentences, figures and tables of each `explain.json`."""

from collections.abc import Sequence

from fedatoms.evidence.explain.forks import Forked
from fedatoms.evidence.explain.latent import Latent
from fedatoms.evidence.explain.scores import Scores
from fedatoms.evidence.explain.values import Explanation, Round
from fedatoms.evidence.explain.words import findings, title
from fedatoms.evidence.page.articles import article, boxed, measured_at
from fedatoms.evidence.page.html_table import Cell, number, table, text
from fedatoms.evidence.page.plotly import LEGEND, Json, Plot, axes, curves
from fedatoms.evidence.page.styles import GREYS, SPOT
from fedatoms.evidence.results.finding import FoundExplanation
from fedatoms.evidence.results.names import method_name, setting

NONE = (
    "<p>No <code>explain.json</code> below these folders. <code>fedatoms explain RUN</code> writes one to the folder "
    "of a run with atoms.</p>"
)
SCORED = ("accuracy with", "accuracy without", "accuracy plain", "loss with", "loss without")
CROSSED = ("loss, real", "loss, latent", "bounded by the worst real, %")
VARIANCE = ("first order", "second order without", "second order with", "resampled without", "resampled with")
ROUNDS = ("round", "clients", "apart, %", *SCORED, *CROSSED, *VARIANCE)  # in the order of _row
FORKED = ("round", "accuracy with", "accuracy without", "loss with", "loss without")


def section(found: Sequence[FoundExplanation]) -> str:
    """Returns the articles of all explanations.

    >>> section([])[:40]
    '<p>No <code>explain.json</code> below th'
    """
    return "".join(_article(f"why-{n}", each) for n, each in enumerate(found)) or NONE


def plots(found: Sequence[FoundExplanation]) -> list[Json]:
    """Returns the figures of all explanations for the page's script.

    >>> plots([])
    []
    """
    return [box for n, each in enumerate(found) for box in boxed(f"why-{n}", _draw(each.explanation))]


def _draw(explanation: Explanation) -> list[Plot]:
    """Returns the figures of latent clients, of variances, and of the fork."""
    crossed, spread = _crossed(explanation), [each for each in explanation.rounds if each.variance]
    plots = [_matrix(*crossed)] if crossed else []
    plots += [_variances(spread)] if spread else []
    return plots + ([_accuracies(explanation.fork)] if explanation.fork else [])


def _article(name: str, each: FoundExplanation) -> str:
    one = each.explanation
    return article(name, title(one), "", findings(one), _draw(one), _tables(name, one), _origin(each))


def _origin(each: FoundExplanation) -> str:
    one, asked = each.explanation.experiment, each.explanation.settings
    what = f"{method_name(one)}; {setting(one)}; seed {one.seed}, seed of the draws {asked.seed}"
    return f"{what}. {measured_at(each.explanation.provenance, each.folder)}"


def _crossed(explanation: Explanation) -> tuple[int, Latent] | None:
    """Returns the first round (counted from 1) whose latent clients were scored."""
    return next(((each.round + 1, each.latent) for each in explanation.rounds if each.latent), None)


def _scores(latent: Latent) -> tuple[list[int], list[list[Scores]]]:
    """Returns the crossed clients and their scores: a row for each one's coefficients, a column for its atoms."""
    clients = [each.atoms for each in latent.real]
    found = {(each.coefficients, each.atoms): each.scores for each in (*latent.real, *latent.latent)}
    return clients, [[found[i, j] for j in clients] for i in clients]


def _matrix(t: int, latent: Latent) -> Plot:
    clients, scores = _scores(latent)
    names = [str(client) for client in clients]
    losses, accuracies = ([[getattr(one, kind) for one in line] for line in scores] for kind in ("loss", "accuracy"))
    hover = "coefficients of client %{y}, atoms of client %{x}: loss %{z:.4f}, accuracy %{text:.2f} %<extra></extra>"
    heat: Json = {"type": "heatmap", "x": names, "y": names, "z": losses, "text": accuracies, "hovertemplate": hover}
    size = max(3, min(11, 110 // len(names)))
    mark: Json = {"symbol": "circle", "size": size, **SPOT}
    real: Json = {"type": "scatter", "mode": "markers", "name": "real clients", "x": names, "y": names, "marker": mark}
    kind: Json = {"type": "category", "showgrid": False}
    plane: Json = {
        "xaxis": kind | {"title": {"text": f"atoms of client, in round {t}"}},
        "yaxis": kind | {"title": {"text": "coefficients of client", "standoff": 12}, "autorange": "reversed"},
        "legend": LEGEND,
    }
    return Plot(f"Test loss of real and latent clients in round {t}", [heat, real | {"hoverinfo": "skip"}], plane)


def _variances(rounds: Sequence[Round]) -> Plot:
    found = {each.round + 1: each.variance for each in rounds if each.variance}
    lines = {
        "first order, both": [each.first for each in found.values()],
        "second order, without": [each.second_off for each in found.values()],
        "second order, with": [each.second_on for each in found.values()],
    }
    plane = _by_round(list(found), "variance / |mean|²", log=True)
    return Plot("Parts of the variance of both averages", curves(list(found), lines), plane)


def _accuracies(fork: Forked) -> Plot:
    rounds = _rounds_of(fork)
    on, off = curves(rounds, {"with latent clients": fork.accuracy_on, "without": fork.accuracy_off})
    off |= {"line": {"color": GREYS[1], "width": 2, "dash": "dot"}}  # often one lies on the other
    plane = _by_round(rounds, "accuracy of the server, %")
    return Plot("Accuracy of the server with and without latent clients", [on, off], plane)


def _rounds_of(fork: Forked) -> range:
    """Returns the rounds of a fork, counted from 1."""
    return range(fork.round + 1, fork.round + 1 + len(fork.accuracy_on))


def _by_round(rounds: Sequence[int], y: str, *, log: bool = False) -> Json:
    """Returns the axes of a figure over rounds, with whole numbers as ticks."""
    ticks = {"dtick": 1} if len(rounds) <= 10 else {}
    return axes("round", y, log=log) | {"xaxis": {"title": {"text": "round"}, **ticks}}


def _tables(name: str, explanation: Explanation) -> str:
    caption = (
        "apart: distance between the two averages in % of the round's move; accuracies in %; variances of the averages "
        "divided by the squared norm of the mean filter: by order, and over resampled clients"
    )
    shown = table(f"{name}-rounds", caption, ROUNDS, [_row(explanation, each) for each in explanation.rounds])
    if crossed := _crossed(explanation):
        shown += _matrix_table(f"{name}-latent", "loss", ".4f", *crossed)
        shown += _matrix_table(f"{name}-latent-accuracy", "accuracy", ".2f", *crossed)
    if fork := explanation.fork:
        lines = zip(_rounds_of(fork), fork.accuracy_on, fork.accuracy_off, fork.loss_on, fork.loss_off, strict=True)
        rows = [[number(t, "d"), *map(number, line[:2]), *(number(x, ".4f") for x in line[2:])] for t, *line in lines]
        shown += table(f"{name}-fork", "The server after rounds with and without latent clients", FORKED, rows)
    return shown


def _row(explanation: Explanation, each: Round) -> list[Cell]:
    both, latent, variance, plain = each.aggregates, each.latent, each.variance, explanation.plain
    twin = plain[each.round - explanation.round] if plain else None
    crossed = (latent.loss_real, latent.loss_latent, 100 * latent.bounded) if latent else (None,) * 3
    orders = (variance.first, variance.second_off, variance.second_on) if variance else (None,) * 3
    resampled = (variance.drawn_off, variance.drawn_on) if variance else (None,) * 2
    return [
        number(each.round + 1, "d"),
        number(len(each.clients), "d"),
        number(100 * both.apart.ratio, ".3f"),
        *(number(accuracy, none="") for accuracy in (both.on.accuracy, both.off.accuracy, twin)),
        *(number(loss, ".4f") for loss in (both.on.loss, both.off.loss)),
        *(number(value, ".4g", none="") for value in (*crossed, *orders, *resampled)),
    ]


def _matrix_table(name: str, kind: str, form: str, t: int, latent: Latent) -> str:
    clients, scores = _scores(latent)
    found = [[getattr(one, kind) for one in line] for line in scores]
    rows = [
        [text(i), *(number(value, form, "real" if i == j else "") for j, value in zip(clients, line, strict=True))]
        for i, line in zip(clients, found, strict=True)
    ]
    heads = ("coefficients of", *(f"atoms of {client}" for client in clients))
    unit = ", %" if kind == "accuracy" else ""
    return table(name, f"Test {kind} in round {t}{unit}, by client; real clients are bold", heads, rows)
