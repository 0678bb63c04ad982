"""Every optimiser of the table keeps the laws, equals torch's, and is refused where its moves measure nothing."""

import ast
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import ROOT
from support.small import clients_of, difference, identical, play, small_net

import fedatoms
from fedatoms import algorithms, optimisers
from fedatoms.algorithms import ALGORITHMS, algorithm, feddyn, scaffold
from fedatoms.core import trees
from fedatoms.core.options import Map
from fedatoms.core.trees import Memory, Params
from fedatoms.engine.client_round import rate_of
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation, batches_of
from fedatoms.engine.training import Training
from fedatoms.experiment.build import simulation, training_of
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import from_json, to_json
from fedatoms.experiment.identities import identity
from fedatoms.optimisers import OPTIMISERS, TABLE, Optimiser, adamw, optimiser, sgd
from fedatoms.optimisers.base import Update
from fedatoms.runs.execute import run
from fedatoms.testing import check_optimiser

TRAINING = Training(epochs=2, batch_size=5, lr=0.01, lr_decay=0.9, weight_decay=0.1, clip=1.0)
QUICK = Experiment(clients=5, rounds=2, epochs=1, batch_size=50, lr=0.01)
MINE = """
import torch
from fedatoms.core import trees
from fedatoms.optimisers import Optimiser

def lion(b1=0.9, b2=0.99):
    def update(gradient, state, weights):
        moves = trees.apply(lambda m, g: torch.sign(b1 * m + (1 - b1) * g), state["mean"], gradient)
        return moves, {"mean": trees.apply(lambda m, g: b2 * m + (1 - b2) * g, state["mean"], gradient)}

    return Optimiser(lambda weights: {"mean": trees.zeros_like(weights)}, update, decouples=True)

def number():
    return 7
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_rule.py").write_text(MINE)
    monkeypatch.delitem(sys.modules, "my_rule", raising=False)
    return "my_rule:lion"


RULES = {**{name: (lambda name=name: optimiser(name)) for name in OPTIMISERS}, "sgd": lambda: sgd(0.9)}


@pytest.mark.parametrize("name", RULES)
def test_every_optimiser_keeps_the_laws(name: str) -> None:
    check_optimiser(RULES[name])


@pytest.mark.slow  # other laws train with it
def test_sgd_without_momentum_keeps_the_laws() -> None:
    check_optimiser(lambda: optimiser("sgd"))


def test_a_rule_of_your_own_keeps_the_laws_and_trains_from_the_command_line(mine: str) -> None:
    check_optimiser(lambda: optimiser(mine))
    done = run(replace(QUICK, optimiser=mine))
    assert done.model_sha256 != run(replace(QUICK, optimiser="adamw", name="other")).model_sha256


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimiser": "my_rule:number"}, "a factory must return a fedatoms.optimisers.Optimiser"),
        ({"optimiser": "adam"}, "unknown optimiser 'adam'. Did you mean 'adamw'"),
        (
            {"optimiser": "adamw", "momentum": 0.9},
            "momentum=0.9, but adamw has none. Leave it out, or use an optimiser",
        ),
        ({"optimiser": "adamw", "algorithm": "scaffold"}, "divides a client's move .* Use optimiser=sgd"),
    ],
)
def test_an_experiment_refuses_what_is_no_optimiser_for_it(mine: str, changes: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulation(replace(QUICK, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimiser": "adamw"}, r"^optimiser='adamw' is not an optimiser. Use fedatoms\.optimisers\.adamw\(\)\.$"),
        ({"optimiser": adamw}, r"is not an optimiser. Use fedatoms\.optimisers\.adamw\(\)\.$"),
        ({"optimiser": adamw(), "momentum": 0.9}, "momentum=0.9 is of SGD"),
    ],
)
def test_a_training_refuses_what_is_no_optimiser(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Training(**changes)


@pytest.mark.parametrize("name", ["b1", "b2", "epsilon"])
def test_numbers_that_no_rule_has_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}=2 is not in"):
        adamw(**{name: 2})


@pytest.mark.parametrize("map", ["one_by_one", "vectorised"])
@pytest.mark.parametrize(
    ("update", "got"),
    [
        (lambda gradient, state, weights: gradient, "dict"),
        (lambda gradient, state, weights: (gradient, state, weights), r"\(a tree of .*, a tree of nothing, a tree of"),
        (lambda gradient, state, weights: ({}, state), r"\(a tree of nothing, a tree of nothing\)"),
        (lambda gradient, state, weights: (gradient, {"steps": gradient}), r"\(a tree of .*, a tree of steps\)"),
    ],
)
def test_an_update_that_returns_no_moves_and_state_is_refused(map: Map, update: Update, got: str) -> None:
    training = Training(optimiser=Optimiser(lambda weights: {}, update))
    with pytest.raises(ValueError, match=rf"^the optimiser's update returns {got}.*, not \(moves, state\), .* Let it"):
        play(Simulation(small_net(), clients_of((4, 7)), training=training, map=map), 1)


@pytest.mark.parametrize("map", ["one_by_one", "vectorised"])
@pytest.mark.parametrize(
    ("init", "told"),
    [
        (lambda weights: weights, "as its tree 'conv1.weight' Tensor instead of a tree"),
        (lambda weights: None, "None instead of named trees"),
        (lambda weights: {"steps": {"all": 0}}, "as its tree 'steps' 'all' as int instead of a tensor"),
    ],
)
def test_a_state_is_named_trees_of_tensors(map: Map, init: Callable[[Params], object], told: str) -> None:
    training = Training(optimiser=Optimiser(init, lambda gradient, state, weights: (gradient, state)))
    with pytest.raises(ValueError, match=f"^the optimiser's init returns {told}"):
        play(Simulation(small_net(), clients_of((4, 7)), training=training, map=map), 1)


@pytest.mark.parametrize("map", ["one_by_one", "vectorised"])
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (torch.sum, r"of shape \(\) for one of shape"),
        (lambda leaf: leaf[None], r"of shape \(1, .*\) for one of shape"),
        (lambda leaf: leaf.half(), "of float16 for one of float64"),
        (lambda leaf: 1.0, "as float instead of a tensor"),
    ],
)
def test_moves_and_states_keep_shapes_and_types(
    map: Map, name: str, change: Callable[[torch.Tensor], torch.Tensor], told: str
) -> None:
    rule = RULES[name]()

    def moves_changed(gradient: Params, state: Memory, weights: Params) -> tuple[Params, Memory]:
        moves, state = rule.update(gradient, state, weights)
        return trees.apply(change, moves), state

    def state_changed(gradient: Params, state: Memory, weights: Params) -> tuple[Params, Memory]:
        moves, state = rule.update(gradient, state, weights)
        kind = sorted(state)[0]
        return moves, {**state, kind: trees.apply(change, state[kind])}

    for what, update in (("moves with", moves_changed), ("a state with in its tree", state_changed)):
        training = Training(optimiser=rule._replace(update=update))
        with pytest.raises(ValueError, match=f"^the optimiser's update returns {what} .*{told}.* Use trees.apply"):
            play(Simulation(small_net(), clients_of((4, 7)), training=training, map=map), 1)


def test_an_update_that_changes_its_state_in_place_is_refused_where_clients_share_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trees, "_SMALL", 0)
    init = optimisers.sgd(0.9).init
    rule = Optimiser(init, lambda g, state, w: (g, {k: {n: v.add_(1) for n, v in t.items()} for k, t in state.items()}))
    sim = Simulation(small_net(), clients_of((5, 5)), training=Training(optimiser=rule), map="vectorised")
    with pytest.raises(ValueError, match=r"the optimiser's update changes its state in place.*map=one_by_one\.$"):
        play(sim, 1)
    play(replace(sim, map="one_by_one"), 1)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_only_algorithms_that_measure_moves_refuse_an_optimiser_without_displacement(name: str) -> None:
    """Those that do say so themselves, all among them that turn a move into a gradient."""
    made = algorithm(name)
    assert made.measures or not algorithms.TABLE.has(name, "controls")
    sim = Simulation(small_net(), clients_of((3, 4)), training=TRAINING._replace(optimiser=adamw()))
    if made.measures:
        with pytest.raises(ValueError, match="whose moves do not grow with gradients"):
            replace(sim, algorithm=made)
    else:
        play(replace(sim, algorithm=made), 2)


def by_torch(sim: Simulation, k: int, t: int, **betas: object) -> dict[str, torch.Tensor]:
    """Trains client k with torch's AdamW, new in this round, in which atoms have a rate and a decay of their own."""
    model, training = small_net(atoms=4), sim.training
    named = {name: "atoms" in name or "coefficients" in name for name, _ in model.named_parameters()}
    groups = [
        {
            "params": [leaf for name, leaf in model.named_parameters() if named[name] == factored],
            "lr": rate_of(training, t) * (training.atoms_lr if factored else 1),
            "weight_decay": training.weight_decay * (training.atoms_decay if factored else 1),
        }
        for factored in (False, True)
    ]
    rule = torch.optim.AdamW(groups, **betas)
    drawn = batches_of(sim, k, t)
    for rows, real in zip(drawn.rows, drawn.real, strict=True):
        rule.zero_grad()
        torch.nn.functional.cross_entropy(model(sim.data.x[rows[real]]), sim.data.y[rows[real]]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        rule.step()
    return {name: leaf.detach() for name, leaf in model.named_parameters()}


@pytest.mark.parametrize("map", ["one_by_one", "vectorised"])
@pytest.mark.parametrize("betas", [{}, {"b1": 0.5, "b2": 0.9, "epsilon": 1e-3}])
def test_adamw_is_torchs(map: Map, betas: dict[str, float]) -> None:
    training = TRAINING._replace(optimiser=adamw(**betas), atoms_lr=2.0, atoms_decay=3.0)
    sim = Simulation(small_net(atoms=4), clients_of((4, 11)), training=training, map=map)
    found = play(sim, 1).server.params
    torchs = {"betas": (betas["b1"], betas["b2"]), "eps": betas["epsilon"]} if betas else {}
    ours = [by_torch(sim, k, 0, **torchs) for k in range(2)]
    mean = {name: (4 * leaf + 11 * ours[1][name]) / 15 for name, leaf in ours[0].items()}
    assert difference({name: found[name] for name in mean}, mean) < 1e-12


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_by_name_is_the_default(momentum: float) -> None:
    sim = Simulation(small_net(), clients_of((4, 7)), scaffold(), training=TRAINING._replace(momentum=momentum))
    named = replace(sim, training=TRAINING._replace(optimiser=sgd(momentum)))
    assert identical(play(sim, 2).server.params, play(named, 2).server.params)


def test_the_decay_of_an_algorithm_is_a_part_of_its_loss_and_never_apart() -> None:
    """FedDyn's quadratic term belongs to the gradient; what AdamW takes apart is the weight decay alone."""
    seen: list[torch.Tensor] = []

    def update(gradient: dict, state: dict, weights: dict) -> tuple[dict, dict]:
        seen.append((gradient["fc2.bias"], weights["fc2.bias"]))
        return {name: torch.zeros_like(leaf) for name, leaf in gradient.items()}, state

    still = Optimiser(lambda weights: {}, update, decouples=True)
    net, data = small_net(), clients_of((4,))
    start = net.fc2.bias.detach().clone()
    for method in (feddyn(0.5), feddyn(0.5)._replace(decay=0.0)):
        play(Simulation(net, data, method, training=Training(batch_size=4, weight_decay=0.2, optimiser=still)), 1)
    (with_decay, shrunk), (without, _) = seen
    assert torch.allclose(with_decay - without, 0.5 * start) and torch.allclose(shrunk, start * (1 - 0.1 * 0.2))


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_graphs_buffers_hold_any_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler: states are filled anew for each block, and idle clients of a short block keep theirs."""
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    sim = Simulation(
        small_net(norm=True, atoms=4), clients_of((1, 7, 12)), training=TRAINING._replace(optimiser=optimiser(name))
    )
    runtime = prepare(sim)._replace(map_clients=cuda_graph.compiled(2))
    assert difference(play(sim, 3).server.params, play(runtime, 3).server.params) < 1e-10


def test_an_older_experiment_means_sgd_and_keeps_its_identity() -> None:
    fields = {name: value for name, value in to_json(Experiment()).items() if name != "optimiser"}
    assert from_json(fields) == Experiment(beta="1/1") and training_of(Experiment()).optimiser is None
    assert identity(Experiment(optimiser="adamw")) != identity(Experiment())


def test_the_table_is_whole_and_type_checkers_see_it() -> None:
    tree = ast.parse((ROOT / "fedatoms" / "optimisers" / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname for node in imports for alias in node.names if alias.asname}
    assert TABLE.homes().keys() <= seen == set(optimisers.__all__) - {"OPTIMISERS", "optimiser"}
    assert fedatoms.optimisers.adamw is adamw
