"""The summary of a measure: one sentence with its numbers, and columns with a line for each round."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, assert_never

from fedatoms.core.lookup import counted
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import as_json
from fedatoms.evidence.measures.files import Measure
from fedatoms.evidence.measures.values import (
    Checked,
    LandscapeValues,
    SyntheticValues,
    TrainingLossValues,
    VarianceValues,
)
from fedatoms.evidence.results.names import labels, unlike

AFTER = "after rounds"
FACTORS = ", factors"  # ends the name of a line that is of an experiment's factors
VARIANCES = {"raw": "variance", "by_norm": "variance / |mean|²", "by_move": "variance / |move|²"}
Lines = dict[str, list[float]]  # by name


class Columns(NamedTuple):
    """The numbers of a measure, a line for each round; ``head`` names the column of rounds."""

    caption: str
    head: str
    rounds: Sequence[float]
    values: Lines


class Summary(NamedTuple):
    """A sentence and columns."""

    sentence: str
    columns: Columns


def summarise(measure: Measure, values: Checked) -> Summary:
    """Summarises a measure.

    >>> from fedatoms.experiment.fields import Experiment
    >>> pair = Experiment(), Experiment(parametrisation="atoms")
    >>> measure = Measure("training_loss", pair, {}, {}, {})
    >>> summarise(measure, TrainingLossValues([[2.0, 1.5], [2.0, 1.25]], lower_from=1)).sentence[-42:]
    'fedavg + 9 atoms is lower from round 1 on.'
    """
    names = names_of(measure)
    match values:
        case VarianceValues():
            return _variance(names, values)
        case SyntheticValues():
            return _synthetic(values)
        case TrainingLossValues():
            return _training_loss(names, values)
        case LandscapeValues():
            return _landscape(names, values)
        case _:
            assert_never(values)


def names_of(measure: Measure) -> list[str]:
    """Names the experiments of a measure, numbered if their names are not unique.

    >>> from fedatoms.experiment.fields import Experiment
    >>> names_of(Measure("variance", (Experiment(), Experiment(seed=1)), {}, {}, {}))
    ['1. fedavg', '2. fedavg']
    """
    names = labels(measure.experiments)
    return names if len(set(names)) == len(names) else [f"{n}. {name}" for n, name in enumerate(names, 1)]


def unlike_the_papers(measure: Measure) -> list[tuple[str, str]]:
    """Returns what a measure has, and what the one that verdicts count has, where they differ.

    >>> full = MEASURES["training_loss"]
    >>> unlike_the_papers(Measure(full.name, full.experiments, {"rounds": 12}, {}, {}))
    [('rounds 12', 'rounds 100')]
    """
    kind = MEASURES[measure.name]
    counts = [counted(len(each.experiments), "experiment") for each in (measure, kind)]
    pairs = zip(measure.experiments[::-1], kind.experiments[::-1], strict=False)  # what is decomposed comes first
    found = [(counts[0], counts[1])] + [both for mine, usual in pairs for both in unlike(mine, usual)]
    settings = [(name, measure.settings.get(name), value) for name, value in as_json(kind.settings).items()]
    found += [(f"{name} {setting_text(mine)}", f"{name} {setting_text(usual)}") for name, mine, usual in settings]
    return [both for both in dict.fromkeys(found) if both[0] != both[1]]


def setting_text(value: object) -> str:
    """Writes a value of a measure's settings.

    >>> setting_text([0, 5])
    '0, 5'
    """
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def variances(names: Sequence[str], values: VarianceValues, kind: str) -> Lines:
    """Returns one of the ``VARIANCES`` of each experiment: of its filters, and of its factors if they were measured."""
    found: Lines = {name: getattr(each.filters, kind) for name, each in zip(names, values.lines, strict=True)}
    of_factors = {name: each.factors for name, each in zip(names, values.lines, strict=True) if each.factors}
    return found | {name + FACTORS: getattr(line, kind) for name, line in of_factors.items()}


def variances_of_models(values: SyntheticValues) -> tuple[list[int], Lines]:
    """Returns the rounds after the common start, and the variance of each average in them."""
    found = {line.name: line.variance[1:] for line in values.lines}
    for line in values.lines:
        if line.products is not None:
            found["the same without latent clients"] = line.products[1:]
    return list(range(1, len(values.lines[0].variance))), found


def _variance(names: Sequence[str], values: VarianceValues) -> Summary:
    found = {kind: variances(names, values, kind) for kind in VARIANCES}
    plain, *others = found["raw"]
    sentence = f"Variance of the aggregated filters over {values.repeats} repeats of a round, after "
    sentence += f"{values.rounds[-1]:g} rounds: {_last({name: found['raw'][name] for name in names})}."
    sentence += "".join(_compared(plain, each, found) for each in others) if len(names) == 2 else ""
    columns = {f"{name}, {title}": line for kind, title in VARIANCES.items() for name, line in found[kind].items()}
    return Summary(sentence, Columns("Variance of the aggregated model", AFTER, values.rounds, columns))


def _synthetic(values: SyntheticValues) -> Summary:
    rounds, found = variances_of_models(values)
    sentence = f"Variance of the averaged model after round {rounds[-1]}: {_last(found)}"
    sentence += f" (over {values.repeats} repeats)."
    return Summary(sentence, Columns("Variance of the averaged model", "round", rounds, found))


def _training_loss(names: Sequence[str], values: TrainingLossValues) -> Summary:
    found, since = dict(zip(names, values.lines, strict=True)), values.lower_from
    rounds = range(len(values.lines[0]))
    lower = "not lower at the end" if since is None else f"lower from round {since} on"
    sentence = f"Loss of the server's model on all training images after round {rounds[-1]}: {_last(found)}; "
    sentence += f"{names[-1]} is {lower}."
    return Summary(sentence, Columns("Training loss", "round", rounds, found))


def _landscape(names: Sequence[str], values: LandscapeValues) -> Summary:
    found = dict(zip(names, values.losses, strict=True))
    rounds = range(len(values.losses[0]))
    sentence = f"Training loss after round {rounds[-1]}: {_last(found)}, from {values.losses[0][0]:.4g} at the common "
    sentence += f"start (over {values.images:,} images); the plane holds {100 * sum(values.shares):.0f} % of the "
    sentence += "trajectories' squared lengths."
    return Summary(sentence, Columns("Training loss along the trajectories", "round", rounds, found))


def _last(lines: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{name} {line[-1]:.4g}" for name, line in lines.items())


def _compared(plain: str, other: str, found: Mapping[str, Lines]) -> str:
    """Compares an experiment's filters or factors with a plain one's filters, where these vary."""
    last = [(lines[other][-1], lines[plain][-1]) for lines in found.values()]
    if not all(theirs for _, theirs in last):
        return ""
    raw, by_norm, by_move = (f"{mine / theirs:.2f} times" for mine, theirs in last)
    name, what = other.removesuffix(FACTORS), "factors" if other.endswith(FACTORS) else "filters"
    words = f" The {what} of {name} vary {raw} as much as the filters of {plain}; divided by their squared norm "
    return f"{words}{by_norm}, by their squared move {by_move}."
