"""The sections of the page as HTML: summary, claims, the paper's tables, other runs, bytes, provenance."""

import statistics
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from fedatoms.core.gains import Pooled
from fedatoms.core.options import GROUPS
from fedatoms.core.scales import Scale
from fedatoms.evidence.claims.base import Claim, Evidence, count_of, number_with_unit
from fedatoms.evidence.claims.tables import NEAR
from fedatoms.evidence.page.html_table import Cell, change, gain_cell, number, spread, table, text
from fedatoms.evidence.paper.tables import Cell as Printed
from fedatoms.evidence.paper.tables import cells, contrast
from fedatoms.evidence.results.cells import (
    GAINS,
    Ours,
    atoms_note,
    column_name,
    lead_of,
    missing_reasons,
    ours_of,
    place,
    row_name,
)
from fedatoms.evidence.results.finding import Found, Note, Run
from fedatoms.evidence.results.groups import STAND_IN, Group, by_setting, headline, is_stand_in, stand_in_mark
from fedatoms.evidence.results.names import labels, setting
from fedatoms.runs.results import WINDOW
from fedatoms.runs.spent import epsilon_in

LAST = f"the last {WINDOW} rounds, or all if there are fewer"
MISSING = "number quiet missing"  # page.css can hide such rows
SCORED = {
    1: f"test accuracy of the mean of all clients' last models, averaged over the last {WINDOW} rounds",
    2: "accuracy of the clients' own models on their own test images, after the last local pass",
    3: "as Table 2, for different numbers of atoms",
}
NO_BREAK = "\u00a0±\u00a0"
VERDICTS = {"supported": "good", "partly": "mixed", "inconclusive": "quiet", "contradicted": "bad", "not run": "quiet"}
STATES = {
    "supported": Cell("yes", "2", "good"),
    "inconclusive": Cell("open", "1", "quiet"),
    "contradicted": Cell("no", "0", "bad"),
}


def summary(found: Found, groups: Sequence[Group], folders: Sequence[Path]) -> str:
    """Returns the number of runs, their origin, dates and commits, and lists the files that were left out."""

    def known(name: str) -> list[str]:
        return sorted({str(run.result.provenance[name]) for run in found.runs if run.result.provenance.get(name)})

    times = known("time")
    facts = {
        "runs": _finished(found.runs, groups),
        "below": listed(folder.as_posix() for folder in folders),
        "when": " to ".join(
            dict.fromkeys(time[:16].replace("T", " ") for time in (times or [""])[:: max(1, len(times) - 1)])
        ),
        "commits": listed([*known("commit"), *_nameless(found.runs)]),
        "on": listed(known("device")),
    }
    lines = "".join(f"<div><dt>{name}</dt><dd>{escape(fact or 'unknown')}</dd></div>" for name, fact in facts.items())
    left_out = _notes("left out", "Left out of this page", found.left_out)
    return f"<dl>{lines}</dl>{left_out}{_notes('notes', 'Used, but with a problem', found.notes)}"


def _finished(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """Counts runs, experiments and quick stand-ins."""
    number = sum(is_stand_in(run.result.experiment) for run in runs)
    quick = f"; {_count(number, STAND_IN)}" if number else ""
    return f"{_count(len(runs), 'finished run')} of {_count(len(groups), 'experiment')}{quick}"


def _nameless(runs: Sequence[Run]) -> list[str]:
    """Counts runs without a commit."""
    number = sum(not run.result.provenance.get("commit") for run in runs)
    return [f"unknown for {_count(number, 'run')}"] if number else []


def _notes(name: str, title: str, notes: Sequence[Note]) -> str:
    if not notes:
        return ""
    lines = "".join(f"<li><code>{escape(note.path.as_posix())}</code>: {escape(note.reason)}</li>" for note in notes)
    return f'<div class="warning" data-notes="{name}"><h3>{title} ({len(notes)})</h3><ul>{lines}</ul></div>'


def claim_cards(claims: Sequence[Claim]) -> str:
    """Returns claims as cards; those without evidence are folded away.

    >>> from fedatoms.evidence.claims.base import judge
    >>> claim_cards([judge("It helps.", "It adds to the accuracy.", [], (None, None))])[:51]
    '<details><summary>1 claim without evidence here</su'
    """
    cards = [_claim_card(place, claim) for place, claim in enumerate(claims)]
    judged = [card for card, claim in zip(cards, claims, strict=True) if claim.evidence]
    rest = [card for card, claim in zip(cards, claims, strict=True) if not claim.evidence]
    folded = f"<details><summary>{_count(len(rest), 'claim')} without evidence here</summary>{_grid(rest)}</details>"
    return (_grid(judged) if judged else "") + (folded if rest else "")


def _grid(cards: Sequence[str]) -> str:
    return f'<div class="cards">{"".join(cards)}</div>'


def _claim_card(place: int, claim: Claim) -> str:
    paper = number(claim.numbers[0], claim.unit.form, none="").text
    both = f"{paper} {claim.unit.name}" if paper else "", number_with_unit(claim).replace("-", "\u2212")
    shown = "".join(
        f"<div><dt>{who}</dt><dd>{escape(said)}</dd></div>"
        for who, said in zip(("paper", "ours"), both, strict=True)
        if said
    )
    return (
        f'<article class="claim"><p class="verdict {VERDICTS[claim.verdict]}">{claim.verdict}</p>'
        f'<h3>{escape(claim.text)}</h3><p class="quiet">{escape(claim.rule)}</p>'
        f"<dl>{shown}</dl>{_evidence(place, claim)}</article>"
    )


def _evidence(place: int, claim: Claim) -> str:
    if not claim.evidence:
        return ""
    printed = any(line.paper is not None for line in claim.evidence)
    heads = ("case", "says", *(["paper"] if printed else []), "ours")
    rows = []
    for line in claim.evidence:
        paper = [number(line.paper, claim.evidence_unit.form, none="")] if printed else []
        ours = _ours(line, claim.evidence_unit.form)
        rows.append([text(line.about), STATES[line.state], *paper, ours])
    shown = table(f"claim-{place}", claim.evidence_unit.name, heads, rows)
    return f"<details><summary>Evidence: {count_of(claim.evidence)}</summary>{shown}</details>"


def _ours(line: Evidence, form: str) -> Cell:
    """Writes our number; a card is narrow, so it may break before its seeds, but not at its interval."""
    cell = number(line.ours, form) if line.gain is None else gain_cell(line.gain, form)
    return cell._replace(text=f"{'at least ' * line.at_least}{cell.text.replace(' ± ', NO_BREAK)}")


def paper_table(which: int, ours: Ours, pooled: Pooled | None = None) -> str:
    """Returns a table of the paper, cell by cell, with our numbers beside it.

    >>> "0 of 24 cells run" in paper_table(3, {})
    True
    """
    printed = cells(which)
    run = sum(ours_of(cell, ours) is not None for cell in printed)
    heads = ("method", "data", "paper", "ours", "difference", "seeds", "gain, paper", "gain, ours", "runs")
    caption = f"{SCORED[which]}, in %. Gain: {GAINS[which]}. {atoms_note(which, ours)}".strip(" .")
    shown = table(f"table-{which}", caption, heads, [_paper_row(cell, ours, pooled) for cell in printed])
    why = paragraphs(missing_reasons(printed)) if run else ""
    only = f'<label class="only"><input type="checkbox"> only the {run} cells that were run</label>' if run else ""
    return (
        f'<details class="paper"{" open" if run else ""}><summary><h3>Table {which}</h3> {run} of {len(printed)} cells '
        f"run</summary>{only}{shown}{why}</details>"
    )


def _paper_row(cell: Printed, ours: Ours, pooled: Pooled | None) -> list[Cell]:
    mine, found = ours_of(cell, ours), ours.get(place(cell))
    shown = spread(mine) if mine is not None else Cell("not run", kind=MISSING)
    seeds = number(len(found.seeds), "d") if found else number(None, none="")
    start = [text(row_name(cell)), text(column_name(cell)), Cell(cell.printed, repr(cell.value), "number"), shown]
    middle = [change(None if mine is None else mine.mean - cell.value, NEAR), seeds]
    return [*start, *middle, *_gains(cell, ours, pooled), _folders(found)]


def _gains(cell: Printed, ours: Ours, pooled: Pooled | None) -> list[Cell]:
    both = contrast(cell)
    if both is None:
        return [number(None, none=""), number(None, none="")]
    return [number(both[0].value - both[1].value, "+.2f"), gain_cell(lead_of(*both, ours, pooled), coloured=True)]


def _folders(found: Group | None) -> Cell:
    return text(listed(run.name for run in found.runs) if found else None)._replace(kind="path")


def other_runs(groups: Sequence[Group], known: set[int]) -> str:
    """Returns the table of groups whose ids are not ``known``: those that reproduce no cell of the paper."""
    rest = [each for each in groups if id(each) not in known]
    if not rest:
        return "<p>None: every run is in a table above.</p>"
    names, metrics = _labels(groups), {each.metric.axis: each.metric for each in rest}
    made = []
    for n, (axis, metric) in enumerate(metrics.items()):
        rows = [_other_row(each, names[id(each)]) for each in rest if each.metric.axis == axis]
        made.append(_others(f"others{n or ''}", metric, rows))
    return "".join(made)


def _others(name: str, metric: Scale, rows: Sequence[list[Cell]]) -> str:
    costs = ("MB up", "MB down", "rounds", "seeds")
    heads = ("method", "setting", metric.name, "final", "best", "model", "personal", *costs, "runs")
    unit = f" in {metric.unit}" if metric.unit else ""
    which = f"{metric.name[:1].upper()}{metric.name[1:]}{unit}"
    return table(name, f"{which}: mean over {LAST}, ± standard deviation over seeds", heads, rows)


def _other_row(each: Group, name: str) -> list[Cell]:
    model, score = headline(each)
    last, form = [run.result.scores[model] for run in each.runs], ".2f" if each.metric.unit == "%" else ".4g"
    own = [(run.result.personal or {}).get("after the last pass") for run in each.runs]
    personal = [value for value in own if value is not None]
    return [
        text(name)._replace(kind="wide"),
        text(setting(each.experiment) + stand_in_mark(each.experiment))._replace(kind="wide"),
        spread(score, form),
        number(statistics.mean(summary.final for summary in last), form),
        number(statistics.mean(summary.best for summary in last), form),
        text(model),
        number(statistics.mean(personal) if personal else None, form, none=""),
        number(each.up / 1e6, ",.1f"),
        number(each.down / 1e6, ",.1f"),
        number(each.experiment.rounds, "d"),
        number(len(each.seeds), "d"),
        _folders(each),
    ]


def _labels(groups: Sequence[Group]) -> dict[int, str]:
    """Names each group by what varies in its setting."""
    return {
        id(each): name
        for some in by_setting(groups).values()
        for each, name in zip(some, labels([each.experiment for each in some]), strict=True)
    }


def sent_bytes(runs: Sequence[Run]) -> str:
    """Returns the table of bytes of each run, by group of parameters."""
    used = [name for name in GROUPS if any(name in run.result.bytes_up | run.result.bytes_down for run in runs)]
    heads = ("run", *(f"{name}, {way}" for way in ("up", "down") for name in used))
    rows = [
        [
            _run(run),
            *(
                number(way.get(name, 0) / 1e6, ",.1f")
                for way in (run.result.bytes_up, run.result.bytes_down)
                for name in used
            ),
        ]
        for run in runs
    ]
    return table("sent", "Bytes of all clients in all rounds, in MB", heads, rows)


def _run(run: Run) -> Cell:
    return text(run.name + stand_in_mark(run.result.experiment))


def origins(runs: Sequence[Run]) -> str:
    """Returns the table of provenance."""
    shown = ("time", "commit", "fedatoms", "device", "cores", "torch", "cuda", "numpy", "python", "system")
    spent = [epsilon_in(run.result.extra.get("privacy")) for run in runs]
    private = any(each is not None for each in spent)
    heads = ("run", "seed", *shown, "seconds", "parameters", *(["epsilon"] if private else []))
    rows = []
    for run, epsilon in zip(runs, spent, strict=True):
        source = [text(run.result.provenance.get(name)) for name in shown]
        costs = [number(run.result.own_seconds, ",.1f"), number(run.result.parameters, ",d")]
        cost = [text(None) if epsilon is None else number(epsilon, ".3f")] if private else []
        rows.append([_run(run), number(run.result.experiment.seed, "d"), *source, *costs, *cost])
    return table("origin", "When, where and at which commit each run was made", heads, rows)


def paragraphs(lines: Iterable[str]) -> str:
    """Returns lines as small paragraphs.

    >>> paragraphs(["a < b"])
    '<p class="quiet">a &lt; b</p>'
    """
    return "".join(f'<p class="quiet">{escape(line)}</p>' for line in lines)


def listed(words: Iterable[str]) -> str:
    """Joins words with commas.

    >>> listed(["a", "b"])
    'a, b'
    """
    return ", ".join(words)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
