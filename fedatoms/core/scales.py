"""What a score is a number of: the name, unit and direction of a metric, as results carry them. No torch."""

import math
from collections.abc import Iterable
from typing import NamedTuple, TypedDict


class Scale(NamedTuple):
    """The scale of a score; by default the accuracy in per cent, which is what results without one are of."""

    name: str = "accuracy"
    unit: str = "%"
    higher: bool = True  # is better
    low: float = 0.0
    high: float = 100.0

    def best(self, values: Iterable[float]) -> float:
        """Returns the best of some scores.

        >>> ACCURACY.best([10.0, 30.0]), Scale("rmse", "mm", higher=False, high=math.inf).best([10.0, 30.0])
        (30.0, 10.0)
        """
        return max(values) if self.higher else min(values)

    def worst(self, values: Iterable[float]) -> float:
        """Returns the worst of some scores."""
        return min(values) if self.higher else max(values)

    def reaches(self, value: float, target: float) -> bool:
        """Says whether a score is as good as another.

        >>> ACCURACY.reaches(30.0, 10.0), Scale(higher=False).reaches(30.0, 10.0)
        (True, False)
        """
        return value >= target if self.higher else value <= target

    def holds(self, value: float) -> bool:
        """Says whether a number can be a score; nan never is."""
        return self.low <= value <= self.high and math.isfinite(value)

    def write(self, value: float) -> str:
        """Writes a score with its unit.

        >>> ACCURACY.write(97.2222), Scale("rmse", "mm", higher=False).write(0.03125), Scale("r2", "").write(-12.5)
        ('97.22 %', '0.03125 mm', '-12.5')
        """
        return f"{self.number(value)} {self.unit}".rstrip()

    def number(self, value: float) -> str:
        """Writes a score without its unit: per cent with two digits, anything else with four that count.

        >>> ACCURACY.number(5), Scale(unit="").number(123456.0)
        ('5.00', '1.235e+05')
        """
        return f"{value:.2f}" if self.unit == "%" else f"{value:.4g}"

    @property
    def axis(self) -> str:
        """The words at an axis or at the head of a column.

        >>> ACCURACY.axis, Scale("r2", "").axis
        ('accuracy, %', 'r2')
        """
        return f"{self.name}, {self.unit}".removesuffix(", ")

    @property
    def change(self) -> str:
        """The head of a column of scores minus those of a baseline: a gain only where higher is better.

        >>> ACCURACY.change, Scale("rmse", "mm", higher=False).change
        ('gain', 'difference')
        """
        return "gain" if self.higher else "difference"

    @property
    def is_accuracy(self) -> bool:
        """Whether it is that of a classifier, which files of older versions mean too."""
        return self.record() == ACCURACY.record()

    def record(self) -> dict[str, object]:
        """Returns what files hold of it.

        >>> ACCURACY.record()
        {'name': 'accuracy', 'unit': '%', 'higher': True}
        """
        return {"name": self.name, "unit": self.unit, "higher": self.higher}


class ScaleRecord(TypedDict):
    """A scale in a file."""

    name: str
    unit: str
    higher: bool


ACCURACY = Scale()


def scale_of(record: ScaleRecord | None) -> Scale:
    """Inverts ``Scale.record``; None, as in files of older versions, is the accuracy.

    >>> scale_of(None) is scale_of(ACCURACY.record()) is ACCURACY, scale_of({**ACCURACY.record(), "name": "F1"}).high
    (True, inf)
    """
    if record is None or record == ACCURACY.record():
        return ACCURACY
    return Scale(record["name"], record["unit"], record["higher"], -math.inf, math.inf)
