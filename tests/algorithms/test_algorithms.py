"""Each algorithm against its paper's formulas, written out as a plain loop over losses and torch.optim.SGD."""

import copy
import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch
from support.cases import some_now
from support.small import clients_of, difference, identical, play, small_net
from torch import Tensor, nn

from examples.fedavg_by_hand import fedavg_by_hand
from fedatoms.algorithms import ALGORITHMS, Algorithm, Server, Work, algorithm, fedavgm, feddyn, fedprox, scaffold
from fedatoms.core.options import RANGES, Map
from fedatoms.engine.client_round import rate_of
from fedatoms.engine.exchange import Exchange, every_round, fast_slow
from fedatoms.engine.loop import begin
from fedatoms.engine.round import select
from fedatoms.engine.runtime import layout_of, prepare
from fedatoms.engine.spec import Simulation, batches_of
from fedatoms.engine.training import Training
from fedatoms.optimisers import sgd
from fedatoms.personal import ditto
from fedatoms.personal.base import Personal, Phase

TRAINING = Training(epochs=2, batch_size=5, lr=0.05, lr_decay=0.9, weight_decay=1e-2)
Vector = list[Tensor]
Term = Callable[[Vector], Tensor | float]


def dot(a: Vector, b: Vector) -> Tensor:
    return sum((x * y).sum() for x, y in zip(a, b, strict=True))


def local_training(net: nn.Module, sim: Simulation, term: Term, k: int, t: int) -> tuple[Vector, list[float]]:
    """Trains client k on F_k + term by hand: gradient with correction, clip, weight decay (FedDyn's too), momentum.

    Returns its parameters and how far as many unit gradients would have moved them.
    """
    data, training, decay = sim.data, sim.training, sim.algorithm.decay
    model = copy.deepcopy(net)
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    factors = [layout_of(sim).labels[name] in ("atoms", "coefficients") for name, _ in model.named_parameters()]
    rates = [rate_of(training, t) * (training.atoms_lr if one else 1) for one in factors]
    decays = [training.weight_decay * (training.atoms_decay if one else 1) + decay for one in factors]
    drawn, far, pace = batches_of(sim, k, t), [0.0] * len(rates), 0.0
    for rows, real in zip(drawn.rows, drawn.real, strict=True):
        loss = nn.functional.cross_entropy(model(data.x[rows[real]]), data.y[rows[real]])
        params = list(model.parameters())
        gradient = torch.autograd.grad(loss + term(params), params)
        norm = torch.sqrt(sum((g**2).sum() for g in gradient))
        scale = min(1.0, training.clip / (float(norm) + 1e-6))
        with torch.no_grad():
            for place, (p, g) in enumerate(zip(params, gradient, strict=True)):
                move = g * scale + decays[place] * p
                velocity[place] = training.momentum * velocity[place] + move
                p -= rates[place] * velocity[place]
        pace = training.momentum * pace + 1
        far = [way + rate * pace for way, rate in zip(far, rates, strict=True)]
    return [p.detach() for p in model.parameters()], far


def penalty(name: str, x: Vector, *, w: Vector, c: Vector, c_k: Vector, h_k: Vector) -> Tensor | float:
    """What each algorithm adds to the client's loss, mu = 1e-4 and a = 0.01."""
    if name == "fedprox":
        return 1e-4 / 2 * sum(((p - q) ** 2).sum() for p, q in zip(x, w, strict=True))
    if name == "scaffold":
        return dot(x, c) - dot(x, c_k)
    if name == "feddyn":
        return 0.01 * dot(x, [d - q for d, q in zip(h_k, w, strict=True)])
    if name == "feddc":
        pull = 0.01 / 2 * sum(((p - q + d) ** 2).sum() for p, q, d in zip(x, w, h_k, strict=True))
        return pull + dot(x, c) - dot(x, c_k)
    return 0.0


def reference(name: str, net: nn.Module, sim: Simulation, rounds: int) -> Vector:
    """The five algorithms in the notation of their papers (N clients, S selected)."""
    N, a = len(sim.data.parts), 0.01
    zero = [torch.zeros_like(p) for p in net.parameters()]
    w = [p.detach().clone() for p in net.parameters()]
    c, c_k = copy.deepcopy(zero), [copy.deepcopy(zero) for _ in range(N)]  # SCAFFOLD's controls; FedDC's g, g_k
    h_k = [copy.deepcopy(zero) for _ in range(N)]  # FedDyn's -g_k / a; FedDC's drift
    h = copy.deepcopy(zero)
    for t in range(rounds):
        _, S = select(sim, t)
        if not S:
            continue
        replies, changes = [], []
        for k in S:
            with torch.no_grad():
                for p, value in zip(net.parameters(), w, strict=True):
                    p.copy_(value)
            term = functools.partial(penalty, name, w=w, c=c, c_k=c_k[k], h_k=h_k[k])
            y, far = local_training(net, sim, term, k, t)
            replies.append(y)
            if name in ("scaffold", "feddc"):
                new = [ck - cc + (q - p) / d for ck, cc, q, p, d in zip(c_k[k], c, w, y, far, strict=True)]
                changes.append([n - o for n, o in zip(new, c_k[k], strict=True)])
                c_k[k] = new
            if name in ("feddyn", "feddc"):
                h_k[k] = [d + p - q for d, p, q in zip(h_k[k], y, w, strict=True)]
        sizes = [len(sim.data.parts[k]) if name in ("fedavg", "fedprox") else 1 for k in S]
        mean = [sum(n * y[i] for n, y in zip(sizes, replies, strict=True)) / sum(sizes) for i in range(len(w))]
        if changes:
            c = [cc + sum(change[i] for change in changes) / N for i, cc in enumerate(c)]
        if name == "feddyn":
            h = [hh - a / N * sum(y[i] - w[i] for y in replies) for i, hh in enumerate(h)]
            mean = [m - hh / a for m, hh in zip(mean, h, strict=True)]
        if name == "feddc":
            mean = [m + sum(drift[i] for drift in h_k) / N for i, m in enumerate(mean)]
        w = mean
    return w


@pytest.mark.parametrize(
    ("name", "network", "clip"),
    some_now(
        ["fedavg", "fedprox", "scaffold", "feddyn", "feddc"], [(None, 1.0), (4, 1.0), (4, 2.0)], [1e9, 0.3], times=3
    ),
)
def test_the_engine_computes_what_the_paper_says(name: str, network: tuple[int | None, float], clip: float) -> None:
    """With clients of unequal size, a decaying rate, weight decay, momentum, clipping, and clients that fail."""
    atoms, factor = network
    net = small_net(atoms=atoms)
    training = TRAINING._replace(momentum=0.8, clip=clip, atoms_lr=factor, atoms_decay=3 * factor)
    sim = Simulation(net, clients_of((4, 7, 11, 6)), algorithm(name), training=training, fraction=0.75, failures=0.3)
    assert any(select(sim, t)[0] != select(sim, t)[1] for t in range(4))
    ours = play(sim, 4).server.params
    theirs = reference(name, copy.deepcopy(net), sim, 4)
    names = [leaf for leaf, _ in net.named_parameters()]
    assert difference({leaf: ours[leaf] for leaf in names}, dict(zip(names, theirs, strict=True))) < 1e-11


@pytest.mark.parametrize("atoms", [None, 4])
def test_the_plain_loop_of_the_examples_equals_the_engine(atoms: int | None) -> None:
    training = TRAINING._replace(momentum=0.9, clip=0.5)
    sim = Simulation(small_net(atoms=atoms), clients_of((4, 7, 11)), training=training, fraction=0.67)
    assert difference(play(sim, 3).server.params, fedavg_by_hand(sim, 3)) < 1e-11


def test_server_momentum_and_adam_by_hand() -> None:
    sim = Simulation(small_net(), clients_of((4, 7)), training=TRAINING)
    w = begin(prepare(sim)).server.params
    v, m, s = ({leaf: torch.zeros_like(x) for leaf, x in w.items()} for _ in range(3))
    s = {leaf: torch.full_like(x, 1e-6) for leaf, x in w.items()}
    momentum, adam = (
        play(dataclasses.replace(sim, algorithm=algorithm(n)), 1).server.params for n in ("fedavgm", "fedadam")
    )
    move = {leaf: x - w[leaf] for leaf, x in play(sim, 1).server.params.items()}
    assert difference(momentum, {leaf: w[leaf] + 0.9 * v[leaf] + move[leaf] for leaf in w}) < 1e-12
    m = {leaf: 0.1 * move[leaf] for leaf in w}
    s = {leaf: 0.99 * s[leaf] + 0.01 * move[leaf] ** 2 for leaf in w}
    assert difference(adam, {leaf: w[leaf] + 0.01 * m[leaf] / (s[leaf].sqrt() + 1e-3) for leaf in w}) < 1e-12


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 10])
def test_displacement_is_how_far_unit_gradients_move(momentum: float, steps: int) -> None:
    weight = torch.zeros((), dtype=torch.float64, requires_grad=True)
    torchs = torch.optim.SGD([weight], lr=0.1, momentum=momentum)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        torchs.step()
    far = sgd(momentum).displacement(torch.tensor(float(steps)).double(), 0.1)
    assert torch.allclose(far, -weight.detach())


@pytest.mark.parametrize("map", ["one_by_one", "vectorised"])
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_the_control_of_a_client_after_one_step_is_its_gradient(factor: float, map: Map) -> None:
    net, data = small_net(atoms=4), clients_of((4, 7))
    training = Training(batch_size=7, lr=0.05, atoms_lr=factor)
    state = play(Simulation(net, data, scaffold(), training=training, map=map), 1)
    for k, rows in enumerate(data.parts):
        loss = nn.functional.cross_entropy(net(data.x[rows]), data.y[rows])
        names, leaves = zip(*net.named_parameters(), strict=True)
        gradient = dict(zip(names, torch.autograd.grad(loss, leaves), strict=True))
        assert difference(state.clients.rows[k].memory["control"], gradient) < 1e-12


@pytest.mark.parametrize("map", ["one_by_one", "vectorised"])
def test_controls_by_the_first_rate_are_smaller_in_later_rounds(map: Map) -> None:
    """A single client, whose correction is zero: at half the rate it moves half as far, and that is what is counted."""
    control = {}
    for controls in ("current", "first"):
        training = Training(batch_size=4, lr=0.05, lr_decay=0.5, controls=controls)
        sim = Simulation(small_net(), clients_of((4,)), scaffold(), training=training, map=map)
        control[controls] = play(sim, 2).server.memory["control"]
    half = {name: leaf / 2 for name, leaf in control["current"].items()}
    assert difference(half, control["first"]) < 1e-12


def test_factors_on_atoms_leave_a_plain_network_alone() -> None:
    plain = Simulation(small_net(), clients_of((4, 7)), training=TRAINING)
    other = dataclasses.replace(plain, training=TRAINING._replace(atoms_lr=2.0, atoms_decay=0.0))
    assert identical(play(plain, 2).server.params, play(other, 2).server.params)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_bad_strengths_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="strength"):
        algorithm(name, -1.0)


def test_an_unknown_algorithm_gets_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="Did you mean 'scaffold'"):
        algorithm("scafold")


@pytest.mark.parametrize("name", ["scaffold", "feddc"])
def test_controls_measure_from_where_the_client_began(name: str) -> None:
    """With slow_local="keep" a client starts from its own: the way from there, not from the server, is its gradient."""
    one = torch.ones(1)
    kind = {"scaffold": "control", "feddc": "gradient"}[name]
    memory = {"drift": {"w": 0 * one}, kind: {"w": 5 * one}}
    heard = Server({"w": 100 * one}, {kind: {"w": 2 * one}})
    _, kept = algorithm(name).report({"w": 3 * one}, heard, memory, Work({"w": 4 * one}, one, {"w": 0.5 * one}))
    assert torch.equal(kept[kind]["w"], 5 * one - 2 * one + (4 * one - 3 * one) / 0.5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"map": "vectorized"}, "'vectorised'"),
        ({"score": ("al",)}, "'all'"),
        ({"client_state": "ram"}, "client_state"),
        ({"client_state": "disk"}, "folder"),
        ({"fraction": 0.0}, "fraction=0.0"),
        ({"fraction": 2.0}, "fraction=2.0"),
        ({"training": {"lr": 0.1}}, "is not a training. Use fedatoms.Training"),
        ({"algorithm": "scaffold"}, r"='scaffold' is not an algorithm. Use fedatoms\.algorithms\.scaffold\(\)\.$"),
        ({"algorithm": scaffold}, r"is not an algorithm. Use fedatoms\.algorithms\.scaffold\(\)\.$"),
        ({"algorithm": None}, r"=None is not an algorithm. Use fedatoms\.algorithms\.fedavg\(\)\.$"),
        ({"personal": "local-atoms"}, r"is not a personalised method. Use fedatoms\.personal\.local_atoms\(\)\.$"),
        ({"personal": ditto}, r"is not a personalised method. Use fedatoms\.personal\.ditto\(\)\.$"),
        ({"exchange": "1/5"}, r"exchange='1/5' is not an exchange. Use fedatoms\.engine\.Exchange"),
        (
            {"data": [(torch.ones(2, 1), torch.ones(2))]},
            r"^data=.* is not a federation. Use fedatoms\.data\.federation\(",
        ),
        ({"device": torch.device("cpu")}, "device=.* is not a text. Use for example device='cpu'"),
        ({"block": -1}, "block=-1 is less than 0. Use 0 for as many clients as fit"),
        ({"seed": 0.5}, "seed=0.5 is not a whole number"),
        ({"personal": Personal(phases=(Phase(lr=-1.0),))}, "lr=-1.0 is negative"),
        ({"attack": "noise:0.2"}, r"^attack='noise:0.2' is not an attack. Use .*attacks\.Attack\('noise', 0.2\)\.$"),
        ({"attack": ("noise", 0.2)}, r"^attack=\('noise', 0.2\) is not an attack"),
        ({"privacy": 5}, r"^privacy=5 is not a Privacy\. Use fedatoms\.engine\.Privacy\(noise=1\.0\)\.$"),
        ({"score": "server"}, r"^score='server' is not a tuple of models to score\. Use score=\('server',\)\.$"),
        ({"score": "server,all"}, r"^score='server,all' is not a tuple .* Use score=\('server',\)\.$"),
        ({"score": 5}, "^score=5 is not a tuple of models to score"),
        ({"exchange": Exchange(every_round(), frozenset({"haed"}))}, "^unknown group 'haed'. Did you mean 'head'"),
        ({"exchange": Exchange(every_round(), ["head"])}, r"^personal=\['head'\] is not a set of groups. Use"),
        ({"exchange": Exchange(every_round(), "head")}, "^personal='head' is not a set of groups. Use"),
        ({"fraction": "0.1"}, "^fraction='0.1' is not a number"),
    ],
)
def test_a_simulation_refuses_what_it_cannot_do(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Simulation(**{"model": small_net(), "data": clients_of(), **changes})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: feddyn(0.0), "^a=0.0 is not a positive number. Use None"),
        (lambda: scaffold(0.0), "^server_lr=0.0 is not a positive number"),
        (lambda: fedavgm(1.0), r"^momentum=1.0 is not in \(0, 1\)"),
        (lambda: fedprox(-1.0), "^mu=-1.0 is negative"),
        (lambda: fedprox(2e6), "^mu=2000000.0 is more than 1e6"),
        (lambda: algorithm("fedavgm", 5), r"^strength=5 is not in \(0, 1\)"),
        (lambda: Training(lr="0.1"), "^lr='0.1' is not a number"),
        (lambda: Training(lr=None), "^lr=None is not a number"),
        (lambda: fedprox("0.1"), "^mu='0.1' is not a number"),
        (lambda: every_round({"haed"}), "^unknown group 'haed'. Did you mean 'head'"),
        (lambda: fast_slow({"head"}, {"coefficents"}), "^unknown group 'coefficents'. Did you mean 'coefficients'"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(make: Callable[[], Algorithm], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_the_largest_strength_of_an_experiment_is_one_of_a_method() -> None:
    assert fedprox(RANGES["strength"].high).client_memory({}) == {}
