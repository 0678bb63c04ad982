"""Makes the table of claims in paper-results/README.md from the files next to it, and says what intervals changed."""

from pathlib import Path

from fedatoms.bench.report import fill, table
from fedatoms.evidence.claims import Claim, claims
from fedatoms.evidence.claims.base import Verdict, count_of, number_with_unit
from fedatoms.evidence.results.finding import find

ROOT, MAKER = Path(__file__).parent, "paper-results/verdicts.py"
HEADS = ("claim", "verdict", "lines of evidence", "paper", "ours")
# What the numbers say without an interval, as the claims were judged before: by words of their text.
ALONE: dict[str, Verdict] = {
    "mean gain over its pairs": "supported",
    "helps each algorithm": "supported",
    "wherever the paper's gain": "supported",
    "Our baselines": "contradicted",
    "cost no extra bytes": "supported",
    "Personal atoms": "contradicted",
    "Table 3": "supported",
    "Fewer rounds": "supported",
    "figure (b)": "contradicted",
    "few clients in a round": "supported",
    "More clients in a round": "supported",
    "slow groups": "contradicted",
    "two Gaussians": "supported",
    "training loss is lower": "supported",
    "loss landscape": "supported",
    "bounded by those of real clients": "contradicted",
    "average with latent clients": "contradicted",
    "our other runs": "supported",
}


def verdicts() -> str:
    """Writes the paper's claims with the page's verdicts, and which of them intervals changed."""
    found = claims(find([ROOT]))
    changed = [line for claim in found for line in _changed(claim)]
    shown = table(HEADS, [_row(claim) for claim in found], align="---")
    return "\n".join([f"{shown}\n\nVerdicts that intervals changed, {len(changed)} of {len(found)}:\n", *changed])


def _row(claim: Claim) -> list[str]:
    paper = claim.numbers[0]
    printed = "" if paper is None else f"{paper:{claim.unit.form}} {claim.unit.name}"
    return [claim.text, claim.verdict, count_of(claim.evidence), printed, number_with_unit(claim)]


def _changed(claim: Claim) -> list[str]:
    alone = next((verdict for words, verdict in ALONE.items() if words in claim.text), claim.verdict)
    if claim.verdict in (alone, "not run"):
        return []
    return [f"* *{claim.text}* By the numbers alone {alone}, with intervals {claim.verdict}: {_why(claim)}."]


def _why(claim: Claim) -> str:
    known = [line.gain for line in claim.evidence if line.gain]
    against = "; ".join(line.about for line in claim.evidence if line.state == "contradicted")
    if claim.verdict == "partly":
        return f"contradicted by {against}" if against else f"only {count_of(claim.evidence)}"
    return "no interval is wholly on one side" if any(gain.high for gain in known) else "one seed has no known spread"


BLOCKS = {"claims": verdicts}


def report(page: Path = ROOT / "README.md") -> None:
    """Fills the page's block."""
    for name, block in BLOCKS.items():
        page.write_text(fill(page.read_text(), block(), name, MAKER))


if __name__ == "__main__":
    report()
