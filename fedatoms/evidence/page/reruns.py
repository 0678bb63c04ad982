"""What to type to run again what is behind a claim: the same experiments with their seeds, into a new folder."""

from dataclasses import asdict

from fedatoms.evidence.claims.base import Claim
from fedatoms.evidence.explain.settings import Explain
from fedatoms.evidence.explain.values import Explanation
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import size_of
from fedatoms.evidence.paper.study_list import CLIENTS, Study, study
from fedatoms.evidence.results.commands import again, command_of, reproduce, together
from fedatoms.evidence.results.finding import Found
from fedatoms.evidence.results.groups import group, groups_of, key_of
from fedatoms.evidence.results.pairs import judged_pairs, latent_pairs

AGAIN = {  # words of a claim, and the study that runs it again
    "Table 1": "table1",
    "Table 2": "table2",
    "Table 3": "table3",
    "figure (a)": "table1",
    "figure (b)": "figure-variance",
    "figure (c)": CLIENTS,
    "own models need a share": "figure-communication-local",
    "figure (d)": "figure-communication",
    "bytes up": "table1",
    "two Gaussians": "synthetic",
    "After 20 rounds": "training-loss",
    "loss landscape": "landscape",
}
PAIRS = "our other runs"  # a claim of runs that no study has
LATENT = "average with latent clients"  # one of explanations and of whole runs
A_PAIR = again("fedatoms compare --parametrisation plain,atoms --seeds 0,1,2")
DIGITS = "fedatoms run fedavg-atoms"
REPLAYED = 2  # explanations whose commands a card has


def commands_again(claim: Claim, found: Found) -> list[str]:
    """Returns what runs a claim's evidence again, with the seeds that were found; with seed 0 if nothing was.

    >>> from fedatoms.evidence.claims.base import judge
    >>> commands_again(judge("It helps (Table 1).", "", [], (None, None)), Found([], [], [], [], []))
    ['fedatoms reproduce table1 --data-dir data --seeds 0 --out again']
    """
    if PAIRS in claim.text:
        return [A_PAIR]
    name = next((name for words, name in AGAIN.items() if words in claim.text), "")
    if not name:
        return (_whole_runs(found) if LATENT in claim.text else []) + _replayed(found)
    earlier = _earlier_pairs(found) if name == CLIENTS else []
    return earlier or [reproduce(name, _seeds(study(name), found) or [0])]


def _seeds(one: Study, found: Found) -> list[int]:
    """Returns the seeds of what was found of a study in the paper's setting."""
    if one.measure:
        same = [each.measure for each in found.measures if each.measure.name == one.measure]
        full = [each for each in same if size_of(MEASURES[one.measure], each) == "full"]
        return sorted({each.experiments[0].seed if each.experiments else 0 for each in full})
    return sorted(
        {seed for each in groups_of(one.name, group(found.runs), quick_ones=False).values() for seed in each.seeds}
    )


def _earlier_pairs(found: Found) -> list[str]:
    """Returns what runs the pairs of figure (c) again if they are its earlier ones, which no study has."""
    own = set(map(key_of, study(CLIENTS).runs.values()))
    earlier = [both for both in judged_pairs(group(found.runs)).values() if both[0].key not in own]
    return [again(together([plain.experiment, mine.experiment], mine.seeds)) for mine, plain in earlier]


def _whole_runs(found: Found) -> list[str]:
    """Returns what runs the pairs with and without latent clients again."""
    pairs = latent_pairs(group(found.runs))
    typed = [command_of(each.experiment, each.seeds) for both in pairs for each in both]
    return [again(words) for words in typed if words]


def _replayed(found: Found) -> list[str]:
    """Returns what makes the runs that were explained, and explains them; the digits' if nobody else can make them."""
    explained = [each.explanation for each in found.explanations[:REPLAYED]]
    typed = [(each, command_of(each.experiment, [each.experiment.seed])) for each in explained]
    pairs = [(words, _flags(each)) for each, words in typed if words] or [(DIGITS, "")]
    return [
        words
        for n, (run, flags) in enumerate(pairs, 1)
        for words in (f"{again(run)} --name replayed-{n}", f"fedatoms explain again/replayed-{n}{flags}")
    ]


def _flags(explanation: Explanation) -> str:
    asked, usual = asdict(explanation.settings), asdict(Explain())
    changed = [name for name in ("rounds", "crossed", "fork", "seed") if asked[name] != usual[name]]
    return "".join(f" --{name} {asked[name]}" for name in changed)
