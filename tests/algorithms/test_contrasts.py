"""FedNova, FedExP and MOON against their papers' formulas, and what they need: numbers in uploads, and a penalty."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from support import ROOT
from support.small import clients_of, difference, identical, play, small_net
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedatoms
from fedatoms.algorithms import Algorithm, Seen, Server, fedavg, fedexp, fednova, moon
from fedatoms.cli.result_tables import judgement
from fedatoms.core import trees
from fedatoms.core.ledger import total
from fedatoms.core.options import Map
from fedatoms.core.trees import NUMBERS, Memory, Params
from fedatoms.engine.client_round import rate_of
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance, select
from fedatoms.engine.runtime import prepare
from fedatoms.engine.server import NOTHING_YET, gather, mean_of
from fedatoms.engine.spec import Simulation, batches_of
from fedatoms.engine.training import Training
from fedatoms.optimisers import cosine
from fedatoms.runs.comparison import compare
from fedatoms.runs.results import read_result

TRAINING = Training(epochs=2, batch_size=5, lr=0.05, lr_decay=0.9)
Term = Callable[[nn.Module, Tensor], Tensor | float]
MAPS: list[Map] = ["one_by_one", "vectorised"]


def train(
    start: nn.Module, sim: Simulation, k: int, t: int, term: Term = lambda model, x: 0.0
) -> tuple[nn.Module, int]:
    """Trains client k with torch's SGD on its loss and a term; returns its model and its number of steps."""
    model, training, drawn = copy.deepcopy(start), sim.training, batches_of(sim, k, t)
    rate = rate_of(training, t)
    rule = torch.optim.SGD(model.parameters(), rate, training.momentum, weight_decay=training.weight_decay)
    for rows, real in zip(drawn.rows, drawn.real, strict=True):
        x, y = sim.data.x[rows[real]], sim.data.y[rows[real]]
        rule.zero_grad()
        (cross_entropy(model(x), y) + term(model, x)).backward()
        rule.step()
    return model, len(drawn.rows)


def vector(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def put(model: nn.Module, values: Tensor) -> None:
    nn.utils.vector_to_parameters(values.clone(), model.parameters())


def by_hand(sim: Simulation, rounds: int, step: Callable[[nn.Module, list[int], int], Tensor]) -> Params:
    model = copy.deepcopy(sim.model)
    for t in range(rounds):
        if present := select(sim, t)[1]:
            put(model, step(model, present, t))
    return {name: leaf.detach() for name, leaf in model.named_parameters()}


def simulated(method: Algorithm, map: Map, **training: float) -> Simulation:
    return Simulation(
        small_net(), clients_of((4, 7, 23, 6)), method, training=TRAINING._replace(**training), fraction=0.75,
        failures=0.2, map=map,
    )  # fmt: skip


@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_fednova_averages_moves_by_their_steps(map: Map, momentum: float) -> None:
    """``a`` is how often each gradient is in a client's move; tau_eff = sum of p_i |a_i|_1 (equations 8 and 9)."""
    sim = simulated(fednova(), map, momentum=momentum, weight_decay=1e-2)

    def step(model: nn.Module, present: list[int], t: int) -> Tensor:
        w, sizes = vector(model), {k: len(sim.data.parts[k]) for k in present}
        shares = {k: size / sum(sizes.values()) for k, size in sizes.items()}
        direction, effective = torch.zeros_like(w), 0.0
        for k in present:
            trained, steps = train(model, sim, k, t)
            a = sum((1 - momentum ** (steps - j)) / (1 - momentum) for j in range(steps))
            direction += shares[k] * (vector(trained) - w) / a
            effective += shares[k] * a
        return w + effective * direction

    found = play(sim, 3).server.params
    assert difference(found, by_hand(sim, 3, step)) < 1e-11


@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize("epsilon", [1e-3, 1e-9])
def test_fedexp_extrapolates_where_clients_disagree(map: Map, epsilon: float) -> None:
    sim, steps = simulated(fedexp(epsilon), map), []

    def step(model: nn.Module, present: list[int], t: int) -> Tensor:
        w = vector(model)
        moves = torch.stack([vector(train(model, sim, k, t)[0]) - w for k in present])
        mean = moves.mean(0)
        steps.append(float(max(1.0, (moves**2).sum() / (2 * len(present) * ((mean**2).sum() + epsilon)))))
        return w + steps[-1] * mean

    assert difference(play(sim, 4).server.params, by_hand(sim, 4, step)) < 1e-11
    assert epsilon == 1e-3 or max(steps) > 1  # the step is not FedAvg's


@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_moon_contrasts_the_received_model_with_the_clients_last(map: Map, temperature: float) -> None:
    sim = simulated(moon(5.0, temperature), map)
    last = {k: copy.deepcopy(sim.model) for k in range(4)}

    def features(model: nn.Module, x: Tensor) -> Tensor:
        return model[:-1](x)

    def step(model: nn.Module, present: list[int], t: int) -> Tensor:
        received, replies = copy.deepcopy(model), []
        for k in present:

            def contrast(local: nn.Module, x: Tensor, before: nn.Module = last[k]) -> Tensor:
                z, others = features(local, x), [features(each, x).detach() for each in (received, before)]
                logits = torch.stack([torch.cosine_similarity(z, each) for each in others], 1) / temperature
                return 5.0 * cross_entropy(logits, torch.zeros(len(x), dtype=torch.int64))

            last[k] = train(model, sim, k, t, contrast)[0]
            replies.append(vector(last[k]))
        sizes = torch.tensor([float(len(sim.data.parts[k])) for k in present], dtype=torch.float64)
        return torch.tensordot(sizes / sizes.sum(), torch.stack(replies), 1)

    assert difference(play(sim, 4).server.params, by_hand(sim, 4, step)) < 1e-11


def test_what_changes_nothing_is_fedavg() -> None:
    """FedNova with clients of equal steps, FedExP with a large epsilon, and MOON without its loss."""
    data = clients_of((10, 8, 9))
    sim = Simulation(small_net(), data, fedavg(), training=TRAINING)
    plain, uniform = (play(replace(sim, algorithm=fedavg()._replace(weighting=w)), 3) for w in ("samples", "uniform"))
    for method, like in ((fednova(), plain), (moon(0.0), plain), (fedexp(1e5), uniform)):
        assert difference(play(replace(sim, algorithm=method), 3).server.params, like.server.params) < 1e-12


@pytest.mark.parametrize("name", ["fednova", "fedexp", "moon"])
def test_a_file_has_at_most_25_lines(name: str) -> None:
    assert len((ROOT / "fedatoms" / "algorithms" / f"_{name}.py").read_text().splitlines()) <= 25


def test_fednova_counts_a_schedule_within_a_round() -> None:
    """A client that hardly moved in its last steps has made fewer of them."""
    training = TRAINING._replace(schedule=cosine(5, steps="cosine"))
    seen: list[Memory] = []
    method = fednova()
    spy = method._replace(aggregate=lambda *given: seen.append(given[1]) or method.aggregate(*given))
    for map in MAPS:
        play(Simulation(small_net(), clients_of((10,)), spy, training=training, map=map), 1)
    expected = ((1 + torch.cos(torch.pi * torch.arange(4).double() / 4)) / 2).sum()
    assert len(seen) == 2 and all(torch.isclose(mean[NUMBERS]["steps"], expected) for mean in seen)


def numbered(params: Params, server: Server, memory: Memory, work: object) -> tuple[Memory, Memory]:
    one = next(iter(params.values())).new_ones(())
    return {"params": params, NUMBERS: {"anything": one, "else": 3 * one}}, memory


@pytest.mark.parametrize("map", MAPS)
def test_numbers_of_any_name_are_averaged_and_counted(map: Map) -> None:
    seen: list[Memory] = []

    def aggregate(server: Server, mean: Memory, participation: float) -> Server:
        seen.append(mean)
        return Server(mean["params"], server.memory)

    sim = Simulation(small_net().float(), clients_of((4, 7)), Algorithm(report=numbered, aggregate=aggregate), map=map)
    plain = replace(sim, algorithm=fedavg())
    (_, record), (state, less) = (advance(prepare(each), begin(prepare(each))) for each in (sim, plain))
    assert {name: (float(x), x.dtype) for name, x in seen[0][NUMBERS].items()} == {
        "anything": (1.0, torch.float32), "else": (3.0, torch.float32),
    }  # fmt: skip
    assert total(record.up) == total(less.up) + 2 * 2 * 4 and record.down == less.down
    assert identical(state.server.params, advance(prepare(sim), begin(prepare(sim)))[0].server.params)


def test_the_mean_of_numbers_weighs_clients_as_that_of_parameters() -> None:
    uploads = {"params": {"w": torch.tensor([1.0, 4.0])}, NUMBERS: {"n": torch.tensor([1.0, 4.0])}}
    mean = mean_of(gather(NOTHING_YET, uploads, torch.tensor([2.0, 1.0])), like={"w": torch.tensor(0.0)})
    assert mean[NUMBERS]["n"] == mean["params"]["w"] == 2


UPLOADS = {
    "a float": ({NUMBERS: {"a": 3.0}}, ValueError, r"the upload's number 'a' is 3.0: .* torch.tensor\(3.0\)"),
    "a vector": ({NUMBERS: {"a": torch.ones(2)}}, ValueError, r"number 'a' is of shape \(2,\): .* without dimensions"),
    "a tree": ({"mine": {"x": torch.ones(2)}}, ValueError, "tree 'mine' has 'x', which is no parameter .* 'numbers'"),
    "nan": ({NUMBERS: {"a": torch.tensor(torch.nan)}}, FloatingPointError, "client 0, round 1: a number of its upload"),
}


@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize(("more", "error", "words"), UPLOADS.values(), ids=UPLOADS.keys())
def test_an_upload_that_no_server_can_average_is_refused(
    map: Map, more: Memory, error: type[Exception], words: str
) -> None:
    method = Algorithm(report=lambda params, server, memory, work: ({"params": params, **more}, memory))
    with pytest.raises(error, match=words) as caught:
        play(Simulation(small_net(), clients_of((4, 7)), method, map=map), 1)
    assert "\n" not in str(caught.value)


def test_an_upload_without_params_is_refused() -> None:
    method = Algorithm(report=lambda params, server, memory, work: (params, memory))
    with pytest.raises(ValueError, match=r'report uploads .* Let it return \{"params": params\}, memory'):
        play(Simulation(small_net(), clients_of((4, 7)), method), 1)


def moves_only(params: Params, server: Server, memory: Memory, work: object) -> tuple[Memory, Memory]:
    return {"params": trees.subtract(params, server.params)}, memory


def add_moves(server: Server, mean: Memory, participation: float) -> Server:
    return Server(trees.add(server.params, mean["params"]), server.memory)


MOVES = Algorithm(report=moves_only, aggregate=add_moves, uploads_models=False)


@pytest.mark.parametrize("method", [fednova(), MOVES])
@pytest.mark.parametrize("which", ["selected", "all"])
def test_a_mean_of_uploads_that_are_no_models_is_not_scored(method: Algorithm, which: str) -> None:
    sim = Simulation(small_net(), clients_of((4, 7)), method)
    assert fedatoms.train(sim, 1).scores.keys() == {"server"}
    assert fedatoms.train(replace(sim, algorithm=fedexp()), 1).scores.keys() == {"server", "selected"}
    with pytest.raises(ValueError, match=f"^score={which}: it is the mean of uploads, and this algorithm's are no mod"):
        replace(sim, score=("server", which))


def test_the_law_of_uploads_knows_what_is_no_model() -> None:
    fedatoms.testing.check_algorithm(lambda: MOVES)
    for method in (MOVES, fednova()):
        with pytest.raises(AssertionError, match="breaks the law 'uploads_that_are_models'"):
            fedatoms.testing.check_algorithm(partial(method._replace, uploads_models=True))


def test_the_headline_of_fednova_is_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = fedatoms.Experiment(algorithm="fednova", clients=5, rounds=1, epochs=1, batch_size=50)
    result = fedatoms.run(quick)
    assert list(result.scores) == ["server"] and read_result(result.folder).scores == result.scores
    lines = compare([result, fedatoms.run(replace(quick, algorithm="fedavg"))])
    assert [list(line.scores) for line in lines] == [["server"], ["server", "selected", "all"]]
    assert lines[0].target <= max(result.scores["server"].best, lines[1].scores["server"].best)
    assert "server" in judgement(lines) and "all" not in judgement(lines[::-1])
    with pytest.raises(ValueError, match="score=all: it is the mean of uploads"):
        fedatoms.run(replace(quick, score="server,all"))


def broken_number(params: Params, server: Server, memory: Memory, work: object) -> tuple[Memory, Memory]:
    return {"params": params, NUMBERS: {"two": torch.ones(2)}}, memory


def test_a_number_that_is_none_breaks_a_law() -> None:
    with pytest.raises(AssertionError, match="the number 'two' has the shape"):
        fedatoms.testing.check_algorithm(lambda: Algorithm(report=broken_number))


@pytest.mark.parametrize("map", MAPS)
def test_a_penalty_sees_logits_and_features_and_no_gradient_flows_through_others(map: Map) -> None:
    """Distillation from the received model: in the first step it pulls nowhere, and without it nothing is different."""

    def penalty(seen: Seen, see: Callable[[Params], Seen], server: Server, memory: Memory) -> Tensor:
        other = see(server.params)
        assert seen.logits.shape[-1] == 3 and seen.features.shape[-1] == other.features.shape[-1] == 6
        return (seen.logits - other.logits).square().sum(1)

    sim = Simulation(small_net(), clients_of((4, 3)), training=Training(batch_size=4, lr=0.1), map=map)
    one = replace(sim, algorithm=Algorithm(penalty=penalty))
    assert difference(play(sim, 1).server.params, play(one, 1).server.params) < 1e-15
    several = [replace(each, training=Training(batch_size=2, lr=0.1)) for each in (sim, one)]
    assert difference(*(play(each, 1).server.params for each in several)) > 1e-6


@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize(
    ("penalty", "got"),
    [
        (lambda seen, *_: seen.features.square().mean(), r"shape \(\)"),
        (lambda seen, *_: seen.features.square(), r"shape \(4, 6\)"),
        (lambda seen, *_: 0.5, "type float"),
    ],
)
def test_a_penalty_that_is_no_number_per_sample_is_refused(map: Map, penalty: Callable[..., Tensor], got: str) -> None:
    """A mean over the batch would count padded rows in one map and not in the other."""
    sim = Simulation(small_net(), clients_of((4, 3)), Algorithm(penalty=penalty), training=Training(batch_size=4))
    with pytest.raises(ValueError, match=f"^the algorithm's penalty is of {got} for 4 samples: .*, \\(4,\\). Use for"):
        play(replace(sim, map=map), 1)


def test_a_penalty_needs_a_head() -> None:
    sim = Simulation(nn.Sequential(nn.Conv2d(1, 3, 6), nn.Flatten()).double(), clients_of((4,)), moon())
    with pytest.raises(ValueError, match="has no linear layer, so its features are unknown"):
        play(sim, 1)


def test_moon_learns_and_resumes_as_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = fedatoms.Experiment(
        algorithm="moon", clients=5, rounds=2, epochs=1, batch_size=50, client_state="disk", score="server,all"
    )
    whole = fedatoms.run(replace(experiment, name="whole"))
    fedatoms.run(replace(experiment, name="part", rounds=1))
    from fedatoms.runs.execute import resume

    assert resume(Path("runs/part"), {"rounds": 2}).model_sha256 == whole.model_sha256


def test_squares_are_summed_over_all_leaves() -> None:
    assert trees.squared({"w": torch.tensor([3.0]), "b": torch.tensor(4.0)}) == 25
