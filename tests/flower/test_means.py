"""Other rules than the mean, and privacy: the server needs no more than the weighted sum of uploads, or even less."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small import clients_of, difference, identical, small_net

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod
from support.flower_grid import (
    SMALL,
    App,
    Meddle,
    OneProcess,
    on_flower,
    round_of,
    server_as_tree,
    server_of,
    simulated,
    task_of,
    warnings_in,
)

from fedatoms.aggregation import RULES
from fedatoms.algorithms import ALGORITHMS, algorithm
from fedatoms.engine.round import select
from fedatoms.experiment.build import assemble
from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import load_run
from fedatoms.flower import Task, client_app
from fedatoms.flower.server_state import load_state
from fedatoms.flower.strategy import TooFew
from fedatoms.personal import METHODS
from fedatoms.runs.remote import NODES
from fedatoms.runs.rounds import read_rounds

SIX = replace(SMALL, clients=6)
DATA = clients_of((5, 7, 12, 9, 6, 8))
OTHERS = {  # uploads of other kinds: statistics, controls and numbers, and rounds in which only some groups travel
    "scaffold, fast and slow": {"algorithm": "scaffold", "parametrisation": "atoms", "beta": "1/2"},
    "fedexp": {"algorithm": "fedexp"},
}
Arrays = dict[str, np.ndarray]


def in_float64(experiment: Experiment) -> Task:
    """Makes a task in which rounding can be told from the rest."""
    return task_of(experiment, DATA, dtype=torch.float64)


def changed(change: Callable[[int, Message, Arrays], Arrays]) -> Meddle:
    """Lets something happen to the uploads on their way: client, message, arrays -> arrays."""

    def meddle(client: int, message: Message, app: App) -> Message:
        reply = app(message)
        if round_of(message) is None:
            return reply
        arrays = change(client, message, arrays_of(reply))
        record = ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
        return Message(RecordDict({**reply.content, "arrays": record}), reply_to=message)

    return meddle


def arrays_of(reply: Message) -> Arrays:
    return {name: array.numpy() for name, array in reply.content.array_records["arrays"].items()}


def uploads_in(grid: OneProcess, number: int) -> list[Arrays]:
    return [arrays_of(each.reply) for each in grid.log if each.round == number]


def trimmed(arrays: np.ndarray) -> np.ndarray:
    return np.sort(arrays, axis=0)[1:-1].mean(axis=0)


@pytest.mark.parametrize(("aggregation", "by_hand"), [("median", lambda a: np.median(a, axis=0)), ("trimmed", trimmed)])
def test_a_robust_mean_is_that_of_the_uploads_by_hand(
    aggregation: str, by_hand: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    grid = on_flower(replace(SIX, aggregation=aggregation), tmp_path, task=in_float64(SIX))
    uploads, server = uploads_in(grid, SIX.rounds - 1), server_of(tmp_path)
    for name in uploads[0]:
        expected = torch.from_numpy(by_hand(np.stack([each[name] for each in uploads])))
        found = server[f"params/{name.partition('/')[2]}"]
        assert (found.double() - expected).abs().max() < 1e-12


def liar(client: int, message: Message, arrays: Arrays) -> Arrays:
    """One client sends its update backwards and nine times as long, which is not far enough to be refused."""
    sent = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
    return {name: sent.get(name, a) - 9 * (a - sent.get(name, a)) if client == 5 else a for name, a in arrays.items()}


def absent(client: int, message: Message, app: App) -> Message | None:
    return None if client == 5 and round_of(message) is not None else app(message)


def test_a_median_heeds_a_liar_less_than_a_mean_does(tmp_path: Path) -> None:
    moved = {}
    for aggregation in ("mean", "median"):
        for name, meddle in (("with", changed(liar)), ("without", absent)):
            experiment = replace(SIX, aggregation=aggregation, rounds=2)
            on_flower(experiment, tmp_path / aggregation / name, meddle, in_float64(SIX), far=20.0)
        moved[aggregation] = difference(*(server_of(tmp_path / aggregation / name) for name in ("with", "without")))
    assert moved["median"] < moved["mean"] / 3


FEW = ("fedavg", "scaffold", "feddyn", "fednova")  # by samples and uniform, with memories and numbers; others are slow
EACH = [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in ALGORITHMS]


def masked(client: int, message: Message, arrays: Arrays, *, scale: float) -> Arrays:
    """Adds noise for each pair of clients that cancels in their sum, as in secure aggregation."""
    new = {name: array.copy() for name, array in arrays.items()}
    for other in set(range(SIX.clients)) - {client}:
        low, high = sorted((client, other))
        noise = np.random.default_rng([low, high, round_of(message)])
        for name in sorted(new):
            mask = noise.normal(size=new[name].shape, scale=100.0)
            new[name] = new[name] + scale * (mask if client == low else -mask)
    return new


@pytest.mark.parametrize("name", EACH)
def test_a_server_that_sees_only_masked_uploads_gets_the_same_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = replace(SIX, algorithm=name, parametrisation="atoms", beta="1/2", rounds=2)
    uniform = algorithm(name).weighting == "uniform"

    def mask(client: int, message: Message, arrays: Arrays) -> Arrays:
        return masked(client, message, arrays, scale=1.0 if uniform else 1 / len(DATA.parts[client]))

    on_flower(experiment, tmp_path / "plain", task=in_float64(experiment))
    # of a masked upload nobody can say whether its variances are less than 0
    monkeypatch.setattr("fedatoms.flower.checks.variances", lambda model: frozenset())
    grid = on_flower(experiment, tmp_path / "masked", changed(mask), in_float64(experiment), far=0.0)
    assert difference(*(server_of(tmp_path / each) for each in ("plain", "masked"))) < 1e-9
    assert all(abs(array).max() > 1 for upload in uploads_in(grid, 0) for array in upload.values())


def without_statistics(experiment: Experiment) -> Task:
    """Makes a task whose network has parameters only: Flower's mods for privacy would blur counts too."""
    return in_float64(experiment)._replace(model=small_net)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddc"])
def test_flower_s_local_privacy_with_a_wide_clip_and_no_noise_changes_nothing(name: str, tmp_path: Path) -> None:
    experiment = replace(SIX, algorithm=name, parametrisation="atoms", rounds=2)
    task = without_statistics(experiment)
    on_flower(experiment, tmp_path / "plain", task=task)
    app = client_app(task, mods=[LocalDpMod(clipping_norm=1e6, sensitivity=0.0, epsilon=1.0, delta=0.1)])
    on_flower(experiment, tmp_path / "private", task=task, app=app)
    assert difference(*(server_of(tmp_path / each) for each in ("plain", "private"))) < 1e-9


def test_flower_s_local_privacy_clips_and_blurs_what_leaves_a_node(tmp_path: Path) -> None:
    task, experiment = without_statistics(SIX), replace(SIX, rounds=2)
    clipped, blurred = (LocalDpMod(0.01, sensitivity, epsilon=1.0, delta=0.1) for sensitivity in (0.0, 0.01))
    grid = on_flower(experiment, tmp_path / "clipped", task=task, app=client_app(task, mods=[clipped]))
    for each in grid.log:
        if each.round is not None:
            sent = each.sent.array_records["arrays"]
            moved = [array - sent[name].numpy() for name, array in arrays_of(each.reply).items()]
            assert sum(float((move**2).sum()) for move in moved) ** 0.5 < 0.0101
    on_flower(experiment, tmp_path / "blurred", task=task, app=client_app(task, mods=[blurred]))
    assert difference(*(server_of(tmp_path / each) for each in ("clipped", "blurred"))) > 1e-4


def test_a_schedule_that_flower_s_local_privacy_does_not_fit_ends_with_the_reason(tmp_path: Path) -> None:
    experiment = replace(SIX, parametrisation="atoms", beta="1/2")  # more comes down than goes up
    task = without_statistics(experiment)
    with pytest.raises(TooFew, match="LocalDpMod needs every group to travel in every round"):
        on_flower(experiment, tmp_path, task=task, app=client_app(task, mods=[LocalDpMod(1.0, 0.0, 1.0, 0.1)]))


def only_client_0(client: int, message: Message, app: App) -> Message | None:
    return app(message) if client == 0 or round_of(message) is None else None


@pytest.mark.parametrize("aggregation", ["median", "trimmed", "norm-bound"])
def test_a_rule_for_one_answer_or_for_nothing_that_travels_is_no_trouble_but_said(
    aggregation: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = replace(SMALL, aggregation=aggregation, rounds=1)
    on_flower(replace(experiment, personal="local"), tmp_path / "nothing")
    assert len(read_rounds(tmp_path / "nothing" / "runs" / "it")) == 1
    on_flower(experiment, tmp_path / "one", only_client_0)
    few = "round 1: 1 answers, and the aggregation needs 3 to outvote one: the model stays as it is"
    assert few in warnings_in(caplog)


NOW = {("trimmed", "scaffold, fast and slow"), ("multi-krum", "fedexp")}
RULED = [pytest.param(*each, marks=() if each in NOW else pytest.mark.slow) for each in product(RULES, OTHERS)]


@pytest.mark.parametrize(("name", "other"), RULED)
def test_nodes_and_the_simulator_give_the_same_bits_by_every_rule(name: str, other: str, tmp_path: Path) -> None:
    experiment = replace(SIX, aggregation=name, **OTHERS[other])
    on_flower(experiment, tmp_path, task=task_of(experiment, DATA))
    state, _ = simulated(replace(experiment, map="one_by_one"), data=DATA)
    assert identical(server_of(tmp_path), server_as_tree(state.server))


@pytest.mark.parametrize("name", ["scaffold", "fedrep"])
def test_rounds_of_too_few_answers_change_nothing_on_nodes_as_in_the_simulator(name: str, tmp_path: Path) -> None:
    method: dict[str, object] = {"personal": name} if name in METHODS else {"algorithm": name}
    experiment = replace(SIX, aggregation="median", seed=14, rounds=5, eval_every=5, **method)
    failing = replace(experiment, failures=0.4, map="one_by_one")
    sim = assemble(failing, task_of(experiment, DATA).model(), DATA)
    reporting = [select(sim, t)[1] for t in range(experiment.rounds)]
    assert [len(some) for some in reporting] == [4, 1, 5, 4, 1]  # and median needs 3

    def some_fail(client: int, message: Message, app: App) -> Message | None:
        number = round_of(message)
        return app(message) if number is None or client in reporting[number] else None

    on_flower(experiment, tmp_path, some_fail, task=task_of(experiment, DATA))
    state, _ = simulated(failing, data=DATA)
    assert identical(server_of(tmp_path), server_as_tree(state.server))
    base = load_state(tmp_path / "runs" / "it" / NODES, state, "").base
    told = {client: number + 1 for number in (0, 2, 3) for client in reporting[number]}  # by a round that counts
    assert base == told == {client: state.clients.versions[client].item() for client in told}


def test_a_run_does_not_go_on_by_another_rule(tmp_path: Path) -> None:
    """Its result would be that of the new rule to all who read it; the simulator refuses it in the same words."""
    on_flower(replace(SIX, rounds=1), tmp_path, task=in_float64(SIX))
    before = server_of(tmp_path)
    with pytest.raises(ValueError, match=r"^aggregation=median: a run of two rules is of neither\. Start a run of"):
        on_flower(replace(SIX, rounds=2, aggregation="median"), tmp_path, task=in_float64(SIX), resume=True)
    assert load_run(tmp_path / "runs" / "it").aggregation == "mean" and identical(before, server_of(tmp_path))
