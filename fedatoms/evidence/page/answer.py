"""The first words of the page: which method is best on these runs, by how much, at what cost, and what is open."""

from collections.abc import Sequence
from html import escape

from fedatoms.core.gains import Gain, Pooled, beyond, mean_gain, written
from fedatoms.core.lookup import counted
from fedatoms.evidence.page.html_table import Cell, gain_cell, number, table, text
from fedatoms.evidence.results.commands import command_of
from fedatoms.evidence.results.finding import Found
from fedatoms.evidence.results.groups import Group, is_quick
from fedatoms.evidence.results.pairs import decomposed_pairs, gain_between, known_spreads
from fedatoms.evidence.results.standings import Entry, Reached, Standings, Versus, versus

FEW = 3  # settings that are written out; the others are lines of a table
MODELS = {
    "server": "the server's model",
    "selected": "the mean of the sampled clients' models",
    "all": "the mean of all clients' last models",
    "personal": "clients' own models",
    "after the last pass": "clients' own models after the last pass",
}


def sentences(found: Found, groups: Sequence[Group], places: Sequence[Standings], claims: str = "") -> str:
    """Returns the sentences on top of the page; the last of them, as HTML, says how the paper's claims stand.

    >>> sentences(Found([], [], [], [], []), [], [])
    '<p class="lead">No run has a result yet.</p>'
    """
    if not places:
        return '<p class="lead">No run has a result yet.</p>'
    said = [*_best(places[0]), _again(places[0].entries[0]), _atoms(groups), _open(places), _rest(found)]
    first, *others = (*(_sentence(line) for line in said if line), *([claims] if claims else []))
    return f'<p class="lead">{first}</p><ul class="answers">{"".join(f"<li>{each}</li>" for each in others)}</ul>'


def by_setting(places: Sequence[Standings]) -> str:
    """Returns the best method of each setting as a table, if there are several.

    >>> by_setting([])
    ''
    """
    if len(places) < 2:
        return ""
    heads = ("best method", "score", "gain", "over", "of", "setting")
    caption = "The best method of each setting, and its gain over the usual baseline with a 95 % interval"
    shown = table("best", caption, heads, [_row(each) for each in places])
    return f"<h2>Best in each of {len(places)} settings</h2>{shown}"


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


def _sentence(line: str) -> str:
    """Escapes a sentence, in which ** marks what matters, and ` what to type."""
    return _marked(_marked(escape(line), "**", "b"), "`", "code")


def _marked(line: str, mark: str, tag: str) -> str:
    parts = line.split(mark)
    return "".join(f"<{tag}>{part}</{tag}>" if n % 2 else part for n, part in enumerate(parts))


def _again(best: Entry) -> str:
    """Says what runs the best method again."""
    command = command_of(best.group.experiment, best.group.seeds)
    return f"Run it again: `{command}`." if command else ""


def _best(place: Standings) -> list[str]:
    """Says which method is best in a setting, how far it is above the baseline, and what that costs."""
    best, base, others = place.entries[0], place.base, len(place.entries)
    seeds = counted(len(best.scores[best.model]), "seed")
    said = f"{place.metric.write(best.mean)} ({model_words(best.model)}, {seeds})"
    if others == 1:
        return [f"**{best.name}** has {said} on {place.setting}. A second experiment there would make a comparison."]
    lines = [f"**{best.name}** is the best of {others} experiments on {place.setting}: {said}."]
    if best is base:
        return [*lines, f"It is the baseline itself: none of the {others - 1} others is above it."]
    found = versus(best, base, place.metric, place.pooled)
    return [*lines, _gained(place, base, found), _cost(base, found, place)]


def _gained(place: Standings, base: Entry, found: Versus) -> str:
    if found.gain is None:
        return f"It shares no seed with {base.name}, so there is no gain to state: run both with the same seeds."
    state, low = beyond(found.gain, below=not place.metric.higher), found.gain.low
    words = {
        "supported": "the whole 95 % interval is on its side",
        "contradicted": "the whole 95 % interval is against it",
        "inconclusive": "0 is in the 95 % interval, so it may be luck"
        if low is not None
        else "one seed says nothing of luck",
    }
    luck = "; as the best of many it is also the luckiest" if len(place.entries) > 5 else ""
    return f"Gain over {base.name}: **{_written(found.gain, place)}**; {words[state]}{luck}."


def _written(one: Gain, place: Standings) -> str:
    value, _, seeds = written(one, form_of(place)).rpartition(" (")
    return f"{value} {points(place)} ({seeds.replace('seed', 'shared seed')}"


def _cost(base: Entry, found: Versus, place: Standings) -> str:
    if not found.mine or not found.base or found.gain is None:
        return ""
    target = place.metric.write(sum(base.scores[found.model].values()) / len(base.scores[found.model]))
    if found.mine.never:
        return f"It does not reach the {target} of {base.name} in {found.mine.never} of {found.mine.seeds} seeds."
    if found.base.never:
        return ""
    return (
        f"To reach the {target} of {base.name} it takes {_spent(found.mine)}; {base.name} itself {_spent(found.base)}."
    )


def _spent(one: Reached) -> str:
    seconds = "" if one.seconds is None else f" and **{duration(one.seconds)}**"
    return f"**{amount(one.sent)}**{seconds} ({counted(round(one.rounds), 'round')})"


def _atoms(groups: Sequence[Group]) -> str:
    """Says what atoms add to pairs that differ in nothing else."""
    accuracies = [each for each in groups if each.metric.is_accuracy and not each.experiment.holdout]
    real = [each for each in accuracies if not is_quick(each.experiment)]
    found = [both for both in decomposed_pairs(real, real) if both[0].experiment.personal == "none"]
    if len(found) < 2:
        return ""
    pooled = known_spreads(accuracies).shared
    return _over_pairs([gain_between(*both, pooled) for both in found], pooled)


def _over_pairs(gains: Sequence[Gain], pooled: Pooled | None) -> str:
    states = [beyond(each) for each in gains]
    yes, no = states.count("supported"), states.count("contradicted")
    mean = written(mean_gain(gains, pooled)).rpartition(" (")[0]
    return (
        f"Atoms in place of plain filters: **{mean} points**, the mean of {len(gains)} pairs that differ in nothing "
        f"else; in {yes} the gain is clear, in {no} the loss, and {len(gains) - yes - no} are open."
    )


def _open(places: Sequence[Standings]) -> str:
    """Counts the comparisons with the baseline that decide nothing."""
    pairs = [(each, place) for place in places for each in place.entries if each is not place.base]
    gains = [versus(each, place.base, place.metric, place.pooled).gain for each, place in pairs]
    left = sum(one is None or beyond(one) == "inconclusive" for one in gains)
    alone = sum(one is not None and one.seeds == 1 for one in gains)
    if not left:
        return ""
    seeds = f"; {alone} rest on one seed" if alone else ""
    said = f"Inconclusive: **{left} of {len(gains)}** comparisons with a baseline{seeds}."
    most = max(len(each.group.seeds) for each, _ in pairs)
    return f"{said} More seeds decide: `--seeds {','.join(map(str, range(max(3, 2 * most))))}`."


def _rest(found: Found) -> str:
    states = [each.state for each in found.unfinished]
    running, bad = states.count("running"), states.count("failed") + states.count("damaged")
    said = [f"{counted(n, 'run')} {how}" for n, how in ((running, "still running"), (bad, "failed or damaged")) if n]
    return f"Not counted: {', '.join(said)} (see Your runs)." if said else ""


def _row(place: Standings) -> list[Cell]:
    best, base = place.entries[0], place.base
    found = versus(best, base, place.metric, place.pooled).gain if best is not base else None
    score = number(best.mean, form_of(place)[1:])
    others = text(base.name if best is not base else "")._replace(kind="wide")
    name, where = (text(words)._replace(kind="wide") for words in (best.name, place.setting))
    return [
        name,
        score,
        gain_cell(found, form_of(place), coloured=True, below=not place.metric.higher),
        others,
        number(len(place.entries), "d"),
        where,
    ]
