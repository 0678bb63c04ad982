"""Personalised methods: what is a client's own stays its own, and what is shared does not notice."""

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import ROOT
from support.cases import some_now
from support.small import clients_of, difference, identical, play, small_net
from torch import nn

from fedatoms.algorithms import algorithm
from fedatoms.core import trees
from fedatoms.core.options import Group
from fedatoms.data.batches import fetch
from fedatoms.data.federations import Federation
from fedatoms.engine import evaluation
from fedatoms.engine.client_states import Client, Clients
from fedatoms.engine.evaluation import personal_score, score
from fedatoms.engine.exchange import FAST, SLOW, Exchange, every_round, fast_slow
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.finetune import last_pass
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import layout_of, prepare
from fedatoms.engine.spec import Simulation, batches_of
from fedatoms.engine.state import State
from fedatoms.engine.training import Training
from fedatoms.experiment.build import simulation as build_simulation
from fedatoms.experiment.fields import Experiment
from fedatoms.nn.atoms import decompose
from fedatoms.nn.hadamard import factorise, personal_factors
from fedatoms.nn.models import build
from fedatoms.personal import METHODS, Personal, Phase, personal
from fedatoms.personal.base import everything
from fedatoms.runs.execute import resume, run

TRAINING = Training(epochs=2, batch_size=5, lr=0.05, momentum=0.5, weight_decay=1e-3, clip=1.0)
MANY = [name for name in METHODS if name not in ("none", "pfedpara")]  # the last has a network of its own
SECOND = ["local-atoms", "local-atoms-and-head", "ditto", "finetune", "finetune-head"]  # the server's model is FedAvg's
REFUSED = [("fedpac", each) for each in ("scaffold", "feddyn", "feddc")]
PAIRS = [pair for pair in some_now(MANY, ["scaffold", "feddc", "fedprox", "feddyn"]) if pair.values not in REFUSED]
PRIVATE = ["local", "fedper", "fedrep", "lg-fedavg", "fedbn"]


def simulation(name: str, **changes: object) -> Simulation:
    net = small_net(norm=True, dropout=True, atoms=4)
    sim = Simulation(net, clients_of((3, 7, 12, 5)), personal=personal(name), training=TRAINING, fraction=0.75)
    return dataclasses.replace(sim, **changes)


def owned(state: State) -> dict[str, torch.Tensor]:
    """What all clients have of their own, as one tree."""
    rows = state.clients.rows
    return {f"{client}/{name}": leaf for client, row in rows.items() for name, leaf in row.own.items()}


@pytest.mark.parametrize(("name", "shared"), PAIRS)
def test_vectorised_equals_one_by_one(name: str, shared: str) -> None:
    """With every algorithm; FedAvg is in `test_testing.py`."""
    sims = [
        simulation(name, algorithm=algorithm(shared), map=map, block=2, failures=0.2)
        for map in ("one_by_one", "vectorised")
    ]
    loop, fast = (play(sim, 3) for sim in sims)
    assert difference(loop.server.params, fast.server.params) < 1e-10
    a, b = owned(loop), owned(fast)
    assert difference(a, b) < 1e-10 if a else not b


@pytest.mark.parametrize("name", SECOND)
@pytest.mark.parametrize(
    "exchange",
    [
        Exchange(every_round()),
        Exchange(fast_slow(FAST, SLOW, 2)),
        Exchange(fast_slow(FAST, SLOW, 2), slow_local="freeze"),
        Exchange(fast_slow({"head"}, {"atoms", *SLOW}, 2), slow_local="freeze"),
    ],
)
def test_a_second_version_leaves_the_shared_model_alone(name: str, exchange: Exchange) -> None:
    plain, own = (simulation(each, exchange=exchange) for each in ("none", name))
    before, after = play(plain, 2), play(own, 2)
    assert identical(before.server.params, after.server.params)
    (_, sent), (_, also) = advance(prepare(plain), before), advance(prepare(own), after)
    assert (sent.up, sent.down, sent.loss) == (also.up, also.down, also.loss)


@pytest.mark.parametrize("name", PRIVATE)
def test_what_is_private_never_reaches_the_server_and_costs_nothing(name: str) -> None:
    sim = simulation(name, algorithm=algorithm("scaffold"))
    state, record = begin(prepare(sim)), None
    first = state.server.params
    for _ in range(3):
        state, record = advance(prepare(sim), state)
    private = trees.restrict(first, layout_of(sim).private)
    assert private and identical(private, trees.restrict(state.server.params, layout_of(sim).private))
    shared = {
        leaf: tensor
        for leaf, tensor in first.items()
        if leaf in layout_of(sim).labels and leaf not in layout_of(sim).private
    }
    twice = trees.nbytes(shared) + trees.nbytes(
        {leaf: shared[leaf] for leaf in shared if leaf in prepare(sim).network.parameters}
    )
    uploaded = 0 if name == "local" else 3 * twice  # of three clients: parameters and controls, statistics once
    assert sum(record.up.values()) == uploaded
    assert all(
        leaf not in layout_of(sim).private for row in state.clients.rows.values() for leaf in row.memory["control"]
    )


def test_fedper_is_a_personal_group_of_the_exchange() -> None:
    sim = simulation("fedper")
    other = simulation("none", exchange=Exchange(every_round(), personal=frozenset({"head"})))
    one, same = play(sim, 3), play(other, 3)
    assert identical(one.server.params, same.server.params) and identical(owned(one), owned(same))


def test_pfedpara_keeps_second_factors() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 40), nn.ReLU(), nn.Linear(40, 3)).double()
    sim = Simulation(factorise(net, personal=True), clients_of(), personal=personal("pfedpara"))
    assert layout_of(sim).own == personal_factors(sim.model)


def test_fedbn_keeps_whole_normalisation_layers() -> None:
    assert {name.split(".")[1] for name in layout_of(simulation("fedbn")).own} == {
        "weight",
        "bias",
        "running_mean",
        "running_var",
    }


def test_the_methods_are_what_their_papers_say() -> None:
    """Which phases move what: read off a round in which every tensor is compared before and after."""
    for name, expected in {
        "fedrep": {"fc2.weight": "own", "conv1.atoms": "shared"},
        "lg-fedavg": {"fc1.weight": "shared", "fc2.bias": "shared", "conv2.coefficients": "own"},
        "local-atoms": {"conv1.atoms": "both", "fc2.weight": "shared"},
        "local-atoms-and-head": {"conv1.atoms": "both", "fc2.weight": "both", "fc1.bias": "shared"},
        "ditto": {"fc1.weight": "both", "norm1.running_mean": "both"},
        "local": {"fc1.weight": "own", "norm1.running_mean": "own"},
    }.items():
        sim = simulation(name, fraction=1.0)
        before, after = begin(prepare(sim)), play(sim, 1)
        own = after.clients.rows[0].own
        for leaf, where in expected.items():
            first = before.server.params[leaf]
            assert (not torch.equal(after.server.params[leaf], first)) == (where in ("shared", "both")), (name, leaf)
            assert (leaf in own and not torch.equal(own[leaf], first)) == (where in ("own", "both")), (name, leaf)


def test_lg_fedavg_shares_a_layer_that_is_tied_to_an_earlier_one() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 36), nn.ReLU(), nn.Linear(36, 36), nn.ReLU(), nn.Linear(36, 36))
    model[5].weight = model[1].weight
    layout = layout_of(Simulation(model.double(), clients_of(), personal=personal("lg-fedavg")))
    assert layout.own == layout.private == {"1.bias"}


def by_hand(sim: Simulation, model: nn.Module, client: int, place: int, pull: float = 0.0) -> nn.Module:
    """One client's own phase as a plain loop, on all parameters that need a gradient."""
    start = {name: leaf.detach().clone() for name, leaf in model.named_parameters()}
    moving = [leaf for leaf in model.parameters() if leaf.requires_grad]
    sgd = torch.optim.SGD(moving, TRAINING.lr, momentum=TRAINING.momentum, weight_decay=TRAINING.weight_decay)
    drawn = batches_of(sim, client, 0, place=place)
    for rows, real, flip, shift in zip(*drawn[:4], strict=True):
        x, y = fetch(sim.data.x, sim.data.y, rows[real], None, torch.float64, flip[real], shift[real])
        sgd.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for name, leaf in model.named_parameters():
            if pull and leaf.requires_grad:
                leaf.grad += pull * (leaf.detach() - start[name])
        nn.utils.clip_grad_norm_(moving, TRAINING.clip)
        sgd.step()
    return model


def test_local_atoms_are_fitted_with_all_else_fixed() -> None:
    sim = simulation("local-atoms", model=small_net(atoms=4), fraction=1.0)
    state = play(sim, 1)
    model = copy.deepcopy(sim.model)
    for name, leaf in model.named_parameters():
        leaf.requires_grad_(name.endswith("atoms"))
    expected = by_hand(sim, model, client=2, place=1).state_dict()
    own = state.clients.rows[2].own
    assert sorted(own) == ["conv1.atoms", "conv2.atoms"]
    assert difference(own, {name: expected[name] for name in own}) < 1e-12


def test_ditto_is_pulled_towards_what_it_received() -> None:
    net = small_net()
    sim = simulation("none", model=net, personal=personal("ditto", 3.0), fraction=1.0)
    own = play(sim, 1).clients.rows[2].own
    expected = by_hand(sim, copy.deepcopy(net), client=2, place=2, pull=3.0).state_dict()
    assert difference(own, {name: expected[name] for name in own}) < 1e-12


@pytest.mark.parametrize(
    "name", ["local-atoms", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ditto", "fedrep"))]
)
def test_each_phase_is_compiled_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    recorded, real = [], cuda_graph._record
    monkeypatch.setattr(cuda_graph, "_record", lambda *each: recorded.append(1) or real(*each))
    sim, loop = simulation(name), simulation(name, map="one_by_one")
    sim = prepare(sim)._replace(map_clients=cuda_graph.compiled(2))  # on a CPU a simulation would choose another map
    assert difference(owned(play(sim, 3)), owned(play(loop, 3))) < 1e-10
    assert len(recorded) == 2  # one for each phase, not for each round


@pytest.mark.parametrize("name", MANY)
def test_a_last_pass_trains_every_clients_own_part_and_nothing_else(name: str) -> None:
    sim = simulation(name, fraction=0.25)
    state = play(sim, 1)
    last, end = last_pass(prepare(sim), state, epochs=1)
    assert identical(state.server.params, end.server.params) and end.round == state.round
    assert sorted(end.clients.rows) == [0, 1, 2, 3]
    for row in end.clients.rows.values():
        assert row.own.keys() == last.layout.own
        assert not identical(row.own, trees.restrict(state.server.params, last.layout.own))


@pytest.mark.parametrize(
    ("name", "place"),
    some_now(["local-atoms", "fedrep", "ditto", "local", "fedpac"], ["device", "disk"], every=2),
)
def test_stop_and_resume_equals_no_stop_to_the_bit(name: str, place: str, tmp_path: Path) -> None:
    atoms = "atoms" if name == "local-atoms" else "plain"
    experiment = Experiment(
        personal=name, parametrisation=atoms, clients=5, classes_per_client=2, rounds=4, epochs=1, batch_size=50,
        client_state=place, checkpoint_every=2, last_epochs=1, out=str(tmp_path), name="whole",
    )  # fmt: skip
    whole = run(experiment)
    run(dataclasses.replace(experiment, name="broken", rounds=2))
    broken = resume(tmp_path / "broken", {"rounds": 4})
    assert whole.personal == broken.personal and whole.personal is not None
    for each in ("model.safetensors", *(f"personal/{client:06d}.safetensors" for client in range(5))):
        assert identical(*(load_file(tmp_path / where / each) for where in ("whole", "broken")))


def stripped(sim: Simulation, state: object) -> object:
    return state._replace(clients=state.clients._replace(rows={}))  # type: ignore[attr-defined]


DIGITS = Experiment(clients=20, rounds=8, epochs=2, batch_size=20, lr_decay=1.0, parametrisation="atoms")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MANY if name != "fedbn"])  # its network has no normalisation
def test_on_digits_every_method_beats_chance_by_far(name: str) -> None:
    """Ten classes, two on a client: chance is 10 %, or 50 % for a model that knows its client's two."""
    sim = build_simulation(dataclasses.replace(DIGITS, personal=name))
    last, state = last_pass(prepare(sim), play(sim, DIGITS.rounds), epochs=3)
    assert personal_score(last, state).accuracy > 65


@pytest.mark.slow
def test_on_digits_local_atoms_beat_the_global_model_and_the_global_atoms() -> None:
    for seed in range(3):
        sim = build_simulation(dataclasses.replace(DIGITS, personal="local-atoms", seed=seed))
        last, state = last_pass(prepare(sim), play(sim, DIGITS.rounds), epochs=3)
        mine, others = personal_score(last, state), personal_score(last, stripped(sim, state))
        assert (
            mine.accuracy > others.accuracy + 10
            and mine.accuracy > score(prepare(sim), state.server.params).accuracy + 10
        )
        assert mine.loss < others.loss


def test_scores_of_clients_are_weighted_by_their_samples() -> None:
    """A model that always says class 0: right on the first client's three images, wrong on the second's single one."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 2)).double()
    with torch.no_grad():
        net[1].weight.zero_()
        net[1].bias.copy_(torch.tensor([1.0, 0.0]))
    x, y = torch.zeros(4, 1, 6, 6, dtype=torch.float64), torch.tensor([0, 0, 0, 1])
    parts = [torch.tensor([0, 1, 2]), torch.tensor([3])]
    sim = Simulation(net, Federation(x, y, parts, x, y, parts, 2, None), score=("personal",))
    found = personal_score(prepare(sim), begin(prepare(sim)))
    assert (found.accuracy, found.worst, found.spread) == (75.0, 0.0, 50.0)


@pytest.mark.parametrize("name", ["local-atoms", "fedper", "local"])
def test_clients_scored_together_score_as_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test parts of unequal length, one of them empty, and a client that has nothing of its own yet."""
    data = clients_of((3, 5, 4, 6))
    data = data._replace(test_parts=list(torch.arange(len(data.test_y)).split([1, 0, 4, len(data.test_y) - 5])))
    sim = Simulation(small_net(norm=True, dropout=True, atoms=4), data, personal=personal(name), failures=0.2)
    state = play(sim, 1)
    assert {bool(state.clients.read(client)) for client in range(4)} == {True, False}
    alone = personal_score(prepare(sim), state)
    for at_once in (2, 3):
        monkeypatch.setattr(evaluation, "_clients_at_once", lambda _, many=at_once: many)
        assert personal_score(prepare(sim), state).parts() == pytest.approx(alone.parts(), rel=1e-12)


def test_a_model_that_cannot_be_vectorised_is_scored_client_by_client(monkeypatch: pytest.MonkeyPatch) -> None:
    class Net(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * float(x.mean().item() > -1e9))

    data = clients_of((3, 5))
    sim = Simulation(Net(nn.Flatten(), nn.LazyLinear(3)).double(), data, personal=personal("fedper"))
    sim.model(data.x[:1])
    state = play(sim, 1)
    alone = personal_score(prepare(sim), state)
    monkeypatch.setattr(evaluation, "_clients_at_once", lambda _: 2)
    assert personal_score(prepare(sim), state) == alone


def test_the_local_atoms_of_a_thousand_lenets_are_small(tmp_path: Path) -> None:
    sim = Simulation(
        decompose(build("lenet", classes=10), 9, init="orthonormal"), clients_of((1,)), personal=personal("local-atoms")
    )
    own = trees.restrict(prepare(sim).network.parameters, layout_of(sim).own)
    assert sum(leaf.numel() for leaf in own.values()) == 450
    clients = Clients(place="disk", folder=tmp_path)
    for client in range(1000):
        clients.keep(client, Client({}, own, {}, {}), 1)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3e6


@pytest.mark.parametrize("name", ["fedper", "fedrep", "lg_fedavg", "local", "fedbn"])
def test_a_method_that_needs_no_new_mechanism_is_short(name: str) -> None:
    assert len((ROOT / "fedatoms" / "personal" / f"_{name}.py").read_text().splitlines()) < 25


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"personal": "local-atoms"}, "no atoms .* Decompose it first: parametrisation='atoms'"),
        ({"personal": "fedbn"}, "no normalisation layer"),
        ({"personal": "pfedpara"}, "no second factors.*parametrisation='pfedpara'"),
        ({"personal": "local-atom"}, "Did you mean 'local-atoms'"),
        ({"personal": "fedper", "personal_strength": 1.0}, "fedper has none"),
        ({"personal": "ditto", "personal_strength": -1.0}, "personal_strength=-1.0 is negative"),
        ({"personal": "fedper", "beta": "1/2", "slow_local": "keep"}, "would keep two"),
        ({"personal": "fedper", "clients": 100, "classes_per_client": 5, "score": "server"}, "test set lacks"),
        ({"personal": "fedper", "clients": 100, "classes_per_client": 5}, "test set lacks.*own_test=classes"),
        ({"personal": "fedper", "last_epochs": -1}, "last_epochs=-1"),
        ({"personal": "lg-fedavg", "model": "resnet18-gn-small"}, "two linear layers"),
    ],
)  # fmt: skip
def test_bad_input_gets_a_line(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sim = build_simulation(dataclasses.replace(Experiment(), **changes))
        _ = layout_of(sim).own


@pytest.mark.parametrize(
    ("method", "group", "words"),
    [
        (Personal(phases=(Phase(), Phase("shared"))), None, "2 phases of a round move what is shared"),
        (personal("local-atoms"), "head", "personal groups in the exchange"),
        (Personal(everything, beside=True), None, "trained in the global view"),
        (Personal(phases=(Phase("mine"),)), None, "unknown part that a phase moves 'mine'"),  # type: ignore[arg-type]
        (Personal(phases=(Phase(view="locl"),)), None, "unknown view of a phase 'locl'"),  # type: ignore[arg-type]
    ],
)
def test_rounds_that_cannot_be_are_refused(method: Personal, group: Group | None, words: str) -> None:
    exchange = Exchange(every_round(), personal=frozenset({group} if group else ()))
    with pytest.raises(ValueError, match=words):
        Simulation(small_net(atoms=4), clients_of(), personal=method, exchange=exchange)


def test_a_round_in_which_nothing_travels_is_a_round() -> None:
    sim = simulation(
        "fedper", exchange=Exchange(fast_slow({"head"}, {"atoms", "coefficients", "rest", "statistics"}, 2))
    )
    assert not play(sim, 2).server.params["fc2.weight"].isnan().any()
    assert sum(advance(prepare(sim), play(sim, 1))[1].up.values()) == 0


def test_a_head_that_cannot_be_found_is_named() -> None:
    sim = Simulation(small_net(), clients_of(), personal=personal("fedper"), head="classifier9")
    with pytest.raises(ValueError, match="classifier9"):
        _ = layout_of(sim).own


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    ("found", "words"),
    [
        (["fc2.weight"], r"part is \['fc2.weight'\], not a set of names. Let it return"),
        (None, "part is None, not a set of names"),
        ("fc2.weight", "part is 'fc2.weight', not a set of names"),
        (frozenset({"fc2.wieght"}), "names 'fc2.wieght', which is no tensor .* Did you mean 'fc2.weight'"),
        (frozenset({"fc2"}), "names 'fc2', which is no tensor of the model that may travel"),
        (frozenset({7}), "names '7', which is no tensor"),
    ],
)
def test_a_part_is_a_set_of_names_of_the_model(found: object, words: str, beside: bool) -> None:
    phases = (Phase(view="global"), Phase("own"))
    sim = simulation("none", personal=Personal(lambda model, labels: found, beside=beside, phases=phases))
    with pytest.raises(ValueError, match=f"^the personalised method('s|) {words}") as error:
        prepare(sim)
    assert "\n" not in str(error.value)


def test_phases_default_to_plain_federated_learning() -> None:
    assert Personal().phases == (Phase("all", "personal", 0, 0.0),)
