"""What an option may be is stated once: a table, a type and a check that the whole package shares."""

import dataclasses

import pytest
from support.small import clients_of, small_net

from fedatoms.core.options import CHOICES, INITS, RANGES
from fedatoms.data.datasets import DATASETS
from fedatoms.engine.client_round import Training
from fedatoms.engine.spec import Simulation
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import (
    ATOM_FIELDS,
    EXECUTION_FIELDS,
    LENGTH_FIELDS,
    LIST_FIELDS,
    PATH_FIELDS,
    Experiment,
)
from fedatoms.experiment.files import ABSENT_IN_OLDER_FILES
from fedatoms.experiment.identity import ADDED_LATER
from fedatoms.nn.initialise import STARTS

FIELDS = {field.name: field for field in dataclasses.fields(Experiment)}
ANY_NUMBER = {"seed", "strength", "personal_strength"}  # a method knows what its own strength may be


def test_the_tables_speak_of_fields_and_their_defaults_are_good() -> None:
    for name, valid in CHOICES.items():
        assert FIELDS[name].default in valid, name
    for name, valid in RANGES.items():
        assert valid.holds(FIELDS[name].default), name
    for names in (ATOM_FIELDS, EXECUTION_FIELDS, LENGTH_FIELDS, LIST_FIELDS, PATH_FIELDS, ABSENT_IN_OLDER_FILES):
        assert FIELDS.keys() >= set(names)
    assert all(FIELDS[name].default == value for name, value in ADDED_LATER.items())


def test_every_number_has_a_range() -> None:
    numbers = {name for name, field in FIELDS.items() if field.type in (int, float)}
    assert numbers - ANY_NUMBER == RANGES.keys() - ANY_NUMBER


def test_the_tables_of_functions_have_the_members_of_their_sets() -> None:
    assert tuple(STARTS) == INITS
    assert {tuple(source.recipes) for source in DATASETS.values()} == {CHOICES["augment"]}


@pytest.mark.parametrize(
    ("name", "value"), [("failures", 1.0), ("failures", -0.1), ("fraction", 0.0), ("fraction", 1.5), ("momentum", 1.0)]
)
def test_an_experiment_and_a_simulation_refuse_a_number_in_the_same_words(name: str, value: float) -> None:
    changes = {"training": Training(momentum=value)} if name == "momentum" else {name: value}
    with pytest.raises(ValueError, match=rf"^{name}={value} is not in .* Use for example 0\.\d") as of_experiment:
        check(dataclasses.replace(Experiment(), **{name: value}))
    with pytest.raises(ValueError) as of_simulation:
        Simulation(small_net(), clients_of(), **changes)
    assert str(of_experiment.value) == str(of_simulation.value)


@pytest.mark.parametrize("name", sorted(LIST_FIELDS))
def test_a_list_is_refused_with_the_whole_text_and_the_wrong_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}=hed, head: unknown (group|model to score) 'hed'. Did you mean"):
        check(Experiment(**{name: "hed, head"}))
