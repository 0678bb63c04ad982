"""Cases of a law that holds for every combination: `make test` takes some of them, `make test-slow` the others."""

from collections.abc import Collection
from itertools import product

import pytest
from _pytest.mark.structures import ParameterSet


def turns(*axes: Collection[object], times: int = 1, every: int = 1, begin: int = 0) -> set[tuple[object, ...]]:
    """Chooses combinations in which every value has its turn, and those of the first, longest axis ``times`` turns.

    With ``every`` 2 it is every second value of that axis, from number ``begin`` on.
    """
    first, *others = [list(axis) for axis in axes]
    first = first[begin::every]
    columns = [first, *others]
    steps = product(range(max(map(len, columns))), range(times))
    return {tuple(column[(k + n * shift) % len(column)] for n, column in enumerate(columns)) for k, shift in steps}


def some_now(*axes: Collection[object], times: int = 1, every: int = 1, begin: int = 0) -> list[ParameterSet]:
    """Makes a case of each combination; those without a turn are slow."""
    now = turns(*axes, times=times, every=every, begin=begin)
    return [pytest.param(*case, marks=() if case in now else pytest.mark.slow) for case in product(*axes)]


def some_of(values: Collection[str], *now: str) -> list[ParameterSet]:
    """Makes a case of each value; those that are not named are slow."""
    assert {*now} <= {*values}
    return [pytest.param(value, marks=() if value in now else pytest.mark.slow) for value in values]
