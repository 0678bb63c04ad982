"""Laws of attacks and rules in the simulator: who lies, what is left out, and that maps, stops and processes agree."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.small import clients_of, difference, identical, play, small_net

from fedatoms.aggregation import RULES, aggregation
from fedatoms.algorithms import algorithm
from fedatoms.core.options import ATTACKS, PLACES, Place
from fedatoms.data.federations import federation
from fedatoms.engine.attacks import Attack, malicious, with_false_labels
from fedatoms.engine.client_states import flatten
from fedatoms.engine.exchange import FAST, SLOW, Exchange, fast_slow
from fedatoms.engine.loop import begin, train
from fedatoms.engine.round import advance, select
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.engine.training import Training
from fedatoms.personal import personal
from fedatoms.testing.small import resumed, tensors

DATA = clients_of((5, 7, 12, 9, 6, 8))
KEEPING = [name for name in RULES if name != "mean"]
NOW = ("trimmed", "multi-krum", "centred-clipping")
SOME = [pytest.param(name, marks=() if name in NOW else pytest.mark.slow) for name in KEEPING]


def simulation(**changes: object) -> Simulation:
    """Makes a simulation in which uploads have statistics, controls, and rounds with some groups only."""
    made = Simulation(
        small_net(norm=True, atoms=4),
        DATA,
        algorithm=algorithm("scaffold"),
        exchange=Exchange(fast_slow(FAST, SLOW, 2)),
        training=Training(epochs=1, batch_size=5, lr=0.05),
        score=("server", "selected"),
    )
    return replace(made, **changes)


@pytest.mark.parametrize("name", SOME)
def test_loop_and_blocks_give_the_same_model_by_every_rule(name: str) -> None:
    sim = simulation(aggregation=aggregation(name))
    one = play(replace(sim, map="one_by_one"), 2).server.params
    for block in (0, 4):
        assert difference(one, play(replace(sim, map="vectorised", block=block), 2).server.params) < 1e-9


@pytest.mark.parametrize("name", ATTACKS)
def test_loop_and_blocks_are_attacked_alike(name: str) -> None:
    sim = simulation(attack=Attack(name, 0.3), aggregation=aggregation("median"))
    one, block = (play(replace(sim, map=each), 2).server.params for each in ("one_by_one", "vectorised"))
    assert difference(one, block) < 1e-9


@pytest.mark.parametrize("name", SOME)
def test_a_run_that_stops_and_goes_on_is_the_same_by_every_rule(name: str) -> None:
    sim = simulation(aggregation=aggregation(name), attack=Attack("noise", 0.3), failures=0.2)
    assert identical(resumed(sim, 1, 3), tensors(train(sim, 3)))


def test_the_mean_of_kept_uploads_is_the_mean_of_those_that_are_summed() -> None:
    """An attack keeps uploads; one whose clients are never sampled changes nothing but that."""
    sim, attack = simulation(fraction=0.17), Attack("sign-flip", 0.01)
    rounds = 2
    spared = next(
        seed for seed in range(99) if not malicious(attack, 6, seed) & sampled(replace(sim, seed=seed), rounds)
    )
    plain = replace(sim, seed=spared)
    assert identical(play(plain, rounds).server.params, play(replace(plain, attack=attack), rounds).server.params)


def sampled(sim: Simulation, rounds: int) -> set[int]:
    from fedatoms.engine.round import select

    return {client for t in range(rounds) for client in select(sim, t)[1]}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_changes_what_malicious_clients_upload_and_nothing_else(name: str) -> None:
    attack = Attack(name, 0.3)
    who, sim = malicious(attack, 6, 0), simulation(attack=Attack(name, 0.3))
    assert len(who) == 2
    changed, same = play(sim, 1), play(replace(sim, attack=None), 1)
    assert difference(changed.server.params, same.server.params) > 1e-6
    assert identical(changed.clients.read(min(set(range(6)) - who)).memory["control"],
                     same.clients.read(min(set(range(6)) - who)).memory["control"])  # fmt: skip


def test_uploads_that_are_not_finite_are_left_out_as_a_server_of_nodes_does() -> None:
    attack = Attack("inf", 0.3)
    sim = simulation(attack=attack)
    done = train(sim, 2)
    assert [(record.clients, record.failed) for record, _ in done.history] == [(4, 2)] * 2
    assert all(leaf.isfinite().all() for leaf in done.state.server.params.values() if leaf.is_floating_point())
    honest = [client for client in range(6) if client not in malicious(attack, 6, sim.seed)]
    assert all(client in done.state.held for client in honest)


def test_labels_are_flipped_for_malicious_clients_only_and_twice_is_none() -> None:
    attack = Attack("label-flip", 0.3)
    flipped = with_false_labels(DATA, attack, 0)
    for client, rows in enumerate(DATA.parts):
        expected = 2 - DATA.y[rows] if client in malicious(attack, 6, 0) else DATA.y[rows]
        assert torch.equal(flipped.y[rows], expected)
    assert torch.equal(with_false_labels(flipped, attack, 0).y, DATA.y)


def test_what_is_built_for_one_attack_is_not_used_for_another() -> None:
    sim = simulation()
    clean = prepare(sim)
    false = prepare(replace(sim, attack=Attack("label-flip", 0.3)), like=clean)
    assert not torch.equal(false.data.y, clean.data.y)
    assert torch.equal(prepare(sim, like=false).data.y, clean.data.y)
    other = prepare(replace(false.sim, seed=1), like=false)
    assert torch.equal(other.data.y, prepare(other.sim).data.y)


def test_personal_parameters_stay_whatever_the_rule() -> None:
    kept = Exchange(fast_slow(FAST, SLOW, 2), personal=frozenset({"head"}))
    sim = simulation(exchange=kept, score=("server",), aggregation=aggregation("multi-krum"))
    runtime, end = prepare(sim), play(sim, 2)
    own = runtime.layout.private & runtime.network.parameters.keys()
    assert own and all(torch.equal(end.server.params[name], runtime.network.parameters[name]) for name in own)


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "too few": ({"aggregation": aggregation("krum:2")}, "a round has 6 clients, and this rule needs 7 to outvote 2"),
    "a sample of any size": ({"aggregation": aggregation("median"), "sampling": "poisson"}, "Use sampling=fixed."),
    "codes": ({"attack": Attack("noise", 0.2), "uploads": "8-bit"}, "Use uploads=exact."),
    "all models": ({"aggregation": aggregation("median"), "score": ("all",)}, "an aggregation rule does not reach it"),
    "features": ({"attack": Attack("noise", 0.2), "personal": personal("fedpac"), "algorithm": algorithm("fedavg"),
                  "score": ("server",)}, "an attack does not reach them"),
    "a share": ({"attack": Attack("noise", 1.0)}, "attack.share=1.0 is not in (0, 1)"),
    "everybody": ({"attack": Attack("noise", 0.95)}, "all 6 clients would be malicious"),
    "a name": ({"attack": Attack("nois", 0.2)}, "unknown attack 'nois'. Did you mean 'noise'?"),
    "no rule": ({"aggregation": "median"}, "is not an aggregation rule. Use fedatoms.aggregation.median()"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_would_silently_do_less_than_it_says_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError) as refused:
        simulation(**changes)
    assert reason in str(refused.value)


def test_labels_that_are_no_classes_cannot_be_flipped() -> None:
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    data = federation([(x[:4], y[:4]), (x[4:], y[4:])], test=(x, y))
    with pytest.raises(ValueError, match="label-flip needs one class per sample"):
        Simulation(torch.nn.Linear(3, 1), data, objective=_regression(), attack=Attack("label-flip", 0.5))


def _regression() -> object:
    from fedatoms.objectives import regression

    return regression()


def test_a_round_with_fewer_uploads_than_the_rule_needs_leaves_the_model() -> None:
    """One liar of two cannot be outvoted."""
    sim = simulation(aggregation=aggregation("median"), failures=0.9, score=("server",))
    runtime = prepare(sim)
    state = begin(runtime)
    for _ in range(4):
        reporting = len(select(sim, state.round)[1])
        after, _ = advance(runtime, state)
        moved = difference(state.server.params, after.server.params) > 0
        assert moved == (reporting >= sim.aggregation.fewest)
        state = after


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", ["none", "fedrep"])
def test_a_round_with_fewer_uploads_than_the_rule_needs_leaves_clients_as_they_were(
    method: str, place: Place, tmp_path: Path
) -> None:
    """Their controls and own parameters would be of a round that never was; no file of it stays."""
    own, where = personal(method), {"client_state": place, "folder": tmp_path if place == "disk" else None}
    sim = simulation(aggregation=aggregation("median"), failures=0.6, personal=own, **where)
    runtime = prepare(replace(sim, score=("server",)))
    state, left, changed = begin(runtime), 0, 0
    for _ in range(8):
        reporting = select(sim, state.round)[1]
        before = {*tmp_path.iterdir()}
        after, _ = advance(runtime, state)
        same = all(_as_read(state, client) == _as_read(after, client) for client in range(6))
        assert same == (len(reporting) < sim.aggregation.fewest)
        assert not same or {*tmp_path.iterdir()} == before
        left, changed, state = left + (same and bool(reporting)), changed + (not same), after
    assert left and changed


def _as_read(state: State, client: int) -> object:
    row = state.clients.read(client)
    return None if row is None else {name: leaf.tolist() for name, leaf in flatten(row).items()}
