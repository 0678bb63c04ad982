"""Makes the table of claims in paper-results/README.md from the files next to it, and says what intervals changed."""

from collections.abc import Callable
from pathlib import Path

from fedatoms.bench.report import fill, table
from fedatoms.evidence.claims import Claim, claims
from fedatoms.evidence.claims.base import CLEAR, Verdict, count_of, number_with_unit
from fedatoms.evidence.claims.measures import judged
from fedatoms.evidence.claims.tables import FREE, NEAR
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import size_of
from fedatoms.evidence.results.finding import Found, FoundMeasure, find
from fedatoms.evidence.results.measures import unlike_the_papers
from fedatoms.evidence.results.names import seeds

ROOT, MAKER = Path(__file__).parent, "paper-results/verdicts.py"
HEADS = ("claim", "verdict", "lines of evidence", "paper", "ours")
# Whether a claim's number without its interval says yes, given the paper's and ours, if it has a bar: by words of its
# text.
ALONE: dict[str, Callable[[float, float], bool]] = {
    "mean gain over its pairs": lambda paper, ours: ours > paper,
    "helps each algorithm": lambda _, ours: ours > 0,
    "wherever the paper's gain": lambda _, ours: ours > 0,
    "Our baselines": lambda _, ours: abs(round(ours, 2)) <= NEAR,
    "cost no extra bytes": lambda _, ours: ours <= 100 * FREE,
    "In the majority": lambda _, ours: ours > 50,
    "Personal atoms": lambda _, ours: ours > 0,
    "Table 3": lambda _, ours: ours > 0,
    "Fewer rounds": lambda _, ours: ours < 1,
    "figure (b)": lambda _, ours: ours < 1,
    "few clients in a round": lambda _, ours: ours > 0,
    "More clients in a round": lambda _, ours: ours > 0,
    "The more clients a round has": lambda _, ours: ours > 0,
    "slow groups": lambda beta, ours: ours < beta,
    "own models need a share": lambda beta, ours: ours < beta,
    "two Gaussians": lambda _, ours: ours < 1,
    "training loss is lower": lambda rounds, ours: ours <= rounds,
    "loss landscape": lambda _, ours: ours < 1,
    "average with latent clients": lambda _, ours: ours >= CLEAR,
    "our other runs": lambda _, ours: ours > 0,
}


# What else was tried where a claim is contradicted, by words of its text, besides measures of other settings.
CONTROLS = {
    "slow groups": "Twice the rate for atoms and coefficients (`atoms-lr-2/`): shares of 0.25 at β = 1/2, 0.26 at 1/5, "
    "so that 1/5 is still not enough. By clients' own models [no β reaches 52 %](#figure-d-slow-and-fast-groups).",
    "own models need a share": "A lower target, which all reach: the shares are above β, too. By the server's model "
    "β = 1/2 is enough, 1/5 and 1/10 are not ([both](#figure-d-slow-and-fast-groups)).",
}


def verdicts() -> str:
    """Writes the paper's claims with the page's verdicts, what else was tried, and which of them intervals changed."""
    files = find([ROOT])
    found = claims(files)
    changed = [line for claim in found for line in _changed(claim)]
    shown = table(HEADS, [_row(claim) for claim in found], align="---")
    tried = [f"* *{claim.text}* {_control(claim, files)}" for claim in found if claim.verdict == "contradicted"]
    left = [(claim, _elsewhere(claim, files)) for claim in found if claim.verdict == "not run"]
    open_ones = [f"* *{claim.text}* {said}" for claim, said in left if said]
    parts = {
        "Measured in other settings, which decides nothing:": open_ones,
        "Controls of what is contradicted:": tried,
        f"Verdicts that intervals changed, {len(changed)} of {len(found)}:": changed,
    }
    return "\n".join([shown, *(each for head, lines in parts.items() if lines for each in ("", head, "", *lines))])


def _control(claim: Claim, found: Found) -> str:
    known = next((text for words, text in CONTROLS.items() if words in claim.text), "")
    other = _elsewhere(claim, found)
    return known or (f"In other settings: {other}" if other else "None was run yet.")


def _elsewhere(claim: Claim, found: Found) -> str:
    """Writes what a claim's number is in measures of other settings, which decide nothing."""
    pairs = [each for each in found.measures if _is_pair(each)]
    others = [each for each in pairs if size_of(MEASURES[each.measure.name], each.measure) == "other"]
    same = [(each, one) for each in others for one in judged([each]) if one.text == claim.text and one.evidence]
    shown = [f"{_range(one)} ({_which(each)})" for each, one in same]
    return f"{'; '.join(shown)} ([figures](../docs/figures.md#what-we-saw))." if shown else ""


def _is_pair(each: FoundMeasure) -> bool:
    return [one.parametrisation == "plain" for one in each.measure.experiments] == [True, False]


def _range(claim: Claim) -> str:
    """Writes the numbers of all lines of a claim, or of the only one what it says, too."""
    ours, unit = [line.ours for line in claim.evidence], claim.evidence_unit
    if len(ours) == 1:
        number, about = f"{ours[0]:{unit.form}}", claim.evidence[0].about
        return about if number in about.split() else f"{number} {unit.name}, {about}"
    return f"{min(ours):{unit.form}} to {max(ours):{unit.form}} {unit.name}"


def _which(each: FoundMeasure) -> str:
    """Names the folder of a measure, what it has other than the paper's, and its seed."""
    other = [mine for mine, _ in unlike_the_papers(each.measure)]
    return ", ".join([f"`{each.folder.name}`", *other, *(seeds([one.seed]) for one in each.measure.experiments[:1])])


def _row(claim: Claim) -> list[str]:
    paper = claim.numbers[0]
    printed = "" if paper is None else f"{paper:{claim.unit.form}} {claim.unit.name}"
    return [claim.text, claim.verdict, count_of(claim.evidence), printed, number_with_unit(claim)]


def _changed(claim: Claim) -> list[str]:
    if claim.verdict == "not run" or claim.verdict == (alone := _alone(claim)):
        return []
    return [f"* *{claim.text}* By the numbers alone {alone}, with intervals {claim.verdict}: {_why(claim, alone)}."]


def _alone(claim: Claim) -> Verdict:
    paper, ours = (number or 0.0 for number in claim.numbers)
    holds = next((rule for words, rule in ALONE.items() if words in claim.text), None)
    if holds is None:  # one without a bar, as the paper gives no constant
        return claim.verdict
    return "supported" if holds(paper, ours) else "contradicted"


def _why(claim: Claim, alone: Verdict) -> str:
    known = [line.gain for line in claim.evidence if line.gain]
    against = "; ".join(line.about for line in claim.evidence if line.state == "contradicted")
    if claim.verdict == "partly":
        return f"contradicted by {against}" if against else "only " * (alone == "supported") + count_of(claim.evidence)
    if any(line.supports for line in claim.evidence):
        return f"only {count_of(claim.evidence)}"
    return "no interval is wholly on one side" if any(gain.high for gain in known) else "one seed has no known spread"


BLOCKS = {"claims": verdicts}


def report(page: Path = ROOT / "README.md") -> None:
    """Fills the page's block."""
    for name, block in BLOCKS.items():
        page.write_text(fill(page.read_text(), block(), name, MAKER))


if __name__ == "__main__":
    report()
