"""Comparisons on the page that decide nothing, and what may decide them."""

from collections.abc import Sequence
from dataclasses import replace

from fedatoms.core.gains import beyond
from fedatoms.evidence.paper.study_list import QUICK_ROUNDS
from fedatoms.evidence.results.commands import command_of, together
from fedatoms.evidence.results.groups import is_quick
from fedatoms.evidence.results.standings import Entry, Standings, baseline_of, over_same_rounds, versus
from fedatoms.experiment.fields import Experiment

SO_FEW = f"on digits {QUICK_ROUNDS} rounds or fewer decide nothing"


def too_short(one: Entry, other: Entry) -> bool:
    """Says whether one of two experiments has so few rounds that their difference says nothing of longer runs."""
    return is_quick(one.group.experiment) or is_quick(other.group.experiment)


def undecided(one: Entry, other: Entry) -> bool:
    """Says whether no gain between two experiments can be called real: too few rounds, or scores of other rounds."""
    return too_short(one, other) or not over_same_rounds(one, other)


def open_comparisons(places: Sequence[Standings]) -> str:
    """Counts the comparisons with the baseline that decide nothing."""
    where = [(each, place) for place in places for each in place.entries]
    asked = [(each, base, place) for each, place in where if (base := baseline_of(each, place)) is not each]
    gains = [versus(*each).gain for each in asked]
    left = [
        (mine, base)
        for (mine, base, _), one in zip(asked, gains, strict=True)
        if one is None or beyond(one) == "inconclusive" or undecided(mine, base)
    ]
    alone = sum(one is not None and one.seeds == 1 for one in gains)
    if not left:
        return ""
    seeds = f"; {alone} {'rests' if alone == 1 else 'rest'} on one seed" if alone else ""
    said = f"**Inconclusive: {len(left)} of {len(gains)}** comparisons with a baseline{seeds}."
    return f"{said}{_would_decide(left)}"


def _would_decide(left: Sequence[tuple[Entry, Entry]]) -> str:
    """Says what may decide comparisons that are open: more seeds, or other rounds where they are too few or unequal."""
    both = [[each.group.experiment for each in (base, mine)] for mine, base in left]
    long = [n for n, pair in enumerate(left) if not too_short(*pair)]
    if not long:
        return _longer(*left[0])
    fair = [n for n in long if over_same_rounds(*left[n])]
    if not fair:
        return _alike(*left[long[0]])
    most = max(len(each.group.seeds) for each in left[fair[0]])
    return f" More seeds may decide, as with {_typed(both[fair[0]], range(max(3, 2 * most)))}."


def _longer(mine: Entry, base: Entry) -> str:
    seeds, one = sorted({0, 1, 2, *mine.group.seeds, *base.group.seeds}), mine.group.experiment
    enough = max(Experiment.rounds, 2 * QUICK_ROUNDS)
    both = [replace(each.group.experiment, rounds=enough, eval_every=1, epochs=one.epochs) for each in (base, mine)]
    return f" {SO_FEW[0].upper()}{SO_FEW[1:]}: more rounds may, as with {_typed(both, seeds)}."


def _alike(mine: Entry, base: Entry) -> str:
    one, other = mine.group.experiment, base.group.experiment
    equal = replace(other, rounds=one.rounds, eval_every=one.eval_every)
    what = "that is scored in the same" if other.rounds == one.rounds else "of as many"
    return f" A baseline {what} rounds may decide, as with {_typed([equal], mine.group.seeds)}."


def _typed(experiments: Sequence[Experiment], seeds: Sequence[int]) -> str:
    """Returns what runs some experiments with the same seeds, in one command where there is one."""
    one = together(experiments, seeds) if len(experiments) > 1 else ""
    commands = [one] if one else [command_of(each, seeds) for each in experiments]
    return " and ".join(f"`{each}`" for each in commands if each) or f"the seeds {', '.join(map(str, seeds))}"
