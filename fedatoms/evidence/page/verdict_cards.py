"""The paper's claims as cards, grouped by verdict: number, caveat, evidence as dots, and what runs it again."""

import re
from collections.abc import Sequence
from html import escape

from fedatoms.core.gains import State
from fedatoms.core.lookup import counted
from fedatoms.evidence.claims.base import Claim, Evidence, Verdict, count_of, number_with_unit
from fedatoms.evidence.page.dot_plots import KINDS, LEGEND, LONG, SAID, dots
from fedatoms.evidence.page.html_table import Cell, gain_cell, minus, number, table, text, typed
from fedatoms.evidence.page.reruns import PAIRS, commands_again
from fedatoms.evidence.results.finding import Found

ORDER: tuple[State, ...] = ("contradicted", "inconclusive", "supported")
NO_BREAK = "\u00a0±\u00a0"
VERDICTS: dict[Verdict, str] = {
    "contradicted": "bad",
    "partly": "mixed",
    "inconclusive": "quiet",
    "supported": "good",
    "not run": "quiet",
}
STATES = {state: Cell(SAID[state], str(order), KINDS[state]) for order, state in enumerate(ORDER)}
A_TABLE = "fedatoms reproduce table1 --data-dir data"
WORST = re.compile("smallest|largest|furthest")  # what a title calls a number that is not a mean
NOTHING = Found([], [], [], [], [])
NAMED = 5  # contradicted claims that are written out on top


def claim_cards(claims: Sequence[Claim], found: Found = NOTHING) -> str:
    """Returns claims as cards, those that fail first; those without evidence are folded away.

    Their commands have the seeds of what was ``found``.

    >>> from fedatoms.evidence.claims.base import judge
    >>> claim_cards([judge("It helps.", "It adds to the accuracy.", [], (None, None))])[:48]
    '<details><summary><h3>1 claim without evidence h'
    """
    cards: dict[Verdict, list[str]] = {verdict: [] for verdict in VERDICTS}
    for place, claim in enumerate(claims):
        cards[claim.verdict].append(_card(place, claim, found))
    rest = cards.pop("not run")
    shown = "".join(_group(verdict, some) for verdict, some in cards.items() if some)
    shown = LEGEND + shown if '<ul class="dots">' in shown else shown
    head = f"<h3>{counted(len(rest), 'claim')} without evidence here</h3>"
    folded = f"<details><summary>{head}</summary>{_grid(rest)}</details>"
    return shown + (folded if rest else "")


def overview(claims: Sequence[Claim], whose: str = "") -> str:
    """Says how the claims stand, and by whose runs beside the reader's, with links; the contradicted ones are named.

    >>> overview([])
    ''
    """
    found = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS if verdict != "not run"}
    parts = [f'<a href="#verdict-{verdict}">{n} {verdict}</a>' for verdict, n in found.items() if n]
    failed = [claim for claim in claims if claim.verdict == "contradicted"]
    named = [f'<a href="#{slug(claim)}">{escape(_title(claim))}</a>: {_failing(claim)}' for claim in failed[:NAMED]]
    rest = f'; and <a href="#verdict-contradicted">{len(failed) - NAMED} more</a>' if len(failed) > NAMED else ""
    more = f" <b>Contradicted:</b> {'; '.join(named)}{rest}." if named else f" None is contradicted.{_unjudged(claims)}"
    judged = f"<b>The paper's claims</b> that the runs of this page can judge{_also(whose)}: {', '.join(parts)}.{more}"
    return judged if parts else ""


def _title(claim: Claim) -> str:
    """Returns a claim without what stands in brackets at its end."""
    return claim.text.partition(" (")[0].rstrip(".")


def _failing(claim: Claim) -> str:
    """Writes the number by which a claim fails, and the paper's if it has one."""
    paper, (_, ours) = number(claim.numbers[0], claim.unit.form, none="").text, _both(claim)
    worst = "at worst " if WORST.search(claim.text.partition(" (")[2]) and not claim.at_least else ""
    printed = f", the paper's {paper}" if paper else ""
    return escape(f"{worst}{ours}{printed}")


def _also(whose: str) -> str:
    return f", yours and those of {whose}" if whose else ""


def _unjudged(claims: Sequence[Claim]) -> str:
    """Says what would judge the claims that these runs leave open."""
    rest = sum(claim.verdict == "not run" for claim in claims)
    others = f"{rest} others need" if rest > 1 else "The other one needs"
    return f" {others} runs that are not here, such as those of <code>{typed(A_TABLE)}</code>." if rest else ""


def slug(claim: Claim) -> str:
    """Returns the name of a claim in addresses.

    >>> from fedatoms.evidence.claims.base import judge
    >>> slug(judge("It helps each (Table 1).", "", [], (None, None)))
    'claim-it-helps-each'
    """
    words = re.sub(r"[^a-z0-9]+", "-", claim.text.split("(")[0].lower()).strip("-")
    return f"claim-{'-'.join(words.split('-')[:9])}"


def _group(verdict: Verdict, cards: Sequence[str]) -> str:
    mark = f'<span class="verdict {VERDICTS[verdict]}">{verdict}</span>'
    return f'<h3 id="verdict-{verdict}" class="group">{mark} {len(cards)}</h3>{_grid(cards)}'


def _grid(cards: Sequence[str]) -> str:
    return f'<div class="cards">{"".join(cards)}</div>'


def _both(claim: Claim) -> tuple[str, str]:
    """Writes the paper's number and ours, each with its unit."""
    paper = number(claim.numbers[0], claim.unit.form, none="").text
    return f"{paper} {claim.unit.name}" if paper else "", number_with_unit(claim).replace("-", "\u2212")


def _card(place: int, claim: Claim, found: Found) -> str:
    shown = "".join(
        f"<div><dt>{who}</dt><dd>{escape(said)}</dd></div>"
        for who, said in zip(("paper", "ours"), _both(claim), strict=True)
        if said
    )
    name, kind = slug(claim), "claim long" if len(claim.evidence) > LONG else "claim"
    return (
        f'<article class="{kind}" id="{name}"><p class="verdict {VERDICTS[claim.verdict]}">{claim.verdict}</p>'
        f'<h4><a href="#{name}">{escape(claim.text)}</a></h4><dl>{shown}</dl>{dots(claim)}'
        f'<p class="quiet">{escape(claim.rule)}</p>{_evidence(place, claim)}{_again(claim, found)}</article>'
    )


def _again(claim: Claim, found: Found) -> str:
    pairs = PAIRS in claim.text and claim.evidence
    known = ' each pair has its command <a href="#pairs">above</a>; a new one:' if pairs else ""
    commands = ", ".join(f"<code>{typed(each)}</code>" for each in commands_again(claim, found))
    return f'<p class="again"><span class="quiet">Run it again:</span>{known} {commands}</p>'


def _evidence(place: int, claim: Claim) -> str:
    if not claim.evidence:
        return ""
    printed = any(line.paper is not None for line in claim.evidence)
    heads = ("case", "says", *(["paper"] if printed else []), "ours")
    rows = []
    for line in claim.evidence:
        paper = [number(line.paper, claim.evidence_unit.form, none="")] if printed else []
        ours = _ours(line, claim.evidence_unit.form)
        rows.append([text(minus(line.about)), STATES[line.state], *paper, ours])
    shown = table(f"claim-{place}", claim.evidence_unit.name, heads, rows)
    return f"<details><summary>Evidence: {count_of(claim.evidence)}</summary>{shown}</details>"


def _ours(line: Evidence, form: str) -> Cell:
    """Writes our number; a card is narrow, so it may break before its seeds, but not at its interval."""
    cell = number(line.ours, form) if line.gain is None else gain_cell(line.gain, form)
    return cell._replace(text=f"{'at least ' * line.at_least}{cell.text.replace(' ± ', NO_BREAK)}")
