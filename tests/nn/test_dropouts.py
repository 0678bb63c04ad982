"""Laws of layers that drop at random: one by one = vectorised = compiled, torch's own where nothing is dropped."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import some_now
from support.small import clients_of, difference, play
from torch import Tensor, nn

from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.runtime import prepare
from fedatoms.engine.spec import Simulation
from fedatoms.engine.training import Training
from fedatoms.nn.dropouts import AddressedAttention, AddressedDepth, with_addressed_dropout
from fedatoms.nn.pure import network, why_not_vectorised


class StochasticDepth(nn.Module):
    """As torchvision's."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        size = [x.shape[0] if self.mode == "row" else 1] + [1] * (x.dim() - 1)
        return x * torch.empty(size, dtype=x.dtype).bernoulli_(1 - self.p) / (1 - self.p)


class DropPath(nn.Module):
    """As timm's."""

    def __init__(self, drop_prob: float | None = 0.0, scale_by_keep: bool = True) -> None:
        super().__init__()
        self.drop_prob, self.scale_by_keep = drop_prob, scale_by_keep

    def forward(self, x: Tensor) -> Tensor:
        if not self.drop_prob or not self.training:
            return x
        mask = x.new_empty((x.shape[0], *([1] * (x.dim() - 1)))).bernoulli_(1 - self.drop_prob)
        return x * (mask / (1 - self.drop_prob) if self.scale_by_keep else mask)


class SwinDropPath(DropPath):
    """As those of Hugging Face, which have names of their own and one attribute."""


class Sequences(nn.Module):
    """Reads a 6 x 6 image as a sequence of six rows, through a layer of one's own."""

    def __init__(self, layer: Callable[[Tensor], Tensor], rows: int = 0) -> None:
        super().__init__()
        self.layer, self.rows, self.head = layer, rows, nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x[:, 0].transpose(0, self.rows)).transpose(0, self.rows)
        out: Tensor = self.head(y.flatten(1))
        return out


class Attends(nn.Module):
    """Attention to another sequence, with masks."""

    def __init__(self, **more: object) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True, **more)

    def forward(self, x: Tensor) -> Tensor:
        causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
        out, weights = self.attention(x, x.flip(1), x.cos(), attn_mask=causal)
        return out + weights.sin().sum(-1, keepdim=True)


class Branch(nn.Module):
    """A residual branch with stochastic depth."""

    def __init__(self, depth: nn.Module) -> None:
        super().__init__()
        self.linear, self.depth = nn.Linear(6, 6), depth

    def forward(self, x: Tensor) -> Tensor:
        return x + self.depth(self.linear(x).tanh())


class Decodes(nn.Module):
    """A decoder of a sequence that sees the same one."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoderLayer(6, 2, 8, dropout=0.3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decoder(x, x)
        return out


def encoder(**more: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.3, **more)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


LAYERS: dict[str, Callable[[], Sequences]] = {
    "encoder": lambda: Sequences(encoder(batch_first=True)),
    "norm first": lambda: Sequences(encoder(batch_first=True, norm_first=True)),
    "rows second": lambda: Sequences(encoder(), rows=1),
    "decoder": lambda: Sequences(Decodes(), rows=1),
    "attention": lambda: Sequences(Attends()),
    "other sizes": lambda: Sequences(Attends(kdim=6, vdim=6, add_bias_kv=True, add_zero_attn=True)),
    "depth by rows": lambda: Sequences(Branch(StochasticDepth(0.4, "row"))),
    "depth by batches": lambda: Sequences(Branch(StochasticDepth(0.4, "batch"))),
    "DropPath": lambda: Sequences(Branch(DropPath(0.4))),
    "not scaled": lambda: Sequences(Branch(DropPath(0.4, scale_by_keep=False))),
    "Hugging Face": lambda: Sequences(Branch(SwinDropPath(0.4))),
}


def net(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LAYERS[name]().double()


@pytest.mark.parametrize(("name", "map"), some_now(LAYERS, ["vectorised", "compiled"]))
def test_one_by_one_equals_vectorised_and_compiled(name: str, map: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    training = Training(batch_size=10, lr=0.1, momentum=0.5)
    sim = Simulation(net(name), clients_of((1, 7, 23)), training=training, score=("server",), block=2)
    assert why_not_vectorised(sim.model) is None
    compiled = prepare(sim)._replace(map_clients=cuda_graph.compiled(2))
    other = compiled if map == "compiled" else dataclasses.replace(sim, map="vectorised")
    assert difference(play(sim, 2).server.params, play(other, 2).server.params) < 1e-9


@pytest.mark.parametrize("name", LAYERS)
def test_in_evaluation_nothing_changes_and_in_training_something_is_dropped(name: str) -> None:
    model, x = net(name), clients_of().x[:8]
    made = network(model)
    params = {**made.parameters, **made.statistics, **made.constants}
    expected = model.eval()(x)
    torch.testing.assert_close(made.predict(params, x), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(with_addressed_dropout(model).eval()(x), expected)
    first, again, other = (made.train(params, x, None, torch.tensor(key))[0] for key in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.allclose(first, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_more_rows_change_nothing_in_the_first_ones(name: str) -> None:
    made, x = network(net(name)), clients_of().x[:8]
    params = {**made.parameters, **made.statistics, **made.constants}
    few, many = (made.train(params, x[:n], None, torch.tensor(5))[0] for n in (3, 8))
    torch.testing.assert_close(few, many[:3], rtol=0, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    more=st.fixed_dictionaries(
        {name: st.booleans() for name in ("bias", "add_bias_kv", "add_zero_attn", "batch_first")}
        | {name: st.sampled_from([None, 4, 5]) for name in ("kdim", "vdim")}
    ),
    call=st.fixed_dictionaries({name: st.booleans() for name in ("need_weights", "average_attn_weights", "is_causal")}),
    masks=st.tuples(*[st.sampled_from([None, torch.bool, torch.float64])] * 2),
    layout=st.sampled_from(["rows", "one sequence", "a mask of each row"]),
    seed=st.integers(0, 9),
)
def test_attention_that_drops_nothing_is_torchs_own(
    more: dict[str, bool], call: dict[str, bool], masks: tuple[torch.dtype | None, ...], layout: str, seed: int
) -> None:
    torch.manual_seed(seed)
    plain = nn.MultiheadAttention(6, 2, dtype=torch.float64, **more).train()
    rows, lengths, widths = 3, (4, 5, 5), (6, more["kdim"] or 6, more["vdim"] or 6)
    inputs = [torch.randn(rows, n, width, dtype=torch.float64) for n, width in zip(lengths, widths, strict=True)]
    attention, padding = torch.rand(4, 5) < 0.3, torch.rand(rows, 5) < 0.3
    attention[:, 0] = padding[:, 0] = False  # each query sees something
    if layout == "one sequence":
        inputs, padding = [x[0] for x in inputs], padding[0]
    elif not more["batch_first"]:
        inputs = [x.transpose(0, 1) for x in inputs]
    if layout == "a mask of each row":
        attention = attention.expand(2 * rows, 4, 5)
    kind = masks[0] if masks[0] is None or masks[1] is None else masks[1]  # torch wants the same one for both
    given_masks = {
        "attn_mask": as_mask(attention, kind),
        "key_padding_mask": as_mask(padding, masks[1]),
    }
    call["is_causal"] &= not (more["add_bias_kv"] or more["add_zero_attn"])  # torch then hides the additional keys
    if call["is_causal"]:  # a hint that the mask is causal
        given_masks["attn_mask"] = as_mask(torch.ones(4, 5).triu(1).bool(), masks[1] or torch.bool)
    found, expected = (layer(*inputs, **call, **given_masks) for layer in (AddressedAttention(plain), plain))
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-12)


def as_mask(mask: Tensor, kind: torch.dtype | None) -> Tensor | None:
    if kind is None:
        return None
    return mask if kind == torch.bool else torch.zeros(mask.shape, dtype=kind).masked_fill(mask, -torch.inf)


def test_a_query_that_sees_nothing_gets_nothing_and_has_finite_gradients() -> None:
    layer = AddressedAttention(nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True))
    x = torch.randn(2, 3, 6, requires_grad=True)
    blind = torch.tensor([[True] * 3, [False] * 3, [False] * 3])
    out, weights = layer(x, x, x, attn_mask=blind)
    out.sum().backward()
    assert not weights[:, 0].any() and bool(x.grad.isfinite().all())


def test_attention_drops_the_share_that_it_says_and_keeps_the_mean() -> None:
    plain = nn.MultiheadAttention(4, 2, dropout=0.25, dtype=torch.float64)
    x = torch.randn(40, 5, 4, dtype=torch.float64)
    _, weights = AddressedAttention(plain)(x, x, x, average_attn_weights=False)
    _, whole = plain.eval()(x, x, x, average_attn_weights=False)
    dropped = weights == 0
    assert 0.23 < float(dropped.double().mean()) < 0.27
    torch.testing.assert_close(weights[~dropped], whole[~dropped] / 0.75)


@pytest.mark.parametrize("mode", ["row", "batch"])
def test_depth_drops_rows_or_the_batch_and_keeps_the_mean(mode: str) -> None:
    layer, kept = AddressedDepth(0.25, mode), []
    for key in range(200):
        layer.key = torch.tensor(key)
        out = layer(torch.ones(8, 2, 3)).flatten(1)
        assert bool((out == out[:, :1]).all()) and (mode == "row" or len(out.unique()) == 1)
        kept.append(out.mean())
    assert abs(float(torch.stack(kept).mean()) - 1) < 0.1


def test_other_classes_with_such_names_are_left_alone() -> None:
    """A name is not enough: the attributes must be those that are known."""
    odd, unset = StochasticDepth(0.5, "columns"), DropPath(None)
    model = nn.Sequential(odd, unset)
    assert list(with_addressed_dropout(model)) == [odd, unset]


def test_plain_dropout_in_front_of_attention_draws_what_it_drew_before() -> None:
    """The key of a layer depends on its place: putting addressed layers elsewhere must not move it."""
    model = nn.Sequential(nn.MultiheadAttention(6, 2, dropout=0.3), StochasticDepth(0.2, "row"), nn.Dropout(0.5))
    places = [name for name, _ in model.named_modules()]
    assert [name for name, _ in with_addressed_dropout(model).named_modules()] == places


def test_a_layer_that_only_has_the_name_of_stochastic_depth_stays_as_it_is() -> None:
    class DropPath(nn.Module):
        drop_prob = 0.5

        def forward(self, x: Tensor) -> Tensor:
            return 0 * x

    assert isinstance(with_addressed_dropout(nn.Sequential(DropPath()))[0], DropPath)
