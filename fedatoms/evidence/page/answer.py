"""The first words of the page: which method is best on these runs, by how much, at what cost, and what is open."""

import statistics
from collections.abc import Sequence
from html import escape

from fedatoms.core.gains import Gain, Pooled, State, beyond, short, written
from fedatoms.core.lookup import counted
from fedatoms.evidence.page.html_table import TWO_SEEDS, minus, typed
from fedatoms.evidence.page.inconclusive import SO_FEW, open_comparisons, too_short, undecided
from fedatoms.evidence.page.scores import at_the_end
from fedatoms.evidence.results.commands import again, command_of
from fedatoms.evidence.results.finding import PUBLISHED, Found
from fedatoms.evidence.results.groups import Group, is_quick, readers_own
from fedatoms.evidence.results.pairs import Twins, decomposed_pairs, gain_between, known_spreads, mean_of_pairs
from fedatoms.evidence.results.standings import (
    LAST_PASS,
    Entry,
    Reached,
    Standings,
    Versus,
    baseline_of,
    of_the_reader,
    over_same_rounds,
    versus,
)
from fedatoms.experiment.parse import period_of
from fedatoms.runs.results import WINDOW, averaged_rounds, scored_rounds

MODELS = {
    "server": "the server's model",
    "selected": "the mean of the sampled clients' models",
    "all": "the mean of all clients' last models",
    "local": "clients' own models after local training",
    "personal": "clients' own models",
    "after the last pass": "clients' own models after the last pass",
}


def sentences(found: Found, groups: Sequence[Group], places: Sequence[Standings], claims: str = "") -> str:
    """Returns the sentences on top of the page, of the reader's own runs if there are any.

    ``claims``, as HTML, says how the paper's claims stand.

    >>> sentences(Found([], [], [], [], []), [], [])
    '<p class="lead">No run has a result yet.</p>'
    """
    if not places:
        return '<p class="lead">No run has a result yet.</p>'
    own = of_the_reader(places)
    first, *asked = [*_best(own[0]), _again(own[0].entries[0])]
    more = [_atoms(readers_own(groups)), open_comparisons(own), _rest(found)]
    lines = [*map(_sentence, asked), claims, *map(_sentence, more)]
    return f'<p class="lead">{_sentence(first)}</p><ul class="answers">{_items(lines)}</ul>'


def model_words(model: str) -> str:
    """Says what a scored model is.

    >>> model_words("all")
    "the mean of all clients' last models"
    """
    return MODELS.get(model, f"model {model}")


def amount(size: float) -> str:
    """Writes bytes.

    >>> amount(13.1e9), amount(4.04e6)
    ('13.1 GB', '4.04 MB')
    """
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def duration(seconds: float) -> str:
    """Writes a time.

    >>> duration(26.77), duration(5400)
    ('26.8 s', '1.5 h')
    """
    return (
        f"{seconds:.3g} s"
        if seconds < 600
        else f"{seconds / 60:.3g} min"
        if seconds < 5400
        else f"{seconds / 3600:.3g} h"
    )


def points(place: Standings) -> str:
    """Returns the unit of a setting's gains."""
    return "points" if place.metric.unit == "%" else place.metric.axis


def form_of(place: Standings) -> str:
    """Returns the format of a setting's gains."""
    return "+.2f" if place.metric.unit == "%" else "+.4g"


def _items(lines: Sequence[str]) -> str:
    return "".join(f"<li>{each}</li>" for each in lines if each)


def _sentence(line: str) -> str:
    """Escapes a sentence, in which ** marks what matters, and ` what to type."""
    parts = line.split("`")
    return "".join(
        f"<code>{typed(part)}</code>" if n % 2 else _bold(escape(minus(part))) for n, part in enumerate(parts)
    )


def _bold(line: str) -> str:
    parts = line.split("**")
    return "".join(f"<b>{part}</b>" if n % 2 else part for n, part in enumerate(parts))


def _again(best: Entry) -> str:
    """Says what runs the best method again."""
    command = again(command_of(best.group.experiment, best.group.seeds))
    why = "a new folder: where its results lie already, they are only shown"
    return f"**Run it again:** `{command}` ({why})." if command else ""


def _best(place: Standings) -> list[str]:
    """Says which method is best in a setting, how far it is above the baseline, and what that costs."""
    best, base, others = place.entries[0], place.base, len(place.entries)
    seeds = counted(len(best.scores[best.model]), "seed")
    last = at_the_end(best.group, best.model)
    end = "" if last is None else f"; {place.metric.write(last)} after the last round"
    said = f"{place.metric.write(best.mean)} ({model_words(best.model)}, {_window(best)}{seeds}{end})"
    first = f"**{best.name}** is the best of {others} experiments on {place.setting}: {said}{_not_alike(place)}."
    if others == 1:
        first = f"**{best.name}** has {said} on {place.setting}."
    if best is base:
        return [first, _ahead(place), _cost(best, None, place)]
    found = versus(best, base, place)
    return [first, _gained(place, base, found), _cost(best, found, place)]


def _not_alike(place: Standings) -> str:
    """Says how many experiments have scores of other rounds than the best: of these none is sure to be behind it."""
    best, *others = place.entries
    count = sum(not over_same_rounds(best, each) for each in others)
    return f"; {count} of the others {'has a score' if count == 1 else 'have scores'} of other rounds" if count else ""


def _window(best: Entry) -> str:
    """Says of which rounds a score is the mean."""
    if best.model == LAST_PASS:
        return "mean over "
    one = best.group.experiment
    has_first = one.rounds <= WINDOW and len(scored_rounds(one)) > 1
    return f"mean over {averaged_rounds(one)}{', the first ones included,' if has_first else ''} and "


def _ahead(place: Standings) -> str:
    """Says of a baseline that is the best itself how far the next one is behind."""
    if len(place.entries) == 1:
        return "A second experiment there would make a comparison."
    base, second = place.entries[:2]
    found = versus(second, base, place).gain
    behind = f"; the next, {second.name}, has {_written(found, place)}" if found else ""
    others = f"none of the {len(place.entries) - 1} others is above it{behind}"
    return f"**Gain:** none. It is the baseline itself, and {others}."


def _gained(place: Standings, base: Entry, found: Versus) -> str:
    whose = f" of {PUBLISHED}" if base.group.published and not place.entries[0].group.published else ""
    best = place.entries[0]
    if found.gain is None and (why := _other_rounds(best, base)):
        return f"**Gain over {base.name}{whose}:** none to state, as {why}.{_of_atoms(place)}{_clear(place)}"
    if found.gain is None:
        return f"It shares no seed with {base.name}{whose}, so there is no gain to state: run both with the same seeds."
    state = beyond(found.gain, below=not place.metric.higher)
    luck = "; as the best of many it is also the luckiest" if len(place.entries) > 5 else ""
    value = f"{short(found.gain, form_of(place))} {points(place)} ({counted(found.gain.seeds, 'shared seed')})"
    sure = _how_sure(found.gain, state)
    if state == "supported" and too_short(best, base):
        sure = f"0 is not in the 95 % interval, but {SO_FEW}"
    both = f"{_scored(best, base, found, place)}; {sure}{luck}"
    said = f"**Gain over {base.name}{whose}: {value}**{both}.{_of_atoms(place)}"
    return said if state == "supported" else f"{said}{_clear(place)}"


def _other_rounds(best: Entry, base: Entry) -> str:
    """Says that a baseline has another number of rounds, or scores others, if it does: the gain may be theirs."""
    rounds = [each.group.experiment.rounds for each in (base, best)]
    if over_same_rounds(best, base):
        return ""
    scored = "the means are over other rounds (eval-every)"
    return scored if len({*rounds}) == 1 else f"the baseline has {counted(rounds[0], 'round')}, not {rounds[1]}"


def _scored(best: Entry, base: Entry, found: Versus, place: Standings) -> str:
    """Says the two scores of which a gain is the difference, if those elsewhere have other seeds."""
    mine, theirs = best.scores[found.model], base.scores[found.model]
    shared = [seed for seed in theirs if seed in mine]
    if len(shared) == len(mine) == len(theirs):
        return ""
    one, other = (place.metric.write(statistics.fmean(each[seed] for seed in shared)) for each in (mine, theirs))
    which = "seed that both have" if len(shared) == 1 else f"{len(shared)} seeds that both have"
    return f", {one} against {other} over the {which}"


def _how_sure(one: Gain, state: State) -> str:
    """Says what the interval says of a gain; without a spread of its own never more than that it is likely."""
    alone = "one seed" if one.seeds == 1 else "a difference that is equal on all seeds"
    if state == "contradicted":
        return "the whole 95 % interval is against it"
    if state == "supported":
        likely = f"likely real: {alone}, and the spread of pairs with several seeds, by which 0 is not in the interval"
        return likely if one.how == "pooled" else "it is real, as the whole 95 % interval is on its side"
    if one.low is None:
        return f"it may be luck, as {alone} has no interval"
    few = f"; {TWO_SEEDS}" if one.seeds == 2 and one.how == "seeds" else ""
    return f"it may be luck, as 0 is in the 95 % interval{few}"


def _of_atoms(place: Standings) -> str:
    """Says what atoms alone add, if the best has them and more that the baseline has not."""
    best, base = place.entries[0], place.base
    one = best.group.experiment
    alone = one.personal == "none" and period_of(one.beta) == 1
    if not alone or one.parametrisation != "atoms" or base.group.experiment.parametrisation == "atoms":
        return ""
    pairs = decomposed_pairs([best.group], [best.group, *(each.group for each in (*place.entries, base))])
    twin = next((each for each in (*place.entries, base) if pairs and each.group.key == pairs[0][1].key), None)
    if twin is base:
        return ""
    found = twin and versus(best, twin, place).gain
    if not twin or not found:
        return " What atoms alone add to it is open: plain filters were not run with these seeds and rounds."
    return f" Of which atoms alone: **{_written(found, place)}** over {twin.name}."


def _clear(place: Standings) -> str:
    """Names the best experiment whose gain is no luck, if that of the best may be."""
    below = not place.metric.higher
    for each in place.entries[1:]:
        base = baseline_of(each, place)
        if undecided(each, base) or each is base:
            continue
        found = versus(each, base, place).gain
        if found and beyond(found, below=below) == "supported":
            over = "" if base is place.base else f" over {base.name}"
            return f" The best with a clear gain is **{each.name}**: {_written(found, place)}{over}."
    return ""


def _written(one: Gain, place: Standings) -> str:
    value, _, seeds = written(one, form_of(place)).rpartition(" (")
    said = seeds.replace("seed", "shared seed").replace(
        ", pooled", "; the interval is that of pairs with several seeds"
    )
    return f"{value} {points(place)} ({said}"


def _cost(best: Entry, found: Versus | None, place: Standings) -> str:
    """Says what a run of the best takes and, if another is the baseline, what both take to the baseline's score."""
    both = (found.mine, found.base) if found else (None, None)
    reached = f"; {_to_target(both[0], both[1], found, place)}" if found and both[0] and both[1] else ""
    other = f" ({place.base.name}: {_taken(place.base.group)})" if found else ""
    return f"**Cost:** {_whole(best)}{other}{reached}."


def _to_target(mine: Reached, theirs: Reached, found: Versus, place: Standings) -> str:
    base, scores = place.base, place.base.scores[found.model]
    shared = [scores[seed] for seed in place.entries[0].scores[found.model] if seed in scores]
    target = f"{base.name}'s {place.metric.write(statistics.fmean(shared))}"
    if mine.never:
        return f"in {mine.never} of {counted(mine.seeds, 'seed')} it does not reach {target}"
    itself = "" if theirs.never else f", {base.name} itself {_spent(theirs)}"
    return f"to reach {target} it takes {_spent(mine)}{itself}"


def _whole(best: Entry) -> str:
    """Says what a whole run takes, and on which machine."""
    group = best.group
    machines = {str(run.result.provenance.get("device") or "") for run in group.runs}
    where = f" on {machines.pop()}" if len(machines) == 1 and "" not in machines else ""
    rounds = counted(group.experiment.rounds, "round")
    return f"a run of {rounds} takes {_taken(group, ' both ways')}{where if group.seconds else ''}"


def _taken(group: Group, how: str = "") -> str:
    time = "" if group.seconds is None else f" and **{duration(group.seconds)}**"
    return f"**{amount(group.up + group.down)}**{how}{time}"


def _spent(one: Reached) -> str:
    seconds = "" if one.seconds is None else f" and **{duration(one.seconds)}**"
    return f"**{amount(one.sent)}**{seconds} ({counted(round(one.rounds), 'round')})"


def _atoms(groups: Sequence[Group]) -> str:
    """Says what atoms add to pairs that differ in nothing else."""
    accuracies = [each for each in groups if each.metric.is_accuracy and not each.experiment.holdout]
    real = [each for each in accuracies if not is_quick(each.experiment)]
    found = [both for both in decomposed_pairs(real, real) if not both[0].of_own_models]
    if len(found) < 2:
        return ""
    pooled = known_spreads(accuracies).shared
    return _over_pairs(found, pooled)


def _over_pairs(found: Sequence[Twins], pooled: Pooled | None) -> str:
    gains = [gain_between(*both, pooled) for both in found]
    states = [beyond(each) for each in gains]
    yes, no = states.count("supported"), states.count("contradicted")
    mean = short(mean_of_pairs(found, gains, pooled))
    lost = f"{no or 'none'} a clear loss"
    return (
        f"**Atoms in place of plain filters: {mean} points**, the mean of {len(gains)} pairs that differ in nothing "
        f"else: {yes or 'none'} show{'s' * (yes < 2)} a clear gain, {lost}, and {len(gains) - yes - no} are open."
    )


def _rest(found: Found) -> str:
    states = [each.state for each in found.unfinished]
    running, bad = states.count("running"), states.count("failed") + states.count("damaged")
    known = ((running, "still running"), (states.count("stopped"), "stopped"), (bad, "failed or damaged"))
    said = [f"{counted(n, 'run')} {how}" for n, how in known if n]
    return f"**Not counted:** {', '.join(said)} (see Your runs)." if said else ""
