"""A summary tells what a decomposition does: the same layers, parameters, errors and bytes, and the same reasons."""

import dataclasses
import warnings
from collections.abc import Callable

import pytest
import torch
from support.small import clients_of, small_net
from torch import Tensor, nn
from torch.nn import functional

import fedatoms
from fedatoms.core.ledger import total
from fedatoms.engine.exchange import Exchange, fast_slow
from fedatoms.engine.loop import begin
from fedatoms.engine.round import advance
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.nn.atoms import AtomConv, decompose


class OwnForward(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.abs())


def mixed() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), OwnForward(4, 4, 3), nn.Conv2d(4, 4, 1), nn.ConvTranspose2d(4, 2, 5, bias=False)]
    return nn.Sequential(*layers, nn.BatchNorm2d(2), nn.AlphaDropout(0.5), nn.Flatten(), nn.Linear(32, 3))


@pytest.mark.parametrize("atoms", [2, 9, 30])
def test_it_says_what_decompose_does(atoms: int) -> None:
    model = mixed()
    found = fedatoms.nn.summary(model, atoms)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = decompose(model, atoms)
    assert [layer.name for layer in found.layers] == ["0", "1", "2", "3"]
    for layer in found.layers:
        new = made.get_submodule(layer.name)
        assert bool(layer.atoms) == isinstance(new, AtomConv) == (not layer.why_plain)
        assert layer.before == model.get_submodule(layer.name).weight.numel()
        assert layer.after == (sum(f.numel() for f in new.factors()) if layer.atoms else layer.before)
        lost = (new.weight - model.get_submodule(layer.name).weight).norm() / new.weight.norm()
        assert (layer.error > 0.01) == (lost > 0.01)
    assert found.parameters_before == sum(leaf.numel() for leaf in model.parameters())
    assert found.parameters_after == sum(leaf.numel() for leaf in made.parameters())


def test_it_says_why_a_layer_stays_plain_and_what_cannot_be_vectorised() -> None:
    found = fedatoms.nn.summary(mixed())
    assert [layer.why_plain for layer in found.layers] == [
        "",
        "OwnForward has a forward pass of its own",
        "its kernel has one entry",
        "",
    ]
    assert "AlphaDropout" in found.not_vectorised
    chosen = fedatoms.nn.summary(mixed(), where=lambda name, module: name == "0")
    assert [layer.why_plain for layer in chosen.layers] == ["", *["`where` leaves it out"] * 3]


class Draws(nn.Module):
    """A layer whose forward pass is a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class OwnAttention(nn.MultiheadAttention):
    """A subclass, whose forward pass may be anything."""


BY_LAYER: dict[str, nn.Module] = {
    "LSTM": nn.LSTM(4, 4, num_layers=2, dropout=0.3),
    "GRU": nn.GRU(4, 4, num_layers=2, dropout=0.3),
    "OwnAttention": OwnAttention(4, 2, dropout=0.3),
}
BY_TRIAL: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: functional.dropout(x, 0.5),
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "noise": lambda x: x + torch.randn_like(x),
}


@pytest.mark.parametrize("kind", BY_LAYER)
def test_layers_that_drop_by_an_option_are_named(kind: str) -> None:
    found = fedatoms.nn.summary(nn.Sequential(nn.Linear(4, 4), BY_LAYER[kind]))
    assert found.not_vectorised == f"layer '1' ({kind}) draws its own randomness for dropout=0.3" and not found.tried


def test_layers_with_an_option_for_dropout_that_drop_nothing_are_no_obstacle() -> None:
    layers = nn.LSTM(4, 4, num_layers=2), OwnAttention(4, 2), nn.MultiheadAttention(4, 2, dropout=0.3)
    assert fedatoms.nn.summary(nn.ModuleList(layers)).not_vectorised == ""


@pytest.mark.parametrize("what", BY_TRIAL)
def test_a_batch_shows_what_no_layer_tells(what: str) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), Draws(BY_TRIAL[what])), torch.zeros(2, 3, 4)
    untried, tried = fedatoms.nn.summary(model), fedatoms.nn.summary(model, inputs=x)
    assert (untried.not_vectorised, untried.tried, tried.tried) == ("", False, True)
    expected = "its forward pass draws random numbers itself, as F.dropout does, in layer '1' (Draws)"
    assert tried.not_vectorised == expected


@pytest.mark.parametrize("norm", [False, True])
def test_a_batch_that_clients_are_trained_on_together_shows_that_they_can_be(norm: bool) -> None:
    net = small_net(norm=norm, dropout=True)
    before = {name: leaf.clone() for name, leaf in net.state_dict().items()}
    found = fedatoms.nn.summary(net, 4, inputs=torch.zeros(2, 1, 6, 6, dtype=torch.float64))
    assert found.not_vectorised == "" and found.tried
    assert all(torch.equal(leaf, before[name]) for name, leaf in net.state_dict().items())


def test_any_other_failure_of_the_trial_is_told_in_one_line() -> None:
    found = fedatoms.nn.summary(nn.Linear(3, 2), inputs=torch.zeros(2, 5))
    assert found.not_vectorised.startswith("training two clients at once fails (") and "\n" not in found.not_vectorised


def test_a_network_without_convolutions_has_a_summary_too() -> None:
    found = fedatoms.nn.summary(nn.Linear(3, 2))
    assert found.layers == () and found.bytes_before == found.bytes_full == found.bytes_fast == 32


def test_a_decomposed_network_is_told_as_it_is_and_nothing_is_changed() -> None:
    made = decompose(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 3)), 4, init="orthonormal")
    before = {name: leaf.clone() for name, leaf in made.state_dict().items()}
    found = fedatoms.nn.summary(made, 7)
    assert [(layer.kind, layer.atoms, layer.error) for layer in found.layers] == [("AtomConv2d", 4, 0.0)] * 2
    assert found.parameters_before == found.parameters_after
    assert all(torch.equal(leaf, before[name]) for name, leaf in made.state_dict().items())


@pytest.mark.parametrize("norm", [False, True])
def test_the_bytes_are_those_that_a_round_counts(norm: bool) -> None:
    plain, data = small_net(norm=norm), clients_of()
    found = fedatoms.nn.summary(plain, 4)
    sim = Simulation(small_net(norm=norm, atoms=4), data, training=Training(batch_size=10), score=("server",))
    sim = dataclasses.replace(sim, exchange=Exchange(fast_slow(period=2)))
    runtime = prepare(sim)
    state, full = advance(runtime, begin(runtime))
    _, fast = advance(runtime, state)
    assert total(full.up) == 3 * found.bytes_full and total(fast.up) == 3 * found.bytes_fast
    runtime = prepare(dataclasses.replace(sim, model=plain, exchange=Exchange(fast_slow(period=2))))
    assert total(advance(runtime, begin(runtime))[1].up) == 3 * found.bytes_before
