"""What a measure says in words and columns: one sentence with its numbers, and a line for each round."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, assert_never

from fedatoms.evidence.measures.files import Measure
from fedatoms.evidence.measures.values import (
    Checked,
    LandscapeValues,
    SyntheticValues,
    TrainingLossValues,
    VarianceValues,
)
from fedatoms.evidence.results.names import labels

VARIANCES = {"raw": "variance", "by_norm": "variance / |mean|²", "by_move": "variance / |move|²"}
Lines = dict[str, list[float]]  # by name


class Columns(NamedTuple):
    """The numbers of a measure, a line for each round."""

    caption: str
    rounds: Sequence[float]
    values: Lines


class Summary(NamedTuple):
    """What a measure says."""

    sentence: str
    columns: Columns


def summarise(measure: Measure, values: Checked) -> Summary:
    """Sums a measure up."""
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
    """Names the experiments of a measure, also if they differ in their seed alone."""
    names = labels(measure.experiments)
    return names if len(set(names)) == len(names) else [f"{n}. {name}" for n, name in enumerate(names, 1)]


def variances(names: Sequence[str], values: VarianceValues, kind: str) -> Lines:
    """Returns one of the ``VARIANCES`` of each experiment."""
    return {name: getattr(line, kind) for name, line in zip(names, values.lines, strict=True)}


def variances_of_models(values: SyntheticValues) -> tuple[list[int], Lines]:
    """Returns the rounds after the start, which all models share, and the variance of each average in them."""
    found = {line.name: line.variance[1:] for line in values.lines}
    for line in values.lines:
        if line.products is not None:
            found["the same without latent clients"] = line.products[1:]
    return list(range(1, len(values.lines[0].variance))), found


def _variance(names: Sequence[str], values: VarianceValues) -> Summary:
    found = {kind: variances(names, values, kind) for kind in VARIANCES}
    said = _last(found["raw"])
    if len(names) == 2:
        more = [_times(*(line[-1] for line in some.values())) for some in found.values()]
        said += (
            f", {more[0]} as much; as a share of the filters' squared norm {more[1]}, of their squared move {more[2]}"
        )
    sentence = f"Variance of the filters that round {values.rounds[-1]:g} aggregates: {said}"
    sentence += f" (over {values.repeats} repeats of the round)."
    columns = {f"{name}, {title}": found[kind][name] for kind, title in VARIANCES.items() for name in names}
    return Summary(sentence, Columns("Variance of the aggregated filters", values.rounds, columns))


def _synthetic(values: SyntheticValues) -> Summary:
    rounds, found = variances_of_models(values)
    sentence = f"Variance of the averaged model after round {rounds[-1]}: {_last(found)}"
    sentence += f" (over {values.repeats} repeats)."
    return Summary(sentence, Columns("Variance of the averaged model", rounds, found))


def _training_loss(names: Sequence[str], values: TrainingLossValues) -> Summary:
    found, since = dict(zip(names, values.lines, strict=True)), values.lower_from
    rounds = range(len(values.lines[0]))
    end = "" if since is None else f"{names[-1]} is the lower one from round {since} on"
    sentence = f"Loss of the server's model on all training images after round {rounds[-1]}: {_last(found)}; "
    sentence += f"{end or f'{names[-1]} is not the lower one'}."
    return Summary(sentence, Columns("Training loss", rounds, found))


def _landscape(names: Sequence[str], values: LandscapeValues) -> Summary:
    found = dict(zip(names, values.losses, strict=True))
    rounds = range(len(values.losses[0]))
    sentence = f"Training loss after round {rounds[-1]}: {_last(found)}, from {values.losses[0][0]:.4g} at the common "
    sentence += f"start (over {values.images:,} images); the plane holds {sum(values.shares):.0%} of the "
    sentence += "trajectories' squared lengths."
    return Summary(sentence, Columns("Training loss along the trajectories", rounds, found))


def _last(lines: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{name} {line[-1]:.4g}" for name, line in lines.items())


def _times(first: float, second: float) -> str:
    return f"{second / first:.2f} times" if first else "not comparable"
