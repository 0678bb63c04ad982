"""The paper as data: what its tables say of each other, what its bounds obey, and that every reading is whole."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from statistics import mean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support import ROOT

from fedatoms.evidence.paper import bounds
from fedatoms.evidence.paper.bounds import (
    Form,
    Problem,
    bound,
    communication_rate,
    convolution,
    rounds_to,
    sampling_term,
    terms,
)
from fedatoms.evidence.paper.readings import READINGS, Reading, reading
from fedatoms.evidence.paper.tables import CIFAR, COLUMNS, Cell, cells, cells_of, pairs
from fedatoms.experiment.checks import check
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity
from fedatoms.experiment.parse import scored_models
from fedatoms.experiment.presets import PRESETS
from fedatoms.nn.atoms import decompose
from fedatoms.nn.models import build
from fedatoms.nn.parameter_groups import groups

CARDS = ROOT / "docs" / "methods"
FORMS: tuple[Form, ...] = ("printed", "derived")


# ---- tables


def column(table: int, place: int) -> dict[str, Cell]:
    return {cell.row: cell for cell in cells(table) if cell.column == COLUMNS[table][place]}


def test_every_row_has_every_column_once() -> None:
    assert [len(cells(table)) for table in (1, 2, 3)] == [10 * 6, 9 * 6, 4 * 6]
    assert len({(cell.table, cell.row, cell.column) for cell in cells()}) == len(cells())


def test_numbers_are_accuracies_as_printed() -> None:
    assert all(re.fullmatch(r"\d{1,2}(\.\d{1,2})?", cell.printed) and 0 < cell.value < 100 for cell in cells())


def test_the_mean_gain_on_cifar_is_the_known_one() -> None:
    gains = [pair.gain for pair in (*pairs("cifar10"), *pairs("cifar100"))]
    assert len(gains) == 20 and mean(gains) == pytest.approx(1.66, abs=0.005)


def test_a_gain_is_the_difference_of_two_rows_that_differ_by_the_decomposition() -> None:
    assert len(pairs()) == 30
    for plain, atoms in pairs():
        assert (plain.column, plain.row + " + Decomposition") == (atoms.column, atoms.row)
        if plain.experiment is not None and atoms.experiment is not None:
            same = {"parametrisation": "plain", "atoms": plain.experiment.atoms, "init": plain.experiment.init}
            assert replace(atoms.experiment, **same) == plain.experiment  # type: ignore[arg-type]


@pytest.mark.parametrize("place", range(6))
def test_bold_is_the_best_of_a_column_and_underlined_the_second(place: int) -> None:
    ranked = sorted(column(2, place).values(), key=lambda cell: -cell.value)
    assert [cell.mark for cell in ranked] == ["best", "second"] + [""] * 7


@pytest.mark.parametrize("place", range(6))
def test_nine_atoms_of_table_3_are_ours_of_table_2(place: int) -> None:
    assert column(3, place)["m_a=9"].printed == column(2, place)["Ours"].printed


def test_what_the_text_says_of_table_2_holds() -> None:
    best = [max(column(2, place).values(), key=lambda cell: cell.value).row for place in range(6)]
    assert best.count("Ours") > 3 and best[4:] == ["Ours", "Ours"]


def test_every_cell_has_an_experiment_or_says_why_not() -> None:
    for cell in cells():
        assert (cell.experiment is None) == bool(cell.missing)
        assert (cell.column in CIFAR) == (cell.experiment is not None)
        assert not cell.preset or PRESETS[cell.preset] == cell.experiment


def test_experiments_are_what_their_cells_say() -> None:
    for cell in cells():
        if (one := cell.experiment) is None:
            continue
        check(one)
        assert (one.dataset, one.clients, one.classes_per_client, one.partition) == (*cell.column, "shards")
        assert cell.compared.model in scored_models(one)
        assert (one.rounds, one.fraction) == ({1: 600, 2: 200, 3: 200}[cell.table], 0.1)
        assert one.parametrisation == ("atoms" if re.search("Decomp|Ours|m_a", cell.row) else "plain")
        if cell.table == 1:
            assert one.algorithm == cell.row.split()[0].lower()
        if cell.table == 3:
            assert f"m_a={one.atoms}" == cell.row


def test_all_presets_on_cifar_are_cells_but_for_other_readings_of_a_row() -> None:
    for name, experiment in PRESETS.items():
        found = cells_of(experiment)
        other = re.search("-atoms25-|^local-atoms-personal-", name)
        assert bool(found) == (experiment.dataset.startswith("cifar") and not other), name
        assert all(cell.preset == name for cell in found)


@given(seed=st.integers(0, 99), place=st.sampled_from(cells()))
def test_a_cell_is_found_by_any_seed_and_on_any_machine(seed: int, place: Cell) -> None:
    if place.experiment is not None:
        assert place in cells_of(replace(place.experiment, seed=seed, device="cuda:1", name="mine"))
        assert place not in cells_of(replace(place.experiment, rounds=3))


def test_only_the_row_that_the_paper_prints_twice_shares_experiments() -> None:
    """The paper's own row of Table 2 is that of 9 atoms in Table 3."""
    found = [cell for cell in cells() if cell.experiment is not None]
    once = [identity(cell.experiment) for cell in found if cell.row != "m_a=9" and cell.experiment is not None]
    assert len(set(once)) == len(once)
    for cell in found:
        if cell.row == "m_a=9":
            assert cell.experiment is not None and [each.row for each in cells_of(cell.experiment)] == ["Ours", "m_a=9"]


def test_an_unknown_table_and_an_unknown_experiment() -> None:
    with pytest.raises(ValueError, match="the paper has no table 4"):
        cells(4)
    assert cells_of(Experiment()) == ()


def card_of(row: str) -> str:
    names = {"Ours": "local-atoms", "FedAvg + FT": "finetune", "FedProx + FT": "finetune"}
    return " ".join((CARDS / f"{names.get(row, row.lower())}.md").read_text().split())


@pytest.mark.parametrize("row", [row for row in column(2, 0) if "the paper's Table 2" in card_of(row)])
def test_cards_that_name_table_2_quote_it(row: str) -> None:
    numbers = [cell.printed for cell in cells(2) if cell.row == row and cell.column in CIFAR]
    assert all(number in card_of(row) for number in numbers)


# ---- readings


@pytest.mark.parametrize("each", READINGS.values(), ids=lambda each: each.name)
def test_a_reading_is_whole(each: Reading) -> None:
    assert reading(each.name) is each and re.fullmatch("[a-z-]+", each.name)
    assert len(set(each.options)) == len(each.options) >= 2 and each.taken in each.options
    assert all(text and text == text.strip() for text in (each.about, *each.options))
    assert each.paper.endswith((".", "...")) and each.why.endswith(".")


def test_cells_name_readings_that_exist_and_that_are_about_them() -> None:
    for cell in cells():
        assert cell.readings and len(set(cell.readings)) == len(cell.readings)
        for name in cell.readings:
            about = reading(name).about
            assert str(cell.table) in about or (about == "Tiny-ImageNet" and cell.column not in CIFAR), (cell, name)


def test_an_unknown_reading_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown reading 'heads'\. Did you mean 'head'"):
        reading("heads")


# ---- bounds


@st.composite
def problems(draw: st.DrawFn, *, everyone: bool = False) -> Problem:
    convexity, clients = draw(st.floats(1e-3, 10)), draw(st.integers(1, 300))
    return Problem(
        smoothness=convexity * draw(st.floats(1, 1000)),
        convexity=convexity,
        gradient=draw(st.floats(0, 100)),
        heterogeneity=draw(st.floats(0, 10)),
        start=draw(st.floats(0, 100)),
        epochs=draw(st.integers(1, 20)),
        clients=clients,
        sampled=clients if everyone else draw(st.integers(1, clients)),
    )


forms, rounds, betas = st.sampled_from(FORMS), st.integers(1, 10_000), st.integers(1, 20).map(lambda n: f"1/{n}")


@given(problem=problems(), t=rounds)
def test_theorem_5_5_as_printed(problem: Problem, t: int) -> None:
    l, mu, g, gap, start, e, all_, some, _ = problem  # noqa: E741
    b = 8 * (e - 1) ** 2 * g**2 + 6 * l * gap
    s = (all_**2 - some**2) / (some**2 * all_**2 * (all_**2 - 1)) if all_ > 1 else 0
    expected = 2 / mu**2 * l / (max(8 * l / mu, e) + t) * (b + 4 * s * (e - 1) ** 2 * g**2 + mu**2 / 4 * start)
    assert bound(problem, t) == pytest.approx(expected, rel=1e-12)


@given(problem=problems(everyone=True), t=rounds, n=st.integers(1, 20))
def test_theorem_f_1_as_printed(problem: Problem, t: int, n: int) -> None:
    l, mu, g, gap, start, e, *_ = problem  # noqa: E741
    inside = 6 * l * gap + 8 * (e * n - 1) ** 2 * g**2 + mu**2 / 4 * start
    expected = 2 / mu**2 * l / (max(8 * l / mu, e) + t) * inside
    assert bound(problem, t, beta=f"1/{n}") == pytest.approx(expected, rel=1e-12)


@given(problem=problems(everyone=True), t=rounds, form=forms)
def test_with_beta_1_and_all_clients_both_theorems_are_one(problem: Problem, t: int, form: Form) -> None:
    plain = bound(problem, t, form=form)
    assert bound(problem, t, form=form, beta=1) == plain == bound(problem, t, form=form, latent=False)


@given(problem=problems(), t=rounds, form=forms)
def test_latent_clients_never_raise_the_bound_and_lower_it_by_a_third_at_most(
    problem: Problem, t: int, form: Form
) -> None:
    without, with_them = bound(problem, t, latent=False, form=form), bound(problem, t, form=form)
    assert with_them <= without * (1 + 1e-12) and without <= 1.5 * with_them * (1 + 1e-12)


@given(problem=problems(), form=forms, latent=st.booleans())
def test_more_clients_in_a_round_never_add_to_the_term_of_sampling(problem: Problem, form: Form, latent: bool) -> None:
    sizes = range(1, problem.clients + 1)
    found = [sampling_term(problem._replace(sampled=size), latent=latent, form=form) for size in sizes]
    assert all(more <= less for less, more in pairwise(found)) and found[-1] == 0


@given(problem=problems(), t=rounds)
def test_the_derived_form_is_never_below_the_printed_one(problem: Problem, t: int) -> None:
    assert bound(problem, t, form="derived") >= bound(problem, t)
    d, printed = (sampling_term(problem, form=form) for form in reversed(FORMS))
    assert d == pytest.approx(problem.clients**2 * printed)


@given(problem=problems(), t=rounds)
def test_the_derived_form_is_what_the_proof_bounds(problem: Problem, t: int) -> None:
    """L / 2 times v / (gamma + T), v the larger of two numbers: the theorem adds them."""
    mu, gamma = problem.convexity, bounds.offset(problem)
    b_and_d = sum(terms(problem, form="derived")[:3])
    v = max((2 / mu) ** 2 * b_and_d / (2 / mu * mu - 1), (gamma + 1) * problem.start)
    of_proof, derived = problem.smoothness / 2 * v / (gamma + t), bound(problem, t, form="derived")
    assert of_proof <= derived * (1 + 1e-12) and derived <= 2 * of_proof * (1 + 1e-12)


@given(population=st.lists(st.floats(-5, 5), min_size=2, max_size=7), data=st.data())
def test_the_share_without_latent_clients_is_the_variance_of_a_sample_mean(
    population: list[float], data: st.DataObject
) -> None:
    """All samples without replacement are tried: s times the population's variance is that of their means."""
    size = data.draw(st.integers(1, len(population)))
    centre = mean(population)
    spread = mean((each - centre) ** 2 for each in population)
    tried = mean((mean(sample) - centre) ** 2 for sample in combinations(population, size))
    share = sampling_term(Problem(1, 1, 0.5, 0, 0, 2, len(population), size), latent=False)
    assert tried == pytest.approx(share * spread, abs=1e-9)


@given(problem=problems(everyone=True), t=rounds, n=st.integers(1, 19))
def test_rarer_exchange_never_lowers_the_printed_bound(problem: Problem, t: int, n: int) -> None:
    assert bound(problem, t, beta=f"1/{n}") <= bound(problem, t, beta=f"1/{n + 1}")


@given(problem=problems(), form=forms, latent=st.booleans(), epsilon=st.floats(1e-6, 1e3))
def test_rounds_to_inverts_the_bound(problem: Problem, form: Form, latent: bool, epsilon: float) -> None:
    least = rounds_to(epsilon, problem, form=form, latent=latent)
    assert bound(problem, least, form=form, latent=latent) <= epsilon
    if least > 1:
        step = max(1, least >> 49)  # beyond 2^49 rounds a number has no digit left for a single one
        assert bound(problem, max(1, least - step), form=form, latent=latent) > epsilon


@given(problem=problems(), form=forms, t=rounds)
def test_the_bound_inverts_rounds_to(problem: Problem, form: Form, t: int) -> None:
    value = bound(problem, t, form=form)
    assume(value > 0)
    assert rounds_to(value, problem, form=form) == t


@given(problem=problems(everyone=True), t=rounds, beta=betas, form=forms)
def test_the_rate_of_learning_meets_what_the_proof_wants(problem: Problem, t: int, beta: str, form: Form) -> None:
    gamma, mu = bounds.offset(problem, form=form, beta=beta), problem.convexity
    rate = lambda step: 2 / (mu * (gamma + step))  # noqa: E731
    assert rate(0) <= 1 / (4 * problem.smoothness) * (1 + 1e-12)
    if form == "derived":
        apart = problem.epochs * int(beta[2:]) - 1  # steps since all had the same model
        assert rate(t) <= 2 * rate(t + apart) * (1 + 1e-12)


GOOD = Problem(1.0, 0.5, 1.0, 0.1, 4.0, epochs=5, clients=100, sampled=10)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"smoothness": 0.0}, "smoothness=0.0 .* L-smooth .*Assumption 5.2"),
        ({"smoothness": float("inf")}, "smoothness=inf .*Assumption 5.2"),
        ({"convexity": -1.0}, "convexity=-1.0 .*Assumption 5.3"),
        ({"convexity": float("nan")}, "convexity=nan .*Assumption 5.3"),
        ({"convexity": 2.0}, "convexity=2.0 is above smoothness=1.0.*mu <= L"),
        ({"gradient": -1.0}, "gradient=-1.0 .*Assumption 5.4"),
        ({"heterogeneity": -0.1}, "heterogeneity=-0.1 .*never below 0"),
        ({"start": -1.0}, "start=-1.0 .*squared distance"),
        ({"epochs": 0}, "epochs=0 is not a whole number"),
        ({"epochs": 1.5}, "epochs=1.5 is not a whole number"),
        ({"clients": 0}, "clients=0 is not a whole number"),
        ({"sampled": 0}, "sampled=0 is not a whole number"),
        ({"sampled": 101}, "sampled=101 is above clients=100.*without replacement"),
        ({"weights": (0.5, 0.5)}, "weights of 2 clients.*Assumption E.1"),
        ({"weights": (0.02, *(0.98 / 99,) * 99)}, "weights of 100 clients from .*Assumption E.1"),
    ],
)
def test_what_breaks_an_assumption_is_refused_with_its_name(changes: dict[str, object], said: str) -> None:
    for use in (lambda p: bound(p, 10), lambda p: rounds_to(0.1, p), terms, sampling_term, bounds.offset):
        with pytest.raises(ValueError, match=said) as caught:
            use(GOOD._replace(**changes))  # type: ignore[arg-type, no-untyped-call]
        assert "\n" not in str(caught.value)


def test_equal_weights_are_fine() -> None:
    assert bound(GOOD._replace(weights=(0.01,) * 100), 10) == bound(GOOD, 10)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda: bound(GOOD, 0), "rounds=0 is less than 1"),
        (lambda: bound(GOOD, 10, beta="1/2"), "sampled=10 of clients=100: Theorem F.1"),
        (lambda: bound(GOOD, 10, beta=0.3), "1/beta must be a whole number"),
        (lambda: bound(GOOD, 10, form="proved"), "unknown form of a bound 'proved'"),  # type: ignore[arg-type]
        (lambda: rounds_to(0, GOOD), "epsilon=0 is not a positive number"),
        (lambda: rounds_to(1e-320, GOOD), "more rounds than a number can hold"),
        (lambda: rounds_to(1.0, GOOD._replace(gradient=1e200)), "more rounds than a number can hold"),
        (lambda: convolution(3, 64, 5, 0), "atoms=0 .*at least one atom"),
        (lambda: convolution(3, 64, 0, 9), "kernel=0 is not a whole number"),
        (lambda: communication_rate(1, 0, 0), "fast=0 and slow=0"),
        (lambda: communication_rate(0, 1, 1), "1/beta must be a whole number"),
    ],
)
def test_other_bad_input_is_refused(use: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        use()


@given(fast=st.integers(0, 10**7), slow=st.integers(1, 10**7), n=st.integers(1, 50))
def test_the_rate_of_communication_is_what_n_rounds_send(fast: int, slow: int, n: int) -> None:
    sent = sum(fast + slow if t % n == 0 else fast for t in range(n))
    rate = communication_rate(f"1/{n}", fast, slow)
    assert rate == pytest.approx(sent / (n * (fast + slow))) and 1 / n <= rate * (1 + 1e-12) <= 1 + 1e-9


def test_counts_are_those_of_the_network() -> None:
    model = decompose(build("lenet", classes=10), atoms=9, init="orthonormal")
    labels, count = groups(model), dict.fromkeys(("atoms", "coefficients", "head", "rest"), 0)
    for name, leaf in model.named_parameters():
        count[labels[name]] += leaf.numel()
    layers = [convolution(3, 64, kernel=5, atoms=9), convolution(64, 64, kernel=5, atoms=9)]
    assert sum(layer.atoms for layer in layers) == count["atoms"]
    assert sum(layer.coefficients for layer in layers) == count["coefficients"]
    fast = count["atoms"] + count["head"]
    assert communication_rate("1/5", fast, count["coefficients"] + count["rest"]) == pytest.approx(0.203, abs=5e-4)


def test_the_package_needs_no_torch() -> None:
    names = ", ".join(f"fedatoms.evidence.paper.{name}" for name in ("tables", "readings", "bounds"))
    code = f"import sys; sys.modules['torch'] = None; import {names}"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
