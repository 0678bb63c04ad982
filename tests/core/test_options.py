"""What an option may be is stated once: a table, a type and a check that the whole package shares."""

import dataclasses
import math
import typing
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small import clients_of, small_net

from fedatoms.adapt.joining import Newcomer
from fedatoms.bench.results import Bench
from fedatoms.cli.flower import demo_options, keys_options
from fedatoms.core.options import CHOICES, INITS, RANGES, Range, check_numbers, numbers_of, range_of
from fedatoms.data.datasets import DATASETS
from fedatoms.engine.exchange import fast_slow
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.evidence.explain.bounds import Bounds
from fedatoms.evidence.explain.values import Explain
from fedatoms.evidence.reproduce.plan import Reproduce
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import (
    ATOM_FIELDS,
    EXECUTION_FIELDS,
    LENGTH_FIELDS,
    LIST_FIELDS,
    PATH_FIELDS,
    Experiment,
)
from fedatoms.experiment.files import ABSENT_IN_OLDER_FILES, ADDED_LATER
from fedatoms.nn.initialise import STARTS
from fedatoms.tuning.settings import Tune

FIELDS = {field.name: field for field in dataclasses.fields(Experiment)}
COMMANDS: dict[str, type] = {  # whose settings are numbers too, by the name before their own ranges
    "bench": Bench,
    "bounds": Bounds,
    "explain": Explain,
    "personalize": Newcomer,
    "reproduce": Reproduce,
    "simulation": Simulation,
    "training": Training,
    "tune": Tune,
}
NUMBERS = numbers_of(Experiment)


def test_the_tables_speak_of_fields_and_their_defaults_are_good() -> None:
    for name, valid in CHOICES.items():
        assert getattr(Experiment(), name) in valid, name
    for name in NUMBERS:
        assert FIELDS[name].default is None or RANGES[name].holds(FIELDS[name].default), name
    for names in (ATOM_FIELDS, EXECUTION_FIELDS, LENGTH_FIELDS, LIST_FIELDS, PATH_FIELDS, ABSENT_IN_OLDER_FILES):
        assert FIELDS.keys() >= set(names)
    assert ADDED_LATER <= ABSENT_IN_OLDER_FILES


def test_every_number_of_an_experiment_has_a_finite_range() -> None:
    assert len(NUMBERS) == sum("int" in str(field.type) or "float" in str(field.type) for field in FIELDS.values()) - 2
    assert RANGES.keys() >= set(NUMBERS)  # but beta and dp_clip, which may be a text
    assert all(-math.inf < valid.low < valid.high < math.inf for valid in RANGES.values())


def test_every_number_of_every_command_has_a_range_and_every_range_is_of_one() -> None:
    of_commands = {(name, command) for command, kind in COMMANDS.items() for name in numbers_of(kind)}
    for name, command in of_commands:
        assert range_of(name, command), (name, command)
    for command, kind in COMMANDS.items():
        required = {each.name for each in dataclasses.fields(kind) if each.default is dataclasses.MISSING}
        if not required:
            check_numbers(kind(), command)
    typed = {name for make in (keys_options, demo_options) for name in _numbers_typed(make([]))}
    assert typed == {"nodes", "rounds"} and range_of("nodes", "flower") and range_of("rounds")
    own = {name for name in RANGES if " " in name and not name.startswith(_OF_VALUES)}
    own -= {"flower nodes", "flower client", "flower samples", "flower tests", "report port", "inspect side"}
    assert own <= {f"{command} {name}" for name, command in of_commands}


_OF_VALUES = ("method ", "adamw ", "phase ", "aggregation ", "attack ")  # made in Python, or written into a text


def _numbers_typed(options: Callable[..., object]) -> list[str]:
    hints = typing.get_type_hints(options)
    return [name for name, kind in hints.items() if kind in (int, float)]


def _outside(valid: Range) -> st.SearchStrategy[float]:
    beyond = st.integers if valid.whole else st.floats
    below = beyond(max_value=valid.low, **({} if valid.whole else {"exclude_max": valid.ends[0] == "["}))
    above = beyond(min_value=valid.high, **({} if valid.whole else {"exclude_min": valid.ends[1] == "]"}))
    strange = [math.nan, math.inf, -math.inf] if not valid.whole else [valid.low - 1, valid.high + 1, 10**30]
    return st.one_of(below, above, st.sampled_from(strange)).filter(lambda value: not valid.holds(value))


def _inside(valid: Range) -> st.SearchStrategy[float]:
    if valid.whole:
        return st.integers(int(valid.low), int(valid.high))
    return st.floats(valid.low, valid.high, exclude_min=valid.ends[0] == "(", exclude_max=valid.ends[1] == ")")


# a delta needs noise, and is less than one in the number of clients
BASES = {"dp_delta": Experiment(clients=1, fraction=1.0, dp_noise=1.0, sampling="poisson", score="server")}


@pytest.mark.parametrize("name", sorted(NUMBERS))
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_number_outside_its_range_costs_one_line_and_one_inside_is_taken(name: str, data: st.DataObject) -> None:
    wrong, right = data.draw(_outside(RANGES[name])), data.draw(_inside(RANGES[name]))
    base = BASES.get(name, Experiment())
    with pytest.raises(ValueError, match=rf"^{name}=\S+ is [^\n]*\. Use [^\n]+\.$"):
        check(dataclasses.replace(base, **{name: wrong}))
    check(dataclasses.replace(base, **{name: right}))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lr", 1e308, "lr=1e+308 is more than 1e6. Use for example 0.1."),
        ("weight_decay", 1e308, "weight_decay=1e+308 is more than 1e6. Use 0 or a positive number."),
        ("atoms_lr", 1e308, "atoms_lr=1e+308 is more than 1e6. Use for example 0.1."),
        ("atoms", 10**6, "atoms=1000000 is more than 1000. Use atoms=9 (the paper's choice)."),
        ("batch_size", 10**12, "batch_size=1000000000000 is more than 1e9. Use batch_size=50 (the paper's choice)."),
        ("seed", 10**20, "seed=100000000000000000000 is more than 9.22337e18. Use for example 0."),
        ("strength", math.nan, "strength=nan is not finite. Use None for its authors' default."),
        ("where", "(", "where=( is not a regular expression: missing ), unterminated subpattern at position 0."),
        ("name", "a\0b", "name='a\\x00b' holds a null character, which no name has. Leave it out."),
    ],
)
def test_numbers_and_texts_that_cannot_be_meant_are_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(ValueError) as error:
        check(Experiment(**{name: value}))
    assert str(error.value) == words


def test_a_beta_with_a_huge_exponent_takes_no_time() -> None:
    with pytest.raises(ValueError, match=r"^beta=1e-999999999: 1/beta must be a whole number"):
        check(Experiment(beta="1e-999999999"))
    check(Experiment(beta="1e-1"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Training(lr=-1), "lr=-1 is negative or not finite"),
        (lambda: Training(lr=math.inf), "lr=inf is negative or not finite"),
        (lambda: Training(clip=-1), "clip=-1 is negative"),
        (lambda: Training(weight_decay=-5), "weight_decay=-5 is negative"),
        (lambda: Training(momentum=1), r"momentum=1 is not in \[0, 1\)"),
        (lambda: Training(epochs=1.5), "epochs=1.5 is not a whole number"),
        (lambda: Training(batch_size=0), "batch_size=0 is less than 1"),
        (lambda: Training(batch_size=True), "batch_size=True is not a whole number"),
        (lambda: Training(lr="0.1"), "lr='0.1' is not a number"),
        (lambda: Training()._replace(lr=-1), "lr=-1 is negative"),
        (lambda: Training(lr_decay=0), "lr_decay=0 is not a positive number"),
        (lambda: Training(controls="frist"), "Did you mean 'first'"),
        (lambda: fast_slow(period=0), "period=0 is less than 1. Use period=1"),
    ],
)
def test_python_refuses_the_same_numbers_as_the_command_line(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("kind", [Training, Simulation])
def test_a_number_is_not_left_out_by_none(kind: type) -> None:
    parts = (small_net(), clients_of()) if kind is Simulation else ()
    for name in numbers_of(kind):
        with pytest.raises(ValueError, match=rf"^{name}=None is not a (whole )?number\. Use "):
            kind(*parts, **{name: None})


def test_the_tables_of_functions_have_the_members_of_their_sets() -> None:
    assert tuple(STARTS) == INITS
    assert {tuple(source.recipes) for source in DATASETS.values()} == {CHOICES["augment"]}


@pytest.mark.parametrize(
    ("name", "value"), [("failures", 1.0), ("failures", -0.1), ("fraction", 0.0), ("fraction", 1.5), ("momentum", 1.0)]
)
def test_an_experiment_and_a_simulation_refuse_a_number_in_the_same_words(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{name}={value} is not in .* Use for example 0\.\d") as of_experiment:
        check(dataclasses.replace(Experiment(), **{name: value}))
    with pytest.raises(ValueError) as of_simulation:
        Training(momentum=value) if name == "momentum" else Simulation(small_net(), clients_of(), **{name: value})
    assert str(of_experiment.value) == str(of_simulation.value)


@pytest.mark.parametrize("name", sorted(LIST_FIELDS))
def test_a_list_is_refused_with_the_whole_text_and_the_wrong_name(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"^{name}=hed, head: unknown (group|model to score|watcher) 'hed'. Did you mean"
    ):
        check(Experiment(**{name: "hed, head"}))
