"""FedPAC: its statistics, the heads it mixes, and the laws of the engine with a collaboration in it."""

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import some_now
from support.small import clients_of, difference, identical, play, small_net
from torch import Tensor, nn

from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.algorithms.base import nothing
from fedatoms.core import trees
from fedatoms.data import load, partition, shards
from fedatoms.engine.client_round import rate_of
from fedatoms.engine.exchange import Exchange, every_round, fast_slow
from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.finetune import last_pass
from fedatoms.engine.loop import begin, train
from fedatoms.engine.round import advance, learner_of, select
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.engine.training import Training
from fedatoms.nn.models import build
from fedatoms.personal import FeatureReport, fedpac, personal
from fedatoms.personal._fedpac import collaborators, describe, forms, prototypes
from fedatoms.runs.checkpoints import load_checkpoint, save_checkpoint

TRAINING = Training(epochs=2, batch_size=10, lr=0.05, lr_decay=0.9, momentum=0.5, weight_decay=1e-3, clip=1.0)
HEAD = ["fc2.bias", "fc2.weight"]
SETTLE = fedpac().collaboration.settle


def simulation(**changes: object) -> Simulation:
    sim = Simulation(
        small_net(), clients_of((1, 7, 23, 12)), personal=fedpac(), training=TRAINING, score=("server",), fraction=0.75
    )
    return dataclasses.replace(sim, **changes)


def agree(one: State, other: State, near: float = 1e-8) -> bool:
    rows, others = one.clients.rows, other.clients.rows
    same = rows.keys() == others.keys() and all(difference(rows[k].own, others[k].own) < near for k in rows)
    common = difference(one.common, other.common) < near
    return same and common and difference(one.server.params, other.server.params) < near


def same_bits(one: State, other: State) -> bool:
    rows, others = one.clients.rows, other.clients.rows
    same = rows.keys() == others.keys() and all(identical(rows[k].own, others[k].own) for k in rows)
    return same and identical(one.common, other.common) and identical(one.server.params, other.server.params)


def client(z: Tensor, y: Tensor, head: Tensor) -> FeatureReport:
    return FeatureReport({"head": head}, describe(z, y), prototypes(z, y))


def empty(classes: int, width: int) -> dict[str, Tensor]:
    return fedpac().collaboration.start(classes, torch.zeros(1, width, dtype=torch.float64))


@settings(max_examples=30)
@given(n=st.integers(1, 20), width=st.integers(1, 5), classes=st.integers(1, 4), seed=st.integers(0, 999))
def test_statistics_are_those_of_the_paper(n: int, width: int, classes: int, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    z = torch.randn(n, width, dtype=torch.float64, generator=draws)
    y = torch.randint(classes, (n,), generator=draws)
    said, means = describe(z, y), prototypes(z, y)["prototypes"]
    first = second = 0.0
    for c, h, mu in zip(said["classes"], said["h"], means, strict=True):
        some = z[y == c]
        p = len(some) / n
        assert torch.allclose(mu, some.mean(0)) and torch.allclose(h, p * some.mean(0))
        first += p * float(torch.trace(some.T @ some / len(some)))
        second += p**2 * float(mu @ mu)
    assert float(said["variance"]) == pytest.approx((first - second) / n, abs=1e-12)
    assert said["counts"].tolist() == torch.bincount(y)[said["classes"]].tolist()


@settings(max_examples=30)
@given(count=st.integers(1, 12), width=st.integers(1, 20), seed=st.integers(0, 999))
def test_the_forms_are_semidefinite_and_those_of_the_definition(count: int, width: int, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    h = torch.randn(count, 3, width, dtype=torch.float64, generator=draws)
    found = list(forms(h.flatten(1), torch.zeros(count)))
    for i in range(count):
        by_sum = torch.einsum("jcd,lcd->jl", h[i] - h, h[i] - h)
        assert torch.allclose(found[i], by_sum, atol=1e-10)
        assert float(torch.linalg.eigvalsh(found[i]).min()) > -1e-10


def test_identical_clients_get_the_mean_of_their_heads() -> None:
    draws = torch.Generator().manual_seed(0)
    z, y = torch.randn(9, 4, dtype=torch.float64, generator=draws), torch.arange(9) % 3
    heads = torch.randn(5, 3, 4, dtype=torch.float64, generator=draws)
    _, mixed = SETTLE(empty(3, 4), [client(z, y, head) for head in heads])
    assert all(torch.allclose(new["head"], heads.mean(0), atol=1e-6) for new in mixed)


def test_a_client_with_other_features_keeps_its_own_head() -> None:
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    z = torch.randn(4, 60, 4, dtype=torch.float64, generator=draws)
    z[3] += 10.0
    heads = torch.eye(4, dtype=torch.float64)
    _, mixed = SETTLE(empty(3, 4), [client(some, y, head) for some, head in zip(z, heads, strict=True)])
    weights = torch.stack([new["head"] for new in mixed])
    assert float(weights[3, 3]) > 0.9 and float(weights[:3, 3].max()) < 0.01
    assert float(weights[:3, :3].min()) > 0.1  # the others help each other
    assert torch.allclose(weights.sum(1), torch.ones(4, dtype=torch.float64))


def test_a_form_that_is_not_finite_leaves_a_client_its_own_head() -> None:
    assert collaborators(torch.full((3, 3), torch.nan), client=1).tolist() == [0.0, 1.0, 0.0]


def test_prototypes_are_weighted_by_counts_and_the_last_known_ones_stay() -> None:
    one = client(torch.tensor([[1.0], [1.0], [5.0]]).double(), torch.tensor([0, 0, 1]), torch.zeros(1))
    two = client(torch.tensor([[4.0]]).double(), torch.tensor([0]), torch.zeros(1))
    memory, _ = SETTLE(empty(3, 1), [one, two])
    assert memory["prototypes"].flatten().tolist() == [2.0, 5.0, 0.0]
    assert memory["known"].tolist() == [True, True, False]
    later, _ = SETTLE(memory, [two])
    assert later["prototypes"].flatten().tolist() == [4.0, 5.0, 0.0]


def test_where_the_server_has_no_prototype_the_clients_own_is_the_target() -> None:
    method = fedpac().collaboration
    z, y = torch.tensor([[1.0], [3.0], [8.0]]).double(), torch.tensor([0, 0, 2])
    memory = {"prototypes": torch.tensor([[9.0], [7.0], [0.0]]).double(), "known": torch.tensor([True, True, False])}
    assert method.targets(method.sends(memory), describe(z, y), 3).flatten().tolist() == [9.0, 7.0, 8.0]


@pytest.mark.parametrize(("name", "atoms"), some_now(["fedavg", "fedprox", "fedadam"], [None, 4]))
def test_vectorised_equals_one_by_one(name: str, atoms: int | None) -> None:
    net = small_net(norm=True, dropout=True, atoms=atoms)
    loop, fast = (
        play(simulation(model=net, algorithm=algorithm(name), map=map, block=2), 4)
        for map in ("one_by_one", "vectorised")
    )
    assert agree(loop, fast)


def test_the_compiled_map_agrees_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    sim, other = simulation(), simulation()
    other = prepare(other)._replace(map_clients=cuda_graph.compiled(2))
    assert agree(play(sim, 3), play(other, 3))


def test_a_round_is_what_a_loop_by_hand_computes() -> None:
    """Two rounds of one client: an epoch of the head, then the body on CE + MSE to the prototypes; full batches."""
    data = clients_of((8,))
    model = small_net()
    sim = Simulation(
        model, data, personal=fedpac(0.7, head_lr=0.3), training=Training(epochs=2, batch_size=8, lr=0.1), score=()
    )
    net, x, y = small_net(), data.x, data.y
    body, head = net[:-1], net[-1]
    targets = None
    for _ in range(2):
        for part, epochs, rate in ((head, 1, 0.3), (body, 2, 0.1)):
            for _ in range(epochs):
                z = body(x)
                loss = F.cross_entropy(head(z), y)
                if part is body and targets is not None:
                    loss = loss + 0.7 * F.mse_loss(z, targets[y])
                names = list(part.parameters())
                for weight, gradient in zip(names, torch.autograd.grad(loss, names), strict=True):
                    weight.data -= rate * gradient
        targets = torch.stack([body(x)[y == c].mean(0) for c in range(3)]).detach()
    state = play(sim, 2)
    found = {**state.server.params, **state.clients.rows[0].own}
    assert difference(found, dict(net.state_dict())) < 1e-12
    known = state.common["known"]
    assert known.tolist() == [bool((y == c).any()) for c in range(3)]
    assert torch.allclose(state.common["prototypes"][known], targets[known])


def test_without_prototypes_the_first_round_is_that_without_alignment() -> None:
    with_, without = (simulation(personal=fedpac(align)) for align in (1.0, 0.0))
    assert same_bits(play(with_, 1), play(without, 1))
    assert not same_bits(play(with_, 2), play(without, 2))


def test_the_head_is_trained_at_its_own_rate_for_one_epoch() -> None:
    sim = simulation()
    first, second = (learner_of(prepare(sim), 2, phase) for phase in sim.personal.phases)
    assert first.trained == set(HEAD) and first.training.epochs == 1 and first.rate == pytest.approx(0.1 * 0.9**2)
    assert not second.trained & set(HEAD) and second.training.epochs == 2 and second.rate == rate_of(sim.training, 2)
    assert first.align is None and second.align is not None and second.head == "fc2"


@pytest.mark.parametrize("place", ["device", "disk"])
def test_stop_and_resume_is_no_stop(place: str, tmp_path: Path) -> None:
    sim = simulation(fraction=0.5, client_state=place, folder=tmp_path / "checkpoint" / "clients")
    (tmp_path / "checkpoint" / "clients").mkdir(parents=True)
    whole = play(sim, 5)
    save_checkpoint(tmp_path / "checkpoint", play(sim, 2), trajectory="t", seconds=0.0)
    loaded = load_checkpoint(tmp_path / "checkpoint", prepare(sim), trajectory="t").state
    assert bool(loaded.common["known"].any())
    resumed = play(sim, 3, loaded)
    assert identical(whole.common, resumed.common) and identical(whole.server.params, resumed.server.params)
    for k in whole.clients.rows:
        assert identical(whole.clients.read(k).own, resumed.clients.read(k).own)


def test_twice_is_the_same_bits() -> None:
    assert same_bits(play(simulation(), 3), play(simulation(), 3))


def test_bytes_counted_are_bytes_sent() -> None:
    """Up: body, head, a count, an index, h and a prototype per class, V. Down: body, known prototypes, the new head."""
    sim = simulation(failures=0.3, fraction=1.0)
    state, width = begin(prepare(sim)), 6
    sizes = {name: leaf.numel() * 8 for name, leaf in state.server.params.items()}
    head = sum(sizes[name] for name in HEAD)
    failed = 0
    for t in range(4):
        chosen, present = select(sim, t)
        known = int(state.common["known"].sum())
        state, record = advance(prepare(sim), state)
        seen = sum(len(sim.data.y[sim.data.parts[k]].unique()) for k in present)
        assert record.up["head"] == len(present) * (head + 8) + seen * (2 * 8 + 2 * width * 8)
        assert record.down["head"] == len(present) * head + len(chosen) * known * (8 + width * 8)
        assert record.up["rest"] == len(present) * (sum(sizes.values()) - head)
        failed += record.failed
    assert failed


def test_a_round_in_which_all_fail_changes_nothing() -> None:
    sim = simulation()
    before = play(sim, 2)
    after, record = advance(prepare(dataclasses.replace(sim, failures=0.999)), before)
    assert same_bits(before, after) and record.up == {} and record.down["head"] > 0


def test_the_head_on_the_server_stays_and_clients_have_mixed_ones() -> None:
    sim = simulation()
    start, state = begin(prepare(sim)), play(sim, 3)
    assert all(torch.equal(start.server.params[name], state.server.params[name]) for name in HEAD)
    assert all(sorted(row.own) == HEAD for row in state.clients.rows.values())


def test_a_last_pass_trains_every_head() -> None:
    sim = simulation()
    state = play(sim, 2)
    _, last = last_pass(prepare(sim), state, epochs=1)
    assert len(last.clients.rows) == 4 and identical(state.server.params, last.server.params)


@pytest.mark.slow
def test_it_learns_digits() -> None:
    digits = load("digits")
    data = partition(digits, shards(digits.y, digits.test_y, clients=20, classes_per_client=2, seed=0))
    sim = Simulation(
        build("digits-cnn", classes=10, channels=1), data, personal=personal("fedpac"), score=("personal",),
        training=Training(epochs=2), fraction=0.5,
    )  # fmt: skip
    assert train(sim, 12, eval_every=12).scores["personal"].accuracy > 80  # chance is 10


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_with_a_memory_on_clients_are_refused(name: str) -> None:
    if algorithm(name).client_memory is not nothing:
        with pytest.raises(ValueError, match=r"memory on clients.*Use an algorithm without such a memory"):
            simulation(algorithm=algorithm(name))
    else:
        play(simulation(algorithm=algorithm(name)), 2)


@pytest.mark.parametrize(
    "exchange", [Exchange(every_round(), personal=frozenset({"rest"})), Exchange(fast_slow(), slow_local="keep")]
)
def test_clients_with_different_bodies_are_refused(exchange: Exchange) -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        simulation(exchange=exchange)


def test_fast_and_slow_groups_go_with_it() -> None:
    sim = simulation(model=small_net(atoms=4), exchange=Exchange(fast_slow(), slow_local="freeze"))
    assert torch.isfinite(play(sim, 3).common["prototypes"]).all()


def test_a_network_without_a_head_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no head to make personal.*`head`"):
        play(simulation(model=nn.Sequential(nn.Conv2d(1, 3, 6), nn.Flatten()).double()), 1)


def test_a_layer_that_is_called_twice_has_no_features() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(36, 36).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.fc(x.flatten(1)))

    with pytest.raises(ValueError, match="'fc' is called 2 times"):
        begin(prepare(simulation(model=Twice())))


def test_a_named_head_with_a_strength() -> None:
    net = small_net()
    wrapped = nn.Sequential(net[:8], net[8:]).double()
    sim = simulation(model=wrapped, head="1", personal=personal("fedpac", 0.5))
    state = play(sim, 2)
    assert state.common["prototypes"].shape == (3, 5)  # what goes into the second part
    assert trees.nbytes(state.clients.rows[max(state.clients.rows)].own) == 8 * (5 * 6 + 6 + 6 * 3 + 3)
