"""The values of each measure, checked and typed: a damaged file is refused when it is read, not when it is drawn."""

from collections.abc import Callable
from typing import Literal, NamedTuple, NotRequired, TypedDict

from fedatoms.core.lookup import find
from fedatoms.core.records import fit
from fedatoms.evidence.measures.files import Measure, Values


class Surface(NamedTuple):
    """A loss on a grid: a row for each y, a column for each x; None where it is not finite."""

    x: list[float]
    y: list[float]
    loss: list[list[float | None]]


class Trajectory(NamedTuple):
    """The points of a training in a plane, one for each round, the start included."""

    x: list[float]
    y: list[float]


class VarianceLine(NamedTuple):
    """Variances in the measured rounds: raw, divided by the squared norm, and by the squared move."""

    raw: list[float]
    by_norm: list[float]
    by_move: list[float]


class VarianceLines(NamedTuple):
    """The lines of an experiment: of its filters, and of its factors as they are, if these were measured."""

    filters: VarianceLine
    factors: VarianceLine | None = None


class VarianceValues(NamedTuple):
    """Variances of the aggregated model, for each experiment."""

    rounds: list[float]
    lines: list[VarianceLines]
    repeats: int


class ModelsLine(NamedTuple):
    """An average of models after each round, the start included; ``products``: the same without latent clients.

    ``distance`` is that of the average from the optimum, mean over repeats; a file that is cut short may lack it.
    """

    name: str
    variance: list[float]
    products: list[float] | None
    paths: list[Trajectory]
    distance: list[float] | None = None


class SyntheticValues(NamedTuple):
    """Two Gaussians: a line for each number of models."""

    lines: list[ModelsLine]
    optimum: tuple[float, float]
    landscape: Surface
    repeats: int


class TrainingLossValues(NamedTuple):
    """Training losses after each round, the start included: a line for each experiment."""

    lines: list[list[float]]
    lower_from: int | None  # round from which on the last line is below the first; None: it is not at the end


class LandscapeValues(NamedTuple):
    """The loss in the plane of two trajectories, and along both."""

    surface: Surface
    paths: list[Trajectory]
    losses: list[list[float]]  # along each path
    shares: tuple[float, float]  # of the squared lengths, by direction
    images: int


Checked = VarianceValues | SyntheticValues | TrainingLossValues | LandscapeValues


def checked(measure: Measure) -> Checked:
    """Returns the values of a measure; values that are not those of its kind raise.

    >>> checked(Measure("training_loss", (), {}, {"lines": [], "lower_from": None}, {}))
    Traceback (most recent call last):
    ...
    ValueError: it has no rounds
    """
    return find(measure.name, _CHECK, "measure")(measure)


class _VarianceFile(TypedDict):
    rounds: list[float]
    lines: list[Values]


class _ModelsFile(TypedDict):
    name: str
    variance: list[float]
    products: NotRequired[list[float]]
    distance: NotRequired[list[float]]
    paths: list[list[tuple[float, float]]]


class _SurfaceFile(TypedDict):
    x: list[float]
    y: list[float]
    loss: list[list[float | None]]


class _SyntheticFile(TypedDict):
    lines: list[_ModelsFile]
    optimum: tuple[float, float]
    landscape: _SurfaceFile


class _PathFile(TypedDict):
    x: list[float]
    y: list[float]
    loss: list[float]


class _LandscapeFile(_SurfaceFile):
    paths: list[_PathFile]
    shares: tuple[float, float]
    images: int


def _variance(measure: Measure) -> VarianceValues:
    values = fit(measure.values, _VarianceFile, "values")
    found = [_lines(each) for each in values["lines"]]
    _check_lines([values["rounds"], *(column for each in found for line in each if line for column in line)])
    _check_experiments(measure, len(found))
    return VarianceValues(values["rounds"], found, _repeats(measure))


def _lines(line: Values) -> VarianceLines:
    """Returns the lines of an experiment; no older file has one of its factors."""
    filters = {name: value for name, value in line.items() if name != "factors"}
    return VarianceLines(_line(filters), _line(line["factors"]) if "factors" in line else None)


def _line(values: object) -> VarianceLine:
    line = fit(values, dict[Literal["raw", "by_norm", "by_move"], list[float]], "values.lines")
    if line.keys() != set(VarianceLine._fields):
        raise ValueError(f"values: a line has not exactly {', '.join(VarianceLine._fields)}")
    return VarianceLine(line["raw"], line["by_norm"], line["by_move"])


def _synthetic(measure: Measure) -> SyntheticValues:
    values = fit(measure.values, _SyntheticFile, "values")
    lines = [_models(line) for line in values["lines"]]
    columns = [
        column for line in lines for column in (line.variance, line.products, line.distance) if column is not None
    ]
    _check_lines([column[1:] for column in columns])
    return SyntheticValues(lines, values["optimum"], _surface(values["landscape"]), _repeats(measure))


def _models(line: _ModelsFile) -> ModelsLine:
    paths = [Trajectory([x for x, _ in path], [y for _, y in path]) for path in line["paths"]]
    return ModelsLine(line["name"], line["variance"], line.get("products"), paths, line.get("distance"))


def _training_loss(measure: Measure) -> TrainingLossValues:
    values = fit(measure.values, _TrainingLossFile, "values")
    _check_lines(values["lines"])
    _check_experiments(measure, len(values["lines"]))
    return TrainingLossValues(values["lines"], values["lower_from"])


class _TrainingLossFile(TypedDict):
    lines: list[list[float]]
    lower_from: int | None


def _landscape(measure: Measure) -> LandscapeValues:
    values = fit(measure.values, _LandscapeFile, "values")
    paths = [Trajectory(path["x"], path["y"]) for path in values["paths"]]
    if any(len(path.x) != len(path.y) for path in paths):
        raise ValueError("a trajectory has different numbers of coordinates x and y")
    losses = [path["loss"] for path in values["paths"]]
    _check_lines(losses)
    _check_experiments(measure, len(paths))
    return LandscapeValues(_surface(values), paths, losses, values["shares"], values["images"])


_CHECK: dict[str, Callable[[Measure], Checked]] = {
    "variance": _variance,
    "synthetic": _synthetic,
    "training_loss": _training_loss,
    "landscape": _landscape,
}


def _surface(values: _SurfaceFile) -> Surface:
    x, y, rows = values["x"], values["y"], values["loss"]
    if len(rows) != len(y) or any(len(row) != len(x) for row in rows):
        raise ValueError("its grid does not have a loss for each point")
    if all(value is None for row in rows for value in row):
        raise ValueError("its grid has no finite loss")
    return Surface(x, y, rows)


def _check_lines(lines: list[list[float]]) -> None:
    if not lines or not lines[0]:
        raise ValueError("it has no rounds")
    if any(len(line) != len(lines[0]) for line in lines):
        raise ValueError("its lines are not all of one length")


def _check_experiments(measure: Measure, lines: int) -> None:
    if lines != len(measure.experiments):
        raise ValueError(f"it has {lines} lines for {len(measure.experiments)} experiments")


def _repeats(measure: Measure) -> int:
    return fit(measure.settings.get("repeats"), int, "settings.repeats")
