"""Laws of uploads in few bits, over the whole table of algorithms and exchanges: right on average, near, and small."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import some_now, some_of, turns
from support.peers import EXCHANGES
from support.small import all_scores, clients_of, difference, identical, play, small_net
from torch import Tensor, nn

from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.core import ledger, trees
from fedatoms.core.randomness import address
from fedatoms.engine.codes import BITS, decode, encode, received, refuse_malformed, sent_of
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.nn.atoms import decompose
from fedatoms.runs.checkpoints import load_checkpoint, save_checkpoint

FEW = list(BITS)
TRAINING = Training(epochs=2, batch_size=10, lr=0.05, lr_decay=0.9, momentum=0.5, weight_decay=1e-3, clip=1.0)
SOME = [  # a vectorised round takes a second
    pytest.param(*case, marks=() if place % 10 == 0 else pytest.mark.slow)
    for place, case in enumerate(sorted(turns(ALGORITHMS, EXCHANGES, FEW, times=3)))
]


def simulation(name: str = "fedavg", **changes: object) -> Simulation:
    method = algorithm(name)
    sim = Simulation(small_net(atoms=4), clients_of(), method, training=TRAINING, score=all_scores(method))
    return dataclasses.replace(sim, **changes)


def steps_of(updates: Tensor, bits: int) -> Tensor:
    """Returns the step of each number: the largest of its 512 over the largest code."""
    rows = updates[..., None].flatten(1)
    tops = [part.abs().amax(1, keepdim=True).expand_as(part) for part in rows.split(512, dim=1)]
    return (torch.cat(tops, 1) / (2 ** (bits - 1) - 1)).reshape(updates.shape)


@settings(max_examples=30)
@given(
    shape=st.lists(st.integers(1, 40), min_size=0, max_size=3),
    count=st.integers(1, 3),
    bits=st.sampled_from(sorted(BITS.values())),
    size=st.sampled_from([0.0, 1e-30, 1e-3, 1e20]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**62),
)
def test_an_error_is_at_most_a_step_and_a_block_is_its_clients(
    shape: list[int], count: int, bits: int, size: float, dtype: torch.dtype, seed: int
) -> None:
    draws = torch.Generator().manual_seed(seed)
    updates, keys = size * torch.randn(count, *shape, generator=draws, dtype=dtype), torch.arange(count) + seed
    coded = encode(updates, bits, keys)
    found = decode(coded, updates[0], bits)
    assert found.shape == updates.shape and found.dtype == dtype
    assert bool(((found - updates).abs() <= steps_of(updates, bits) * (1 + 1e-5)).all())
    alone = [encode(updates[i : i + 1], bits, keys[i : i + 1]) for i in range(count)]
    assert torch.equal(torch.cat(alone), coded)
    refuse_malformed({"params": {"w": coded[0]}}, {"params": {"w": updates[0]}}, bits)


@pytest.mark.parametrize("bits", BITS.values())
def test_codes_are_right_on_average(bits: int) -> None:
    update = torch.randn(1, 600, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    draws = 4000
    keys = torch.tensor([address(0, "rounding", client, 3) for client in range(draws)])
    found = decode(encode(update.expand(draws, -1), bits, keys), update[0], bits)
    error = (found.mean(0) - update[0]) / steps_of(update, bits)[0]  # a rounding has a deviation of half a step or less
    assert float(error.abs().max()) < 5 * 0.5 / draws**0.5
    assert abs(float(error.mean())) < 5 * 0.5 / (draws * 600) ** 0.5


def test_draws_differ_by_client_round_and_tensor() -> None:
    half = torch.full((2, 1000), 0.5).index_fill(1, torch.tensor([0, 600]), 127.0)
    uploads = {"params": {"a": half, "b": half}, "control": {"a": half}}
    sent = sent_of(uploads, {"a": torch.zeros(1000), "b": torch.zeros(1000)}, 8, torch.tensor([5, 905]))
    rows = [row for tree in sent.values() for leaf in tree.values() for row in leaf]
    shares = [float((one == other).float().mean()) for i, one in enumerate(rows) for other in rows[:i]]
    assert len(shares) == 15 and all(0.4 < share < 0.6 for share in shares)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("bits", BITS.values())
def test_what_is_not_finite_is_not_finite_afterwards(value: float, bits: int) -> None:
    update = torch.ones(1, 700).index_fill(1, torch.tensor([600]), value)
    found = decode(encode(update, bits, torch.tensor([0])), update[0], bits)
    assert not bool(torch.isfinite(found.sum()))


@pytest.mark.parametrize("uploads", FEW)
def test_a_loss_that_is_not_finite_is_named_as_without_rounding(uploads: str) -> None:
    data, words = clients_of(), []
    data.x[data.parts[1][0]] = float("nan")
    for each in ("exact", uploads):
        with pytest.raises(FloatingPointError, match=r"client \d+, round \d+, step \d+") as error:
            play(simulation(uploads=each, data=data), 1)
        words.append(str(error.value))
    assert words[0] == words[1]


@pytest.mark.parametrize(("name", "exchange", "uploads"), SOME)
def test_vectorised_equals_one_by_one(name: str, exchange: str, uploads: str) -> None:
    sim = simulation(name, model=small_net(norm=True, atoms=4), exchange=EXCHANGES[exchange], uploads=uploads)
    loop, fast = (play(dataclasses.replace(sim, map=map, block=2), 2) for map in ("one_by_one", "vectorised"))
    assert difference(loop.server.params, fast.server.params) < 1e-9
    for kind, tree in loop.server.memory.items():
        assert difference(tree, fast.server.memory[kind]) < 1e-9
    assert loop.last_sum is fast.last_sum is None or difference(loop.last_sum, fast.last_sum) < 1e-9
    assert not identical(loop.server.params, play(dataclasses.replace(sim, uploads="exact"), 2).server.params)


@pytest.mark.parametrize(("name", "exchange"), some_now(ALGORITHMS, EXCHANGES))
def test_every_upload_is_bytes_of_the_rule_s_length_and_smaller(name: str, exchange: str) -> None:
    """The ledger of a round counts one byte per number and four per scale; what is exact counts as before."""
    kind = EXCHANGES[exchange]
    sims = [simulation(name, model=wide(), exchange=kind, uploads=each) for each in ("exact", *FEW)]
    exact, eight, four = (advance(prepare(sim), begin(prepare(sim)))[1] for sim in sims)
    assert exact.down == eight.down == four.down
    assert not kind.personal & eight.up.keys() and exact.up.keys() == eight.up.keys() == four.up.keys()
    up = [ledger.total(each.up) for each in (exact, eight, four)]
    assert up[1] <= 0.26 * up[0] and up[2] <= 0.135 * up[0]


def wide() -> nn.Module:
    """Makes a small network whose layers are as wide as those of real ones, in float32 as on the wire."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = [nn.Conv2d(1, 30, 5), nn.ReLU(), nn.Flatten(), nn.Linear(120, 300), nn.ReLU(), nn.Linear(300, 50)]
        return decompose(nn.Sequential(*body), 9, init="orthonormal")


def test_the_models_of_all_are_as_the_server_received_them_and_local_ones_as_they_were_trained() -> None:
    sim = simulation(uploads="4-bit", score=("server", "all", "local"), seed=3)
    runtime = prepare(sim)
    before = play(runtime, 1)
    after = play(runtime, 1, before)
    start, last_sum = before.server.params, trees.zeros_like(after.last_sum)
    for client in range(len(sim.data.parts)):
        row, key = after.clients.read(client), torch.tensor([address(3, "rounding", client, 1)])
        upload = {"params": trees.lead(row.local)}
        again = received(sent_of(upload, start, 4, key), {"params": row.local}, start, 4)
        assert identical(trees.unstack(again["params"], 0), row.last) and not identical(row.last, row.local)
        last_sum = trees.apply(torch.add, last_sum, row.last)
    assert difference(last_sum, after.last_sum) < 1e-12


@pytest.mark.parametrize("name", some_of(["scaffold", "fednova"], "scaffold"))
def test_stop_and_resume_is_no_stop(name: str, tmp_path: object) -> None:
    sim = simulation(name, exchange=EXCHANGES["keep"], uploads="8-bit")
    half = play(sim, 2)
    save_checkpoint(tmp_path, half, trajectory="it", seconds=0.0)
    runtime = prepare(sim)
    resumed = play(runtime, 2, load_checkpoint(tmp_path, runtime, trajectory="it").state)
    assert identical(resumed.server.params, play(sim, 4).server.params)


def test_unknown_uploads_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown uploads '9-bit'. Did you mean '8-bit'\? Valid: exact, 8-bit, 4-bit"):
        simulation(uploads="9-bit")


def test_statistics_and_what_would_not_be_smaller_are_sent_as_they_are() -> None:
    sim = Simulation(small_net(norm=True).float(), clients_of(), uploads="4-bit")
    model = {name: leaf[None] for name, leaf in sim.model.state_dict().items()}
    uploads = {"params": {**model, "one": torch.ones(1, 1)}, "statistics": model, "numbers": {"steps": torch.ones(1)}}
    sent = sent_of(uploads, trees.zeros_like(trees.unstack(uploads["params"], 0)), 4, torch.tensor([0]))
    assert identical(sent["statistics"], model) and sent["numbers"] == uploads["numbers"]
    alike = {name for name, leaf in sent["params"].items() if leaf.dtype != torch.uint8}
    assert alike == {"one", "norm1.num_batches_tracked"}  # a number of its own, and whole numbers
