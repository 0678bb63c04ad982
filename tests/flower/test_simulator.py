"""Flower in one process: the same bits and bytes as the simulator, whatever algorithm, schedule and method."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.cases import some_of, turns
from support.small import Drifting, difference, identical, small_net

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Context, RecordDict
from flwr.clientapp.mod import message_size_mod
from safetensors.torch import load_file
from support.flower_grid import (
    SCAFFOLD,
    SMALL,
    OneProcess,
    in_a_test,
    kept_by,
    on_flower,
    row_as_tree,
    server_as_tree,
    server_of,
    simulated,
    task_of,
)

from fedatoms.algorithms import ALGORITHMS
from fedatoms.core.trees import nbytes
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.experiment.build import simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.identities import trajectory
from fedatoms.flower import FedAtoms, Own, Task, built_in, client_app, server_app, wire
from fedatoms.flower.server_state import ServerState
from fedatoms.flower.task import Settings, server_simulation
from fedatoms.nn.models import build
from fedatoms.optimisers import OPTIMISERS
from fedatoms.personal import METHODS
from fedatoms.runs.execute import run
from fedatoms.runs.results import read_result
from fedatoms.runs.rounds import read_rounds

DIGITS = Experiment(
    partition="dirichlet", unbalanced=0.3, own_test="classes", clients=3, fraction=1.0, epochs=1, batch_size=30,
    rounds=3, threads=1, last_epochs=1,
)  # fmt: skip
FAST_SLOW = {"parametrisation": "atoms", "beta": "1/2", "fraction": 0.5, "rounds": 5}  # half of them miss a slow part
OWN = [name for name in METHODS if name not in ("none", "fedpac")]
STRENGTHS = {"moon": 0.1}  # features as small as these turn fast: with 1 a client moves so far that it is refused
FORMS: dict[str, dict[str, object]] = {
    "plain": {"parametrisation": "plain"},
    "fast and slow": FAST_SLOW,
    "atoms": {"parametrisation": "atoms"},
    "fixed atoms": {"parametrisation": "atoms", "fixed": "atoms"},
}
CASES: dict[str, dict[str, object]] = {
    **{
        f"{name}, {form}": {"algorithm": name, "strength": STRENGTHS.get(name), **changes}
        for name in ALGORITHMS
        for form, changes in FORMS.items()
    },
    **{
        f"{name}, slow part: {what}": {"algorithm": name, "slow_local": what, **FAST_SLOW}
        for name in ("scaffold", "feddc")
        for what in ("freeze", "keep")
    },
    "fedpara": {"parametrisation": "fedpara"},
    **{
        method: {
            "personal": method,
            "algorithm": "scaffold",
            "fraction": 0.5,
            "parametrisation": "pfedpara" if method == "pfedpara" else "atoms",
        }
        for method in OWN
    },
    "local atoms, fast and slow": {"personal": "local-atoms", "algorithm": "feddyn", **FAST_SLOW},
    **{f"optimiser {name}": {"optimiser": name, "momentum": 0.0, "parametrisation": "atoms"} for name in OPTIMISERS},
    "schedules": {"algorithm": "scaffold", "schedule": "cosine", "warmup": 1, "step_schedule": "cosine"},
    "accumulation, two epochs": {"algorithm": "scaffold", "accumulate": 2, "batch_size": 3, "epochs": 2},
    "from outside": {"algorithm": "examples.own_algorithm:fedadagrad", "personal": "examples.own_personal:own_biases"},
}
LATER = {f"{name}, {form}" for name in ALGORITHMS for form in FORMS}
LATER -= {f"{name}, {form}" for name, form in turns(ALGORITHMS, FORMS)}
LATER |= {"scaffold, slow part: keep", "feddc, slow part: freeze", "finetune-head", "local-atoms-and-head"}
EACH = [
    pytest.param(changes, marks=pytest.mark.slow if name in LATER else (), id=name) for name, changes in CASES.items()
]


@pytest.mark.parametrize("changes", EACH)
def test_flower_and_the_simulator_give_the_same_bits_to_server_and_clients(
    changes: dict[str, object], tmp_path: Path
) -> None:
    experiment = replace(SMALL, **changes)
    on_flower(experiment, tmp_path)
    state, _ = simulated(replace(experiment, map="one_by_one"))
    assert identical(server_of(tmp_path), server_as_tree(state.server))
    for client in range(experiment.clients):
        assert identical(kept_by(tmp_path, client), row_as_tree(state.clients.read(client)))


@pytest.mark.parametrize("personal", ["none", "finetune"])
def test_scores_on_nodes_change_no_buffer_though_the_forward_pass_does(personal: str, tmp_path: Path) -> None:
    experiment = replace(SMALL, eval_every=1, personal=personal)
    task = task_of(experiment)._replace(model=lambda: Drifting(small_net()).float())
    on_flower(experiment, tmp_path, task=task)
    state, _ = simulated(replace(experiment, map="one_by_one"), task)  # which scores nothing
    assert identical(server_of(tmp_path), server_as_tree(state.server))


ON_DIGITS = {
    "feddc, fast and slow": {"algorithm": "feddc", "parametrisation": "atoms", "beta": "1/2"},
    "local atoms": {"parametrisation": "atoms", "personal": "local-atoms"},
}
NOW = some_of(ON_DIGITS, "feddc, fast and slow")  # of local atoms, the numbers: below


@pytest.mark.parametrize("name", NOW)
def test_an_experiment_of_the_simulator_gives_the_same_bits_on_nodes(name: str, tmp_path: Path) -> None:
    experiment = replace(DIGITS, **ON_DIGITS[name])
    on_flower(experiment, tmp_path, task=built_in(experiment))
    sim = simulation(replace(experiment, map="one_by_one"))
    state = begin(prepare(sim))
    for _ in range(experiment.rounds):
        state, _ = advance(prepare(sim), state)
    assert identical(server_of(tmp_path), server_as_tree(state.server))


@pytest.mark.slow  # `make test` has its halves: Flower = one by one, above, and one by one = vectorised, in engine/
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_flower_and_vectorised_clients_differ_by_rounding_only(changes: dict[str, object], tmp_path: Path) -> None:
    experiment = replace(SMALL, **changes)
    task = task_of(experiment, dtype=torch.float64)
    on_flower(experiment, tmp_path, task=task)
    state, _ = simulated(replace(experiment, map="vectorised"), task)
    assert difference(server_of(tmp_path), server_as_tree(state.server)) < 1e-9
    for client in range(experiment.clients):
        ours, theirs = kept_by(tmp_path, client), row_as_tree(state.clients.read(client))
        assert ours.keys() == theirs.keys() and (not ours or difference(ours, theirs) < 1e-9)


LEDGERS: dict[str, dict[str, object]] = {
    "every round": {"algorithm": "feddc", "parametrisation": "atoms"},
    "fast and slow, some clients missing": {"algorithm": "scaffold", **FAST_SLOW},
    "a private part": {"algorithm": "scaffold", "personal": "fedrep", **FAST_SLOW},
}


@pytest.mark.parametrize("changes", LEDGERS.values(), ids=LEDGERS.keys())
def test_the_ledger_is_the_simulator_s_and_counts_the_arrays_that_crossed(
    changes: dict[str, object], tmp_path: Path
) -> None:
    experiment = replace(SMALL, **changes)
    grid = on_flower(experiment, tmp_path)
    rows, (_, records) = read_rounds(tmp_path / "runs" / "it"), simulated(experiment)
    for row, record in zip(rows, records, strict=True):
        assert (row["up"], row["down"]) == (record.up, record.down)
        assert (sum(row["down"].values()), sum(row["up"].values())) == crossed_in(grid, row["round"])


def test_bytes_that_cross_for_scores_are_counted_apart_and_trouble_no_ledger(tmp_path: Path) -> None:
    experiment = replace(SMALL, personal="local-atoms", parametrisation="atoms", eval_every=2)
    grid = on_flower(experiment, tmp_path)
    rows, (_, records) = read_rounds(tmp_path / "runs" / "it"), simulated(experiment)
    assert [(row["up"], row["down"]) for row in rows] == [(record.up, record.down) for record in records]
    crossed = [wire.size_of(each.sent).arrays for each in grid.log if each.kind == "evaluate"]
    assert len(crossed) == 3 * experiment.clients  # after rounds 1 and 2, and after the last pass
    once = sum(crossed[: experiment.clients])
    assert [row.get("beside") for row in rows] == [None, {"scores": once}, {"scores": once}]
    assert read_result(tmp_path / "runs" / "it").extra["bytes_beside"] == {"scores": sum(crossed)}


def test_a_personalised_run_ends_with_the_simulator_s_numbers(tmp_path: Path) -> None:
    experiment = replace(DIGITS, parametrisation="atoms", personal="local-atoms", eval_every=2)
    on_flower(experiment, tmp_path, task=built_in(experiment))
    theirs = run(replace(experiment, map="one_by_one", score="server,personal", out=str(tmp_path / "simulated")))
    ours = read_result(tmp_path / "runs" / "it").personal
    assert ours == pytest.approx(theirs.personal)
    assert "mean of the last ten" in ours


def crossed_in(grid: OneProcess, number: int) -> tuple[int, int]:
    """Weighs the arrays that went down and up in a round."""
    both = [(wire.size_of(each.sent), wire.size_of(each.reply.content)) for each in grid.log if each.round == number]
    return sum(down.arrays for down, _ in both), sum(up.arrays for _, up in both)


def test_arrays_and_the_rest_are_what_flower_s_own_count_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = task_of(SMALL)
    with caplog.at_level(logging.INFO, "flwr"):
        grid = on_flower(replace(SMALL, **FAST_SLOW), tmp_path, app=client_app(task, mods=[message_size_mod]))
    counted = [record.args[0] for record in caplog.records if "message size" in record.msg]
    orders = [each for each in grid.log if each.round is not None]
    assert counted == [sum(wire.size_of(one)) for each in orders for one in (each.sent, each.reply.content)]


def test_fast_rounds_of_a_lenet_cost_a_fifth(tmp_path: Path) -> None:
    experiment = replace(
        SMALL, clients=2, rounds=10, eval_every=10, epochs=1, model="lenet", parametrisation="atoms", beta="1/5"
    )
    task = lenet_task(experiment)
    grid = on_flower(experiment, tmp_path, task=task)
    rows, full = (
        read_rounds(tmp_path / "runs" / "it"),
        2 * 10 * nbytes(load_file(tmp_path / "runs/it/model.safetensors")),
    )
    up, down = (sum(sum(row[way].values()) for row in rows) for way in ("up", "down"))
    assert up <= 0.21 * full
    assert up + down <= 0.26 * 2 * full
    fast = [
        wire.size_of(content) for each in grid.log if each.round == 9 for content in (each.sent, each.reply.content)
    ]
    assert all(size.rest <= 0.062 * sum(size) for size in fast)  # 0.002 of it the nonce
    order = wire.read_order(next(each.sent for each in grid.log if each.round == 9))
    late = wire.size_of(wire.write_order(later(order, 100_000)))
    assert late.rest <= 0.06 * sum(late)


def later(order: wire.Order, rounds: int) -> wire.Order:
    """Makes the order that a node would get so many rounds later."""
    versions = {group: version + rounds for group, version in order.versions.items()}
    return order._replace(round=order.round + rounds, base=order.base + rounds, versions=versions)


def lenet_task(experiment: Experiment) -> Task:
    """Makes a task of a LeNet with two random images on each node."""

    def own(partition: int, partitions: int) -> Own:
        x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(partition))
        return Own(x, torch.arange(2), x, torch.arange(2))

    return Task(experiment, lambda: build("lenet", classes=10, channels=3, seed=0), own, 10, (3, 32, 32))


def test_flower_s_own_loop_over_the_strategy_gives_the_same_bits(tmp_path: Path) -> None:
    task = task_of(SCAFFOLD)
    sim = server_simulation(task, SCAFFOLD)
    strategy = FedAtoms(
        prepare(sim), ServerState(begin(prepare(sim)), "0a1b", trajectory(SCAFFOLD)), Settings(wait=0.0, timeout=0.0)
    )
    with in_a_test():
        grid = OneProcess(client_app(task), SCAFFOLD, tmp_path)
        strategy.start(grid, ArrayRecord(), num_rounds=SCAFFOLD.rounds)
    state, _ = simulated(replace(SCAFFOLD, map="one_by_one"))
    assert identical(server_as_tree(strategy.known.state.server), server_as_tree(state.server))


def test_the_apps_read_the_run_config_and_end_with_the_place_of_the_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task, config = task_of(SMALL), {"algorithm": "scaffold", "rounds": 2, "out": str(tmp_path / "runs"), "name": "it"}
    experiment = replace(SMALL, algorithm="scaffold", rounds=2)
    grid = OneProcess(client_app(task), experiment, tmp_path / "nodes")
    with in_a_test(), caplog.at_level(logging.INFO, "flwr"):
        server_app(task)(grid, Context(1, 1, {}, RecordDict(), {**config, "wait": 0.0, "timeout": 0.0}))
    assert caplog.messages[-1] == f"complete after 2 rounds: see {tmp_path}/runs/it"
    state, _ = simulated(replace(experiment, map="one_by_one"))
    assert identical(server_of(tmp_path), server_as_tree(state.server))
