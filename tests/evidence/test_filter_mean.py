"""The control of latent clients: a server that averages filters, by a rule that any run can take."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.small import clients_of, play, small_net
from torch import Tensor

from fedatoms import Experiment, Simulation, Training
from fedatoms.aggregation.base import combined
from fedatoms.core.options import Map
from fedatoms.core.trees import Memory, Params
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.evidence.explain.factors import filters, layers_of
from fedatoms.evidence.explain.filter_mean import RULE, Factored, filter_mean, nearest_factors
from fedatoms.evidence.explain.forks import advance_without
from fedatoms.runs.execute import resume, run

BRISK = Training(epochs=3, batch_size=4, lr=0.3, momentum=0.5)


def a_simulation(atoms: int, map: Map = "auto") -> Simulation:
    return Simulation(small_net(atoms=atoms, norm=True), clients_of((5, 7, 23, 8)), training=BRISK, map=map)


def of(some: list[Memory], server: Params) -> Memory:
    return combined(filter_mean(), some, torch.ones(len(some)).double(), server)


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("map", ["one_by_one", "vectorised"])
@pytest.mark.parametrize("atoms", [3, 9, 12])
def test_a_run_by_the_rule_is_the_fork_without_latent_clients(atoms: int, map: Map) -> None:
    sim = a_simulation(atoms, map=map)
    ruled, forked = replace(sim, aggregation=filter_mean()), play(sim, 1)
    left, right = forked, forked
    for _ in range(3):
        left, _ = advance_without(prepare(sim), left, layers_of(sim.model))
        right, _ = advance(prepare(ruled), right)
    for layer in layers_of(sim.model):
        assert close(filters(left.server.params, layer), filters(right.server.params, layer))
    assert all(close(leaf, right.server.params[name]) for name, leaf in left.server.params.items())
    averaged = advance(prepare(sim), forked)[0].server.params
    assert not all(close(leaf, averaged[name]) for name, leaf in right.server.params.items())


def test_no_factors_of_so_many_atoms_are_nearer() -> None:
    draws = torch.Generator().manual_seed(0)
    theta, a, d = (torch.randn(*shape, generator=draws).double() for shape in ((40, 9), (40, 3), (3, 9)))
    found = nearest_factors(theta, Factored(a, d))
    left, sizes, right = torch.linalg.svd(theta, full_matrices=False)
    assert close(found.coefficients @ found.atoms, left[:, :3] * sizes[:3] @ right[:3])


def test_clients_that_agree_stay_as_they_are() -> None:
    params = play(a_simulation(3), 1).server.params
    found = of([{"params": params}] * 3, params)["params"]
    assert all(close(leaf, params[name].double()) for name, leaf in found.items())


def test_updates_and_plain_layers_are_averaged_number_by_number() -> None:
    some: list[Memory] = [
        {"params": {"fc.weight": leaf}, "control": {"conv.coefficients": leaf, "conv.atoms": leaf[0]}}
        for leaf in (torch.ones(2, 3, 4).double(), torch.zeros(2, 3, 4).double())
    ]
    found = of(some, {"fc.weight": torch.zeros(2, 3, 4)})
    halves = [leaf for tree in found.values() for leaf in tree.values()]
    assert len(halves) == 3 and all(close(leaf, torch.full_like(leaf, 0.5)) for leaf in halves)


def test_a_run_takes_it_by_the_name_of_its_module_and_resumes(tmp_path: Path) -> None:
    one = Experiment(clients=10, fraction=0.3, rounds=2, epochs=1, threads=1, parametrisation="atoms", aggregation=RULE)
    whole = run(replace(one, out=str(tmp_path), name="whole"))
    run(replace(one, out=str(tmp_path), name="half", rounds=1))
    resumed = resume(tmp_path / "half", {"rounds": 2})
    assert whole.accuracy["server"].final == resumed.accuracy["server"].final
    assert whole.experiment.aggregation == RULE
