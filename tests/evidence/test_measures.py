"""Measures: laws of what they compute, on small federations; files come back as they were written, or are refused."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.small import clients_of, identical, play, small_net
from torch.nn.functional import cross_entropy

from fedatoms.core.trees import Params
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance, select
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.evidence.measures import MEASURES
from fedatoms.evidence.measures.base import Settings, Watch, size_of
from fedatoms.evidence.measures.files import FILE, Measure, read_measure, write_measure
from fedatoms.evidence.measures.gaussians import (
    OPTIMUM,
    Gaussians,
    clients,
    independent,
    latent,
    population_loss,
    synthetic,
    variances,
)
from fedatoms.evidence.measures.loss_curves import Rounds, lower_from
from fedatoms.evidence.measures.loss_landscape import Grid, from_one_point, loss_at, plane_of, some_rows, trajectory
from fedatoms.evidence.measures.networks import factors, filters, loss, prepared, reconstructed, scored_on_training
from fedatoms.evidence.measures.update_variance import (
    Repeats,
    Variance,
    along,
    other_draws,
    repeated,
    spread,
    spreads,
    vectors,
)
from fedatoms.evidence.measures.values import checked
from fedatoms.evidence.page.measures import draw
from fedatoms.evidence.results.measures import summarise
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import identity
from fedatoms.experiment.presets import preset
from fedatoms.nn.atoms import decompose, fuse

SMALL = Experiment(clients=10, fraction=0.2, epochs=1, batch_size=50, beta="1/1")  # as files write it
PAIR = (SMALL, replace(SMALL, parametrisation="atoms"))
SETTINGS: dict[str, Settings] = {
    "variance": Repeats((0, 2), 2),
    "synthetic": Gaussians(rounds=2, repeats=3, shown=2),
    "training_loss": Rounds(2),
    "landscape": Grid(rounds=1, points=3, images=60),
}


def a_federation(atoms: int | None = 4, seed: int = 0) -> Simulation:
    sim = Simulation(small_net(atoms=atoms), clients_of((5, 7, 12, 6)), fraction=0.5, seed=seed)
    return replace(sim, training=Training(epochs=2, batch_size=4, lr=0.05))


def silent(done: int, total: int, what: str) -> None:
    """Reports no progress."""


def taken(name: str, watch: Watch = silent) -> Measure:
    kind = MEASURES[name]
    return kind.measure(PAIR if kind.experiments else (), SETTINGS[name], watch)


Progress = dict[str, list[tuple[int, int]]]


@pytest.fixture(scope="module")
def progress() -> Progress:
    return {name: [] for name in MEASURES}


@pytest.fixture(scope="module")
def measures(progress: Progress) -> dict[str, Measure]:
    return {
        name: taken(name, lambda done, total, _, seen=progress[name]: seen.append((done, total))) for name in MEASURES
    }


# Variance


def test_one_repeat_or_equal_draws_have_no_variance() -> None:
    sim = a_federation()
    state = begin(prepare(sim))
    before = vectors(prepare(sim), state)
    one, same, other = (
        spreads(repeated([other_draws(prepare(sim), number) for number in some], state), before)
        for some in ((0,), (3, 3), (3, 4))
    )
    assert [one.filters.raw, same.filters.raw, one.factors.raw, same.factors.raw] == [0] * 4  # type: ignore[union-attr]
    assert other.filters.raw > 0 and other.factors and other.factors.raw > 0


@given(st.floats(0.01, 100), st.integers(2, 5), st.integers(0, 1000))
def test_the_raw_variance_scales_with_the_square_and_its_shares_not_at_all(scale: float, count: int, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count + 1, 6, dtype=torch.float64, generator=draws)
    one, other = (spread(list(k * vectors[1:]), k * vectors[0]) for k in (1.0, scale))
    assert math.isclose(other.raw, one.raw * scale**2, rel_tol=1e-9)
    assert math.isclose(other.by_norm, one.by_norm, rel_tol=1e-9)
    assert math.isclose(other.by_move, one.by_move, rel_tol=1e-9)
    mean = vectors[1:].mean(0)
    by_hand = sum(float((v - mean).norm() ** 2) for v in vectors[1:]) / count
    wanted = by_hand, by_hand / float(mean.norm() ** 2), by_hand / float((mean - vectors[0]).norm() ** 2)
    assert one == pytest.approx(wanted)


def test_the_run_goes_on_as_if_nothing_had_been_repeated() -> None:
    sim = a_federation()
    with_more, alone = (list(along(prepare(sim), Repeats(rounds, 2), lambda: None))[-1] for rounds in ((0, 1, 3), (3,)))
    others = [other_draws(prepare(sim), number) for number in range(2)]
    state = play(sim, 3)
    assert with_more == alone == spreads(repeated(others, state), vectors(prepare(sim), state))


def test_the_variance_of_factors_is_that_of_all_atoms_and_coefficients_in_the_same_rounds() -> None:
    sim = a_federation()
    state, others = begin(prepare(sim)), [other_draws(prepare(sim), number) for number in range(3)]
    ends = [advance(one, state)[0].server.params for one in others]
    (found,) = along(prepare(sim), Repeats((0,), 3), lambda: None)
    for variance, leaves in (
        (found.factors, [f"conv{n}.{kind}" for n in (1, 2) for kind in ("atoms", "coefficients")]),
        (found.filters, [f"conv{n}.weight" for n in (1, 2)]),
    ):
        models = [params if leaves[0] in params else whole(sim, params) for params in (state.server.params, *ends)]
        before, *repeats = [torch.cat([model[leaf].double().flatten() for leaf in leaves]) for model in models]
        mean = sum(repeats) / 3
        raw = sum(float((one - mean).norm() ** 2) for one in repeats) / 3
        wanted = raw, raw / float(mean.norm() ** 2), raw / float((mean - before).norm() ** 2)
        assert variance == pytest.approx(wanted) and raw > 0


def whole(sim: Simulation, params: Params) -> Params:
    return dict(reconstructed(sim.model, params).state_dict())


def test_a_plain_network_has_no_factors_and_a_layer_that_stays_whole_is_its_filter() -> None:
    plain = small_net(atoms=None)
    assert factors(plain, dict(plain.state_dict())) is None
    part = decompose(plain, atoms=9, where=lambda name, layer: name == "conv2")
    found = factors(part, params := dict(part.state_dict()))
    wanted = [params[name].flatten() for name in ("conv1.weight", "conv2.atoms", "conv2.coefficients")]
    assert found is not None and torch.equal(found, torch.cat(wanted))


def test_a_repeat_draws_other_clients_and_batches_and_builds_nothing() -> None:
    sim = a_federation()
    runtime = prepare(sim)
    others = [other_draws(runtime, number) for number in range(8)]
    assert len({tuple(select(one.sim, 5)[0]) for one in [runtime, *others]}) > 2
    plans = [one.batches(0, 5, 1, 0).rows for one in (runtime, others[0])]
    assert not torch.equal(*plans)
    for one in others:
        assert one.network is runtime.network and one.data is runtime.data and one.map_clients is runtime.map_clients
        assert one.predict is runtime.predict and one.sim.data is sim.data


def test_repeats_are_replayed_and_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: compiled.append(1) or graph)
    sim = a_federation()
    plain = list(along(prepare(sim), Repeats((0,), 3), lambda: None))
    runtime = prepare(sim)._replace(map_clients=cuda_graph.compiled(2))  # on a CPU another map would be chosen
    found = list(along(runtime, Repeats((0,), 3), lambda: None))
    assert compiled == [1]
    for one, other in zip(plain, found, strict=True):
        assert torch.allclose(torch.tensor(one), torch.tensor(other), rtol=1e-6)  # of filters and of factors


def test_filters_are_those_of_the_plain_network() -> None:
    net = small_net(atoms=4)
    plain = fuse(net)
    wanted = torch.cat([plain.get_submodule(name).weight.flatten() for name in ("conv1", "conv2")])
    assert torch.equal(filters(net, dict(net.state_dict())), wanted)
    assert torch.equal(filters(plain, dict(plain.state_dict())), wanted)
    with pytest.raises(ValueError, match="no convolution"):
        filters(linear := torch.nn.Linear(2, 2), dict(linear.named_parameters()))


@pytest.mark.parametrize("bad", [dict(rounds=()), dict(rounds=(2, 1)), dict(rounds=(-1,)), dict(repeats=0)])
def test_repeats_that_cannot_be_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Use for example"):
        Repeats(**bad)  # type: ignore[arg-type]


# Two Gaussians


def test_the_optimum_is_where_the_loss_over_all_x_is_flat() -> None:
    w = OPTIMUM.clone().requires_grad_()
    population_loss(w).backward()
    assert w.grad is not None and w.grad.abs().max() < 1e-12
    assert torch.allclose(OPTIMUM, torch.tensor([2 / 9, 2 / 9], dtype=torch.float64))
    data = clients(Gaussians(repeats=1, samples=100_000), 1)
    empirical = ((data.x[0, 0] @ OPTIMUM - data.y[0, 0]) ** 2).mean()
    assert abs(float(empirical) - float(population_loss(OPTIMUM))) < 0.01


def test_variance_falls_as_the_number_of_models_rises() -> None:
    settings = Gaussians(repeats=600, rounds=10)
    few, many = (variances(independent(clients(settings, models), settings)) for models in (5, 25))
    for t in (1, 5, 10):
        assert few[t] / many[t] == pytest.approx(5, rel=0.3)  # 600 repeats: a deviation of 6 % each


def test_models_approach_the_optimum() -> None:
    settings = Gaussians(repeats=100, rounds=60)
    far, near = ((independent(clients(settings, 25), settings)[:, t] - OPTIMUM).norm(dim=-1).mean() for t in (0, -1))
    assert near < far / 10


def test_latent_clients_alone_hardly_change_the_variance() -> None:
    """To first order mean(a) mean(d) and mean(a d) vary alike; with one model they are the same thing."""
    settings = Gaussians(repeats=300, rounds=10)
    together, apart = latent(clients(settings, 5), settings)
    assert variances(together)[-1] == pytest.approx(variances(apart)[-1], rel=0.02)
    assert not torch.equal(together, apart)
    same = latent(clients(settings, 1), settings)
    assert torch.equal(*same)


def test_a_step_is_gradient_descent_on_the_clients_own_error() -> None:
    settings = Gaussians(repeats=1, rounds=1, steps=1)
    data = clients(settings, 3)
    ends = []
    for x, y in zip(data.x[0], data.y[0], strict=True):
        w = torch.tensor(settings.start, dtype=torch.float64, requires_grad=True)
        ((x @ w - y) ** 2).mean().backward()
        assert w.grad is not None
        ends.append((w - settings.lr * w.grad).detach())
    assert torch.allclose(independent(data, settings)[0, 1], torch.stack(ends).mean(0))


# Training loss


def test_the_training_loss_is_the_loss_on_all_clients_images() -> None:
    sim = a_federation()
    state = play(sim, 2)
    found = loss(scored_on_training(prepare(sim)), state.server.params)
    model, rows = reconstructed(sim.model, state.server.params).eval(), torch.cat(sim.data.parts)
    with torch.no_grad():
        wanted = float(cross_entropy(model(sim.data.x[rows]), sim.data.y[rows]))
    assert math.isclose(found, wanted, rel_tol=1e-9)


def test_the_first_training_loss_is_that_of_the_untrained_network(measures: dict[str, Measure]) -> None:
    lines = measures["training_loss"].values["lines"]
    assert isinstance(lines, list) and [len(line) for line in lines] == [3, 3]
    for experiment, line in zip(PAIR, lines, strict=True):
        runtime = prepared(experiment)
        assert line[0] == loss(scored_on_training(runtime), begin(runtime).server.params)
        assert line[-1] == loss(scored_on_training(runtime), play(runtime, 2).server.params)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8))
def test_lower_from_is_the_first_place_after_which_all_are_lower(pairs: list[tuple[int, int]]) -> None:
    first, second = zip(*pairs, strict=True)
    places = [t for t in range(len(pairs)) if all(b < a for a, b in pairs[t:])]
    assert lower_from(first, second) == (places[0] if places else None)


def test_settings_of_no_size_are_refused() -> None:
    with pytest.raises(ValueError, match="Use for example"):
        Rounds(0)
    with pytest.raises(ValueError, match="Use for example"):
        Grid(points=1)


# Landscape


def test_both_trajectories_begin_at_the_same_point_and_the_plane_holds_them() -> None:
    plain, atoms = from_one_point(PAIR)
    paths = [trajectory(sim, 1, lambda: None) for sim in (plain, atoms)]
    assert torch.equal(paths[0][0], paths[1][0])
    assert not torch.equal(paths[0][1], paths[1][1])
    plane = plane_of(*paths)
    assert sum(plane.shares) == pytest.approx(1)  # three points lie in a plane
    judge = loss_at(scored_on_training(plain))
    for path in paths:
        back = plane.raised(plane.flat(path))
        assert torch.allclose(back, path, atol=1e-6)
        for projected, point in zip(back, path, strict=True):
            assert judge(projected) == pytest.approx(judge(point), rel=1e-5)


def test_the_loss_of_a_point_is_the_loss_of_either_network() -> None:
    plain, atoms = from_one_point(PAIR)
    judge = loss_at(scored_on_training(plain))
    for sim in (plain, atoms):
        end = play(sim, 1).server.params
        point = trajectory(sim, 1, lambda: None)[-1]
        assert judge(point) == pytest.approx(loss(scored_on_training(sim), end), rel=1e-5)
    assert judge(torch.full_like(point, math.inf)) is None


def test_the_grid_is_the_loss_in_the_plane(measures: dict[str, Measure]) -> None:
    values = measures["landscape"].values
    one, other = values["paths"]  # type: ignore[misc]
    assert [path["loss"][0] for path in (one, other)] == [one["loss"][0]] * 2
    assert (one["x"][0], one["y"][0]) == pytest.approx((other["x"][0], other["y"][0]))
    assert one["x"][0] <= 0 and values["images"] == 60
    xs, ys = (torch.tensor(values[name], dtype=torch.float64) for name in ("x", "y"))
    for path in (one, other):  # the grid covers what it is about
        assert xs[0] < min(path["x"]) and max(path["x"]) < xs[-1]
        assert ys[0] < min(path["y"]) and max(path["y"]) < ys[-1]
    plain, atoms = from_one_point(PAIR)
    plane = plane_of(*(trajectory(sim, 1, lambda: None) for sim in (plain, atoms)))
    judge = loss_at(scored_on_training(plain, some_rows(plain, 60)))
    for row, y in enumerate(ys):
        wanted = [judge(plane.raised(torch.stack([x, y])[None])[0]) for x in xs]
        assert values["loss"][row] == pytest.approx(wanted)  # type: ignore[index]


@given(st.integers(3, 6), st.integers(3, 9), st.integers(0, 1000))
def test_a_plane_is_the_best_of_its_points(count: int, size: int, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, count, size, dtype=torch.float64, generator=draws).cumsum(1)
    second[0] = first[0]
    plane = plane_of(first, second)
    assert torch.allclose(plane.directions @ plane.directions.T, torch.eye(2, dtype=torch.float64), atol=1e-6)
    rows = torch.cat([first, second]) - (first[-1] + second[-1]) / 2
    squares = torch.linalg.svdvals(rows) ** 2
    assert torch.allclose(torch.tensor(plane.shares, dtype=torch.float64), squares[:2] / squares.sum())
    coordinates = plane.flat(torch.cat([first, second]))
    assert math.isclose(float(coordinates.square().sum() / rows.square().sum()), sum(plane.shares), rel_tol=1e-9)
    assert torch.allclose(plane.flat(plane.raised(coordinates)), coordinates)
    assert (coordinates[0] <= 1e-9).all()


def test_a_landscape_needs_a_plain_and_a_decomposed_experiment() -> None:
    for some in (
        (),
        PAIR[:1],
        PAIR[::-1],
        (SMALL, SMALL),
        (SMALL, replace(PAIR[1], model="lenet")),
        (SMALL, replace(PAIR[1], dataset="cifar10")),
    ):
        with pytest.raises(ValueError, match="two experiments"):
            from_one_point(some)


# The table, and files


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_is_written_read_and_drawn(name: str, measures: dict[str, Measure], tmp_path: Path) -> None:
    measure = measures[name]
    path = write_measure(tmp_path / name, measure)
    back = read_measure(tmp_path / name)
    assert back == replace(measure, values=json.loads(json.dumps(measure.values)))
    assert [identity(one) for one in back.experiments] == [identity(one) for one in measure.experiments]
    assert "data_dir" not in path.read_text() and str(tmp_path) not in path.read_text()
    assert str(back.provenance["time"]).startswith("20") and back.provenance["seconds"] is not None
    assert draw(back, checked(back)) and summarise(back, checked(back)).sentence.endswith(".")


def test_progress_ends_where_it_said_it_would(measures: dict[str, Measure], progress: Progress) -> None:
    for seen in progress.values():
        assert seen == [(done, seen[0][1]) for done in range(1, seen[0][1] + 1)]


def test_a_measure_is_the_same_twice(measures: dict[str, Measure]) -> None:
    assert taken("variance").values == measures["variance"].values
    assert synthetic((), Gaussians(rounds=2, repeats=3, shown=2), silent) == measures["synthetic"].values


def test_settings_of_another_measure_are_refused() -> None:
    with pytest.raises(TypeError, match="not the settings of variance"):
        MEASURES["variance"].measure(PAIR, Rounds(), silent)


def test_measures_say_if_they_need_experiments() -> None:
    with pytest.raises(ValueError, match="variance needs experiments"):
        MEASURES["variance"].measure((), Repeats(), silent)
    with pytest.raises(ValueError, match="synthetic takes no experiments"):
        MEASURES["synthetic"].measure(PAIR, Gaussians(), silent)


def test_clients_states_on_disk_do_not_matter() -> None:
    on_disk = (replace(SMALL, client_state="disk", algorithm="scaffold"),)
    assert MEASURES["variance"].measure(on_disk, Repeats((0,), 2), silent).values["rounds"] == [0]


def test_the_size_of_a_measure_is_known(measures: dict[str, Measure]) -> None:
    kind, measure = MEASURES["variance"], measures["variance"]
    as_read = {"rounds": [0, 1, 2, 5, 10, 20, 50], "repeats": 10}
    ran = tuple(replace(one, data_dir="x", seed=3) for one in kind.experiments)
    full = replace(measure, settings=as_read, experiments=ran)
    assert size_of(kind, full) == "full"
    for other in (dict(init="orthonormal"), dict(atoms=25, init="orthonormal")):
        assert size_of(kind, replace(full, experiments=(ran[0], replace(ran[1], **other)))) == "other"  # type: ignore[arg-type]
    assert size_of(kind, replace(full, experiments=PAIR)) == "other"
    assert size_of(kind, measure) == "other"
    assert size_of(kind, replace(measure, settings={"rounds": [0, 1, 3], "repeats": 3})) == "quick"


@pytest.mark.parametrize("name, classes", [("variance", 5), ("training_loss", 2), ("landscape", 2)])
def test_a_measure_is_of_the_papers_9_atoms_and_partition(name: str, classes: int) -> None:
    plain, atoms = MEASURES[name].experiments
    assert (plain, atoms) == (preset(f"fedavg-cifar10-{classes}"), preset(f"fedavg-atoms-cifar10-{classes}"))
    assert atoms.atoms == 9 and plain.parametrisation == "plain"


def broken(change: dict[str, object]) -> str:
    good = {"format": "fedatoms measure 1", "name": "variance", "experiments": [], "settings": {}, "values": {}}
    return json.dumps(good | {"provenance": {}} | change)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '"text"',
        "\x00",
        "[" * 100_000,
        broken({"format": "other"}),
        broken({"experiments": 3}),
        broken({"experiments": [3]}),
        broken({"experiments": [{"colour": 1}]}),
        broken({"experiments": [{"clients": 0}]}),
        broken({"values": []}),
        broken({"values": {"raw": math.nan}}),
        broken({"name": 7}),
        '{"format": "fedatoms measure 1"}',
    ],
)
def test_a_damaged_or_foreign_file_is_refused_with_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ValueError) as refused:
        read_measure(tmp_path)
    assert str(tmp_path / FILE) in str(refused.value) and "\n" not in str(refused.value)


def test_a_missing_file_is_refused_and_what_is_no_number_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"measure\.json"):
        read_measure(tmp_path)
    with pytest.raises(ValueError):
        write_measure(tmp_path / "new", Measure("variance", (), {}, {"raw": math.nan}, {}))
    assert not (tmp_path / "new").exists()


def test_measures_need_neither_plotly_nor_matplotlib_nor_flower() -> None:
    blocked = ["matplotlib", "plotly", "flwr", "sklearn", "PIL", "tensorboard", "rich", "tyro"]
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked!r})); import fedatoms.evidence.measures"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_repeat_is_the_run_with_another_seed_on_the_same_split() -> None:
    sim = a_federation()
    state = play(other_draws(prepare(sim), 1), 1)
    assert identical(
        state.server.params, play(replace(sim, seed=other_draws(prepare(sim), 1).sim.seed), 1).server.params
    )


def test_variance_has_a_line_for_each_experiment(measures: dict[str, Measure]) -> None:
    values = measures["variance"].values
    assert values["rounds"] == [0, 2]
    plain, atoms = values["lines"]  # type: ignore[misc]
    assert sorted(plain) == sorted(atoms["factors"]) == sorted(Variance._fields)
    assert sorted(atoms) == sorted((*Variance._fields, "factors"))


def test_training_loss_says_who_is_lower_in_the_end(measures: dict[str, Measure]) -> None:
    values = measures["training_loss"].values
    assert values["lower_from"] == lower_from(*values["lines"])  # type: ignore[misc]
