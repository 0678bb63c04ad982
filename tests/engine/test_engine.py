"""Laws of the engine, over the whole table of algorithms, exchanges and parametrisations."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import some_now
from support.small import SIZES, all_scores, clients_of, difference, identical, play, small_net
from torch import nn

from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.core import trees
from fedatoms.data.federations import federation
from fedatoms.engine import server
from fedatoms.engine.exchange import FAST, SLOW, Exchange, check_covers, every_round, fast_slow
from fedatoms.engine.loop import begin, train
from fedatoms.engine.round import advance, select
from fedatoms.engine.runtime import layout_of, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.nn.atoms import decompose
from fedatoms.nn.dropouts import uniform
from fedatoms.nn.models import build

EXCHANGES = {
    "every_round": Exchange(every_round()),
    "discard": Exchange(fast_slow(FAST, SLOW, 2)),
    "freeze": Exchange(fast_slow(FAST, SLOW, 2), slow_local="freeze"),
    "keep": Exchange(fast_slow(FAST, SLOW, 2), slow_local="keep"),
    "personal head": Exchange(every_round(), personal=frozenset({"head"})),
    "personal atoms": Exchange(fast_slow({"head"}, SLOW, 2), personal=frozenset({"atoms"}), slow_local="keep"),
}
TRAINING = Training(epochs=2, batch_size=10, lr=0.05, lr_decay=0.9, momentum=0.5, weight_decay=1e-3, clip=1.0)


def simulation(name: str = "fedavg", **changes: object) -> Simulation:
    method = algorithm(name)
    sim = Simulation(small_net(atoms=4), clients_of(), method, training=TRAINING, score=all_scores(method))
    return dataclasses.replace(sim, **changes)


@pytest.mark.parametrize(
    ("name", "exchange", "network"), some_now(ALGORITHMS, EXCHANGES, [(None, 1.0), (4, 2.0), (4, 1.0)])
)
def test_vectorised_equals_one_by_one(name: str, exchange: str, network: tuple[int | None, float]) -> None:
    atoms, factor = network
    net = small_net(norm=True, dropout=True, atoms=atoms)
    training = TRAINING._replace(atoms_lr=factor, atoms_decay=factor)
    loop, fast = (
        play(simulation(name, model=net, exchange=EXCHANGES[exchange], training=training, map=map, block=2), 3)
        for map in ("one_by_one", "vectorised")
    )
    assert difference(loop.server.params, fast.server.params) < 1e-10
    for kind, tree in loop.server.memory.items():
        assert difference(tree, fast.server.memory[kind]) < 1e-10
    assert loop.last_sum is fast.last_sum is None or difference(loop.last_sum, fast.last_sum) < 1e-9
    for client, row in loop.clients.rows.items():
        assert difference(row.own, fast.clients.rows[client].own) < 1e-10 if row.own else True


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    batch=st.integers(1, 7),
    epochs=st.integers(1, 2),
    block=st.integers(1, 4),
    name=st.sampled_from(sorted(ALGORITHMS)),
)
def test_padding_and_blocks_do_not_matter(sizes: list[int], batch: int, epochs: int, block: int, name: str) -> None:
    sim = simulation(
        name,
        model=small_net(norm=True, dropout=True),
        data=clients_of(tuple(sizes)),
        training=TRAINING._replace(batch_size=batch, epochs=epochs),
    )
    loop = play(dataclasses.replace(sim, map="one_by_one"), 2)
    fast = play(dataclasses.replace(sim, map="vectorised", block=block), 2)
    assert difference(loop.server.params, fast.server.params) < 1e-10


@pytest.mark.parametrize(
    ("name", "atoms"),
    [
        ("resnet18", 4),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("resnet18", None), ("resnet18-gn", None), ("resnet18-gn", 4))
        ),
    ],
)
def test_a_resnet_of_64_pixels_is_vectorised_as_it_is(name: str, atoms: int | None) -> None:
    """BatchNorm or GroupNorm, a strided stem and shortcuts; the smaller client's batch has a padded row."""
    draws = torch.Generator().manual_seed(0)
    images, labels = torch.randn(7, 3, 64, 64, dtype=torch.float64, generator=draws), torch.arange(7) % 3
    parts = [(images[rows], labels[rows]) for rows in torch.arange(7).split([2, 3, 2])]
    net = build(name, classes=3).double()
    sim = Simulation(
        net if atoms is None else decompose(net, atoms, init="orthonormal"),
        federation(parts[:2], test=parts[2]),
        training=Training(batch_size=3, lr=0.1),
        score=("server",),
    )
    loop, fast = (play(dataclasses.replace(sim, map=map), 1).server.params for map in ("one_by_one", "vectorised"))
    assert difference(loop, fast) < 1e-9
    assert difference(loop, begin(prepare(sim)).server.params) > 1e-3


def test_a_thousand_clients_with_states_of_their_own_are_vectorised_as_they_are() -> None:
    """Head and control variates stay on clients; 50 are sampled, in blocks of 16, and some of them again and again."""
    sim = simulation(
        "scaffold",
        data=clients_of((2,) * 1000),
        exchange=EXCHANGES["personal head"],
        fraction=0.05,
        score=("server",),
        block=16,
    )
    loop, fast = (play(dataclasses.replace(sim, map=map), 4) for map in ("one_by_one", "vectorised"))
    rows = loop.clients.rows
    assert 100 < len(rows) < 200 and rows.keys() == fast.clients.rows.keys()  # less than 4 x 50: some were there twice
    assert difference(loop.server.params, fast.server.params) < 1e-10
    for client, row in rows.items():
        other = fast.clients.rows[client]
        assert difference(row.own, other.own) < 1e-10
        assert difference(row.memory["control"], other.memory["control"]) < 1e-10


def test_batch_norm_counts_real_rows_only() -> None:
    """Padding is as if it were not there: the statistics of a client of 7 are those of its 7 samples."""
    net = nn.Sequential(nn.BatchNorm2d(1, momentum=1.0), nn.Flatten(), nn.Linear(36, 3)).double()
    data = clients_of((7, 23))
    sim = Simulation(net, data, training=Training(epochs=1, batch_size=30, lr=0.0), map="vectorised", fraction=1.0)
    state, _ = advance(prepare(sim), begin(prepare(sim)))
    means = torch.stack([data.x[part].mean() for part in data.parts])
    variances = torch.stack([data.x[part].var() for part in data.parts])
    weights = torch.tensor([7.0, 23.0]).double() / 30
    assert torch.allclose(state.server.params["0.running_mean"], (weights * means).sum())
    assert torch.allclose(state.server.params["0.running_var"], (weights * variances).sum())


def test_counters_are_never_averaged_nor_sent() -> None:
    sim = simulation(model=small_net(norm=True))
    state, record = advance(prepare(sim), begin(prepare(sim)))
    assert int(state.server.params["norm1.num_batches_tracked"]) == 0
    assert record.up["statistics"] == len(SIZES) * 2 * 4 * 8  # mean and variance of 4 channels in float64


def test_fedprox_without_pull_is_fedavg() -> None:
    from fedatoms.algorithms import fedprox

    assert identical(play(simulation(), 2).server.params, play(simulation(algorithm=fedprox(mu=0.0)), 2).server.params)


def test_scaffold_with_zero_controls_is_fedavg_in_its_first_round() -> None:
    data = clients_of((9, 9, 9))
    first, second = (play(simulation(name, data=data), 1).server.params for name in ("fedavg", "scaffold"))
    assert difference(first, second) < 1e-12


@pytest.mark.parametrize("name", ALGORITHMS)
def test_beta_one_is_every_round(name: str) -> None:
    often = play(simulation(name, exchange=Exchange(fast_slow(FAST, SLOW, 1))), 2)
    assert identical(often.server.params, play(simulation(name), 2).server.params)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "feddc"])
@pytest.mark.parametrize("exchange", ["every_round", "discard", "freeze", "keep"])
@pytest.mark.parametrize("failures", [0.0, 0.4])
def test_the_servers_memory_is_the_mean_of_the_clients(name: str, exchange: str, failures: float) -> None:
    """On clients of unequal size, sampled in part: c = mean of c_k, h = -a mean of H_k, FedDC's drift = mean of h_k."""
    sizes = (1, 7, 23, 12, 5)
    sim = simulation(
        name, data=clients_of(sizes), exchange=EXCHANGES[exchange], fraction=0.6, failures=failures, score=("server",)
    )
    state = play(sim, 5)
    pairs = {"scaffold": [("control", "control", 1.0)], "feddyn": [("h", "moves", -0.01)]}
    pairs["feddc"] = [("drift", "drift", 1.0), ("gradient", "gradient", 1.0)]
    for ours, theirs, factor in pairs[name]:
        for leaf, value in state.server.memory[ours].items():
            total = sum(row.memory[theirs][leaf] for row in state.clients.rows.values())
            assert torch.allclose(value, factor * total / len(sizes), atol=1e-12)
        assert any(float(leaf.abs().max()) > 1e-8 for leaf in state.server.memory[ours].values())


@pytest.mark.parametrize(("name", "group"), some_now(ALGORITHMS, ["atoms", "head", "coefficients"]))
def test_a_personal_group_never_reaches_the_server_and_costs_nothing(name: str, group: str) -> None:
    sim = simulation(name, exchange=Exchange(every_round(), personal=frozenset({group})))
    before, after = begin(prepare(sim)), play(sim, 2)
    _, record = advance(prepare(sim), after)
    names = [leaf for leaf, label in layout_of(sim).labels.items() if label == group]
    assert all(torch.equal(before.server.params[leaf], after.server.params[leaf]) for leaf in names)
    assert group not in record.up and group not in record.down
    others = [leaf for leaf, label in layout_of(sim).labels.items() if label != group]
    assert all(not torch.equal(before.server.params[leaf], after.server.params[leaf]) for leaf in others)
    owns = [row.own for row in after.clients.rows.values()]
    assert all(own.keys() == set(names) for own in owns)
    assert difference(owns[0], owns[1]) > 1e-6


@given(count=st.integers(1, 6), scale=st.floats(0.1, 100.0), cut=st.integers(0, 6), seed=st.integers(0, 99))
def test_order_blocks_and_weight_scale_do_not_matter(count: int, scale: float, cut: int, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    uploads = {"params": {"w": torch.randn(count, 5, generator=draws)}}
    weights = torch.randint(1, 50, (count,), generator=draws).float()
    like = {"w": torch.zeros(5)}
    whole = server.mean_of(server.gather(server.NOTHING_YET, uploads, weights), like)["params"]
    order = torch.randperm(count, generator=draws)
    total = server.NOTHING_YET
    for part in (order[:cut], order[cut:]):
        if len(part):
            total = server.gather(
                total, {"params": {"w": uploads["params"]["w"][part]}}, weights[part].double() * scale
            )
    assert torch.allclose(whole["w"], server.mean_of(total, like)["params"]["w"], rtol=2e-7, atol=0.0)  # one ulp


@settings(max_examples=30)
@given(clients=st.integers(1, 40), fraction=st.floats(0.001, 1.0), t=st.integers(0, 5), seed=st.integers(0, 5))
def test_selection_is_without_replacement_and_of_the_asked_size(
    clients: int, fraction: float, t: int, seed: int
) -> None:
    sim = Simulation(nn.Identity(), clients_of((1,) * clients), fraction=fraction, seed=seed)
    chosen, present = select(sim, t)
    assert len(chosen) == len(set(chosen)) == max(round(fraction * clients), 1)
    assert present == chosen == sorted(chosen) == select(sim, t)[0]


def test_a_round_goes_on_without_those_that_fail() -> None:
    sim = simulation("scaffold", data=clients_of((4,) * 10), failures=0.5)
    state, record = advance(prepare(sim), begin(prepare(sim)))
    _, present = select(sim, 0)
    assert 0 < record.failed < 10 and record.clients == len(present) == 10 - record.failed
    assert set(state.clients.rows) == set(present)


def test_a_round_in_which_all_fail_changes_nothing() -> None:
    sim = simulation("feddc", failures=0.999)
    before = begin(prepare(sim))
    state, record = advance(prepare(sim), before)
    assert identical(before.server.params, state.server.params) and state.round == 1
    assert record.clients == 0 and record.up == {} and record.loss != record.loss


@pytest.mark.parametrize("sizes", [(5,), SIZES])
def test_one_client_and_all_clients(sizes: tuple[int, ...]) -> None:
    state = play(simulation(data=clients_of(sizes), fraction=1.0), 1)
    mean = {name: leaf / len(sizes) for name, leaf in state.last_sum.items()}
    if len(sizes) == 1:
        assert difference(mean, {name: state.server.params[name] for name in mean}) < 1e-12
    else:
        weights = torch.tensor(sizes).double() / sum(sizes)
        rows = [state.clients.rows[k].last for k in range(len(sizes))]
        expected = trees.apply(lambda *leaves: sum(w * leaf for w, leaf in zip(weights, leaves, strict=True)), *rows)
        assert difference(expected, {name: state.server.params[name] for name in expected}) < 1e-12
        assert difference(mean, trees.apply(lambda *leaves: sum(leaves) / len(leaves), *rows)) < 1e-12


def test_never_sampled_clients_count_as_the_initial_model() -> None:
    sim = simulation(data=clients_of((3,) * 8), fraction=0.25)
    start, state = begin(prepare(sim)), play(sim, 1)
    rows = [state.clients.rows[k].last if k in state.clients.rows else start.server.params for k in range(8)]
    mean = {name: sum(row[name] for row in rows) / 8 for name in state.last_sum}
    assert difference(mean, {name: leaf / 8 for name, leaf in state.last_sum.items()}) < 1e-12
    assert len(state.clients.rows) == 2


def test_frozen_parameters_neither_move_nor_travel() -> None:
    net = small_net()
    net.conv1.weight.requires_grad_(False)
    sim = simulation(model=net)
    before, after = begin(prepare(sim)), play(sim, 2)
    assert torch.equal(before.server.params["conv1.weight"], after.server.params["conv1.weight"])
    assert "conv1.weight" not in layout_of(sim).labels


def test_nan_names_client_round_and_step() -> None:
    data = clients_of()
    poisoned = data._replace(x=data.x.clone())
    poisoned.x[data.parts[1]] = float("nan")
    for map in ("one_by_one", "vectorised"):
        with pytest.raises(FloatingPointError, match=r"client 1, round 1, step 1: loss is nan"):
            play(simulation(data=poisoned, map=map), 1)


def test_a_model_that_runs_away_is_named_too() -> None:
    with pytest.raises(FloatingPointError, match=r"client \d, round \d+, step \d"):
        play(simulation(training=Training(lr=1e6, batch_size=10)), 60)


@pytest.mark.parametrize("part", ["params", "memory"])
def test_a_server_that_runs_away_is_named_with_the_round_although_its_clients_do_not(part: str) -> None:
    scaffold = algorithm("scaffold")

    def overflow(old: server.Server, mean: trees.Memory, share: float) -> server.Server:
        new = scaffold.aggregate(old, mean, share)
        tree = new.params if part == "params" else new.memory["control"]
        tree["fc2.weight"] = tree["fc2.weight"] / 0
        return new

    sim = simulation(algorithm=scaffold._replace(aggregate=overflow))
    state, what = begin(prepare(sim)), "fc2.weight" if part == "params" else "control/fc2.weight"
    with pytest.raises(
        FloatingPointError, match=rf"^round 1: the server's '{what}' is not finite, although its clients"
    ):
        advance(prepare(sim), state)


def test_a_buffer_that_never_was_finite_stops_nobody() -> None:
    net = small_net()
    net.register_buffer("mask", torch.tensor([0.0, -torch.inf], dtype=torch.float64))
    assert not torch.isfinite(play(simulation(model=net), 2).server.params["mask"]).all()


class LostWhenScored(nn.Module):
    """A network that trains, and gives no numbers when it is scored."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(x)
        return logits if self.training else logits * torch.nan


def test_a_server_whose_loss_is_not_finite_is_named_with_the_round() -> None:
    sim = simulation(model=LostWhenScored())
    with pytest.raises(FloatingPointError, match=r"^round 2: the server's loss is nan\. Lower lr"):
        train(sim, 3, eval_every=2)
    private = dataclasses.replace(sim, exchange=EXCHANGES["personal head"], score=("server",))
    assert len(train(private, 3).history) == 3  # nobody uses the server's model, of which the head is not trained


def test_dropout_inside_forward_is_refused_by_the_vectorised_map_and_reproducible_in_the_loop() -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(36, 3).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(nn.functional.dropout(x.flatten(1), 0.5, self.training))

    torch.manual_seed(0)
    net = Drops()
    with pytest.raises(ValueError, match="Use map=one_by_one"):
        play(simulation(model=net, map="vectorised"), 1)
    stream = torch.random.get_rng_state()
    assert identical(play(simulation(model=net), 1).server.params, play(simulation(model=net), 1).server.params)
    assert torch.equal(stream, torch.random.get_rng_state())  # nothing draws from the global stream


def test_a_layer_that_cannot_be_vectorised_is_refused_with_the_reason() -> None:
    net = nn.Sequential(nn.Flatten(), nn.AlphaDropout(0.1), nn.Linear(36, 3)).double()
    with pytest.raises(ValueError, match=r"layer '1' \(AlphaDropout\).*Use map=one_by_one"):
        play(simulation(model=net, map="vectorised"), 1)


def test_a_group_that_is_neither_sent_nor_personal_is_an_error() -> None:
    with pytest.raises(ValueError, match="coefficients is neither sent"):
        check_covers(Exchange(fast_slow(FAST, {"rest", "statistics"}, 2)), {"a": "atoms", "c": "coefficients"})


@pytest.mark.parametrize(
    ("fast", "slow", "period", "words"), [(FAST, SLOW, 0, "period=0"), (FAST, FAST, 2, "in fast and in slow")]
)
def test_bad_schedules_are_refused(fast: frozenset, slow: frozenset, period: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fast_slow(fast, slow, period)


def test_batch_norm_takes_a_batch_of_one_in_both_maps() -> None:
    """torch's BatchNorm refuses a single value per channel; a client of one sample must not end a run."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    sims = [simulation(model=net, data=clients_of((1, 11, 4)), map=map) for map in ("one_by_one", "vectorised")]
    assert difference(*(play(sim, 2).server.params for sim in sims)) < 1e-10


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exchange": Exchange(every_round(), slow_local="frieze")}, "unknown slow_local 'frieze'"),  # type: ignore[arg-type]
        ({"algorithm": algorithm("fedavg")._replace(weighting="sample")}, "unknown weighting 'sample'"),
    ],
)
def test_words_that_a_round_does_not_know_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulation(**changes)


def test_frozen_slow_groups_leave_personal_ones_free() -> None:
    exchange = Exchange(fast_slow({"head"}, SLOW, 2), personal=frozenset({"atoms"}), slow_local="freeze")
    sim = simulation(exchange=exchange)
    slow, fast = (play(sim, t).clients.rows[1].own for t in (1, 2))
    moved = {name for name in slow if not torch.equal(slow[name], fast[name])}
    assert moved == {name for name, group in layout_of(sim).labels.items() if group == "atoms"}


@pytest.mark.parametrize("name", ["feddyn", "feddc"])
def test_selected_is_the_mean_of_what_was_reported_and_not_the_servers(name: str) -> None:
    state = play(simulation(name, data=clients_of((5, 5))), 1)
    mean = trees.apply(lambda *leaves: sum(leaves) / 2, *(row.last for row in state.clients.rows.values()))
    assert difference(mean, {leaf: state.selected[leaf] for leaf in mean}) < 1e-12
    assert difference(mean, {leaf: state.server.params[leaf] for leaf in mean}) > 1e-6


def test_dropout_differs_from_step_to_step_and_from_client_to_client() -> None:
    key = torch.tensor(2**62)
    masks = [uniform(key + s, (64, 9)) < 0.5 for s in range(3)] + [uniform(torch.tensor(7), (64, 9)) < 0.5]
    for one, other in itertools.combinations(masks, 2):
        assert 0.35 < float((one == other).float().mean()) < 0.65
    assert abs(float(uniform(key, (1000, 100)).mean()) - 0.5) < 0.01


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        begin(prepare(simulation(model=small_net().requires_grad_(False))))
    exchange = Exchange(fast_slow({"atoms"}, {"head", *SLOW}, 2), slow_local="freeze")
    with pytest.raises(ValueError, match="nothing to train"):  # a plain network has no atoms
        play(simulation(model=small_net(), exchange=exchange), 2)
