"""What a person sees after the work: tables that fit 80 columns, and sentences about them."""

from collections.abc import Sequence
from statistics import fmean
from textwrap import wrap

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedatoms.adapt.joining import Joined
from fedatoms.bench.report import cells
from fedatoms.bench.results import Event, Gap, Ratio, Row
from fedatoms.core.gains import Gain, beyond, short
from fedatoms.core.lookup import counted, some
from fedatoms.core.scales import ACCURACY, Scale
from fedatoms.evidence.explain.bounds import Bounds
from fedatoms.evidence.explain.bounds import Row as Bound
from fedatoms.evidence.explain.values import Explanation, Round
from fedatoms.evidence.reproduce.tables import TerminalTable
from fedatoms.nn.summaries import Summary
from fedatoms.runs.comparison import Line, Spread, averaged, scored_on
from fedatoms.runs.results import alike_averaged


def result_table(made: TerminalTable, columns: int = 80) -> Table | str:
    """Makes a table of what was reproduced, for a terminal of some columns, or a sentence where it is no table."""
    if not made.heads:
        return f"{made.title}\n{made.note}"
    first, *others = made.heads
    table = _edgeless(titled(made.title, made.note))
    table.add_column(first, overflow="fold", min_width=8)
    for head in others:
        table.add_column("\n".join(wrap(head, 10, break_long_words=False)), justify="right", no_wrap=True)
    for row in made.rows:
        table.add_row(*(_broken(text) if columns < 80 else text for text in map(_shown, row)))
    return table


def inspected(found: Summary) -> Table:
    """Makes the table of a network's decomposed layers; it fits 80 columns."""
    note = "parameters without biases; error: of the svd of the present weights, in % of their norm"
    table = titled(f"{found.model}: {counted(found.atoms, 'atom')}", note)
    table.add_column("layer", overflow="fold")
    for head in ("kernel", "atoms", "plain", "decomposed", "error"):
        table.add_column(head, justify="right", no_wrap=True)
    for layer in found.layers:
        if layer.atoms:
            kernel = "x".join(map(str, layer.kernel))
            sizes = f"{layer.before:,}", f"{layer.after:,}"
            table.add_row(layer.name or "-", kernel, str(layer.atoms), *sizes, f"{100 * layer.error:.2f}")
    return table


def inspected_lines(found: Summary) -> list[str]:
    """Says what of a network stays plain and why, what a round costs, and whether clients train together."""
    reasons: dict[str, list[str]] = {}
    for layer in found.layers:
        if not layer.atoms:
            reasons.setdefault(layer.why_plain, []).append(layer.name or layer.kind)
    plain = [f"{counted(len(n), 'convolution')}, plain ({why}): {some(n)}" for why, n in reasons.items()]
    able = "yes" if found.tried else "nothing in its layers is against it (not tried)"
    together = f"no: {found.not_vectorised}" if found.not_vectorised else able
    return [
        *(plain if found.layers else ["no convolution: nothing to decompose"]),
        f"parameters: {found.parameters_before:,} plain, {found.parameters_after:,} decomposed",
        f"bytes that a client sends up: {found.bytes_before:,} plain; {found.bytes_full:,} decomposed in a full round, "
        f"{found.bytes_fast:,} in a fast one (atoms and head)",
        f"clients can be trained together (vectorised): {together}",
    ]


def tables(lines: Sequence[Line], title: str) -> list[Table]:
    """Makes what a comparison shows: scores, what they cost, and clients' own models if there are some."""
    personal = [line for line in lines if line.personal]
    return [comparison(lines, title), costs(lines), *([own_models(personal)] if personal else [])]


def comparison(lines: Sequence[Line], title: str) -> Table:
    """Makes the table of scores: a line for each run and scored model, with its gain over the first; 80 columns."""
    ones, seeds = [line.results[0].experiment for line in lines], {line.seeds for line in lines}
    mean = averaged(ones)
    spread = "" if seeds == {1} else "± standard deviation; "
    metric, several = lines[0].metric, len(lines) > 1
    unit = f", in {metric.unit}" if metric.unit else ""
    over = f"gain over {lines[0].label}" if metric.higher else f"difference to {lines[0].label} (lower is better)"
    gains = f"; {over}, paired by seed, ± 95 % interval" if several else ""
    if not all(alike_averaged(one, ones[0]) for one in ones):
        gains += f"; -: no {metric.change}, as it is a mean over other rounds than {lines[0].label}'s"
    table = _table(title, f"{scored_on(lines)} {metric.name}: {mean}{unit}; {spread}{counted(seeds, 'seed')}{gains}")
    table.add_column("model", no_wrap=True)
    for head in (metric.name, *([metric.change] if several else []), "final", "best"):
        table.add_column(head, justify="right", no_wrap=True)
    for line in lines:
        for place, (name, each) in enumerate(line.scores.items()):
            gain = [_gain(line, name, lines[0])] if several else []
            scores = (_spread(Spread(*each[:2]), metric), *gain, metric.number(each.final), metric.number(each.best))
            last = place == len(line.scores) - 1
            table.add_row("" if place else line.label, name, *scores, end_section=last)
    return table


def _gain(line: Line, name: str, first: Line) -> str:
    """Writes a model's gain over the first line's; nothing for the first, a dash where no seed or round is shared."""
    if line is first:
        return ""
    gain = line.gains.get(name)
    return "-" if gain is None else short(gain, "+.2f" if line.metric.unit == "%" else "+.4g")


def costs(lines: Sequence[Line]) -> Table:
    """Makes the table of what runs cost: bytes, seconds, and rounds to a score that all of them reach."""
    metric, size = lines[0].metric, max(line.bytes_up for line in lines)
    scale, unit = (1e9, "GB") if size > 1e9 else (1e6, "MB")
    to_reach = f"{lines[0].target:.1f} %" if metric.unit == "%" else metric.write(lines[0].target)
    extreme = "most" if metric.higher else "least"
    target = [f"rounds to {to_reach}"] if len(lines) > 1 else []
    means = "mean over seeds" if any(line.seeds > 1 for line in lines) else ""
    first = f"{target[0]}: the first scored round with the {extreme} that all lines reach" if target else ""
    table = _table("cost", "; ".join(filter(None, (means, first))))
    for head in (f"{unit} up", f"{unit} down", "seconds", *target):
        table.add_column(head, justify="right", no_wrap=True)
    for line in lines:
        sent = f"{line.bytes_up / scale:.1f}", f"{line.bytes_down / scale:.1f}", in_seconds(line.seconds)
        table.add_row(line.label, *sent, *([f"{line.rounds_to_target:.4g}"] if target else []))
    return table


def own_models(lines: Sequence[Line]) -> Table:
    """Makes the table of clients' own models in a comparison, the server's next to them; it fits 80 columns."""
    epochs = counted((line.results[0].experiment.last_epochs for line in lines), "epoch")
    metric = lines[0].metric
    unit = f", in {metric.unit}" if metric.unit else ""
    note = f"{scored_on(lines)} {metric.name} of every client's own model on its own images{unit}; last pass: {epochs} "
    note += "on every client; worst tenth of the clients, and standard deviation over them, after it"
    table = _table("clients' own models", note)
    for head in ("server,\nfinal", "mean of the\nlast ten", "after the\nlast pass", "worst\ntenth", "spread"):
        table.add_column(head, justify="right", no_wrap=True)
    for line in lines:
        server = metric.number(line.scores["server"].final) if "server" in line.scores else "-"
        ours = [_spread(line.personal.get(name), metric) for name in ("mean of the last ten", "after the last pass")]
        plain = [metric.number(line.personal[name].mean) for name in ("worst tenth", "spread")]
        table.add_row(line.label, server, *ours, *plain)
    return table


def judgement(lines: Sequence[Line]) -> str:
    """Says in words what a comparison of two measured, also where the second does not win."""
    first, second = lines[0], lines[-1]
    metric, parts = first.metric, []
    digits, unit = (".2f", "points") if metric.unit == "%" else (".4g", metric.axis)
    for name in [name for name in second.scores if name in first.scores]:
        mine, before, gain = second.scores[name], first.scores[name], second.gains.get(name)
        if gain is not None:
            said = f"{name} {short(gain, f'+{digits}')} {unit} ({_won(gain, below=not metric.higher)})"
            parts.append(f"{said}, final {mine.final - before.final:+{digits}}")
    if not alike_averaged(*(line.results[0].experiment for line in (first, second))):
        parts.append(f"no {metric.change} to state, as scores are means over other rounds")
    if first.bytes_up:  # local training sends nothing
        parts.append(f"bytes sent up {second.bytes_up / first.bytes_up - 1:+.0%}")
    return f"Measured, {second.label} against {first.label}: {'; '.join(parts)}."


def _won(gain: Gain, *, below: bool) -> str:
    """Says who wins if the whole interval says so; ``below`` where a lower score is the better one."""
    if gain.low is None:
        return f"{'one seed' if gain.seeds == 1 else 'equal on all seeds'}: no spread to judge by"
    words = {"supported": "wins", "contradicted": "loses", "inconclusive": "may be luck: 0 is in the 95 % interval"}
    return words[beyond(gain, below=below)]


def why_more_bytes(lines: Sequence[Line]) -> str:
    """Says why the second of a comparison sends more than the first, if that is because of its many atoms."""
    first, second = (line.results[0].experiment for line in (lines[0], lines[-1]))
    decomposed = (first.parametrisation, second.parametrisation) == ("plain", "atoms")
    if not decomposed or lines[-1].bytes_up <= lines[0].bytes_up:
        return ""
    return (
        f"It sends more because {counted(second.atoms, 'atom')} are no fewer than the weights of a small filter (3 x 3 "
        f"has 9). Larger filters, or fewer atoms (--atoms 6), send less."
    )


def joining(done: Joined) -> Table:
    """Makes the table of a client that joined: the global model and its own, on its images that were held out."""
    sim = done.ready.sim
    title = f"on {len(sim.data.test_y):,} images held out, fitted to {len(sim.data.y):,} in {done.seconds:.1f} s"
    table, metric = titled(title, ""), sim.objective.scale
    table.add_column("model", no_wrap=True)
    for head in (metric.name, "loss", "numbers\nfitted"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, score in done.scores.items():
        fitted = f"{done.ready.numbers:,}" if name == "personal" else "-"
        table.add_row(name, metric.write(score.value), f"{score.loss:.3f}", fitted)
    return table


def benchmarks(ratios: Sequence[Ratio]) -> Table:
    """Makes the table of a benchmark, with each bar met or missed."""
    table = _edgeless(titled("fedatoms bench", ""))
    table.add_column("measured", overflow="fold", min_width=12)
    for head in ("value", "bar", "verdict"):
        table.add_column(head, justify="left" if head == "verdict" else "right", no_wrap=True)
    table.add_column("detail", overflow="fold", min_width=12)
    for ratio in ratios:
        bar = "-" if ratio.bar is None else f"{'>= ' if ratio.at_least else ''}{ratio.bar}"
        table.add_row(ratio.name, f"{ratio.value:.3f}", bar, ratio.verdict, ratio.detail)
    return table


def contest(rows: Sequence[Row]) -> Table:
    """Makes the table of the contest on a GPU; it fits 80 columns."""
    table = _edgeless(titled(f"one card, {rows[0].precision}", ""))
    table.add_column("contestant", overflow="fold", min_width=12)
    heads = ("clients\nx batch", "ms a\nround", "ms a\nstep", "client-\nsteps/s", "% of\nFLOP/s", "% of\nbytes/s")
    for head in (*heads, "first\nround, s", "peak,\nMB"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*cells(row))
    return table


def news(event: Event) -> str:
    """Says in a line what the benchmark just measured.

    >>> news(Gap("JAX", "not installed."))
    'JAX: not measured (not installed.)'
    """
    if isinstance(event, Row):
        where = f"{event.clients} clients x {event.batch}"
        return f"{where}: {event.contestant}, {event.ms_round:.1f} ms a round, {event.client_steps:,.0f} client-steps/s"
    if isinstance(event, Ratio):
        return f"{event.name}: {event.value:.3f} {event.verdict}".rstrip()
    return f"{event.name}: not measured ({event.reason})" if isinstance(event, Gap) else event


def rounds_table(explanation: Explanation) -> Table:
    """Makes the table of the replayed rounds; it fits 80 columns."""
    note = (
        "apart: distance of the averages with and without latent clients, in % of the round's move; test accuracy in % "
        "of both; mean test loss of real and latent clients; variance with latent clients, in % of that without: by "
        "formula, and drawn again"
    )
    table = titled(f"{explanation.run} from round {explanation.round + 1} on", note)
    heads = ("round", "clients", "apart", "with", "without", "real\nloss", "latent\nloss", "variance\nformula", "drawn")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for each in explanation.rounds:
        table.add_row(*_round(each))
    return table


def layers_table(explanation: Explanation) -> Table:
    """Makes the table of distances by layer."""
    table = titled("by layer", "apart: as above, over the rounds")
    table.add_column("layer", overflow="fold")
    for head in ("apart,\nmean", "least", "most"):
        table.add_column(head, justify="right", no_wrap=True)
    for name in explanation.rounds[0].aggregates.layers:
        ratios = [100 * each.aggregates.layers[name].ratio for each in explanation.rounds]
        table.add_row(name, *(f"{value:.3f}" for value in (fmean(ratios), min(ratios), max(ratios))))
    return table


def bounds_table(title: str, asked: Bounds, about: str, rows: Sequence[Bound]) -> Table:
    """Makes the table of one of the paper's bounds."""
    table = titled(title, "printed: the formula in the paper; derived: what the steps of its own proof give")
    result = f"bound at\nT = {asked.rounds}", f"least T\nfor {asked.epsilon:g}"
    for head in (about, "formula", "D", "B + D\n+ start", *result):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        values = f"{row.sampling:.3g}", f"{row.total:.4g}", f"{row.bound:.4g}", f"{row.rounds:,}"
        table.add_row(row.about, row.form, *values)
    return table


def _round(each: Round) -> tuple[str, ...]:
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


def in_seconds(value: float | None) -> str:
    """Writes the seconds of a run, if they are told.

    >>> in_seconds(1.25), in_seconds(None)
    ('1.2', 'withheld')
    """
    return "withheld" if value is None else f"{value:.1f}"


def titled(title: str, note: str) -> Table:
    """Makes an empty table with a title above it and a note below."""
    table = Table(title=title, title_justify="left", caption=note, caption_justify="left", box=SIMPLE_HEAD)
    table.padding, table.min_width = (0, 1, 0, 0), len(title) + 2  # a title is not broken
    return table


def _edgeless(table: Table) -> Table:
    table.show_edge = table.pad_edge = False  # so that Table 1 and the contest fit 80 columns
    return table


def _broken(text: str) -> str:
    """Writes what is in brackets, as the clients of a setting of the paper, in a line of its own.

    >>> _broken("cifar10 (100, 2)")
    'cifar10\\n(100, 2)'
    """
    return text.replace(" (", "\n(")


def _table(title: str, note: str) -> Table:
    table = titled(title, note)
    table.add_column("run", overflow="fold", min_width=6)
    return table


def _shown(cell: str | float | Spread | None) -> str:
    if cell is None or isinstance(cell, Spread):
        return _spread(cell)
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _spread(value: Spread | None, metric: Scale = ACCURACY) -> str:
    if value is None:
        return "-"
    return metric.number(value.mean) + ("" if value.deviation is None else f" ± {metric.number(value.deviation)}")
