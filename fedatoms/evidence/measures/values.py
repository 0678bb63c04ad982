"""The values of each measure, checked and typed: a damaged file is refused when it is read, not when it is drawn."""

import math
from collections.abc import Callable
from typing import NamedTuple

from fedatoms.core.lookup import find
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
    """Variances of an experiment in the measured rounds: raw, divided by the squared norm, and by the squared move."""

    raw: list[float]
    by_norm: list[float]
    by_move: list[float]


class VarianceValues(NamedTuple):
    """Variances of the aggregated filters: a line for each experiment."""

    rounds: list[float]
    lines: list[VarianceLine]
    repeats: float


class ModelsLine(NamedTuple):
    """An average of models after each round, the start included; ``products``: the same without latent clients."""

    name: str
    variance: list[float]
    products: list[float] | None
    paths: list[Trajectory]


class SyntheticValues(NamedTuple):
    """Two Gaussians: a line for each number of models."""

    lines: list[ModelsLine]
    optimum: tuple[float, float]
    landscape: Surface
    repeats: float


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
    images: float


Checked = VarianceValues | SyntheticValues | TrainingLossValues | LandscapeValues


def checked(measure: Measure) -> Checked:
    """Returns the values of a measure; values that are not those of its kind raise.

    >>> checked(Measure("training_loss", (), {}, {"lines": [], "lower_from": None}, {}))
    Traceback (most recent call last):
    ...
    ValueError: it has no rounds
    """
    return find(measure.name, _CHECK, "measure")(measure)


def _variance(measure: Measure) -> VarianceValues:
    rounds, lines = numbers(measure.values["rounds"]), objects(measure.values["lines"])
    found = [VarianceLine(*(numbers(line[name]) for name in VarianceLine._fields)) for line in lines]
    _check_lines([rounds, *(column for line in found for column in line)])
    _check_experiments(measure, len(found))
    return VarianceValues(rounds, found, _number(measure.settings["repeats"]))


def _synthetic(measure: Measure) -> SyntheticValues:
    lines = [_models(line) for line in objects(measure.values["lines"])]
    _check_lines([column[1:] for line in lines for column in (line.variance, line.products) if column is not None])
    optimum, surface = _two(measure.values["optimum"]), _surface(object_of(measure.values["landscape"]))
    return SyntheticValues(lines, optimum, surface, _number(measure.settings["repeats"]))


def _models(line: Values) -> ModelsLine:
    points = [[_two(point) for point in list_of(path)] for path in list_of(line["paths"])]
    paths = [Trajectory([x for x, _ in path], [y for _, y in path]) for path in points]
    products = numbers(line["products"]) if "products" in line else None
    return ModelsLine(str(line["name"]), numbers(line["variance"]), products, paths)


def _training_loss(measure: Measure) -> TrainingLossValues:
    since = measure.values["lower_from"]
    if since is not None and type(since) is not int:
        raise ValueError(f"lower_from is {str(since)[:40]}, which is neither a round nor null")
    lines = [numbers(line) for line in list_of(measure.values["lines"])]
    _check_lines(lines)
    _check_experiments(measure, len(lines))
    return TrainingLossValues(lines, since)


def _landscape(measure: Measure) -> LandscapeValues:
    found = objects(measure.values["paths"])
    paths = [Trajectory(numbers(path["x"]), numbers(path["y"])) for path in found]
    if any(len(path.x) != len(path.y) for path in paths):
        raise ValueError("a trajectory has different numbers of coordinates x and y")
    losses = [numbers(path["loss"]) for path in found]
    _check_lines(losses)
    _check_experiments(measure, len(paths))
    shares, images = _two(measure.values["shares"]), _number(measure.values["images"])
    return LandscapeValues(_surface(measure.values), paths, losses, shares, images)


_CHECK: dict[str, Callable[[Measure], Checked]] = {
    "variance": _variance,
    "synthetic": _synthetic,
    "training_loss": _training_loss,
    "landscape": _landscape,
}


def _surface(values: Values) -> Surface:
    x, y = numbers(values["x"]), numbers(values["y"])
    rows = [[None if value is None else _number(value) for value in list_of(row)] for row in list_of(values["loss"])]
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


def _number(value: object) -> float:
    (number,) = numbers([value])
    return number


def _two(values: object) -> tuple[float, float]:
    one, two = numbers(values)
    return one, two


def numbers(values: object) -> list[float]:
    """Returns a list of finite numbers, or raises.

    >>> numbers([1, 0.5])
    [1, 0.5]
    >>> numbers(["1"])
    Traceback (most recent call last):
    ...
    ValueError: ['1'] is not a list of numbers
    """
    if isinstance(values, list) and all(type(one) in (int, float) and math.isfinite(one) for one in values):
        return values
    raise ValueError(f"{str(values)[:40]} is not a list of numbers")


def objects(values: object) -> list[Values]:
    """Returns a list of objects, or raises.

    >>> objects([{"raw": [1.0]}])
    [{'raw': [1.0]}]
    """
    return [object_of(value) for value in list_of(values)]


def object_of(value: object) -> Values:
    """Returns an object, or raises.

    >>> object_of({"raw": [1.0]})
    {'raw': [1.0]}
    """
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:40]} is not an object")
    return value


def list_of(value: object) -> list[object]:
    """Returns a list, or raises.

    >>> list_of([1.0])
    [1.0]
    """
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:40]} is not a list")
    return value
