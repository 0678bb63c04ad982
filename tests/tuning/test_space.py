"""Axes of a search: what is typed is read back the same, and what cannot be searched is refused with the way out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedatoms.experiment.fields import EXECUTION_FIELDS, Experiment
from fedatoms.tuning.space import KINDS, NEVER, Between, Listed, axes_of, axis_of, points, size_of

NUMBERS = st.floats(1e-12, 1e6)


@given(st.lists(NUMBERS, min_size=1, max_size=4, unique=True))
def test_a_list_is_read_as_it_is_written(values: list[float]) -> None:
    axis = Listed("lr", tuple(values))
    assert axis_of(str(axis)) == axis


@given(NUMBERS, NUMBERS, st.booleans())
def test_a_range_is_read_as_it_is_written(one: float, other: float, log: bool) -> None:
    axis = Between("weight_decay", min(one, other), max(one, other) + 1e-9, log)
    assert axis_of(str(axis)) == axis


def test_values_have_the_types_of_their_fields() -> None:
    experiment = Experiment()
    (flags, epochs, strength, beta, distinct) = axes_of(
        ["fixed=atoms;atoms,head", "epochs=1..16", "strength=None,0.1", "beta=1/5,1", "distinct=true,false"], experiment
    )
    assert flags.ends == ("atoms", "atoms,head") and epochs == Between("epochs", 1, 16)
    assert strength.ends == (None, 0.1) and beta.ends == ("1/5", "1") and distinct.ends == (True, False)


def test_a_grid_has_every_combination_once_and_the_first_axis_varies_slowest() -> None:
    axes = axes_of(["lr=0.1,0.3", "epochs=1,2,5"], Experiment())
    found = [(point["lr"], point["epochs"]) for point in points(axes)]
    assert found == [(lr, epochs) for lr in (0.1, 0.3) for epochs in (1, 2, 5)] and size_of(axes) == 6


def test_what_changes_no_score_or_what_is_scored_is_never_searched() -> None:
    assert set(NEVER) <= set(KINDS) and set(NEVER) >= EXECUTION_FIELDS | {"seed", "holdout", "score"}
    for field in NEVER:
        with pytest.raises(ValueError, match=r"Leave it out of --over"):
            axis_of(f"{field}=1,2")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rl=0.1", "unknown flag in --over 'rl'. Did you mean 'lr'"),
        ("=0.1", "unknown flag in --over ''"),
        ("lr", "'lr' has no values"),
        ("lr=", "has no values"),
        ("lr=0.1,", "'' is not a number"),
        ("lr=0.1,x", "'x' is not a number"),
        ("lr=0.1,-1", "lr=-1.0 is not a positive number"),
        ("lr=0.1,nan", "not a positive number"),
        ("lr=0.1,0.1", "has 0.1 twice"),
        ("lr=1..0.1", "does not rise"),
        ("lr=1..1", "does not rise"),
        ("lr=nan..1", "is not a positive number"),
        ("lr=1..", "'' is not a number"),
        ("weight-decay=0..1:log", "begins above 0"),
        ("weight-decay=-1..1", "negative or not finite"),
        ("epochs=1.5..3", "'1.5' is not a whole number"),
        ("epochs=0..3", "less than 1"),
        ("strength=None..1", "between two numbers"),
        ("distinct=maybe", "neither true nor false"),
        ("partition=iid,sahrds", "Did you mean 'shards'"),
        ("seed=0,1", "--seeds 0,1,2"),
        ("device=cpu,cuda", "changes no score"),
    ],
)
def test_an_axis_that_cannot_be_searched_says_why(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as error:
        axes_of([text], Experiment())
    assert reason in str(error.value)


def test_two_axes_of_one_field_and_grids_without_end_are_refused() -> None:
    with pytest.raises(ValueError, match="search the same field"):
        axes_of(["lr=0.1", "lr=0.1..1"], Experiment())
    with pytest.raises(ValueError, match="nothing to search"):
        axes_of([], Experiment())
    many = ",".join(f"{n}" for n in range(1, 101))
    with pytest.raises(ValueError, match="more than 10,000"):
        size_of(axes_of([f"epochs={many}", f"batch-size={many}", "lr=0.1,0.2"], Experiment()))
