"""Flower in one process: the same bits and bytes as the simulator, whatever algorithm, schedule and method."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import difference, identical

pytest.importorskip("flwr")

from flower_grid import SMALL, kept_by, on_flower, row_as_tree, server_as_tree, server_of, simulated, task_of

from fedatoms.algorithms import ALGORITHMS
from fedatoms.build import simulation
from fedatoms.experiment import Experiment
from fedatoms.flower import built_in
from fedatoms.personal import METHODS
from fedatoms.simulate import advance, begin

DIGITS = Experiment(
    partition="dirichlet", unbalanced=0.3, own_test="classes", clients=3, fraction=1.0, epochs=1, batch_size=30,
    rounds=3, threads=1, last_epochs=1,
)  # fmt: skip
FAST_SLOW = {"parametrisation": "atoms", "beta": "1/2", "fraction": 0.5, "rounds": 5}  # half of them miss a slow part
OWN = [name for name in METHODS if name not in ("none", "fedpac")]
CASES: dict[str, dict[str, object]] = {
    **{
        f"{name}, {form}": {"algorithm": name, "parametrisation": form}
        for name in ALGORITHMS
        for form in ("plain", "atoms")
    },
    **{
        f"{name}, slow part: {what}": {"algorithm": name, "slow_local": what, **FAST_SLOW}
        for name in ("fedavg", "scaffold", "feddc")
        for what in ("discard", "freeze", "keep")
    },
    "fedpara": {"parametrisation": "fedpara"},
    **{
        f"{method} on {name}": {
            "personal": method,
            "algorithm": name,
            "fraction": 0.5,
            "parametrisation": "pfedpara" if method == "pfedpara" else "atoms",
        }
        for method in OWN
        for name in ("fedavg", "scaffold")
    },
    "local atoms, fast and slow": {"personal": "local-atoms", "algorithm": "feddyn", **FAST_SLOW},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_flower_and_the_simulator_give_the_same_bits_to_server_and_clients(
    changes: dict[str, object], tmp_path: Path
) -> None:
    experiment = replace(SMALL, **changes)
    on_flower(experiment, tmp_path)
    state, _ = simulated(replace(experiment, map="one_by_one"))
    assert identical(server_of(tmp_path), server_as_tree(state.server))
    for client in range(experiment.clients):
        assert identical(kept_by(tmp_path, client), row_as_tree(state.clients.read(client)))


ON_DIGITS = {
    "fedavg": {},
    "scaffold, atoms": {"algorithm": "scaffold", "parametrisation": "atoms"},
    "feddc, fast and slow": {"algorithm": "feddc", "parametrisation": "atoms", "beta": "1/2"},
    "local atoms": {"parametrisation": "atoms", "personal": "local-atoms"},
}


@pytest.mark.parametrize("changes", ON_DIGITS.values(), ids=ON_DIGITS.keys())
def test_an_experiment_of_the_simulator_gives_the_same_bits_on_nodes(changes: dict[str, str], tmp_path: Path) -> None:
    experiment = replace(DIGITS, **changes)
    on_flower(experiment, tmp_path, task=built_in(experiment))
    sim = simulation(replace(experiment, map="one_by_one"))
    state = begin(sim)
    for _ in range(experiment.rounds):
        state, _ = advance(sim, state)
    assert identical(server_of(tmp_path), server_as_tree(state.server))
