"""Laws of private rounds: what one client can do to the sum, what the noise is, and that nothing else leaves."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from support.cases import some_now, some_of
from support.private import seeded, still
from support.small import clients_of, difference, identical, small_net
from torch import Tensor

from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.algorithms.base import Server
from fedatoms.core import trees
from fedatoms.engine.attacks import Attack
from fedatoms.engine.client_round import Job, Learner, Reply
from fedatoms.engine.exchange import FAST, SLOW, Exchange, every_round, fast_slow
from fedatoms.engine.loop import begin, rounds, train
from fedatoms.engine.peers import Peers
from fedatoms.engine.privacy import Privacy, Uniforms, clipped, from_system, next_clip
from fedatoms.engine.private_round import advance_privately, summed
from fedatoms.engine.round import advance, select
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.engine.training import Training
from fedatoms.personal import METHODS, personal

EXCHANGES = {
    "every_round": Exchange(every_round()),
    "discard": Exchange(fast_slow(FAST, SLOW, 2)),
    "freeze": Exchange(fast_slow(FAST, SLOW, 2), slow_local="freeze"),
}
ALLOWED = {"fedavg", "fedprox", "fedavgm", "fedadam"}
TRAINING = Training(epochs=1, batch_size=10, lr=0.05)


def simulation(**changes: object) -> Simulation:
    sim = Simulation(small_net(atoms=4), clients_of((10,) * 6), training=TRAINING, sampling="poisson")
    return dataclasses.replace(sim, **{"privacy": Privacy(1.0, uniforms=still), **changes})


def lying(runtime: Runtime, liar: int, lie: dict[str, Tensor]) -> Runtime:
    """Returns a runtime in which one client of a cohort, by its place, uploads something else than what it trained."""
    honest = runtime.map_clients

    def map_clients(learner: Learner, broadcast: Server, jobs: Iterable[Job]) -> Iterator[Reply]:
        first = 0
        for reply in honest(learner, broadcast, jobs):
            size = len(reply.steps)
            if first <= liar < first + size:
                params = {name: leaf.clone() for name, leaf in reply.upload["params"].items()}
                for name, leaf in params.items():
                    leaf[liar - first] = lie[name]
                reply = reply._replace(upload={**reply.upload, "params": params})
            first += size
            yield reply

    return runtime._replace(map_clients=map_clients)


UNEQUAL = clients_of((1, 7, 23, 4, 9, 12))  # a client with more samples counts no more than others
RUNTIMES = {map: prepare(simulation(data=UNEQUAL, map=map, block=2)) for map in ("one_by_one", "vectorised")}
SCALES = [0.0, 1.0, 1e6, 1e300, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("map", some_of(RUNTIMES, "one_by_one"))
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    scale=st.sampled_from(SCALES),
    share=st.sampled_from([0.01, 1.0]),
    clip=st.sampled_from([1e-3, 1.0, 50.0]),
)
def test_a_client_that_uploads_anything_moves_the_sum_by_at_most_the_clip(
    map: str, seed: int, scale: float, share: float, clip: float
) -> None:
    changed = dataclasses.replace(RUNTIMES[map].sim, privacy=Privacy(1.0, clip=clip))
    runtime = RUNTIMES[map]._replace(sim=changed)
    state, draws = begin(runtime), torch.Generator().manual_seed(seed)
    start = trees.restrict(state.server.params, runtime.layout.labels)
    drawn = {name: torch.randn(leaf.shape, generator=draws, dtype=torch.float64) for name, leaf in start.items()}
    lie = {n: torch.where(torch.rand(d.shape, generator=draws) <= share, d * scale, d) for n, d in drawn.items()}
    cohort, liar = [0, 2, 3, 5], 2
    with_it = summed(lying(runtime, liar, lie), state, cohort)
    without = summed(runtime, state, [client for place, client in enumerate(cohort) if place != liar])
    moved = trees.subtract(with_it.uploads["params"], without.uploads["params"])
    assert float(trees.squared(moved).sqrt()) <= clip * (1 + 1e-9)
    votes = with_it.uploads["numbers"]["within"] - without.uploads["numbers"]["within"]
    assert float(votes.abs()) == 0.5


def test_the_norm_is_one_over_all_that_a_client_uploads() -> None:
    uploads = {"atoms": torch.tensor([[3.0]]), "head": torch.tensor([[4.0]])}
    moves = clipped(uploads, {"atoms": torch.zeros(1), "head": torch.zeros(1)}, clip=1.0)["params"]
    assert moves["atoms"].item() == pytest.approx(0.6) and moves["head"].item() == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("name", "exchange", "map"), some_now(sorted(ALLOWED), EXCHANGES, ["one_by_one", "vectorised"])
)
def test_without_noise_or_clip_a_private_round_is_a_round(name: str, exchange: str, map: str) -> None:
    changes = {"algorithm": algorithm(name), "exchange": EXCHANGES[exchange], "map": map}
    runtime = prepare(simulation(privacy=Privacy(1.0, clip=1e6, uniforms=still), **changes))
    open_sim = dataclasses.replace(runtime.sim, privacy=None, sampling="fixed", score=("server",))
    private, plain = begin(runtime), begin(runtime)
    for _ in range(3):
        private, record = advance_privately(runtime, private)
        plain, other = advance(runtime._replace(sim=open_sim), plain)
        assert (record.up, record.down) == (other.up, other.down)  # all take part, so the mean is what is sent
    assert difference(private.server.params, plain.server.params) < 1e-12


def test_an_empty_cohort_is_a_round_of_noise_of_the_claimed_size() -> None:
    draws = seeded(0)
    uniforms: Uniforms = lambda count: torch.ones(6) if count == 6 else draws(count)  # noqa: E731
    runtime = prepare(simulation(fraction=0.5, privacy=Privacy(3.0, clip=0.2, uniforms=uniforms)))
    state = begin(runtime)
    after, _ = advance_privately(runtime, state)
    moved = trees.subtract(after.server.params, state.server.params)
    noise = torch.cat([leaf.flatten() for leaf in moved.values()])
    deviation = 3.0 * 0.2 / (0.5 * 6)  # noise times clip, over the mean size of a cohort
    assert kstest((noise / deviation).numpy(), "norm").pvalue > 0.01


def test_what_the_system_draws_is_uniform_and_never_the_same() -> None:
    drawn = from_system(10_000)
    assert kstest(drawn.numpy(), "uniform").pvalue > 1e-6
    assert not torch.equal(drawn, from_system(10_000))


def test_the_seed_says_nothing_of_a_private_run() -> None:
    sim = simulation(fraction=0.5, privacy=Privacy(1.0))
    one, other = (train(sim, 1).state.server.params for _ in range(2))
    assert not identical(one, other)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_record_does_not_tell_who_took_part_or_how_they_did(adaptive: bool) -> None:
    def record_of(lowest: float) -> dict[str, object]:
        uniforms: Uniforms = lambda count: torch.full((count,), lowest if count == 6 else 0.5)  # noqa: E731
        runtime = prepare(simulation(fraction=0.5, privacy=Privacy(1.0, adaptive=adaptive, uniforms=uniforms)))
        (progress,) = rounds(runtime, begin(runtime), 1)
        assert set(progress.scores) == {"server"} and math.isnan(progress.record.loss)
        state = progress.state
        assert not state.clients.rows and not len(state.held.table) and state.selected is None
        return {**progress.record._asdict(), "loss": None, "seconds": None}

    assert record_of(lowest=0.9) == record_of(lowest=0.1)  # nobody, and everybody


def test_an_adaptive_clip_finds_the_median_of_the_norms() -> None:
    privacy, norms, clip = Privacy(1.0, adaptive=True, uniforms=still), torch.linspace(0.5, 2.5, 101), 0.1
    for _ in range(200):
        votes = float((norms <= clip).double().sub(0.5).sum())
        clip = next_clip(privacy, clip, votes, expected=101.0)
    assert clip == pytest.approx(1.5, rel=0.02)


def test_an_adaptive_clip_is_remembered_from_round_to_round() -> None:
    runtime = prepare(simulation(privacy=Privacy(1.0, clip=0.1, adaptive=True, uniforms=still)))
    shown = [progress.record.extra["privacy"]["clip"] for progress in rounds(runtime, begin(runtime), 3)]
    assert shown[0] == 0.1 and len(set(shown)) == 3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_only_algorithms_whose_clients_upload_a_model_and_keep_nothing_are_private(name: str) -> None:
    if name in ALLOWED:
        assert simulation(algorithm=algorithm(name)).scored == ("server",)
        return
    with pytest.raises(ValueError, match=r"differential privacy with an algorithm that .* Use fedavg, fedprox"):
        simulation(algorithm=algorithm(name))


REFUSED: dict[str, dict[str, object]] = {
    "sampling=fixed: .* Use sampling=poisson": {"sampling": "fixed"},
    "failures=0.1: .* Use failures=0": {"failures": 0.1},
    "uploads=8-bit: .* Use uploads=exact": {"uploads": "8-bit"},
    "an aggregation rule or an attack: .* Use aggregation=mean": {"attack": Attack("noise", 0.3)},
    "score=all,selected: .* Use score=server": {"score": ("server", "selected", "all")},
    "slow_local=keep: .* Use slow_local=discard": {"exchange": Exchange(fast_slow(), slow_local="keep")},
    "a personalised method": {"exchange": Exchange(every_round(), personal=frozenset({"head"}))},
    "the buffer norm1.running_mean: .* Use GroupNorm": {"model": small_net(norm=True)},
    "noise=0": {"privacy": Privacy(0.0)},
    "clip=nan": {"privacy": Privacy(1.0, clip=math.nan)},
    "delta=1": {"privacy": Privacy(1.0, delta=1.0)},
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_would_leave_without_noise_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=line):
        simulation(**REFUSED[line])


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("none", "fedbn", "pfedpara")])
def test_personalised_methods_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="differential privacy with a personalised method"):
        simulation(personal=personal(name))


def test_several_processes_are_refused() -> None:
    with pytest.raises(ValueError, match="Use one process"):
        prepare(simulation(), peers=Peers(rank=0, size=2))


def test_no_seed_says_who_takes_part() -> None:
    with pytest.raises(ValueError, match="no seed says who takes part"):
        select(simulation(), 0)


def played(sim: Simulation, until: int) -> list[State]:
    runtime = prepare(sim)
    return [progress.state for progress in rounds(runtime, begin(runtime), until)]


def test_poisson_samples_every_client_by_itself() -> None:
    sim = dataclasses.replace(simulation(privacy=None), fraction=0.3)
    cohorts = [select(sim, t)[0] for t in range(400)]
    assert [select(sim, t)[0] for t in range(400)] == cohorts
    for client in range(6):
        assert sum(client in cohort for cohort in cohorts) / 400 == pytest.approx(0.3, abs=0.08)
    assert {len(cohort) for cohort in cohorts} >= {0, 1, 2, 3, 4}


@pytest.mark.parametrize("map", ["one_by_one", "vectorised"])
def test_an_empty_cohort_without_privacy_changes_nothing(map: str) -> None:
    sim = dataclasses.replace(simulation(privacy=None), fraction=0.1, map=map)
    empty = [not select(sim, t)[0] for t in range(6)]
    states = [begin(prepare(sim)), *played(sim, 6)]
    same = [identical(a.server.params, b.server.params) for a, b in itertools.pairwise(states)]
    assert same == empty and {*empty} == {True, False}
