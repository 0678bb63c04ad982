"""What a network may do in its forward pass, and hold: it is refused in one line, or only its outputs change."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.small import Drifting, clients_of, difference, identical, small_net
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from fedatoms.aggregation import krum, median
from fedatoms.algorithms import Algorithm, moon
from fedatoms.core.options import Map as MapName
from fedatoms.core.trees import Params
from fedatoms.data.federations import Federation, federation
from fedatoms.engine.attacks import Attack
from fedatoms.engine.evaluation import evaluate
from fedatoms.engine.execution.vmap import NotVectorisable
from fedatoms.engine.loop import Trained, begin, rounds, train
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.state import State
from fedatoms.objectives import Objective, classification
from fedatoms.personal import fedpac
from fedatoms.runs.checkpoints import load_checkpoint, save_checkpoint


def tokens() -> Federation:
    """Makes two clients with sentences of five words."""
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randint(20, (24, 5), generator=draws), torch.randint(3, (24,), generator=draws)
    return federation([(x[:8], y[:8]), (x[8:16], y[8:16])], test=(x[16:], y[16:]))


class Bag(nn.Module):
    """A mean of words' vectors, none of them longer than ``max_norm``."""

    def __init__(self, max_norm: float | None) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(20, 4, max_norm=max_norm), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x).mean(1))


class Constrained(nn.Linear):
    """A layer that shortens its rows before it uses them, as networks for EEG do."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.1)
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "data", "name"),
    [
        (lambda: Bag(1.0), tokens, "words.weight"),
        (lambda: Bag(1e6), tokens, "words.weight"),  # longer than any yet
        (lambda: nn.Sequential(nn.Flatten(), Constrained(36, 3)).double(), clients_of, "1.weight"),
    ],
)
def test_a_forward_pass_that_changes_its_parameters_is_refused_and_the_parameter_named(
    model: Callable[[], nn.Module], data: Callable[[], Federation], name: str
) -> None:
    """They would be the server's: scores would change the model, and one client what the next one starts from."""
    with pytest.raises(ValueError, match=f"changes the parameter '{name}'.*Leave max_norm out"):
        begin(prepare(Simulation(model(), data())))
    begin(prepare(Simulation(Bag(None), tokens())))


class Detached(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)).detach()


class Shifted(nn.Linear):
    """Changes what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        return super().forward(x.flatten(1))


class Checkpointed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        made = checkpoint(super().forward, x.flatten(1), use_reentrant=False)
        assert isinstance(made, Tensor)
        return made


class OnTheHost(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        with save_on_cpu():
            return super().forward(x.flatten(1))


class Read(nn.Linear):
    """Looks at what it is given, as a check of the user's may do."""

    def __init__(self, *sizes: int, look: Callable[[Tensor], object]) -> None:
        super().__init__(*sizes)
        self.look = look

    def forward(self, x: Tensor) -> Tensor:
        self.look(x)
        return super().forward(x.flatten(1))


ELSEWHERE = "its forward pass keeps its activations elsewhere, as checkpoint and save_on_cpu do, in "
NUMBERS = "its forward pass reads numbers out of a tensor, as .numpy\\(\\) does, in Read"
MAPS: tuple[MapName, ...] = ("one_by_one", "vectorised")
NO_SLOPES = classification()._replace(loss=lambda outputs, y: F.cross_entropy(outputs, y, reduction="none").detach())


@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize(
    ("model", "objective", "who"),
    [
        (Detached, classification(), "what the model returns"),
        (lambda *sizes: nn.Sequential(nn.Flatten(), nn.Linear(*sizes)), NO_SLOPES, "the objective's loss"),
    ],
)
def test_a_loss_that_depends_on_no_parameter_is_refused_in_every_map(
    model: Callable[..., nn.Module], objective: Objective, who: str, map: MapName
) -> None:
    """A transform takes its gradient for 0: such a run ended with scores, and had learnt nothing."""
    sim = Simulation(model(36, 3).double(), clients_of((4, 6)), objective=objective, map=map)
    with pytest.raises(ValueError, match=f"{who} does not depend on the model's parameters"):
        train(sim, 1)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: Shifted(36, 3), "its forward pass changes its input in place, as x -= 1 does, in Shifted"),
        (lambda: nn.Sequential(nn.Flatten(), spectral_norm(nn.Linear(36, 3))), "Batching rule not implemented"),
        (lambda: Checkpointed(36, 3), f"{ELSEWHERE}Checkpointed"),
        (lambda: OnTheHost(36, 3), f"{ELSEWHERE}OnTheHost"),
        (lambda: Read(36, 3, look=lambda x: x.detach().numpy()), NUMBERS),
        (lambda: Read(36, 3, look=Tensor.tolist), NUMBERS),
        (lambda: Read(36, 3, look=Tensor.untyped_storage), NUMBERS),
    ],
)
def test_what_torch_cannot_vectorise_is_said_in_one_line_and_trains_one_by_one(
    model: Callable[[], nn.Module], reason: str
) -> None:
    sim = Simulation(model().double(), clients_of((4, 6)), score=("server",))
    train(sim, 1)
    with pytest.raises(NotVectorisable, match=f"this model cannot be vectorised: {reason}.*Use map=one_by_one"):
        train(replace(sim, map="vectorised"), 1)


def test_an_algorithm_that_draws_is_named_where_it_is_not_the_model() -> None:
    def noisy(gradient: Params, *_: object) -> Params:
        return {name: g + torch.randn(g.shape, dtype=g.dtype) for name, g in gradient.items()}

    sim = Simulation(small_net(), clients_of((4, 6)), Algorithm(correct=noisy), map="vectorised")
    with pytest.raises(NotVectorisable, match="the algorithm or the objective draws random numbers itself"):
        train(sim, 1)


class Twin(nn.Module):
    """Two branches whose norms have their statistics together."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.out = nn.Linear(36, 6), nn.Linear(36, 6), nn.Linear(6, 3)
        self.norm, self.same = nn.BatchNorm1d(6), nn.BatchNorm1d(6)
        self.double()  # which parts buffers
        self.same.running_mean, self.same.running_var = self.norm.running_mean, self.norm.running_var

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.out(self.norm(self.one(x)) + self.same(self.other(x)))


def test_a_buffer_of_two_layers_is_one_buffer() -> None:
    torch.manual_seed(0)
    data = clients_of((8, 8))
    done = train(Simulation(Twin(), data), 3)
    loss = nn.functional.cross_entropy(done.model.eval()(data.test_x), data.test_y)
    assert done.scores["server"].loss == pytest.approx(loss.item(), rel=1e-12)
    with pytest.raises(ValueError, match=r"layer 'norm' \(BatchNorm1d\) shares its statistics with another"):
        prepare(Simulation(Twin(), data, map="vectorised"))


class Causal(nn.Module):
    """Attention of pixels to earlier ones, by a mask that is -inf elsewhere."""

    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((6, 6), -torch.inf).triu(1), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.flatten(1, 2))
        return self.out(((h @ h.mT + self.mask).softmax(-1) @ h).mean(1))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attack": Attack("sign-flip", 0.2, strength=1.0)},
        {"attack": Attack("label-flip", 0.2)},
        {"aggregation": krum()},
        {"aggregation": median()},
        {"score": ("server", "selected", "all")},
    ],
    ids=["plain", "sign-flip", "label-flip", "krum", "median", "all"],
)
def test_a_buffer_that_is_not_finite_is_a_constant_whether_it_is_saved_or_not(changes: dict[str, Any]) -> None:
    found = list[Trained]()
    for persistent in (False, True):
        torch.manual_seed(0)
        model = Causal(persistent=persistent).double()
        found.append(train(Simulation(model, clients_of((5,) * 5), **changes), 2))
    for one, other in zip(*(done.history for done in found), strict=True):
        assert one[0]._replace(seconds=0) == other[0]._replace(seconds=0) and one[0].clients == 5
        assert one[1] == other[1]
    assert "mask" in found[1].model.state_dict()


class Shift(nn.Module):
    """Takes the mean of all images away, in their own memory or not."""

    def __init__(self, *, inplace: bool) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        return x.sub_(0.5) if self.inplace else x - 0.5


@pytest.mark.parametrize(
    "changes", [{}, {"algorithm": moon()}, {"personal": fedpac()}], ids=["fedavg", "moon", "fedpac"]
)
def test_a_forward_pass_may_change_its_inputs(changes: dict[str, Any]) -> None:
    found = list[Trained]()
    for inplace in (False, True):
        data = clients_of((5, 25))
        model = nn.Sequential(Shift(inplace=inplace), small_net())
        found.append(train(Simulation(model, data, **changes), 3))
        assert torch.equal(data.x, clients_of((5, 25)).x) and torch.equal(data.test_x, clients_of((5, 25)).test_x)
    assert identical(*(done.state.server.params for done in found))


DRIFTS = [(inplace, persistent) for inplace in (True, False) for persistent in (True, False)]


def drifting(inplace: bool, persistent: bool, changes: dict[str, Any] | None = None) -> Simulation:
    """Makes clients whose network changes its buffers in every forward pass; without padding, which would count."""
    model = Drifting(small_net(), inplace=inplace, persistent=persistent).double()
    return Simulation(model, clients_of((10, 20, 10)), **(changes or {}))


@pytest.mark.parametrize(
    "changes", [{}, {"personal": fedpac()}, {"score": ("local",)}], ids=["plain", "fedpac", "local"]
)
@pytest.mark.parametrize("drift", DRIFTS)
def test_a_score_changes_no_buffer_though_the_forward_pass_does(
    drift: tuple[bool, bool], changes: dict[str, Any]
) -> None:
    sim = drifting(*drift, changes)
    often, once = train(sim, 4), train(sim, 4, eval_every=4)
    assert identical(often.state.server.params, once.state.server.params) and often.scores == once.scores
    runtime = prepare(sim)
    assert evaluate(runtime, often.state) == evaluate(runtime, often.state) == often.scores
    assert begin(runtime).server.params["calls"] == 0 and not any(sim.model.get_buffer("level"))


@pytest.mark.parametrize("drift", DRIFTS)
def test_clients_trained_at_once_are_those_trained_one_by_one_though_buffers_move(drift: tuple[bool, bool]) -> None:
    one, other = (train(drifting(*drift, {"map": way}), 3) for way in ("one_by_one", "vectorised"))
    assert difference(one.state.server.params, other.state.server.params) < 1e-12
    assert one.scores["server"].loss == pytest.approx(other.scores["server"].loss, rel=1e-12)
    assert bool(one.state.server.params["level"]) == drift[1]  # moved where it is saved, and so averaged


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_run_that_stops_and_resumes_is_one_that_never_stopped_though_buffers_move(
    drift: tuple[bool, bool], tmp_path: Path
) -> None:
    def played(state: State, until: int) -> State:
        return [progress.state for progress in rounds(prepare(sim), state, until)][-1]

    sim = drifting(*drift)
    whole, half = played(begin(prepare(sim)), 4), played(begin(prepare(sim)), 2)
    save_checkpoint(tmp_path, half, trajectory="it", seconds=0.0)
    resumed = load_checkpoint(tmp_path, prepare(sim), trajectory="it").state
    assert identical(played(resumed, 4).server.params, whole.server.params)


def test_a_complex_parameter_is_refused_unless_it_is_frozen() -> None:
    model = small_net()
    model.phase = nn.Parameter(torch.ones(2, dtype=torch.complex128))
    with pytest.raises(ValueError, match=r"'phase' of the model is complex.*torch\.view_as_complex"):
        Simulation(model, clients_of())
    model.phase.requires_grad_(False)
    train(Simulation(model, clients_of()), 1)
