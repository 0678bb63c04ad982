"""Convolutions as products over clients: the same results and gradients as torch's, where they apply and where not."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import some_now
from support.small import clients_of, difference, play
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fedatoms.engine.execution import cuda_graph
from fedatoms.engine.freeze import hold_fixed
from fedatoms.engine.gpu import atom_ops, convolutions, rewrite
from fedatoms.engine.gpu.atom_ops import LARGEST, compose, share
from fedatoms.engine.gpu.conv_ops import convolve, convolve_pool, correlate
from fedatoms.engine.gpu.first_only import OnlyOnce
from fedatoms.engine.gpu.rewrite import BatchedKernels
from fedatoms.engine.gpu.rounding import Rounded, in_half, unit_of
from fedatoms.engine.runtime import Runtime, prepare
from fedatoms.engine.spec import Simulation
from fedatoms.nn.atoms import decompose

Model = Callable[[Tensor, Tensor, Tensor], Tensor]  # of images, filters and bias
FEW_CHANNELS = (3, 4, 7, 16)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def gradients(model: Model, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Of the clients' losses with respect to all three tensors, whose leading axis is that of clients."""

    def loss(*each: Tensor) -> Tensor:
        return (model(*each) ** 2).sum()

    return torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*tensors)


def agree(model: Model, *tensors: Tensor) -> list[str]:
    """Checks that products change nothing, and returns those that took part."""
    plain = gradients(model, *tensors)
    with BatchedKernels():
        traced = make_fx(lambda *each: gradients(model, *each))(*tensors)
    traced.graph.eliminate_dead_code()
    for expected, found in zip(plain, traced(*tensors), strict=True):
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
    return [str(node.target) for node in traced.graph.nodes if "fedatoms" in str(node.target)]


@settings(max_examples=15, deadline=None)
@given(
    clients=st.integers(1, 3),
    channels=st.sampled_from(FEW_CHANNELS),
    filters=st.integers(16, 20),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    more=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    pool=st.booleans(),
    data=st.data(),
)
def test_products_are_convolutions(
    clients: int,
    channels: int,
    filters: int,
    kernel: tuple[int, int],
    more: tuple[int, int],
    pool: bool,
    data: st.DataObject,
) -> None:
    stride = 1 if pool else data.draw(st.integers(1, 3))
    padding = tuple(data.draw(st.integers(0, size - 1)) for size in kernel)

    def model(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = F.conv2d(x, weight, bias, stride, padding)
        return F.max_pool2d(F.relu(y), 2) if pool else y

    size = (kernel[0] + more[0], kernel[1] + more[1])
    used = agree(
        model,
        random(clients, 2, channels, *size),
        random(clients, filters, channels, *kernel),
        random(clients, filters),
    )
    assert ("fedatoms.convolve_pool.default" in used) == pool


IMAGES, FILTERS, BIAS = random(2, 2, 3, 9, 9), random(2, 16, 3, 3, 3), random(2, 16)
POOLED: dict[str, Model] = {
    "padding by name": lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b, padding="same")), 2),
    "no padding by name": lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b, padding="valid")), 2),
    "modules": lambda x, w, b: nn.MaxPool2d(2)(nn.ReLU()(F.conv2d(x, w, b))),
    "in place": lambda x, w, b: F.max_pool2d(nn.ReLU(inplace=True)(F.conv2d(x, w, b)), (2, 2), 2),
    "methods": lambda x, w, b: torch.max_pool2d(torch.conv2d(input=x, weight=w, bias=b).relu(), kernel_size=2),
    "without bias": lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w)), 2) + b[:, None, None],
    "layer after layer": lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(F.conv2d(x, w, b)[:, :3], w, b)), 2),
}
NOT_POOLED: dict[str, Model] = {
    "changed before": lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b).add_(1)), 2),
    "changed by another layer": lambda x, w, b: F.max_pool2d(F.relu(F.hardtanh(F.conv2d(x, w, b), inplace=True)), 2),
    "listened to": lambda x, w, b: F.max_pool2d(F.relu(_heard(F.conv2d(x, w, b))), 2),
    "written to": lambda x, w, b: F.max_pool2d(F.relu(_cleared(F.conv2d(x, w, b))), 2),
    "large windows": lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b)), 3),
    "windows that overlap": lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2, stride=1),
    "padded windows": lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2, padding=1),
    "cut windows": lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2, ceil_mode=True),
    "no relu": lambda x, w, b: F.max_pool2d(F.conv2d(x, w, b), 2),
    "something between": lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b) + 1), 2),
}
PLAIN: dict[str, Model] = {
    "unequal strides": lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1)),
    "dilation": lambda x, w, b: F.conv2d(x, w, b, dilation=2),
    "groups": lambda x, w, b: F.conv2d(x, w[:, :1].repeat(3, 1, 1, 1)[:48], groups=3),
    "padding more at one side": lambda x, w, b: F.conv2d(x, w[:, :, 1:], b, padding="same"),
    "padding beyond the kernel": lambda x, w, b: F.conv2d(x, w, b, padding=3),
    "few filters": lambda x, w, b: F.conv2d(x, w[:15], b[:15]),
    "one image": lambda x, w, b: F.conv2d(x[0], w, b),
}


def _slope(energy: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """As most networks take it, of what has been computed before."""
    return torch.autograd.grad(energy(x), x, create_graph=True)[0]


SLOPES: dict[str, Model] = {
    "of images": lambda x, w, b: torch.func.grad(lambda z: (F.conv2d(z, w, b) ** 3).sum())(x),
    "of filters": lambda x, w, b: torch.func.grad(lambda z: (POOLED["modules"](x, z, b) ** 3).sum())(w),
    "of atoms": lambda x, w, b: torch.func.grad(lambda z: (_composed_of(x, w, z) ** 3).sum())(b),
    "of what was computed": lambda x, w, b: _slope(
        lambda z: (F.conv2d(z, w, b) ** 3).sum(), x * (1 + b[:3, None, None])
    ),
    "of a pool of it": lambda x, w, b: _slope(lambda z: (POOLED["modules"](z, w, b) ** 3).sum(), x + 0 * b.sum()),
}


def _composed_of(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, torch.tensordot(w.flatten(2), b[:9, None, None] * torch.ones(9, 2, 2), 1))


@pytest.mark.parametrize("name", SLOPES)
def test_operators_that_are_differentiated_twice_say_so(name: str) -> None:
    """Else these gradients would be 0, without a word."""
    assert all(each.abs().max() > 0 for each in gradients(SLOPES[name], IMAGES, FILTERS, BIAS))
    with pytest.raises(OnlyOnce, match="first derivatives only"):
        agree(SLOPES[name], IMAGES, FILTERS, BIAS)


class Force(nn.Module):
    """The slope of an energy."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 16, 3), nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            h = x * (1 + self.conv.bias[0])
            h = h if h.requires_grad else h.requires_grad_()  # in a score no parameter does
            slope = _slope(lambda z: (self.conv(z) ** 3).sum(), h)
        return self.out((slope if torch.is_grad_enabled() else slope.detach()).flatten(1))


def test_a_network_that_takes_a_slope_is_trained_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    sim = Simulation(Force().double(), clients_of((3, 5)))
    before = {name: leaf.detach().clone() for name, leaf in sim.model.named_parameters()}
    alone = play(sim, 2)
    with pytest.warns(UserWarning, match="batched kernels have first derivatives only"):
        compiled = play(prepare(sim)._replace(map_clients=cuda_graph.compiled(2)), 2)
    assert difference(alone.server.params, compiled.server.params) < 1e-10
    assert difference({"w": before["conv.weight"]}, {"w": alone.server.params["conv.weight"]}) > 1e-6


def _cleared(y: Tensor) -> Tensor:
    y[:, 0] = 0
    return y


def _heard(y: Tensor) -> Tensor:
    y.register_hook(lambda slopes: 2 * slopes)
    return y


@pytest.mark.parametrize("name", POOLED)
def test_relu_and_pooling_join_a_convolution(name: str) -> None:
    assert "fedatoms.convolve_pool.default" in agree(POOLED[name], IMAGES, FILTERS, BIAS)


@pytest.mark.parametrize("name", NOT_POOLED)
def test_what_is_not_that_pattern_is_left_alone(name: str) -> None:
    used = agree(NOT_POOLED[name], IMAGES, FILTERS, BIAS)
    assert "fedatoms.convolve.default" in used and "fedatoms.convolve_pool.default" not in used


@settings(max_examples=8, deadline=None)
@given(
    clients=st.integers(1, 3),
    filters=st.tuples(st.integers(16, 20), st.integers(1, 5)),
    atoms=st.integers(1, 30),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    pool=st.booleans(),
)
def test_products_compose_filters_of_atoms(
    clients: int, filters: tuple[int, int], atoms: int, kernel: tuple[int, int], pool: bool
) -> None:
    def model(x: Tensor, a: Tensor, d: Tensor) -> Tensor:
        y = F.conv2d(x, torch.tensordot(a, d, 1))
        return F.max_pool2d(F.relu(y), 2) if pool else y

    images = random(clients, 2, filters[1], kernel[0] + 3, kernel[1] + 2)
    used = agree(model, images, random(clients, *filters, atoms), random(clients, atoms, *kernel))
    assert [used.count(f"fedatoms.{name}.default") for name in ("compose", "share")] == [1, 1]


def _doubled(theta: Tensor) -> Tensor:
    return theta.mul_(2)


ATOMS, COEFFICIENTS = random(2, 9, 3, 3), random(2, 16, 3, 9)
NOT_COMPOSED: dict[str, Model] = {
    "a convolution that stays": lambda x, a, d: F.conv2d(x, torch.tensordot(a, d, 1), dilation=2),
    "whose result is viewed": lambda x, a, d: F.conv2d(x, torch.tensordot(a, d, 1), dilation=2).view(2, -1),
    "other axes": lambda x, a, d: F.conv2d(x, torch.tensordot(a, d, ([2], [0]))),
    "axes in a tensor": lambda x, a, d: F.conv2d(x, torch.tensordot(a, d, torch.tensor([[2], [0]]))),
    "changed": lambda x, a, d: F.conv2d(x, torch.tensordot(a, d, 1) * 2),
    "changed in place": lambda x, a, d: F.conv2d(x, _doubled(torch.tensordot(a, d, 1))),
    "too many atoms": lambda x, a, d: F.conv2d(x, torch.tensordot(a.repeat(1, 1, 8), d.repeat(8, 1, 1), 1)),
    "too large atoms": lambda x, a, d: F.conv2d(x, torch.tensordot(a, d.repeat(1, 3, 3), 1)),
    "broadcast": lambda x, a, d: F.conv2d(x, torch.tensordot(a[:, :, :1], d, 1)),
    "no atoms": lambda x, a, d: F.conv2d(x, torch.tensordot(a[:, :, :0], d[:0], 1)) + a.sum() + d.sum(),
}


@pytest.mark.parametrize("name", NOT_COMPOSED)
def test_other_filters_stay(name: str) -> None:
    used = agree(NOT_COMPOSED[name], IMAGES, COEFFICIENTS, ATOMS)
    assert not any("compose" in each for each in used)


def test_a_trace_over_clients_has_no_permutation_that_changes_nothing() -> None:
    with BatchedKernels():
        graph = rewrite.traced(
            lambda *each: gradients(lambda x, w, b: F.conv2d(x, w, b, padding=1), *each),
            *(random(2, *shape) for shape in ((3, 4, 6, 6), (16, 4, 3, 3), (16,))),
        )
    orders = [
        node.args[1] for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.permute.default)
    ]
    assert orders and all([*order] != sorted(order) for order in orders)


def test_as_many_atoms_as_there_may_be_are_composed() -> None:
    images, a, d = random(1, 1, 1, 9, 9), random(1, 16, 1, LARGEST), random(1, LARGEST, 8, 8)
    assert "fedatoms.compose.default" in agree(lambda x, a, d: F.conv2d(x, torch.tensordot(a, d, 1)), images, a, d)


def test_under_autocast_filters_are_made_as_torch_does() -> None:
    x, a, d = (tensor[0].float() for tensor in (IMAGES, COEFFICIENTS, ATOMS))
    with torch.autocast("cpu", torch.bfloat16):
        plain = F.conv2d(x, torch.tensordot(a, d, 1))
        with BatchedKernels():
            found = F.conv2d(x, torch.tensordot(a, d, 1))
    assert found.dtype == plain.dtype == torch.bfloat16
    assert torch.allclose(found, plain, rtol=0.02, atol=0.5)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("name", PLAIN)
def test_other_convolutions_stay(name: str) -> None:
    assert not agree(PLAIN[name], IMAGES, FILTERS, BIAS)


def test_autocast_casts_as_it_does_for_a_convolution() -> None:
    x, weight, bias = (tensor[0].float() for tensor in (IMAGES, FILTERS, BIAS))
    with torch.autocast("cpu", torch.bfloat16):
        plain = F.conv2d(x, weight, bias)
        with BatchedKernels():
            found = F.conv2d(x, weight, bias)
    assert found.dtype == plain.dtype == torch.bfloat16
    assert torch.allclose(found, plain, rtol=0.02, atol=0.1)


def test_operators_keep_what_they_promise_the_tracer() -> None:
    x, filters, bias = random(2, 3, 8, 7, 4), random(2, 16, 3, 3, 4), random(2, 16)
    _, which, *_ = convolve_pool(x, filters, bias, None, None)
    checks = ("test_schema", "test_faketensor")
    for kind, unit in ((torch.float64, None), (torch.float16, torch.tensor([2.0, 0.5]))):
        images, weights, total = x.to(kind), filters.to(kind), bias.to(kind if unit is None else torch.float32)
        torch.library.opcheck(convolve, (images, weights, unit, unit, 1, 2, 2, False), test_utils=checks)
        torch.library.opcheck(convolve_pool, (images, weights, total, unit, unit), test_utils=checks)
        torch.library.opcheck(convolve, (images, weights.transpose(1, 4), unit, unit, 1, 2, 1, True), test_utils=checks)
        slopes, pooled_slopes = random(2, 3, 6, 5, 16).to(kind), random(*which.shape).to(kind)
        torch.library.opcheck(correlate, (images, slopes, None, unit, unit, 3, 3, 1), test_utils=checks)
        torch.library.opcheck(correlate, (images, pooled_slopes, which, unit, unit, 3, 3, 1), test_utils=checks)
    for coefficients in (random(2, 16, 4, 9), random(2, 4, 16, 9).transpose(1, 2)):
        torch.library.opcheck(compose, (coefficients, ATOMS, torch.float16), test_utils=checks)
        torch.library.opcheck(share, (coefficients, ATOMS, random(2, 16, 3, 3, 4)), test_utils=checks)
        of_one = coefficients[0], ATOMS[0], random(16, 3, 3, 4)
        torch.library.opcheck(torch.ops.fedatoms.share_one.default, of_one, test_utils=checks)


def test_operators_for_one_client_are_those_for_all() -> None:
    one, rows, slopes = atom_ops._share_one, random(2, 3, 16, 5, 9), random(2, 3, 16, 3, 3, 5)
    expected = [[one(rows[i, j], ATOMS[i], slopes[i, j]) for j in range(3)] for i in range(2)]
    within = torch.vmap(one, (1, None, 2))
    for found in (
        torch.vmap(torch.vmap(one, (0, None, 0)))(rows, ATOMS, slopes),
        torch.vmap(within)(rows.movedim(1, 2), ATOMS, slopes.movedim(1, 3)),
        torch.vmap(torch.vmap(one), (1, None, 1), 1)(rows, ATOMS, slopes),
    ):
        for i, j in itertools.product(range(2), range(3)):
            assert all(map(torch.allclose, (each[i, j] for each in found), expected[i][j]))


def wide_net() -> nn.Module:
    layers = (nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 2, padding=1), nn.ReLU())
    net = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(3)).double()
    net(clients_of((1,)).x.double())
    return net


def with_compiled_map(sim: Simulation) -> Runtime:
    # on a CPU another map would be chosen
    return prepare(Simulation(sim.model, sim.data))._replace(map_clients=cuda_graph.compiled(2))


def test_predictions_with_products_are_predictions() -> None:
    sim = Simulation(wide_net(), clients_of((9,)))
    graph = rewrite.traced(prepare(sim).network.predict, prepare(sim).network.parameters, sim.data.x)
    assert graph is not None and "fedatoms.convolve.default" not in {str(node.target) for node in graph.graph.nodes}
    other = {name: leaf + 0.1 for name, leaf in prepare(sim).network.parameters.items()}
    assert torch.allclose(graph(other, sim.data.x + 1), prepare(sim).network.predict(other, sim.data.x + 1))


def test_without_a_kernel_for_the_gpu_convolutions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*each: Tensor) -> Tensor:
        raise ImportError("No module named 'triton'")

    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    monkeypatch.setattr(rewrite, "convolution", fail)
    sim = Simulation(wide_net(), clients_of((3, 5)))
    with pytest.warns(UserWarning, match="convolutions go to cuDNN, which is slower: No module named 'triton'"):
        found = play(with_compiled_map(sim), 2)
    assert difference(play(sim, 2).server.params, found.server.params) < 1e-10


@pytest.mark.parametrize(("atoms", "fixed"), [(None, ""), (4, ""), (4, "atoms"), (4, "coefficients")])
def test_a_round_of_products_is_a_round(atoms: int | None, fixed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the compiled map, without the compiler."""
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)
    net, clients = wide_net(), clients_of((3, 5, 4))
    sim = Simulation(net if atoms is None else decompose(net, atoms, init="orthonormal"), clients)
    sim = hold_fixed(sim, [fixed]) if fixed else sim
    called: set[str] = set()
    for name in ("pooled", "composed"):
        real = getattr(rewrite, name)
        monkeypatch.setattr(rewrite, name, lambda *each, name=name, real=real: called.add(name) or real(*each))
    assert difference(play(sim, 2).server.params, play(with_compiled_map(sim), 2).server.params) < 1e-10
    assert called == ({"pooled", "composed"} if atoms else {"pooled"})


def test_a_layer_that_stays_is_vectorised_with_filters_of_atoms(monkeypatch: pytest.MonkeyPatch) -> None:
    """With filters in an order of ours, its result could not be viewed."""
    monkeypatch.setattr(cuda_graph, "compile_graph", lambda graph, example: graph)

    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 16, 3, dilation=2), nn.LazyLinear(3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.head(y.view(len(y), -1))

    clients, net = clients_of((3, 5)), Viewed()
    net(clients.x.float())
    sim = Simulation(decompose(net.double(), 4, init="orthonormal"), clients)
    assert difference(play(sim, 1).server.params, play(with_compiled_map(sim), 1).server.params) < 1e-10


SHAPES = [
    (2, 2, 8, 9, 4, 16, 3),
    (3, 1, 6, 6, 16, 20, 2),
    (1, 2, 9, 8, 7, 64, 5),
    (2, 1, 5, 5, 32, 130, 1),
    (1, 1, 6, 6, 16, 20, 3),  # three long steps of a patch, the last of which is not full
]


@pytest.mark.parametrize(("shape", "kind"), some_now(SHAPES, [torch.float32, torch.float16]), ids=str)
def test_the_kernels_compute_what_the_operators_say(shape: tuple[int, ...], kind: torch.dtype) -> None:
    """By Triton's interpreter: pixels, patches and filters that fill no tile, several tiles of each, unequal sides."""
    pytest.importorskip("triton")
    from fedatoms.engine.gpu import triton_conv

    clients, batch, height, width, channels, filters, kernel = shape
    unit = None if kind == torch.float32 else 2.0 ** torch.arange(-1, clients - 1)
    units = unit, None if unit is None else unit.flip(0) / 4
    x = random(clients, batch, height, width, channels).to(kind)
    weights, bias = random(clients, filters, kernel, kernel, channels).to(kind), random(clients, filters).float()
    x = x.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)  # as a model hands it over outside of vmap
    for (above, left), stride in (((0, 0), 1), ((kernel - 1, kernel // 2), 1), ((0, kernel // 2), 2)):
        y = triton_conv.convolve(x, weights, *units, above, left, stride, False)
        assert torch.allclose(y, convolve(x, weights, *units, above, left, stride, False), atol=2e-3)
        back = weights.transpose(1, 4)
        y = triton_conv.convolve(x, back, *units, above, left, stride, True)
        assert torch.allclose(y, convolve(x, back, *units, above, left, stride, True), atol=2e-3)
    for stride in (1, 2):
        slopes, sizes = convolve(x, weights, *units, 0, 0, stride, False).to(kind), (kernel, kernel)
        found = triton_conv.correlate(x, slopes, None, *units, *sizes, stride)
        expected = correlate(x, slopes, None, *units, *sizes, stride).float()
        assert torch.allclose(found.sum(1), expected.sum(1), rtol=1e-3, atol=2e-3)
    pooled, which, half, new = triton_conv.convolve_pool(x, weights, bias, *units)
    expected, chosen, small, bound = convolve_pool(x, weights, bias, *units)
    assert torch.allclose(pooled, expected, atol=2e-3) and torch.equal(which, chosen) and torch.equal(new, bound)
    assert half.shape == small.shape and torch.allclose(half, small, rtol=2e-3, atol=1e-2)
    found = triton_conv.correlate(x, pooled.to(kind), which, *units, kernel, kernel, 1)
    expected = correlate(x, pooled.to(kind), which, *units, kernel, kernel, 1)
    assert torch.allclose(found.sum(1), expected.sum(1), rtol=1e-3, atol=2e-3)


def test_a_pixel_that_is_no_number_stays_none_in_a_pooled_window() -> None:
    """By Triton's interpreter, whose maximum ignores it."""
    pytest.importorskip("triton")
    from fedatoms.engine.gpu import triton_conv

    x, weights = torch.ones(1, 1, 4, 4, 4), torch.ones(1, 16, 1, 1, 4)
    x[0, 0, 3, 2] = torch.nan
    y, *_ = triton_conv.convolve_pool(x, weights, torch.zeros(1, 16), None, None)
    assert y[0, 0, ..., 0].isnan().tolist() == [[False, False], [False, True]]
    y, *_ = triton_conv.convolve_pool(x.nan_to_num(), weights, torch.full((1, 16), torch.nan), None, None)
    assert y.isnan().all()


@pytest.mark.parametrize(("size", "pool"), some_now([1e-12, 1.0, 1e9], [True, False]))
def test_numbers_in_float16_are_as_exact_as_tf32_of_any_size(
    size: float, pool: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of images, filters and gradients, most of which float16 alone could not hold."""
    monkeypatch.setattr(convolutions, "rounded", in_half)
    padding = (0, 0) if pool else (1, 2)  # so that rounding changes no maximum

    def model(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.conv2d(x, w, padding=padding)
        y = F.max_pool2d(F.relu(y), 2) if pool else y  # the next layer then takes what a kernel has rounded
        return F.conv2d(y, w.repeat(1, 6, 1, 1)[:, :16] * size)

    x, w = size * random(2, 2, 3, 9, 9), random(2, 16, 3, 3, 3) / size
    expected = gradients(model, x, w, BIAS)[:2]
    with BatchedKernels():
        found = make_fx(lambda *each: gradients(model, *each)[:2])(x.float(), w.float(), BIAS.float())
    for one, other in zip(expected, found(x.float(), w.float(), BIAS.float()), strict=True):
        assert other.dtype == torch.float32
        assert float((one - other).norm() / one.norm()) < 2**-10


@pytest.mark.parametrize("pool", [True, False])
def test_what_both_directions_and_several_layers_read_is_rounded_once(
    pool: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []

    def counting(x: Tensor, largest: float | None = None) -> Rounded:
        seen.append(tuple(x.shape))
        return in_half(x, largest)

    monkeypatch.setattr(convolutions, "rounded", counting)

    def model(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        ys = [F.conv2d(x, w, b) for _ in range(2)]  # as a block and its shortcut do
        return sum((F.max_pool2d(F.relu(y), 2) if pool else y for y in ys), torch.zeros(()))

    x, w, bias = random(2, 2, 3, 10, 10).float(), random(2, 16, 3, 3, 3).float(), BIAS.float()
    with BatchedKernels():
        gradients(model, x, w, bias)
    assert seen.count((2, 10, 10, 3)) == 1 and seen.count((16, 3, 3, 3)) == 2  # images; filters of each


@pytest.mark.parametrize("in_float16", [True, False])
def test_what_is_changed_in_place_is_read_anew(in_float16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a ReLU of a convolution's result, which another one has read before."""
    if in_float16:
        monkeypatch.setattr(convolutions, "rounded", in_half)

    def model(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        y = F.conv2d(x, w)
        z = F.conv2d(y, v)
        y.relu_()
        return z * F.conv2d(y, v)

    tensors = random(2, 2, 3, 10, 10).float(), random(2, 16, 3, 3, 3).float(), random(2, 16, 16, 3, 3).float()
    expected = torch.vmap(model)(*tensors)
    with BatchedKernels():
        found = torch.vmap(model)(*tensors)
    assert float((expected - found).norm() / expected.norm()) < (2**-9 if in_float16 else 1e-5)


def test_units_are_the_powers_of_two_above() -> None:
    for power in range(-34, 64):  # of numbers that are not cut
        exact, above = 2.0**power, 2.0**power * (1 + 2**-23)
        found = unit_of(torch.tensor([exact, above, exact / 1.5]))
        assert found.tolist() == [2.0 ** (power - 14), 2.0 ** (power - 13), 2.0 ** (power - 14)]


def test_what_is_not_finite_stays_so_in_float16() -> None:
    for bad in (torch.inf, torch.nan):
        values, unit = in_half(torch.tensor([[1.0, bad]]))
        assert unit is not None and not bool((values * unit).isfinite().all())
        assert bool(unit.isnan()) == (bad != bad)
    largest = in_half(torch.tensor([[1e38]])).unit
    assert largest is not None and bool((largest * largest).isfinite())
    assert in_half(torch.zeros(1, 3)).values.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    "shape",
    [
        (2, 5, 2, 64, 8),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ((2, 16, 3, 9, 5), (3, 20, 7, 25, 3), (1, 64, 40, 6, 5))
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("many", [1 << 14, 1])
def test_the_kernels_compose_as_the_operators_do(
    shape: tuple[int, ...], many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Triton's interpreter: filters, atoms and entries that fill no tile, more tiles of filters than parts."""
    pytest.importorskip("triton")
    from fedatoms.engine.gpu import triton_atoms

    monkeypatch.setattr(triton_atoms, "_MANY", many)
    clients, filters, channels, number, kernel = shape
    coefficients = random(clients, channels, filters, number).float().transpose(1, 2)  # as a model may hand it over
    atoms, slopes = random(clients, number, kernel, kernel).float(), random(clients, filters, kernel, kernel, channels)
    for kind, close in ((torch.float32, 1e-4), (torch.bfloat16, 0.2)):
        found, expected = (make(coefficients, atoms, kind) for make in (triton_atoms.compose, compose))
        assert found.dtype == expected.dtype == kind and torch.allclose(found, expected, atol=close)
        gradients = slopes.to(kind)
        own, sums = triton_atoms.share(coefficients, atoms, gradients, 5)
        wanted = share(coefficients, atoms, gradients)
        assert torch.allclose(own, wanted[0], atol=1e-3) and torch.allclose(sums.sum(1), wanted[1].sum(1), atol=1e-3)


@pytest.mark.parametrize("shape", [(3,), (2, 1025), (5, 7, 300)], ids=str)
def test_the_kernel_of_sums_adds_in_float64_as_torch_does(shape: tuple[int, ...]) -> None:
    pytest.importorskip("triton")
    from fedatoms.engine.gpu.triton_sums import add_weighted

    leaf, total = random(*shape).float(), random(*shape[1:], 1)[..., 0]
    weights = torch.arange(1, 1 + len(leaf), dtype=torch.float64)
    expected = total + torch.tensordot(weights, leaf.double(), dims=1)
    assert torch.allclose(add_weighted(total, weights, leaf), expected, rtol=1e-14, atol=1e-14)
