"""Laws of groups that are never trained: no algorithm, engine or method moves or sends them, and all else goes on."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from support import ROOT
from support.cases import some_now
from support.small import all_scores, clients_of, difference, identical, play, small_net

from fedatoms import load_model
from fedatoms.adapt import personalise
from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.engine.exchange import FAST, SLOW, Exchange, every_round, fast_slow
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.finetune import last_pass
from fedatoms.engine.freeze import hold_fixed
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import layout_of, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.evidence.explain.aggregates import mean_of_filters
from fedatoms.evidence.explain.factors import factors_of, filters, layers_of
from fedatoms.evidence.explain.replayed_round import replay
from fedatoms.evidence.explain.study import explain
from fedatoms.evidence.explain.values import Explain
from fedatoms.experiment.build import simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import from_json, to_json
from fedatoms.experiment.identities import identity, trajectory
from fedatoms.experiment.parse import fixed_groups
from fedatoms.personal import METHODS, personal
from fedatoms.runs.execute import resume, run

TRAINING = Training(epochs=2, batch_size=10, lr=0.05, lr_decay=0.9, momentum=0.5, weight_decay=1e-2, clip=1.0)
EXCHANGES = {
    "every_round": Exchange(every_round()),
    "discard": Exchange(fast_slow(FAST, SLOW, 2)),
    "freeze": Exchange(fast_slow(FAST, SLOW, 2), slow_local="freeze"),
    "keep": Exchange(fast_slow(FAST, SLOW, 2), slow_local="keep"),
}
TINY = Experiment(clients=10, fraction=0.3, rounds=2, epochs=1, batch_size=32, threads=1, parametrisation="atoms")


LATER = {*product(ALGORITHMS, ("atoms", "coefficients"))} - {("fedavg", "coefficients"), ("scaffold", "atoms")}


def free(name: str = "fedavg", **changes: object) -> Simulation:
    net = small_net(atoms=4, norm=True, dropout=True)
    method = algorithm(name)
    sim = Simulation(net, clients_of(), method, training=TRAINING, score=all_scores(method), block=2)
    return replace(sim, **changes)


def names_of(sim: Simulation, *fixed: str) -> set[str]:
    return {name for name, group in layout_of(sim).labels.items() if group in fixed}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_round_in_which_nothing_travels_is_a_round_of_every_algorithm(name: str) -> None:
    exchange = Exchange(fast_slow({"head"}, SLOW | {"atoms"}, 2), slow_local="keep")
    before, after = (play(hold_fixed(free(name, exchange=exchange, fraction=1.0), ["head"]), t) for t in (1, 2))
    assert identical(before.server.params, after.server.params)


@pytest.mark.parametrize(
    ("name", "fixed", "map"),
    some_now(
        ALGORITHMS, ["atoms", "coefficients", "head", "atoms rest"], ["one_by_one", "vectorised"], times=2, every=2
    ),
)
def test_what_is_fixed_stays_to_the_bit_on_server_and_clients_and_all_else_moves(
    name: str, fixed: str, map: str
) -> None:
    sim = hold_fixed(free(name, map=map), fixed.split())
    names, before, state = names_of(free(), *fixed.split()), begin(prepare(sim)).server.params, play(sim, 2)
    done = replay(prepare(sim), state)
    for params in (state.server.params, state.selected, done.after.server.params, *done.models):
        assert {leaf for leaf in before if torch.equal(params[leaf], before[leaf])} == names | {
            "norm1.num_batches_tracked"
        }


@pytest.mark.parametrize(("name", "exchange", "fixed"), some_now(ALGORITHMS, EXCHANGES, ["atoms", "head"]))
def test_vectorised_equals_one_by_one(name: str, exchange: str, fixed: str) -> None:
    loop, fast = (
        play(hold_fixed(free(name, exchange=EXCHANGES[exchange], map=map), [fixed]), 3)
        for map in ("one_by_one", "vectorised")
    )
    assert difference(loop.server.params, fast.server.params) < 1e-10
    for kind, tree in loop.server.memory.items():
        assert difference(tree, fast.server.memory[kind]) < 1e-10
    assert loop.last_sum is fast.last_sum is None or difference(loop.last_sum, fast.last_sum) < 1e-9


@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        ("fedavg", "coefficients"),
        ("scaffold", "atoms"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in sorted(LATER)),
    ],
)
def test_the_compiled_map_equals_one_by_one(name: str, fixed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler, on a CPU; what is not fixed is compiled with every algorithm in `test_graphs.py`."""
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    loop = hold_fixed(free(name), [fixed])
    fast = replace(loop)
    fast = prepare(fast)._replace(map_clients=cuda_graph.compiled(2))
    assert difference(*(play(sim, 3).server.params for sim in (loop, fast))) < 1e-10


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_fixed_costs_nothing_and_is_in_no_memory(name: str) -> None:
    sim = hold_fixed(free(name), ["atoms"])
    state, record = advance(prepare(sim), begin(prepare(sim)))
    names = names_of(free(), "atoms")
    assert "atoms" not in record.up and "atoms" not in record.down
    kept = [tree for row in state.clients.rows.values() for tree in (*row.memory.values(), row.own, row.last)]
    assert not any(names & tree.keys() for tree in (*kept, *state.server.memory.values()))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_with_fixed_atoms_the_mean_model_has_the_mean_of_the_clients_filters(name: str) -> None:
    sim = hold_fixed(free(name), ["atoms"])
    done = replay(prepare(sim), play(sim, 1))
    plain = mean_of_filters(done, layers_of(sim.model))
    for layer in layers_of(sim.model):
        mean = sum(p * filters(model, layer) for p, model in zip(done.weights, done.models, strict=True))
        assert not factors_of(layer, done).shift.any()
        assert torch.allclose(filters(done.after.selected, layer), mean, atol=1e-12)
        assert torch.allclose(plain[layer.weight].flatten(0, 1).flatten(1), mean, atol=1e-12)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("none", "pfedpara")])
def test_personalised_methods_leave_what_is_fixed_alone_too(method: str) -> None:
    sim = free(personal=personal(method, None), score=("server",))
    if "local-atoms" in method:
        with pytest.raises(ValueError, match="fixed=atoms holds what `personal` trains"):
            hold_fixed(sim, ["atoms"])
        return
    held, names = hold_fixed(sim, ["atoms"]), names_of(sim, "atoms")
    before, state = begin(prepare(held)), play(held, 2)
    _, last = last_pass(prepare(held), state, epochs=1)
    assert all(torch.equal(before.server.params[leaf], last.server.params[leaf]) for leaf in names)
    assert not any(names & last.clients.read(client).own.keys() for client in last.clients.rows)


def test_the_network_that_is_given_stays_as_it_is() -> None:
    sim = free()
    hold_fixed(sim, ["atoms", "head"])
    assert all(leaf.requires_grad for leaf in sim.model.parameters())


def test_spaces_and_order_do_not_matter() -> None:
    groups = [fixed_groups(Experiment(fixed=text)) for text in ("atoms,head", "head, atoms")]
    assert identical(*(play(hold_fixed(free(), fixed), 1).server.params for fixed in groups))


def test_results_and_checkpoints_that_are_older_than_the_field_keep_their_hashes() -> None:
    old = {name: value for name, value in to_json(TINY).items() if name != "fixed"}
    assert from_json(old) == replace(TINY, beta="1/1")
    for path in (ROOT / "paper-results").rglob("explain.json"):
        fields = json.loads(path.read_text())
        assert identity(from_json(fields["experiment"])) == fields["identity"], path
    assert identity(Experiment()) == "cd7b88ce8b288aa7" and trajectory(Experiment()) == "87d486028c70fe22"
    assert identity(replace(TINY, fixed="atoms")) != identity(TINY)


def test_a_run_with_fixed_atoms_is_resumed_explained_and_personalised(tmp_path: Path) -> None:
    held = replace(TINY, fixed="atoms", algorithm="scaffold", out=str(tmp_path))
    start = prepare(simulation(held)).network.constants
    whole = run(replace(held, name="whole", rounds=3))
    run(replace(held, name="run"))
    resume(tmp_path / "run", {"rounds": 3})
    models = [load_model(tmp_path / name).state_dict() for name in ("whole", "run")]
    assert identical(*models) and all(torch.equal(models[0][name], leaf) for name, leaf in start.items())
    assert "atoms" not in whole.bytes_up and "atoms" not in whole.bytes_down
    done = explain(tmp_path / "run", Explain(rounds=1, crossed=2))
    assert done.rounds[0].aggregates.apart.ratio == 0.0
    own = personalise(tmp_path / "run", (torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4)), epochs=1)
    assert own.keys() == start.keys()  # a newcomer may have atoms of its own


def test_a_run_with_fixed_atoms_has_the_plain_run_for_a_twin(tmp_path: Path) -> None:
    run(replace(TINY, fixed="atoms", out=str(tmp_path), name="held"))
    run(replace(TINY, parametrisation="plain", out=str(tmp_path), name="plain"))
    run(replace(TINY, parametrisation="plain", fixed="head", out=str(tmp_path), name="other"))
    asked = Explain(rounds=1, crossed=0, plain=str(tmp_path / "plain"))
    assert explain(tmp_path / "held", asked).plain is not None
    with pytest.raises(ValueError, match="differs in --fixed"):
        explain(tmp_path / "held", replace(asked, plain=str(tmp_path / "other")))
